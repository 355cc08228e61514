//! Activity limits of a running server: settings, environment variables, and restarts.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;
use tempfile::TempDir;

use crate::remote::TestServer;
use crate::{Files, feed, tidegate};

/// Sends a request. Returns status and body.
fn call(server: &TestServer, method: &str, path: &str) -> (u16, Value) {
    let address = server.url().strip_prefix("http://").expect("an address");
    let mut stream = TcpStream::connect(address).expect("it listens");
    let request = format!("{method} {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it receives");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    (head[9..12].parse().expect("a status"), serde_json::from_str(body).expect("JSON"))
}

#[test]
fn environment_overrides_settings() {
    let files = Files::new();
    let settings = "activity: {max_concurrent_tasks: 9, window_requests: 9, max_concurrent_per_user: 3}";
    std::fs::write(files.path("tidegate.yaml"), settings).expect("a file");
    let directory = TempDir::new().expect("a temporary directory");
    let config = files.path("tidegate.yaml").display().to_string();
    let variables = [("MAX_CONCURRENT_TASKS", "2"), ("SLIDE_WINDOW_TIME", "3600")];
    let args = ["--config", &config, "--store", "memory:"];
    let server = TestServer::with_environment(directory.path(), &args, &variables);
    let limit = call(&server, "GET", "/v1/limits/activity").1;
    assert_eq!(limit["items"][0]["window"], "3600s");
    assert_eq!([0, 1, 2].map(|item| limit["items"][item]["limit"].clone()), [9, 3, 2], "{limit}");
    assert_eq!([0, 1, 2].map(|_| call(&server, "POST", "/v1/activity/ada").0), [201, 201, 503]);
    assert_eq!(call(&server, "DELETE", "/v1/limits/activity").1["code"], "managed_by_file");
}

#[test]
fn invalid_variable_is_refused_by_name() {
    let nowhere = Files::new();
    let refused = |variables: &[(&str, &str)]| {
        let mut command =
            tidegate(&["serve", "--store", "memory:", "--http", "127.0.0.1:0", "--resp", "off"]);
        feed(command.current_dir(nowhere.path("")).envs(variables.iter().copied()), "").failed(2)
    };
    let why = refused(&[("SLIDE_WINDOW_TIME", "1.5"), ("MAX_CONCURRENT_TASKS", "-7")]);
    assert!(why.contains("SLIDE_WINDOW_TIME") && why.contains("whole seconds such as 15"), "{why}");
    assert!(why.contains("MAX_CONCURRENT_TASKS") && why.contains("-1 (count, never refuse)"), "{why}");
    let why = refused(&[("SLIDE_WINDOW_QUESTION_COUNT", "five")]);
    assert!(why.contains("SLIDE_WINDOW_QUESTION_COUNT") && why.contains("whole number"), "{why}");
    let why = refused(&[("SLIDE_WINDOW_TIME", "99999999d")]);
    assert!(why.contains("activity.window") && why.contains("36525d"), "{why}");
}

/// Running tasks survive a restart, also after a kill.
#[test]
fn tasks_survive_a_kill() {
    let directory = TempDir::new().expect("a temporary directory");
    let server = TestServer::at(directory.path(), &[]);
    let (status, begun) = call(&server, "POST", "/v1/activity/ada");
    assert_eq!((status, begun["active_id"].as_str().map(str::len)), (201, Some(32)));
    // A kill leaves no time to write anything.
    drop(server);
    let server = TestServer::at(directory.path(), &[]);
    let standing = call(&server, "GET", "/v1/activity/ada").1;
    assert_eq!((&standing["active"], &standing["user_active"]), (&1.into(), &1.into()), "{standing}");
    let id = begun["active_id"].as_str().expect("a name");
    assert_eq!(call(&server, "POST", &format!("/v1/activity/ada/{id}/renew")).0, 200);
    assert_eq!(call(&server, "DELETE", "/v1/activity/ada").1["removed"], 1);
}

#[test]
fn activity_section_is_checked_and_simulated() {
    let files = Files::new();
    let settings = files.path("tidegate.yaml");
    std::fs::write(&settings, "activity: {window_requests: 1}\nlimits: []\n").expect("a file");
    let name = settings.display().to_string();
    let output = feed(&mut tidegate(&["check", &name]), "");
    assert_eq!(
        (output.code, output.out.ends_with("ok, 1 limit, 3 items\n")),
        (Some(0), true),
        "{}",
        output.out
    );
    let day = "{\"at\":0,\"limit_id\":\"activity\",\"limit_key\":\"u\"}\n".repeat(2);
    let output = feed(&mut tidegate(&["simulate", "--limits", &name]), &day);
    let allowed: Vec<bool> = output.out.lines().map(|line| line.contains("\"allowed\":true")).collect();
    assert_eq!(allowed, [true, false], "{}{}", output.out, output.err);
    std::fs::write(&settings, "activity: {compat: true, lease_ttl: 1s}\n").expect("a file");
    let why = feed(&mut tidegate(&["check", &name]), "").failed(2);
    assert!(why.contains("activity.lease_ttl") && why.contains("longer than the window of 15s"), "{why}");
}
