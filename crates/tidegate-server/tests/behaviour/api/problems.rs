//! What is said to requests that have no answer, and to those who ask how the server is.

use std::path::PathBuf;
use std::sync::Arc;

use tidegate_server::http::{MAX_BODY_BYTES, Readiness, ReadinessState};
use tidegate_server::live_settings::LiveSettings;
use tidegate_server::settings_reloader::SettingsReloader;

use crate::api::stage::Stage;

#[test]
fn other_paths_are_not_found() {
    let stage = Stage::empty();
    for path in [
        "/metrics/",
        "/v1",
        "/v1/",
        "/v2/acquire",
        "/v1/acquire/",
        "/v1/limits/",
        "/v1/gate/a",
        "/v1/gate/a/b/c",
        "/v1/limits/a/b",
    ] {
        for method in ["GET", "POST", "OPTIONS"] {
            stage.ask(&format!("{method} {path}"), "").problem(404, "not_found");
        }
    }
}

#[test]
fn other_methods_are_told_which_there_are() {
    let stage = Stage::empty();
    for (line, allow) in [
        ("GET /v1/acquire", "POST"),
        ("DELETE /v1/limits", "GET, HEAD, POST"),
        ("POST /v1/limits/l", "GET, HEAD, PUT, DELETE"),
        ("GET /v1/limits/l/reset", "POST"),
        ("POST /v1/limits/l/usage", "GET, HEAD"),
        ("GET /v1/limits/l/overrides/k", "PUT, DELETE"),
        ("POST /healthz", "GET, HEAD"),
    ] {
        let told = stage.ask(line, "");
        assert_eq!(told.header("allow"), Some(allow), "{line}");
        told.problem(405, "method_not_allowed");
    }
}

#[test]
fn parts_of_paths_are_percent_encoded() {
    let stage = Stage::with(&[r#"{"id": "a/b", "items": [{"policy": "total", "limit": 1}]}"#]);
    stage.get("/v1/limits/a%2Fb").is(200);
    stage.get("/v1/limits/a%2fb").is(200);
    stage.get("/v1/limits/%61%2Fb").is(200);
    for path in ["/v1/limits/a%", "/v1/limits/a%2", "/v1/limits/a%zz", "/v1/limits/%ff", "/v1/gate/a%2Fb/%c3"]
    {
        stage.get(path).problem(400, "bad_request");
    }
}

#[test]
fn bodies_have_an_end() {
    let stage = Stage::with(&[r#"{"id": "l", "items": [{"policy": "total", "limit": 9}]}"#]);
    let ask = r#"{"limit_id": "l"}"#;
    let padded = |bytes: usize| format!("{ask}{}", " ".repeat(bytes - ask.len()));
    assert!(stage.ask("POST /v1/acquire", &padded(MAX_BODY_BYTES)).allowed());
    for line in
        ["POST /v1/acquire", "POST /v1/limits", "PUT /v1/limits/l", "POST /v1/release", "GET /v1/gate/l/k"]
    {
        stage.ask(line, &padded(MAX_BODY_BYTES + 1)).problem(413, "too_large");
    }
}

#[test]
fn the_server_says_how_it_is() {
    let readiness = Arc::new(Readiness::new(ReadinessState::Starting));
    let mut stage = Stage::empty();
    stage.api = stage.api.readiness(Arc::clone(&readiness));
    stage.get("/healthz").is(200).says(r#"{"status": "ok"}"#);
    assert!(stage.get("/readyz").problem(503, "not_ready").contains("starting"));
    readiness.set(ReadinessState::Ready);
    stage.get("/readyz").is(200).says(r#"{"status": "ready", "config": {"status": "none"}}"#);
    readiness.set(ReadinessState::Draining);
    assert!(stage.get("/readyz").problem(503, "not_ready").contains("end"));
    stage.ask("HEAD /healthz", "").is(200);
}

#[test]
fn a_server_whose_file_was_spoiled_is_ready_and_says_so() {
    let path =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("readiness-{}.yaml", std::process::id()));
    let mut stage = Stage::empty();
    let rules = Arc::new(LiveSettings::new(Arc::clone(&stage.store)));
    let reloader = Arc::new(SettingsReloader::new(&path, Arc::clone(&rules), Arc::clone(&stage.clock)));
    let readiness = Readiness::new(ReadinessState::Ready).with_settings(Arc::clone(&reloader));
    stage.api = stage.api.readiness(Arc::new(readiness)).from_file(move |id| rules.is_from_file(id));

    std::fs::write(&path, "limits: [{id: l, items: [{policy: total, limit: 1}]}]").expect("a file");
    assert!(reloader.reload_now().result.is_ok());
    let ok = r#"{"status": "ready", "config": {"status": "ok", "loaded_at": "2026-01-20T00:00:00Z"}}"#;
    stage.get("/readyz").is(200).says(ok);
    stage.ask("DELETE /v1/limits/l", "").problem(409, "managed_by_file");

    stage.clock.advance(std::time::Duration::from_secs(1));
    std::fs::write(&path, "auth: {tokens: [{name: ops, sha256: a-secret-in-the-wrong-place, role: admin}]}")
        .expect("a file");
    assert!(reloader.reload_now().result.is_err());
    let told = stage.get("/readyz").is(200);
    assert!(!told.text().contains("secret"), "everybody may see this: {}", told.text());
    told.says(
        r#"{"status": "ready", "config": {"status": "failed", "loaded_at": "2026-01-20T00:00:00Z",
            "error": "1 error in the settings file, the first on line 1; see the log"}}"#,
    );
    stage.get("/v1/limits/l").is(200);

    std::fs::write(&path, "limits: []").expect("a file");
    assert!(reloader.reload_now().result.is_ok());
    assert_eq!(stage.get("/readyz").is(200).at("/config/loaded_at"), "2026-01-20T00:00:01Z");
    stage.get("/v1/limits/l").problem(404, "unknown_limit");
    std::fs::remove_file(&path).expect("it is there");
}

/// Whoever reads objects field by field takes lists for them too, in the order in which the fields happen to be written here.
#[test]
fn asks_are_objects_and_not_lists_of_their_parts() {
    let stage = Stage::with(&[r#"{"id": "l", "items": [{"policy": "total", "limit": 5}]}"#]);
    stage.ask("POST /v1/acquire", r#"{"asks": [{"limit_id": "l", "count": 2}]}"#).is(200);
    for asks in [r#"[["l", "u", 1]]"#, r#"[{"limit_id": "l"}, ["l", null, 1]]"#, r#"["l"]"#, r"[[]]"] {
        for path in ["acquire", "peek"] {
            let body = format!("{{\"asks\": {asks}}}");
            let detail = stage.ask(&format!("POST /v1/{path}"), &body).problem(400, "bad_request");
            assert!(detail.contains("a JSON object"), "{detail}");
        }
    }
    let unknown = r#"{"asks": [{"limit_id": "l", "limit_kee": "u"}]}"#;
    assert!(stage.ask("POST /v1/acquire", unknown).problem(400, "bad_request").contains("limit_kee"));
    let used = stage.get("/v1/limits/l/usage").is(200).at("/policy_status/0/current_count");
    assert_eq!(used, serde_json::json!(2), "nothing was taken");
}
