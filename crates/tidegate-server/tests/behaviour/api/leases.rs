//! Leases: released once, renewed, settled to the actual cost.

use std::time::Duration;

use serde_json::{Value, json};

use crate::api::fixture::{ApiFixture, ApiResponse};

const SLOTS: &str = r#"{"id": "slots", "items": [{"policy": "concurrency", "limit": 1, "ttl": "30s"}]}"#;
const TOKENS: &str = r#"{"id": "tokens", "items": [{"policy": "day", "limit": 1000}]}"#;

fn take(fixture: &ApiFixture, body: &str) -> Value {
    fixture.ask("POST /v1/acquire", body).is(200).at("/lease")
}

fn with(fixture: &ApiFixture, verb: &str, lease: &Value, more: Value) -> ApiResponse {
    let mut body = json!({"lease_id": lease["id"]});
    if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
        body.extend(more);
    }
    fixture.ask(&format!("POST /v1/{verb}"), &body.to_string())
}

#[test]
fn lease_is_released_once() {
    let fixture = ApiFixture::with(&[SLOTS]);
    let lease = take(&fixture, r#"{"limit_id": "slots"}"#);
    assert_eq!(lease["expires_at"], json!("2026-01-20T00:00:30Z"));
    assert!(lease["fence"].is_u64() && lease.get("fences").is_none());
    assert_eq!(take(&fixture, r#"{"limit_id": "slots"}"#), json!(null), "the one is taken, and stays so");
    with(&fixture, "release", &lease, json!({})).is(200).says(r#"{"released": true}"#);
    with(&fixture, "release", &lease, json!({})).is(200).says(r#"{"released": false}"#);
    let next = take(&fixture, r#"{"limit_id": "slots", "ttl_ms": 1500}"#);
    assert_eq!(next["expires_at"], json!("2026-01-20T00:00:01.5Z"));
    assert!(next["fence"].as_u64() > lease["fence"].as_u64());
    with(&fixture, "release", &lease, json!({})).is(200).says(r#"{"released": false}"#);
    for nonsense in ["", "nonsense", "0123456789abcdef0123456789abcdef"] {
        with(&fixture, "release", &json!({"id": nonsense}), json!({})).is(200).says(r#"{"released": false}"#);
    }
    assert_eq!(
        take(&fixture, r#"{"limit_id": "slots"}"#),
        json!(null),
        "the slot of the other lease is not freed"
    );
}

#[test]
fn lease_over_several_limits_has_a_fence_for_each() {
    let fixture = ApiFixture::with(&[SLOTS, &SLOTS.replace("slots", "rooms")]);
    let lease = take(&fixture, r#"{"asks": [{"limit_id": "slots"}, {"limit_id": "rooms"}]}"#);
    assert_eq!(lease["fence"], json!(null));
    assert!(lease["fences"]["slots"].is_u64() && lease["fences"]["rooms"].is_u64());
}

#[test]
fn lease_is_renewed_until_it_expires() {
    let fixture = ApiFixture::with(&[SLOTS]);
    let lease = take(&fixture, r#"{"limit_id": "slots"}"#);
    fixture.clock.advance(Duration::from_secs(20));
    with(&fixture, "renew", &lease, json!({})).is(200).says(r#"{"expires_at": "2026-01-20T00:00:50Z"}"#);
    with(&fixture, "renew", &lease, json!({"ttl_ms": 60000}))
        .is(200)
        .says(r#"{"expires_at": "2026-01-20T00:01:20Z"}"#);
    assert!(
        with(&fixture, "renew", &lease, json!({"ttl_ms": 0})).problem(400, "bad_request").contains("ttl")
    );
    fixture.clock.advance(Duration::from_secs(60));
    with(&fixture, "renew", &lease, json!({})).problem(410, "unknown_lease");
    with(&fixture, "renew", &json!({"id": "nonsense"}), json!({})).problem(410, "unknown_lease");
    with(&fixture, "release", &lease, json!({})).is(200).says(r#"{"released": false}"#);
}

#[test]
fn hold_is_settled_to_its_actual_cost() {
    let fixture = ApiFixture::with(&[TOKENS]);
    let used = || fixture.get("/v1/limits/tokens/usage").at("/policy_status/0/current_count");
    let lease = take(&fixture, r#"{"limit_id": "tokens", "count": 600, "hold": true}"#);
    assert_eq!((lease["expires_at"].clone(), used()), (json!("2026-01-20T00:01:00Z"), json!(600)));
    with(&fixture, "settle", &lease, json!({"actual": 250})).is(200).says(r#"{"settled": true}"#);
    assert_eq!(used(), json!(250));
    with(&fixture, "settle", &lease, json!({"actual": 900})).is(200).says(r#"{"settled": true}"#);
    assert_eq!(used(), json!(250), "the first settlement stands");

    let lease = take(&fixture, r#"{"limit_id": "tokens", "count": 100, "hold": true}"#);
    with(&fixture, "settle", &lease, json!({"actual": 1000})).is(200);
    assert_eq!(used(), json!(1250), "the work was done");
    let lease = json!({"id": "nonsense"});
    with(&fixture, "settle", &lease, json!({"actual": 1})).problem(410, "unknown_lease");
}

#[test]
fn asks_of_a_set_are_settled_separately() {
    let fixture = ApiFixture::with(&[TOKENS, &TOKENS.replace("tokens", "calls")]);
    let set = r#"{"asks": [{"limit_id": "tokens", "count": 10}, {"limit_id": "calls", "count": 10}], "hold": true}"#;
    let lease = take(&fixture, set);
    for costs in [json!([]), json!([3]), json!([3, 7, 1])] {
        let detail = with(&fixture, "settle", &lease, json!({"actual": costs})).problem(400, "bad_request");
        assert!(detail.contains("for 2 asks"), "{detail}");
    }
    with(&fixture, "settle", &lease, json!({"actual": [3, 7]})).is(200);
    for (limit, count) in [("tokens", 3), ("calls", 7)] {
        let response = fixture.get(&format!("/v1/limits/{limit}/usage"));
        assert_eq!(response.at("/policy_status/0/current_count"), json!(count));
    }
}

#[test]
fn lease_bodies_are_parsed_strictly() {
    let fixture = ApiFixture::with(&[TOKENS]);
    let lease = take(&fixture, r#"{"limit_id": "tokens", "count": 10, "hold": true}"#);
    for value in [json!(-1), json!(1.5), json!("1"), json!(null), json!([-1]), json!(vec![1; 33]), json!({})]
    {
        let detail = with(&fixture, "settle", &lease, json!({"actual": value})).problem(400, "bad_request");
        assert!(detail.contains("expected"), "{value}: {detail}");
    }
    with(&fixture, "settle", &lease, json!({})).problem(400, "bad_request");
    with(&fixture, "renew", &lease, json!({"ttl_ms": -1})).problem(400, "bad_request");
    for verb in ["release", "renew", "settle"] {
        with(&fixture, verb, &lease, json!({"actual": 1, "x": 1})).problem(400, "bad_request");
        fixture.ask(&format!("POST /v1/{verb}"), "{}").problem(400, "bad_request");
        fixture.ask(&format!("POST /v1/{verb}"), r#"{"lease_id": 7}"#).problem(400, "bad_request");
    }
    with(&fixture, "settle", &lease, json!({"actual": 0})).is(200);
}
