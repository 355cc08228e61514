//! Servers of a fleet with different files, and without any: who takes what from whom.

use tidegate_testkit::postgres_cluster::{new_schema, shared_url};

use super::Wire;
use crate::Files;
use crate::remote::Serving;

const FILE: &str =
    "activity: {max_concurrent_tasks: 7}\nlimits: [{id: f1, items: [{policy: total, limit: 5}]}]\n";

/// The ids of the limits that a server knows.
#[track_caller]
fn known(server: &Serving) -> Vec<String> {
    let told = Wire::to(server).get("/v1/limits").is(200);
    let limits = told["limits"].as_array().expect("a list");
    limits.iter().map(|limit| limit["id"].as_str().expect("a text").to_owned()).collect()
}

/// How many tasks may run at once, as a server says.
#[track_caller]
fn tasks(server: &Serving) -> serde_json::Value {
    Wire::to(server).get("/v1/limits/activity").is(200)["items"][2]["limit"].clone()
}

#[test]
fn who_has_no_file_takes_nothing_and_who_takes_something_says_so() {
    let (files, store) = (Files::new(), format!("{}?schema={}", shared_url(), new_schema()));
    let (file, other) = (files.write("a.yaml", FILE), files.write("b.yaml", "limits: []\n"));
    let first = Serving::with(&["--config", &file, "--store", &store]);
    assert!(!first.said().contains("were retired"), "{}", first.said());
    let bare = Serving::with(&["--store", &store]);
    for server in [&first, &bare] {
        assert_eq!(known(server), ["activity", "f1"]);
        let told = Wire::to(server).post("/v1/acquire", r#"{"limit_id": "f1"}"#).is(200);
        assert_eq!(told["allowed"], true);
    }
    // Asking and beginning change nothing about it.
    assert_eq!(Wire::to(&bare).get("/v1/activity/ada").status, 200);
    assert_eq!(Wire::to(&bare).post("/v1/activity/ada", "").status, 201);
    assert_eq!(tasks(&bare), 7);
    assert_eq!(Wire::to(&bare).delete("/v1/limits/f1").problem(), (409, "managed_by_file"));
    let third = Serving::with(&["--config", &other, "--store", &store]);
    assert!(known(&third).is_empty());
    // Lines of the log are written by somebody who takes their time.
    let said = third.said().to_owned() + &third.end();
    assert!(
        said.contains("WARN") && said.contains("were retired") && said.contains("activity, f1"),
        "{said}"
    );
}

#[test]
fn the_environment_of_one_server_holds_at_those_without() {
    let store = format!("{}?schema={}", shared_url(), new_schema());
    let place = tempfile::TempDir::new().expect("a place");
    let args = ["--store", &*store];
    let said = Serving::in_environment(place.path(), &args, &[("MAX_CONCURRENT_TASKS", "2")]);
    assert_eq!(tasks(&said), 2, "before anybody asks");
    let silent = Serving::with(&args);
    assert_eq!(Wire::to(&silent).post("/v1/activity/ada", "").status, 201);
    assert_eq!(tasks(&silent), 2);
    // What is edited stays where nobody says otherwise.
    let fifty = r#"{"items": [{"policy": "sliding", "window": "15s", "limit": 5, "per": "key"},
        {"policy": "concurrency", "ttl": "5m", "limit": -1, "per": "key"}, {"policy": "concurrency", "ttl": "5m", "limit": 50}]}"#;
    assert_eq!(Wire::to(&silent).ask("PUT /v1/limits/activity", fifty).status, 200);
    drop(silent);
    let again = Serving::with(&args);
    assert_eq!(Wire::to(&again).post("/v1/activity/ada", "").status, 201);
    assert_eq!(tasks(&again), 50);
}
