//! What a server logs.

use serde_json::Value;

use super::Serving;

#[test]
fn refusals_are_logged_as_json_with_what_is_to_know() {
    let serving = Serving::with(&["--log", "json"]);
    let limit = r#"{"id": "login", "items": [{"policy": "total", "limit": 0, "per": "key"}]}"#;
    serving.fed(&["limit", "add", "-"], limit).done();
    assert_eq!(serving.run(&["acquire", "login", "a\"da\u{1b}"]).code, Some(3));
    let said = serving.end();
    let lines: Vec<Value> =
        said.lines().map(|line| serde_json::from_str(line).expect("an object per line")).collect();
    let refused: Vec<&Value> = lines.iter().filter(|line| line["message"] == "refused").collect();
    let [refused] = refused[..] else { panic!("one refusal, one line: {said}") };
    assert_eq!((&refused["level"], &refused["door"]), (&"INFO".into(), &"http".into()));
    assert_eq!((&refused["limit"], &refused["item"]), (&"login".into(), &"key/total".into()));
    assert_eq!((&refused["key"], &refused["left_out"]), (&"a\\\"da\\u{1b}".into(), &0.into()));
}

#[test]
fn those_who_want_less_are_told_less() {
    let serving = Serving::with(&["--log-level", "warn"]);
    let limit = r#"{"id": "login", "items": [{"policy": "total", "limit": 0}]}"#;
    serving.fed(&["limit", "add", "-"], limit).done();
    assert_eq!(serving.run(&["acquire", "login"]).code, Some(3));
    assert_eq!(serving.end(), "");
}
