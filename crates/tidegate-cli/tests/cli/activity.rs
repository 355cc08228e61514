//! Activities as whoever starts the server meets them: settings, the environment, and what survives.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;
use tempfile::TempDir;

use crate::remote::Serving;
use crate::{Files, feed, tidegate};

/// The status and the body of an answer.
fn call(server: &Serving, method: &str, path: &str) -> (u16, Value) {
    let address = server.url().strip_prefix("http://").expect("an address");
    let mut stream = TcpStream::connect(address).expect("it listens");
    let request = format!("{method} {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it hears");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    (head[9..12].parse().expect("a status"), serde_json::from_str(body).expect("JSON"))
}

#[test]
fn the_environment_goes_over_the_settings() {
    let files = Files::new();
    let settings = "activity: {max_concurrent_tasks: 9, window_requests: 9, max_concurrent_per_user: 3}";
    std::fs::write(files.path("tidegate.yaml"), settings).expect("a file");
    let place = TempDir::new().expect("a place");
    let config = files.path("tidegate.yaml").display().to_string();
    let variables = [("MAX_CONCURRENT_TASKS", "2"), ("SLIDE_WINDOW_TIME", "3600")];
    let args = ["--config", &config, "--store", "memory:"];
    let server = Serving::in_environment(place.path(), &args, &variables);
    let limit = call(&server, "GET", "/v1/limits/activity").1;
    assert_eq!(limit["items"][0]["window"], "3600s");
    assert_eq!([0, 1, 2].map(|item| limit["items"][item]["limit"].clone()), [9, 3, 2], "{limit}");
    assert_eq!([0, 1, 2].map(|_| call(&server, "POST", "/v1/activity/ada").0), [201, 201, 503]);
    assert_eq!(call(&server, "DELETE", "/v1/limits/activity").1["code"], "managed_by_file");
}

#[test]
fn what_makes_no_sense_in_the_environment_is_told_with_its_name() {
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

/// A02: what is running survives a restart, also one that nobody was told of.
#[test]
fn tasks_survive_the_server() {
    let place = TempDir::new().expect("a place");
    let server = Serving::at(place.path(), &[]);
    let (status, begun) = call(&server, "POST", "/v1/activity/ada");
    assert_eq!((status, begun["active_id"].as_str().map(str::len)), (201, Some(32)));
    // Killed, not stopped.
    drop(server);
    let server = Serving::at(place.path(), &[]);
    let standing = call(&server, "GET", "/v1/activity/ada").1;
    assert_eq!((&standing["active"], &standing["user_active"]), (&1.into(), &1.into()), "{standing}");
    let id = begun["active_id"].as_str().expect("a name");
    assert_eq!(call(&server, "POST", &format!("/v1/activity/ada/{id}/renew")).0, 200);
    assert_eq!(call(&server, "DELETE", "/v1/activity/ada").1["removed"], 1);
}

#[test]
fn the_section_is_checked_and_simulated() {
    let files = Files::new();
    let settings = files.path("tidegate.yaml");
    std::fs::write(&settings, "activity: {window_requests: 1}\nlimits: []\n").expect("a file");
    let name = settings.display().to_string();
    let told = feed(&mut tidegate(&["check", &name]), "");
    assert_eq!((told.code, told.out.ends_with("ok, 1 limit, 3 items\n")), (Some(0), true), "{}", told.out);
    let day = "{\"at\":0,\"limit_id\":\"activity\",\"limit_key\":\"u\"}\n".repeat(2);
    let told = feed(&mut tidegate(&["simulate", "--limits", &name]), &day);
    let allowed: Vec<bool> = told.out.lines().map(|line| line.contains("\"allowed\":true")).collect();
    assert_eq!(allowed, [true, false], "{}{}", told.out, told.err);
    std::fs::write(&settings, "activity: {compat: true, lease_ttl: 1s}\n").expect("a file");
    let why = feed(&mut tidegate(&["check", &name]), "").failed(2);
    assert!(why.contains("activity.lease_ttl") && why.contains("longer than the window of 15s"), "{why}");
}
