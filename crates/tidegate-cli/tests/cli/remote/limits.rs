use serde_json::Value;

use super::TestServer;
use crate::{Files, example};

const LOGIN: &str =
    "id: login\nitems: [{policy: sliding, limit: 2, window: 24h, per: key}, {policy: total, limit: 1000}]";

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The current version of a limit.
fn version(serving: &TestServer, id: &str) -> String {
    let limit = json(&serving.run(&["limit", "get", id, "--json"]).done());
    limit["version"].as_str().expect("a version").to_owned()
}

#[test]
fn limit_is_added_shown_replaced_and_deleted() {
    let serving = TestServer::start();
    let added = serving.run_with_input(&["limit", "add", "-"], LOGIN).done();
    assert_eq!(added, format!("added login, version {}\n", version(&serving, "login")));

    let listed = serving.run(&["limit", "list"]).done();
    assert_eq!(listed, "ID     MODE     ITEMS\nlogin  enforce  key/sliding-86400s 2, all/total 1000\n");

    let items = ["--item", "policy=sliding,limit=9,window=24h,per=key"];
    let set = serving.run(&[&["limit", "set", "login"], &items[..]].concat()).done();
    assert!(set.starts_with("set login, version 2-"), "{set}");
    assert!(serving.run(&["limit", "list"]).done().ends_with("login  enforce  key/sliding-86400s 9\n"));

    assert_eq!(serving.run(&["limit", "delete", "login"]).done(), "deleted login\n");
    let none = serving.run(&["limit", "list"]);
    assert_eq!((none.code, &*none.out, &*none.err), (Some(0), "", "there are no limits\n"));
    assert_eq!(serving.run(&["limit", "list", "--json"]).done(), "{\"limits\":[]}\n");
}

#[test]
fn settings_file_is_added_limit_by_limit() {
    let serving = TestServer::start();
    let path = example("spring-sale/tidegate.yaml");
    let added = serving.run(&["limit", "add", &path]).done();
    let ids: Vec<_> = added.lines().map(|line| line.split([' ', ',']).nth(1).expect("an id")).collect();
    assert_eq!(ids, ["spring-sale", "checkout", "search"]);

    let listed = serving.run(&["limit", "list", "--prefix", "s"]).done();
    assert_eq!(
        listed,
        "ID           MODE     ITEMS\n\
         search       shadow   key/bucket-1s 2 burst 3\n\
         spring-sale  enforce  all/total 6, key/total 2, key/day 1\n"
    );

    serving.run(&["limit", "delete", "checkout"]).done();
    let again = serving.run(&["limit", "add", &path]);
    assert_eq!((again.code, again.out.lines().count()), (Some(1), 1), "{}", again.err);
    assert!(again.out.starts_with("added checkout, version "), "{}", again.out);
    let lines: Vec<_> = again.err.lines().collect();
    assert!(lines[0].starts_with("spring-sale: ") && lines[0].contains("'tidegate limit set'"), "{lines:?}");
    assert!(lines[1].starts_with("search: "), "{lines:?}");
    assert_eq!(lines[2..], ["1 of 3 limits were added"]);

    assert_eq!(serving.run(&["limit", "set", &path]).done().lines().count(), 3);
}

#[test]
fn invalid_file_is_refused_before_sending() {
    let serving = TestServer::start();
    let files = Files::new();
    let path = files.write("limit.yaml", "id: a\nitems: [{policy: dya, limit: 1.5}]\n");
    let invalid = serving.run(&["limit", "add", &path]).failed(2);
    for part in [":2:18: items[0].policy", ":2:30: items[0].limit", "did you mean 'day'?", "2 errors in"] {
        assert!(invalid.contains(part), "{part} in {invalid}");
    }
    let missing = serving.run(&["limit", "add", "nowhere.yaml"]).failed(2);
    assert!(missing.starts_with("cannot read nowhere.yaml: ") && missing.contains("--item"), "{missing}");
    assert_eq!(serving.run_with_input(&["limit", "add", "-"], "").failed(2), "stdin contains no limits\n");
    assert_eq!(serving.run(&["limit", "list", "--json"]).done(), "{\"limits\":[]}\n");
}

#[test]
fn unknown_limit_is_bad_input() {
    let serving = TestServer::start();
    let items = ["--item", "policy=day,limit=1"];
    for args in [
        &["limit", "get", "shop/a b"][..],
        &["limit", "delete", "shop/a b"],
        &["limit", "reset", "shop/a b"],
        &[&["limit", "set", "shop/a"], &items[..]].concat(),
        &["acquire", "shop/a b"],
        &["peek", "shop/a b"],
    ] {
        let output = serving.run(args).failed(2);
        assert!(output.contains("shop/a") && output.contains("'tidegate limit list'"), "{args:?}: {output}");
    }
}

