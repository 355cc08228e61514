//! Problem responses, and the health and readiness endpoints.

use std::path::PathBuf;
use std::sync::Arc;

use tidegate_server::http::{MAX_BODY_BYTES, Readiness, ReadinessState};
use tidegate_server::live_settings::LiveSettings;
use tidegate_server::settings_reloader::SettingsReloader;

use crate::api::fixture::ApiFixture;

#[test]
fn unknown_paths_are_not_found() {
    let fixture = ApiFixture::empty();
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
            fixture.ask(&format!("{method} {path}"), "").problem(404, "not_found");
        }
    }
}

#[test]
fn wrong_method_lists_allowed_ones() {
    let fixture = ApiFixture::empty();
    for (line, allow) in [
        ("GET /v1/acquire", "POST"),
        ("DELETE /v1/limits", "GET, HEAD, POST"),
        ("POST /v1/limits/l", "GET, HEAD, PUT, DELETE"),
        ("GET /v1/limits/l/reset", "POST"),
        ("POST /v1/limits/l/usage", "GET, HEAD"),
        ("GET /v1/limits/l/overrides/k", "PUT, DELETE"),
        ("POST /healthz", "GET, HEAD"),
    ] {
        let response = fixture.ask(line, "");
        assert_eq!(response.header("allow"), Some(allow), "{line}");
        response.problem(405, "method_not_allowed");
    }
}

#[test]
fn path_segments_are_percent_decoded() {
    let fixture = ApiFixture::with(&[r#"{"id": "a/b", "items": [{"policy": "total", "limit": 1}]}"#]);
    fixture.get("/v1/limits/a%2Fb").is(200);
    fixture.get("/v1/limits/a%2fb").is(200);
    fixture.get("/v1/limits/%61%2Fb").is(200);
    for path in ["/v1/limits/a%", "/v1/limits/a%2", "/v1/limits/a%zz", "/v1/limits/%ff", "/v1/gate/a%2Fb/%c3"]
    {
        fixture.get(path).problem(400, "bad_request");
    }
}

#[test]
fn body_size_is_bounded() {
    let fixture = ApiFixture::with(&[r#"{"id": "l", "items": [{"policy": "total", "limit": 9}]}"#]);
    let ask = r#"{"limit_id": "l"}"#;
    let padded = |bytes: usize| format!("{ask}{}", " ".repeat(bytes - ask.len()));
    assert!(fixture.ask("POST /v1/acquire", &padded(MAX_BODY_BYTES)).allowed());
    for line in
        ["POST /v1/acquire", "POST /v1/limits", "PUT /v1/limits/l", "POST /v1/release", "GET /v1/gate/l/k"]
    {
        fixture.ask(line, &padded(MAX_BODY_BYTES + 1)).problem(413, "too_large");
    }
}

#[test]
fn health_and_readiness_follow_the_state() {
    let readiness = Arc::new(Readiness::new(ReadinessState::Starting));
    let mut fixture = ApiFixture::empty();
    fixture.api = fixture.api.readiness(Arc::clone(&readiness));
    fixture.get("/healthz").is(200).says(r#"{"status": "ok"}"#);
    assert!(fixture.get("/readyz").problem(503, "not_ready").contains("starting"));
    readiness.set(ReadinessState::Ready);
    fixture.get("/readyz").is(200).says(r#"{"status": "ready", "config": {"status": "none"}}"#);
    readiness.set(ReadinessState::Draining);
    assert!(fixture.get("/readyz").problem(503, "not_ready").contains("shutting down"));
    fixture.ask("HEAD /healthz", "").is(200);
}

#[test]
fn server_with_rejected_reload_stays_ready_and_reports_it() {
    let path =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("readiness-{}.yaml", std::process::id()));
    let mut fixture = ApiFixture::empty();
    let rules = Arc::new(LiveSettings::new(Arc::clone(&fixture.store)));
    let reloader = Arc::new(SettingsReloader::new(&path, Arc::clone(&rules), Arc::clone(&fixture.clock)));
    let readiness = Readiness::new(ReadinessState::Ready).with_settings(Arc::clone(&reloader));
    fixture.api = fixture.api.readiness(Arc::new(readiness)).from_file(move |id| rules.is_from_file(id));

    std::fs::write(&path, "limits: [{id: l, items: [{policy: total, limit: 1}]}]").expect("a file");
    assert!(reloader.reload_now().result.is_ok());
    let ok = r#"{"status": "ready", "config": {"status": "ok", "loaded_at": "2026-01-20T00:00:00Z"}}"#;
    fixture.get("/readyz").is(200).says(ok);
    fixture.ask("DELETE /v1/limits/l", "").problem(409, "managed_by_file");

    fixture.clock.advance(std::time::Duration::from_secs(1));
    std::fs::write(&path, "auth: {tokens: [{name: ops, sha256: a-secret-in-the-wrong-place, role: admin}]}")
        .expect("a file");
    assert!(reloader.reload_now().result.is_err());
    let response = fixture.get("/readyz").is(200);
    assert!(!response.text().contains("secret"), "the response is public: {}", response.text());
    response.says(
        r#"{"status": "ready", "config": {"status": "failed", "loaded_at": "2026-01-20T00:00:00Z",
            "error": "1 error in the settings file, the first on line 1; see the log"}}"#,
    );
    fixture.get("/v1/limits/l").is(200);

    std::fs::write(&path, "limits: []").expect("a file");
    assert!(reloader.reload_now().result.is_ok());
    assert_eq!(fixture.get("/readyz").is(200).at("/config/loaded_at"), "2026-01-20T00:00:01Z");
    fixture.get("/v1/limits/l").problem(404, "unknown_limit");
    std::fs::remove_file(&path).expect("it is there");
}

/// serde would accept arrays for structs, in the order of the struct's fields.
#[test]
fn asks_must_be_objects() {
    let fixture = ApiFixture::with(&[r#"{"id": "l", "items": [{"policy": "total", "limit": 5}]}"#]);
    fixture.ask("POST /v1/acquire", r#"{"asks": [{"limit_id": "l", "count": 2}]}"#).is(200);
    for asks in [r#"[["l", "u", 1]]"#, r#"[{"limit_id": "l"}, ["l", null, 1]]"#, r#"["l"]"#, r"[[]]"] {
        for path in ["acquire", "peek"] {
            let body = format!("{{\"asks\": {asks}}}");
            let detail = fixture.ask(&format!("POST /v1/{path}"), &body).problem(400, "bad_request");
            assert!(detail.contains("a JSON object"), "{detail}");
        }
    }
    let unknown = r#"{"asks": [{"limit_id": "l", "limit_kee": "u"}]}"#;
    assert!(fixture.ask("POST /v1/acquire", unknown).problem(400, "bad_request").contains("limit_kee"));
    let used = fixture.get("/v1/limits/l/usage").is(200).at("/policy_status/0/current_count");
    assert_eq!(used, serde_json::json!(2), "nothing was taken");
}
