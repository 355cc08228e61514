//! The log of a server.

use serde_json::Value;

use super::TestServer;

#[test]
fn refusal_is_logged_as_json() {
    let serving = TestServer::with_args(&["--log", "json"]);
    let limit = r#"{"id": "login", "items": [{"policy": "total", "limit": 0, "per": "key"}]}"#;
    serving.run_with_input(&["limit", "add", "-"], limit).done();
    assert_eq!(serving.run(&["acquire", "login", "a\"da\u{1b}"]).code, Some(3));
    let stderr_text = serving.end();
    let lines: Vec<Value> =
        stderr_text.lines().map(|line| serde_json::from_str(line).expect("an object per line")).collect();
    let refused: Vec<&Value> = lines.iter().filter(|line| line["message"] == "refused").collect();
    let [refused] = refused[..] else { panic!("one refusal, one line: {stderr_text}") };
    assert_eq!((&refused["level"], &refused["door"]), (&"INFO".into(), &"http".into()));
    assert_eq!((&refused["limit"], &refused["item"]), (&"login".into(), &"key/total".into()));
    assert_eq!((&refused["key"], &refused["left_out"]), (&"a\\\"da\\u{1b}".into(), &0.into()));
}

#[test]
fn log_level_filters_events() {
    let serving = TestServer::with_args(&["--log-level", "warn"]);
    let limit = r#"{"id": "login", "items": [{"policy": "total", "limit": 0}]}"#;
    serving.run_with_input(&["limit", "add", "-"], limit).done();
    assert_eq!(serving.run(&["acquire", "login"]).code, Some(3));
    assert_eq!(serving.end(), "");
}
