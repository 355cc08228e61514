use serde_json::Value;

use super::TestServer;

const LIMITS: &str = "limits:
  - {id: login, items: [{policy: sliding, limit: 2, window: 24h, per: key}, {policy: total, limit: 1000}]}
  - {id: 'shop/all:1', items: [{policy: total, limit: 3}]}
  - {id: closed, items: [{policy: total, limit: 0}]}
  - {id: workers, items: [{policy: concurrency, limit: 1, ttl: 10m}]}
";

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn grant_and_refusal_are_one_line() {
    let serving = TestServer::with_limits(LIMITS);
    let first = serving.run(&["acquire", "login", "ada"]).done();
    assert_eq!(first, "allowed: login key/sliding-86400s has 1 of 2 left\n");
    assert_eq!(serving.run(&["acquire", "login", "ada", "--count", "1"]).code, Some(0));

    let refused = serving.run(&["acquire", "login", "ada"]);
    assert_eq!((refused.code, &*refused.err), (Some(3), ""));
    let expected = "refused by login key/sliding-86400s, 2 of 2 used: retry in 23h 59m ";
    assert!(refused.out.starts_with(expected) || refused.out.contains("retry in 1d"), "{}", refused.out);

    let never = serving.run(&["acquire", "closed"]);
    assert_eq!(
        (never.code, &*never.out),
        (Some(3), "refused by closed all/total, 0 of 0 used: waiting does not help\n")
    );
}

#[test]
fn peek_charges_nothing() {
    let serving = TestServer::with_limits(LIMITS);
    for _ in 0..3 {
        let peeked = serving.run(&["peek", "login", "ada", "--count", "2"]).done();
        assert_eq!(peeked, "would be allowed: login key/sliding-86400s has 2 of 2 left\n");
    }
    let peeked = serving.run(&["peek", "closed"]);
    assert_eq!(peeked.code, Some(3));
    assert!(peeked.out.starts_with("would be refused by closed all/total"), "{}", peeked.out);
}

#[test]
fn json_output_is_the_server_reply() {
    let serving = TestServer::with_limits(LIMITS);
    let text = serving.run(&["acquire", "shop/all:1", "--json"]).done();
    assert_eq!(
        text,
        "{\"allowed\":true,\"lease\":null,\"binding\":null,\"wait\":null,\"retry_after_ms\":null,\"degraded\":false,\
         \"readings\":[{\"limit_id\":\"shop/all:1\",\"item\":\"all/total\",\"limit\":3,\"used\":1,\"remaining\":2,\
         \"resets_at\":null}]}\n"
    );
    let refused = serving.run(&["acquire", "closed", "--json"]);
    assert_eq!((refused.code, &*refused.err), (Some(3), ""));
    assert_eq!(json(&refused.out)["wait"], "never");
}

#[test]
fn set_is_granted_all_or_nothing() {
    let serving = TestServer::with_limits(LIMITS);
    let ask = |asks: &[&str]| {
        let asks = asks.iter().flat_map(|ask| ["--ask", ask]);
        serving.run(&["acquire", "--json"].into_iter().chain(asks).collect::<Vec<_>>())
    };
    let granted = json(&ask(&["limit=shop/all:1,count=2", "limit=login,key=a,b=c"]).done());
    assert_eq!(granted["readings"][0]["remaining"], 1);
    assert_eq!(granted["readings"][1]["used"], 1);

    let refused = ask(&["limit=login,key=a,b=c", "{\"limit_id\":\"shop/all:1\",\"count\":2}"]);
    assert_eq!(refused.code, Some(3));
    assert_eq!(json(&refused.out)["binding"]["limit_id"], "shop/all:1");
    let left = serving.run(&["limit", "get", "login", "--key", "a,b=c"]).done();
    assert!(left.contains("key/sliding-86400s      2     1  "), "{left}");
}

#[test]
fn request_id_is_charged_once() {
    let serving = TestServer::with_limits(LIMITS);
    let ask = |count: &str| serving.run(&["acquire", "shop/all:1", "--count", count, "--request-id", "r1"]);
    let first = ask("2").done();
    assert_eq!(first, "allowed: shop/all:1 all/total has 1 of 3 left\n");
    ask("2").done();
    assert_eq!(serving.run(&["peek", "shop/all:1"]).done(), format!("would be {first}"));
    let reused = ask("1").failed(2);
    assert!(reused.contains("choose another --request-id"), "{reused}");
}

#[test]
fn waiting_request_is_granted_after_release() {
    let serving = TestServer::with_limits(LIMITS);
    let held = json(&serving.run(&["acquire", "workers", "--json"]).done());
    let lease = held["lease"]["id"].as_str().expect("a lease");
    let refused = serving.run(&["acquire", "workers", "--wait", "1ms"]);
    let expected = "refused by workers all/concurrency, 1 of 1 used: retry after a release\n";
    assert_eq!((refused.code, &*refused.out), (Some(3), expected));

    std::thread::scope(|scope| {
        let waiting =
            scope.spawn(|| serving.run(&["acquire", "workers", "--wait", "60s", "--timeout", "60s"]));
        serving.run(&["release", lease]).done();
        let granted = waiting.join().expect("it ends").done();
        assert!(granted.starts_with("allowed: workers all/concurrency has 0 of 1 left\nlease "), "{granted}");
    });
}

#[test]
fn invalid_ask_is_bad_input() {
    let serving = TestServer::with_limits(LIMITS);
    let without_key = serving.run(&["acquire", "login"]).failed(2);
    assert!(without_key.contains("limit_key"), "{without_key}");
    for args in [
        &["acquire"][..],
        &["acquire", "login", "--ask", "limit=login"],
        &["acquire", "--count", "1", "--ask", "limit=login"],
        &["acquire", "login", "ada", "--count", "-1"],
        &["acquire", "login", "ada", "--wait", "61s"],
        &["acquire", "login", "ada", "--ttl", "0s"],
        &["acquire", "login", "ada", "--token", "tg_1"],
        &["peek", "login", "ada", "--wait", "1s"],
    ] {
        serving.run(args).failed(2);
    }
}
