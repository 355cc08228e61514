//! Servers that are killed or stopped and started again: nothing has to be configured twice.

use serde_json::Value;

use super::{json, used};
use crate::Files;
use crate::remote::TestServer;

/// The log of a start about the previous run.
fn recovery_log(serving: TestServer) -> String {
    let before = serving.startup_output().to_owned();
    before + &serving.end()
}

#[test]
fn decisions_survive_a_kill() {
    let files = Files::new();
    let serving = TestServer::at(&files.path(""), &[]);
    serving.run(&["limit", "add", "sale", "--item", "policy=total,limit=100"]).done();
    serving.run(&["limit", "set", "sale", "--item", "policy=total,limit=200"]).done();
    serving.run(&["acquire", "sale", "ada", "--count", "7"]).done();
    serving.run(&["acquire", "sale", "ada", "--request-id", "order-1"]).done();
    let version = json(&serving.run(&["limit", "get", "sale", "--json"]).done())["version"].clone();
    serving.kill();

    let serving = TestServer::at(&files.path(""), &[]);
    let shown = json(&serving.run(&["limit", "get", "sale", "--json"]).done());
    assert_eq!((&shown["version"], &shown["limit"]["items"][0]["limit"]), (&version, &200.into()));
    assert_eq!(used(&serving, "sale"), 8);
    serving.run(&["acquire", "sale", "ada", "--request-id", "order-1"]).done();
    assert_eq!(used(&serving, "sale"), 8, "it was asked again, and is charged once");
    serving.run(&["acquire", "sale", "ada", "--request-id", "order-2"]).done();
    assert_eq!(used(&serving, "sale"), 9);
    assert!(recovery_log(serving).contains("the store was not stopped cleanly; recovered"));
}

#[test]
fn leases_and_fences_survive_a_kill() {
    let files = Files::new();
    let lease = |serving: &TestServer| {
        let granted: Value = json(&serving.run(&["acquire", "pool", "worker", "--json"]).done());
        let text = granted["lease"]["id"].as_str().expect("a lease").to_owned();
        (text, granted["lease"]["fence"].as_u64().expect("a fence"))
    };
    let serving = TestServer::at(&files.path(""), &[]);
    serving.run(&["limit", "add", "pool", "--item", "policy=concurrency,limit=2,ttl=1h"]).done();
    let ((kept, first), (returned, second)) = (lease(&serving), lease(&serving));
    serving.run(&["release", &returned]).done();
    serving.kill();

    let serving = TestServer::at(&files.path(""), &[]);
    let (_, third) = lease(&serving);
    assert!(first < second && second < third, "{first} {second} {third}");
    assert_eq!(serving.run(&["acquire", "pool", "worker"]).code, Some(3), "two are held");
    serving.run(&["renew", &kept, "--ttl", "2h"]).done();
    serving.run(&["release", &kept]).done();
    assert_ne!(serving.run(&["release", &returned]).code, Some(0), "it was given back before");
    serving.run(&["acquire", "pool", "worker"]).done();
}

#[test]
fn override_survives_a_kill() {
    let files = Files::new();
    let limit = r#"{"id": "login", "items": [{"policy": "day", "limit": 5, "per": "key"}],
        "overrides": [{"key": "vip", "item": "key/day", "limit": 1}]}"#;
    let serving = TestServer::at(&files.path(""), &[]);
    serving.run_with_input(&["limit", "add", "-"], limit).done();
    serving.run(&["acquire", "login", "vip"]).done();
    serving.run(&["acquire", "login", "ada", "--count", "4"]).done();
    serving.kill();

    let serving = TestServer::at(&files.path(""), &[]);
    assert_eq!(serving.run(&["acquire", "login", "vip"]).code, Some(3), "one was all");
    serving.run(&["acquire", "login", "ada"]).done();
    assert_eq!(serving.run(&["acquire", "login", "ada"]).code, Some(3), "five were all");
    serving.run(&["acquire", "login", "eve", "--count", "5"]).done();
}

