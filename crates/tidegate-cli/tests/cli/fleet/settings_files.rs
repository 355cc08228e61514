//! Servers with different settings files, or none, on one database.

use tidegate_testkit::postgres_cluster::{new_schema, shared_url};

use super::HttpConnection;
use crate::Files;
use crate::remote::TestServer;

const FILE: &str =
    "activity: {max_concurrent_tasks: 7}\nlimits: [{id: f1, items: [{policy: total, limit: 5}]}]\n";

/// The limit ids that a server lists.
#[track_caller]
fn limit_ids(server: &TestServer) -> Vec<String> {
    let output = HttpConnection::to(server).get("/v1/limits").is(200);
    let limits = output["limits"].as_array().expect("a list");
    limits.iter().map(|limit| limit["id"].as_str().expect("a text").to_owned()).collect()
}

/// The task limit that a server reports.
#[track_caller]
fn task_limit(server: &TestServer) -> serde_json::Value {
    HttpConnection::to(server).get("/v1/limits/activity").is(200)["items"][2]["limit"].clone()
}

#[test]
fn only_a_server_with_a_file_retires_limits() {
    let (files, store) = (Files::new(), format!("{}?schema={}", shared_url(), new_schema()));
    let (file, other) = (files.write("a.yaml", FILE), files.write("b.yaml", "limits: []\n"));
    let first = TestServer::with_args(&["--config", &file, "--store", &store]);
    assert!(!first.startup_output().contains("were retired"), "{}", first.startup_output());
    let bare = TestServer::with_args(&["--store", &store]);
    for server in [&first, &bare] {
        assert_eq!(limit_ids(server), ["activity", "f1"]);
        let output = HttpConnection::to(server).post("/v1/acquire", r#"{"limit_id": "f1"}"#).is(200);
        assert_eq!(output["allowed"], true);
    }
    // Requests do not change that.
    assert_eq!(HttpConnection::to(&bare).get("/v1/activity/ada").status, 200);
    assert_eq!(HttpConnection::to(&bare).post("/v1/activity/ada", "").status, 201);
    assert_eq!(task_limit(&bare), 7);
    assert_eq!(HttpConnection::to(&bare).delete("/v1/limits/f1").problem(), (409, "managed_by_file"));
    let third = TestServer::with_args(&["--config", &other, "--store", &store]);
    assert!(limit_ids(&third).is_empty());
    // Log lines are written asynchronously.
    let stderr_text = third.startup_output().to_owned() + &third.end();
    assert!(
        stderr_text.contains("WARN")
            && stderr_text.contains("were retired")
            && stderr_text.contains("activity, f1"),
        "{stderr_text}"
    );
}

#[test]
fn environment_of_one_server_applies_to_the_fleet() {
    let store = format!("{}?schema={}", shared_url(), new_schema());
    let directory = tempfile::TempDir::new().expect("a temporary directory");
    let args = ["--store", &*store];
    let limited = TestServer::with_environment(directory.path(), &args, &[("MAX_CONCURRENT_TASKS", "2")]);
    assert_eq!(task_limit(&limited), 2, "before any request");
    let silent = TestServer::with_args(&args);
    assert_eq!(HttpConnection::to(&silent).post("/v1/activity/ada", "").status, 201);
    assert_eq!(task_limit(&silent), 2);
    // Edits apply where no variable overrides them.
    let fifty = r#"{"items": [{"policy": "sliding", "window": "15s", "limit": 5, "per": "key"},
        {"policy": "concurrency", "ttl": "5m", "limit": -1, "per": "key"}, {"policy": "concurrency", "ttl": "5m", "limit": 50}]}"#;
    assert_eq!(HttpConnection::to(&silent).send("PUT /v1/limits/activity", fifty).status, 200);
    drop(silent);
    let again = TestServer::with_args(&args);
    assert_eq!(HttpConnection::to(&again).post("/v1/activity/ada", "").status, 201);
    assert_eq!(task_limit(&again), 50);
}