#[test]
fn stale_version_is_refused() {
    let serving = TestServer::with_limits(LOGIN);
    let first = version(&serving, "login");
    let set = |version: &str| {
        let args = ["limit", "set", "login", "--item", "policy=day,limit=7", "--if-version", version];
        serving.run(&args)
    };
    set(&first).done();
    let stale = set(&first).failed(1);
    assert!(stale.contains("'tidegate limit get'"), "{stale}");
    assert!(stale.contains(&version(&serving, "login")), "{stale}");
    let stale = serving.run(&["limit", "delete", "login", "--if-version", &first]).failed(1);
    assert!(stale.contains("'tidegate limit get'"), "{stale}");
    let quoted = format!("\"{}\"", version(&serving, "login"));
    serving.run(&["limit", "delete", "login", "--if-version", &quoted]).done();

    let path = example("spring-sale/tidegate.yaml");
    let output = serving.run(&["limit", "set", &path, "--if-version", "1-a"]).failed(2);
    assert!(output.contains("for one limit, and there are 3"), "{output}");
}

#[test]
fn limit_is_shown_with_usage() {
    let serving = TestServer::with_limits(LOGIN);
    serving.run(&["acquire", "login", "ada"]).done();
    serving.run(&["acquire", "login", "bob"]).done();

    let shown = serving.run(&["limit", "get", "login"]).done();
    let lines: Vec<_> = shown.lines().collect();
    assert_eq!(lines[0], format!("login  enforce  version {}", version(&serving, "login")));
    assert_eq!(lines[2], "ITEM                LIMIT  USED  LAST CHARGED");
    assert_eq!(lines[3], "key/sliding-86400s      2     -");
    assert!(lines[4].starts_with("all/total            1000     2  2"), "{shown}");

    let shown = serving.run(&["limit", "get", "login", "--key", "ada"]).done();
    assert!(shown.contains("\nkey/sliding-86400s      2     1  2"), "{shown}");

    let shown = json(&serving.run(&["limit", "get", "login", "--key", "ada", "--json"]).done());
    assert_eq!(shown["limit"]["items"][0]["policy"], "sliding");
    assert_eq!(shown["usage"]["policy_status"][0]["current_count"], 2);
    assert_eq!(shown["limit_key"], "ada");
    assert_eq!(shown["key_usage"]["policy_status"][0]["current_count"], 1);
}

#[test]
fn schedule_and_overrides_are_shown() {
    let serving = TestServer::start();
    serving.run(&["limit", "add", &example("spring-sale/tidegate.yaml")]).done();
    let shown = serving.run(&["limit", "get", "spring-sale"]).done();
    for line in [
        "one red envelope a day, two in all, while they last",
        "time zone Asia/Shanghai",
        "from 2026-02-16T12:00:00Z",
        "until 2026-02-17T16:00:00Z",
        "OVERRIDE FOR  ITEM     LIMIT  UNTIL",
        "vip-7         key/day      2  2026-02-16T16:00:00Z",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line} in {shown}");
    }
}

#[test]
fn json_output_is_valid_input() {
    let serving = TestServer::start();
    serving.run(&["limit", "add", &example("spring-sale/tidegate.yaml")]).done();
    let listed = serving.run(&["limit", "list", "--json"]).done();
    let before = version(&serving, "spring-sale");
    let all = json(&listed);
    let again = serde_json::json!({"limits": all["limits"]}).to_string();
    serving.run_with_input(&["limit", "set", "-"], &again).done();
    assert_eq!(serving.run(&["limit", "list", "--json"]).done(), listed);
    assert_eq!(version(&serving, "spring-sale"), before, "nothing has changed");
}

#[test]
fn reset_applies_to_one_key_or_all() {
    let serving = TestServer::with_limits(
        "id: once\nitems: [{policy: total, limit: 1, per: key}, {policy: total, limit: 2}]",
    );
    let refused = |key: &str| serving.run(&["peek", "once", key]).code == Some(3);
    serving.run(&["acquire", "once", "ada/1 &=%"]).done();
    serving.run(&["acquire", "once", "bob"]).done();
    assert!(refused("ada/1 &=%") && refused("eve"));

    let reset = serving.run(&["limit", "reset", "once", "--key", "ada/1 &=%"]).done();
    assert_eq!(reset, "reset once for ada/1 &=%\n");
    let of_key = serving.run(&["limit", "get", "once", "--key", "ada/1 &=%"]).done();
    assert!(of_key.contains("key/total      1     0"), "{of_key}");
    assert!(refused("eve"), "what all share is as it was");

    assert_eq!(serving.run(&["limit", "reset", "once"]).done(), "reset once\n");
    assert!(!refused("eve") && !refused("bob"));
}

#[test]
fn list_reads_all_pages() {
    let serving = TestServer::start();
    let one = |number: usize| format!("  - {{id: 'many/{number:04}', items: [{{policy: day, limit: 1}}]}}\n");
    let file: String = std::iter::once("limits:\n".to_owned()).chain((0..1200).map(one)).collect();
    assert_eq!(serving.run_with_input(&["limit", "add", "-"], &file).done().lines().count(), 1200);
    let listed = serving.run(&["limit", "list", "--prefix", "many/"]).done();
    let ids: Vec<_> = listed.lines().skip(1).map(|line| line.split(' ').next().expect("an id")).collect();
    let meant: Vec<_> = (0..1200).map(|number| format!("many/{number:04}")).collect();
    assert_eq!(ids, meant);
    let listed = json(&serving.run(&["limit", "list", "--json"]).done());
    assert_eq!(listed["limits"].as_array().map(Vec::len), Some(1200));
}
