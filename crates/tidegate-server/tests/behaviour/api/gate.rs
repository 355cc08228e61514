//! The gate: a status and a few header fields.

use std::time::Duration;

use serde_json::json;

use crate::api::stage::Stage;

const API: &str =
    r#"{"id": "shop/api", "items": [{"policy": "interval", "limit": 2, "window": "10s", "per": "key"}]}"#;

#[test]
fn a_gate_opens_until_the_limit_is_reached() {
    let stage = Stage::with(&[API]);
    for (method, left) in [("GET", "1"), ("POST", "0")] {
        let told = stage.ask(&format!("{method} /v1/gate/shop%2Fapi/u%201"), "whatever").is(200);
        assert_eq!(told.header("ratelimit-policy"), Some(r#""key/interval-10s";q=2;w=10"#));
        assert_eq!(told.header("ratelimit"), Some(&*format!(r#""key/interval-10s";r={left};t=10"#)));
        assert_eq!(told.header("cache-control"), Some("no-store"));
        assert_eq!((told.header("retry-after"), told.at("/allowed")), (None, json!(true)));
    }
    stage.clock.advance(Duration::from_millis(1500));
    let told = stage.ask("PROPFIND /v1/gate/shop%2Fapi/u%201", "").is(429);
    assert_eq!(told.header("ratelimit"), Some(r#""key/interval-10s";r=0;t=9"#));
    assert_eq!((told.header("retry-after"), told.header("cache-control")), (Some("9"), Some("no-store")));
    assert_eq!(told.header("content-type"), Some("application/problem+json"));
    assert_eq!(told.at("/violated-policies"), json!(["key/interval-10s"]));
    assert_eq!(told.at("/code"), json!("quota_exceeded"));
    stage.clock.advance(Duration::from_secs(9));
    stage.ask("HEAD /v1/gate/shop%2Fapi/u%201", "").is(200);
}

#[test]
fn the_query_says_the_same_as_the_path() {
    let stage = Stage::with(&[API, r#"{"id": "all", "items": [{"policy": "total", "limit": 1}]}"#]);
    stage.get("/v1/gate?limit_id=shop/api&limit_key=u+1").is(200);
    stage.get("/v1/gate/shop%2Fapi/u%201").is(200);
    stage.get("/v1/gate?limit_key=u%201&limit_id=shop%2Fapi").is(429);
    stage.get("/v1/gate?limit_id=all").is(200);
    let told = stage.get("/v1/gate?limit_id=all").is(429);
    assert_eq!(told.header("retry-after"), None, "it is not a matter of time");
}

#[test]
fn a_gate_to_nowhere_is_neither_open_nor_shut() {
    let stage = Stage::with(&[API]);
    for (path, status, code) in [
        ("/v1/gate/none/u", 404, "unknown_limit"),
        ("/v1/gate?limit_id=none&limit_key=u", 404, "unknown_limit"),
        ("/v1/gate?limit_id=shop/api", 400, "bad_request"),
        ("/v1/gate?limit_key=u", 400, "bad_request"),
        ("/v1/gate?limit_id=shop/api&limit_key=u&x=1", 400, "bad_request"),
        ("/v1/gate/shop%2Fapi/u?x=1", 400, "bad_request"),
    ] {
        let told = stage.get(path);
        assert_eq!(told.header("cache-control"), Some("no-store"), "{path}");
        told.problem(status, code);
    }
}

#[test]
fn a_gate_hands_over_what_it_holds() {
    let stage = Stage::with(&[r#"{"id": "slots", "items": [{"policy": "concurrency", "limit": 1}]}"#]);
    let lease = stage.get("/v1/gate?limit_id=slots").is(200).at("/lease/id");
    stage.get("/v1/gate?limit_id=slots").is(429);
    stage
        .ask("POST /v1/release", &json!({"lease_id": lease}).to_string())
        .is(200)
        .says(r#"{"released": true}"#);
    stage.get("/v1/gate?limit_id=slots").is(200);
}
