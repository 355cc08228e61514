//! Forward authentication (`/v1/gate`): a status and a few headers.

use std::time::Duration;

use serde_json::json;

use crate::api::fixture::ApiFixture;

const API: &str =
    r#"{"id": "shop/api", "items": [{"policy": "interval", "limit": 2, "window": "10s", "per": "key"}]}"#;

#[test]
fn gate_allows_until_the_limit() {
    let fixture = ApiFixture::with(&[API]);
    for (method, left) in [("GET", "1"), ("POST", "0")] {
        let response = fixture.ask(&format!("{method} /v1/gate/shop%2Fapi/u%201"), "whatever").is(200);
        assert_eq!(response.header("ratelimit-policy"), Some(r#""key/interval-10s";q=2;w=10"#));
        assert_eq!(response.header("ratelimit"), Some(&*format!(r#""key/interval-10s";r={left};t=10"#)));
        assert_eq!(response.header("cache-control"), Some("no-store"));
        assert_eq!((response.header("retry-after"), response.at("/allowed")), (None, json!(true)));
    }
    fixture.clock.advance(Duration::from_millis(1500));
    let response = fixture.ask("PROPFIND /v1/gate/shop%2Fapi/u%201", "").is(429);
    assert_eq!(response.header("ratelimit"), Some(r#""key/interval-10s";r=0;t=9"#));
    assert_eq!(
        (response.header("retry-after"), response.header("cache-control")),
        (Some("9"), Some("no-store"))
    );
    assert_eq!(response.header("content-type"), Some("application/problem+json"));
    assert_eq!(response.at("/violated-policies"), json!(["key/interval-10s"]));
    assert_eq!(response.at("/code"), json!("quota_exceeded"));
    fixture.clock.advance(Duration::from_secs(9));
    fixture.ask("HEAD /v1/gate/shop%2Fapi/u%201", "").is(200);
}

#[test]
fn gate_query_matches_gate_path() {
    let fixture = ApiFixture::with(&[API, r#"{"id": "all", "items": [{"policy": "total", "limit": 1}]}"#]);
    fixture.get("/v1/gate?limit_id=shop/api&limit_key=u+1").is(200);
    fixture.get("/v1/gate/shop%2Fapi/u%201").is(200);
    fixture.get("/v1/gate?limit_key=u%201&limit_id=shop%2Fapi").is(429);
    fixture.get("/v1/gate?limit_id=all").is(200);
    let response = fixture.get("/v1/gate?limit_id=all").is(429);
    assert_eq!(response.header("retry-after"), None, "it is not a matter of time");
}

#[test]
fn gate_of_unknown_limit_is_not_found() {
    let fixture = ApiFixture::with(&[API]);
    for (path, status, code) in [
        ("/v1/gate/none/u", 404, "unknown_limit"),
        ("/v1/gate?limit_id=none&limit_key=u", 404, "unknown_limit"),
        ("/v1/gate?limit_id=shop/api", 400, "bad_request"),
        ("/v1/gate?limit_key=u", 400, "bad_request"),
        ("/v1/gate?limit_id=shop/api&limit_key=u&x=1", 400, "bad_request"),
        ("/v1/gate/shop%2Fapi/u?x=1", 400, "bad_request"),
    ] {
        let response = fixture.get(path);
        assert_eq!(response.header("cache-control"), Some("no-store"), "{path}");
        response.problem(status, code);
    }
}

#[test]
fn gate_returns_the_lease_it_holds() {
    let fixture = ApiFixture::with(&[r#"{"id": "slots", "items": [{"policy": "concurrency", "limit": 1}]}"#]);
    let lease = fixture.get("/v1/gate?limit_id=slots").is(200).at("/lease/id");
    fixture.get("/v1/gate?limit_id=slots").is(429);
    fixture
        .ask("POST /v1/release", &json!({"lease_id": lease}).to_string())
        .is(200)
        .says(r#"{"released": true}"#);
    fixture.get("/v1/gate?limit_id=slots").is(200);
}