#[test]
fn clean_stop_loses_nothing() {
    let files = Files::new();
    let serving = TestServer::at(&files.path(""), &[]);
    let items = ["--item", "policy=total,limit=100000", "--item", "policy=day,limit=100000,per=key"];
    serving.run(&[&["limit", "add", "sale"], &items[..]].concat()).done();
    serving.run(&["acquire", "sale", "ada", "--count", "5"]).done();
    assert!(recovery_log(serving).contains("a new store"));

    let serving = TestServer::at(&files.path(""), &[]);
    assert_eq!(used(&serving, "sale"), 5);
    let stranger = serving.run(&["peek", "sale", "eve"]).done();
    assert!(stranger.contains("100000 of 100000") || stranger.contains("99995"), "{stranger}");
    assert!(recovery_log(serving).contains("the store was stopped cleanly"));
}

#[test]
fn restored_limit_keeps_its_counts() {
    let files = Files::new();
    let both =
        "limits: [{id: a, items: [{policy: total, limit: 9}]}, {id: b, items: [{policy: total, limit: 9}]}]";
    let one = "limits: [{id: a, items: [{policy: total, limit: 9}]}]";
    let config = files.write("tidegate.yaml", both);
    let start = || TestServer::at(&files.path(""), &["--config", &config]);
    let serving = start();
    serving.run(&["acquire", "a", "--count", "2"]).done();
    serving.run(&["acquire", "b", "--count", "3"]).done();
    serving.end();

    files.write("tidegate.yaml", one);
    let serving = start();
    assert_eq!(used(&serving, "a"), 2);
    assert!(serving.run(&["acquire", "b"]).failed(2).contains("unknown limit 'b'"));
    serving.kill();

    let serving = start();
    assert!(serving.run(&["acquire", "b"]).failed(2).contains("unknown limit 'b'"), "still");
    serving.kill();

    files.write("tidegate.yaml", both);
    let serving = start();
    assert_eq!((used(&serving, "a"), used(&serving, "b")), (2, 3));
}

#[test]
fn limit_from_file_stays_managed_by_file() {
    let files = Files::new();
    let config = files.write("tidegate.yaml", "limits: [{id: a, items: [{policy: total, limit: 9}]}]");
    let start = || TestServer::at(&files.path(""), &["--config", &config]);
    let is_the_files = |serving: &TestServer| {
        let output = serving.run(&["limit", "delete", "a"]).failed(1);
        assert!(output.contains("'a' is managed by a settings file; change it there"), "{output}");
    };
    let serving = start();
    serving.run(&["limit", "add", "mine", "--item", "policy=total,limit=9"]).done();
    is_the_files(&serving);
    serving.kill();
    let serving = start();
    is_the_files(&serving);
    serving.end();
    let serving = start();
    is_the_files(&serving);
    serving.run(&["acquire", "mine"]).done();
    serving.run(&["limit", "delete", "mine"]).done();
    // A start without a file changes nothing. A start with a file that lacks the limit retires it, and logs that.
    serving.end();
    let serving = TestServer::at(&files.path(""), &[]);
    serving.run(&["acquire", "a"]).done();
    is_the_files(&serving);
    serving.end();
    files.write("tidegate.yaml", "limits: []");
    let serving = start();
    assert!(serving.run(&["acquire", "a"]).failed(2).contains("unknown limit 'a'"));
    let log = recovery_log(serving);
    assert!(log.contains("were retired"), "{log}");
}

#[test]
fn memory_store_keeps_nothing() {
    let files = Files::new();
    let serving = TestServer::at(&files.path(""), &["--store", "memory:"]);
    serving.run(&["limit", "add", "sale", "--item", "policy=total,limit=9"]).done();
    assert!(serving.startup_output().contains(" store=memory\n"), "{}", serving.startup_output());
    serving.end();
    assert_eq!(super::contents(&files.path("")).len(), 0);
}

#[test]
fn settings_file_names_the_store() {
    let files = Files::new();
    let config = files.write("tidegate.yaml", "store: {url: 'disk:kept'}\n");
    let serving = TestServer::at(&files.path(""), &["--config", &config]);
    assert!(serving.startup_output().contains(" store=disk\n"), "{}", serving.startup_output());
    serving.end();
    assert!(files.path("kept/identity").exists() && !files.path("tidegate-data").exists());
}
