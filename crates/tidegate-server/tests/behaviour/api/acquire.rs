//! Acquire and peek: single asks, sets, idempotency and waiting.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use serde_json::json;
use tidegate_server::tokens::{Caller, Permissions};

use crate::api::fixture::ApiFixture;

const SALE: &str = r#"{"id": "sale", "items": [{"policy": "total", "limit": 3}, {"policy": "day", "limit": 2, "per": "key"}]}"#;
const SLOTS: &str = r#"{"id": "slots", "items": [{"policy": "concurrency", "limit": 1, "ttl": "30s"}]}"#;
const BUCKET: &str = r#"{"id": "bucket", "items": [{"policy": "bucket", "limit": 1, "window": "1500ms"}]}"#;

#[test]
fn grant_has_readings() {
    let fixture = ApiFixture::with(&[SALE]);
    let ask = r#"{"limit_id": "sale", "limit_key": "u1"}"#;
    let granted = |total: u64, day: u64| {
        json!({"allowed": true, "lease": null, "binding": null, "wait": null, "retry_after_ms": null, "degraded": false,
            "readings": [
                {"limit_id": "sale", "item": "all/total", "limit": 3, "used": total, "remaining": 3 - total, "resets_at": null},
                {"limit_id": "sale", "item": "key/day", "limit": 2, "used": day, "remaining": 2 - day, "resets_at": "2026-01-21T00:00:00Z"}]})
        .to_string()
    };
    fixture.ask("POST /v1/peek", ask).is(200);
    fixture.ask("POST /v1/acquire", ask).is(200).says(&granted(1, 1));
    fixture.ask("POST /v1/acquire", ask).is(200).says(&granted(2, 2));
}

#[test]
fn denial_has_binding_item_and_retry_after() {
    let fixture = ApiFixture::with(&[SALE, BUCKET]);
    let ask = r#"{"limit_id": "sale", "limit_key": "u1", "count": 2}"#;
    assert!(fixture.ask("POST /v1/acquire", ask).allowed());
    let one = r#"{"limit_id": "sale", "limit_key": "u1"}"#;
    fixture.ask("POST /v1/acquire", one).is(200).says(
        r#"{"allowed": false, "lease": null, "binding": {"limit_id": "sale", "item": "key/day"}, "wait": "until",
            "retry_after_ms": 86400000, "degraded": false, "readings": [
            {"limit_id": "sale", "item": "all/total", "limit": 3, "used": 2, "remaining": 1, "resets_at": null},
            {"limit_id": "sale", "item": "key/day", "limit": 2, "used": 2, "remaining": 0, "resets_at": "2026-01-21T00:00:00Z"}]}"#,
    );
    let never =
        fixture.ask("POST /v1/acquire", r#"{"limit_id": "sale", "limit_key": "u2", "count": 4}"#).is(200);
    assert_eq!((never.at("/wait"), never.at("/retry_after_ms")), (json!("never"), json!(null)));

    // Rounded up, and exact.
    assert!(fixture.ask("POST /v1/acquire", r#"{"limit_id": "bucket"}"#).allowed());
    fixture.clock.advance(Duration::from_nanos(1));
    let refused = fixture.ask("POST /v1/acquire", r#"{"limit_id": "bucket"}"#);
    assert_eq!(refused.at("/retry_after_ms"), json!(1500));
    fixture.clock.advance(Duration::from_millis(1500));
    assert!(fixture.ask("POST /v1/acquire", r#"{"limit_id": "bucket"}"#).allowed());
}

#[test]
fn decision_fields_are_in_contract_order() {
    let fixture = ApiFixture::with(&[SLOTS]);
    for _ in 0..2 {
        let text = fixture.ask("POST /v1/acquire", r#"{"limit_id": "slots"}"#).text();
        let places: Vec<_> =
            ["allowed", "lease", "binding", "wait", "retry_after_ms", "degraded", "readings"]
                .iter()
                .map(|field| text.find(&format!("\"{field}\":")).expect(field))
                .collect();
        assert!(places.is_sorted(), "{text}");
    }
}

#[test]
fn peek_changes_nothing() {
    let fixture = ApiFixture::with(&[SALE, SLOTS]);
    for _ in 0..5 {
        assert!(
            fixture.ask("POST /v1/peek", r#"{"limit_id": "sale", "limit_key": "u", "count": 2}"#).allowed()
        );
        let peeked = fixture.ask("POST /v1/peek", r#"{"limit_id": "slots", "hold": true}"#);
        assert_eq!((peeked.allowed(), peeked.at("/lease")), (true, json!(null)));
    }
    assert_eq!(fixture.get("/v1/limits/sale/usage").at("/count"), json!(0));
}

#[test]
fn set_is_granted_as_a_whole() {
    let fixture = ApiFixture::with(&[SALE, BUCKET]);
    let set = r#"{"asks": [{"limit_id": "bucket"}, {"limit_id": "sale", "limit_key": "u", "count": 2}]}"#;
    let granted = fixture.ask("POST /v1/acquire", set);
    assert!(granted.allowed());
    assert_eq!(granted.at("/readings").as_array().map(Vec::len), Some(3));
    fixture.clock.advance(Duration::from_secs(2));
    let refused = fixture.ask("POST /v1/acquire", set);
    assert_eq!(refused.at("/binding"), json!({"limit_id": "sale", "item": "all/total"}));
    assert!(
        fixture.ask("POST /v1/acquire", r#"{"limit_id": "bucket"}"#).allowed(),
        "nothing was taken of it"
    );
}

#[test]
fn set_has_1_to_32_asks() {
    let fixture = ApiFixture::with(&[r#"{"id": "many", "items": [{"policy": "total", "limit": 100}]}"#]);
    let set = |asks: usize| format!("{{\"asks\": [{}]}}", vec![r#"{"limit_id": "many"}"#; asks].join(","));
    fixture.ask("POST /v1/acquire", &set(0)).problem(400, "bad_request");
    assert!(fixture.ask("POST /v1/acquire", &set(1)).allowed());
    assert!(fixture.ask("POST /v1/acquire", &set(32)).allowed());
    assert!(fixture.ask("POST /v1/acquire", &set(33)).problem(400, "bad_request").contains("1 to 32"));
    assert_eq!(fixture.get("/v1/limits/many/usage").at("/count"), json!(33), "asks of one item add up");
}

#[test]
fn request_id_is_charged_once() {
    let fixture = ApiFixture::with(&[SALE, SLOTS]);
    let ask = r#"{"limit_id": "sale", "limit_key": "u", "request_id": "r1"}"#;
    let first = fixture.ask("POST /v1/acquire", ask).is(200);
    fixture.ask("POST /v1/acquire", ask).is(200).says(&first.text());
    assert_eq!(fixture.get("/v1/limits/sale/usage").at("/count"), json!(1));
    let other = r#"{"limit_id": "sale", "limit_key": "v", "request_id": "r1"}"#;
    fixture.ask("POST /v1/acquire", other).problem(409, "request_id_reused");
    let long = format!(r#"{{"limit_id": "sale", "limit_key": "u", "request_id": "{}"}}"#, "x".repeat(257));
    fixture.ask("POST /v1/acquire", &long).problem(400, "bad_request");

    let slot = r#"{"limit_id": "slots", "request_id": "r2"}"#;
    let lease = fixture.ask("POST /v1/acquire", slot).at("/lease");
    assert_eq!(
        fixture.ask("POST /v1/acquire", slot).at("/lease"),
        lease,
        "the same lease, not given back between"
    );
    assert!(!fixture.ask("POST /v1/acquire", r#"{"limit_id": "slots"}"#).allowed());

    let refused = r#"{"limit_id": "slots", "request_id": "r3"}"#;
    assert!(!fixture.ask("POST /v1/acquire", refused).allowed());
    fixture.clock.advance(Duration::from_secs(30));
    assert!(fixture.ask("POST /v1/acquire", refused).allowed(), "a refusal stays retryable");
}

#[test]
fn acquire_waits_until_it_fits() {
    let fixture = ApiFixture::with(&[SLOTS]);
    let admin = Caller::Authenticated(Permissions::all());
    let lease = fixture.ask("POST /v1/acquire", r#"{"limit_id": "slots"}"#).at("/lease/id");
    let mut context = Context::from_waker(Waker::noop());
    let patient = r#"{"limit_id": "slots", "max_wait_ms": 60000}"#;
    let mut first = pin!(fixture.send(&admin, "POST /v1/acquire", &[], patient));
    let mut second = pin!(fixture.send(&admin, "POST /v1/acquire", &[], patient));
    assert!(first.as_mut().poll(&mut context).is_pending());
    assert!(second.as_mut().poll(&mut context).is_pending());
    assert_eq!(fixture.limiter.waiting("slots"), 2);

    fixture.ask("POST /v1/release", &json!({"lease_id": lease}).to_string()).is(200);
    assert!(second.as_mut().poll(&mut context).is_pending(), "first come first served");
    let Poll::Ready(response) = first.as_mut().poll(&mut context) else { panic!("it is free") };
    assert!(response.allowed());

    fixture.pulse.advance(Duration::from_secs(60));
    let Poll::Ready(response) = second.as_mut().poll(&mut context) else { panic!("patience is over") };
    assert_eq!((response.allowed(), response.at("/wait")), (false, json!("on_release")));
    assert_eq!(fixture.limiter.waiting("slots"), 0);
}

#[test]
fn max_wait_ends_the_wait() {
    let fixture = ApiFixture::with(&[SALE]);
    for path in ["/v1/acquire", "/v1/peek"] {
        let ask = r#"{"limit_id": "sale", "limit_key": "u", "max_wait_ms": 60001}"#;
        assert!(fixture.ask(&format!("POST {path}"), ask).problem(400, "bad_request").contains("60000"));
    }
}

#[test]
fn numbers_must_be_whole_and_in_range() {
    let fixture = ApiFixture::with(&[SALE]);
    for (field, bounds) in [
        ("count", "from 0 to 18446744073709551615"),
        ("ttl_ms", "of milliseconds above 0"),
        ("max_wait_ms", "from 0 to 60000"),
    ] {
        for value in ["-1", "1.5", "18446744073709551616", "1e3", "\"1\"", "true", "[1]", "-0.0"] {
            let ask = format!(r#"{{"limit_id": "sale", "limit_key": "u", "{field}": {value}}}"#);
            let detail = fixture.ask("POST /v1/acquire", &ask).problem(400, "bad_request");
            let allowed = format!("{field} to be a whole number {bounds}");
            assert!(detail.contains(&allowed), "{field} {value}: {detail}");
        }
    }
    let most = r#"{"limit_id": "sale", "limit_key": "u", "count": 18446744073709551615}"#;
    assert_eq!(fixture.ask("POST /v1/acquire", most).is(200).at("/wait"), json!("never"));
    let ask = r#"{"limit_id": "sale", "limit_key": "u", "hold": true, "ttl_ms": 0}"#;
    assert!(fixture.ask("POST /v1/acquire", ask).problem(400, "bad_request").contains("ttl"));
    assert_eq!(fixture.get("/v1/limits/sale/usage").at("/count"), json!(0));
}

#[test]
fn invalid_asks_are_refused() {
    let fixture = ApiFixture::with(&[SALE]);
    for (body, why) in [
        ("", "EOF"),
        ("{", "EOF"),
        ("[]", "the body"),
        ("{}", "limit_id is missing"),
        (r#"{"limit_id": "sale"}"#, "needs a limit_key"),
        (r#"{"limit_id": 7}"#, "expected"),
        (r#"{"limit_id": "sale", "limit_key": "u", "cuont": 1}"#, "unknown field `cuont`"),
        (r#"{"limit_id": "sale", "limit_id": "sale", "limit_key": "u"}"#, "duplicate field"),
        (r#"{"limit_id": "sale", "asks": [{"limit_id": "sale"}]}"#, "not both"),
        (r#"{"limit_key": "u", "asks": [{"limit_id": "sale"}]}"#, "inside of asks"),
        (r#"{"asks": [{"limit_id": "sale", "limit_key": "u", "hold": true}]}"#, "unknown field `hold`"),
        (r#"{"asks": [{"limit_key": "u"}]}"#, "missing field `limit_id`"),
        (r#"{"limit_id": "sale", "limit_key": "u"} x"#, "trailing"),
        (r#"{"limit_id": "sale", "limit_key": "u", "hold": 1}"#, "expected a boolean"),
        (r#"{"limit_id": "sale", "limit_key": "u", "request_id": ""}"#, "request_id"),
    ] {
        for path in ["acquire", "peek"] {
            let detail = fixture.ask(&format!("POST /v1/{path}"), body).problem(400, "bad_request");
            assert!(detail.contains(why), "{body}: {detail}");
        }
    }
    let long = format!(r#"{{"limit_id": "sale", "limit_key": "{}"}}"#, "k".repeat(1025));
    assert!(fixture.ask("POST /v1/acquire", &long).problem(400, "bad_request").contains("1024"));
    assert!(fixture.ask("POST /v1/acquire", r#"{"limit_id": "sale", "limit_key": "\u0000海\n"}"#).allowed());
    fixture
        .ask("POST /v1/acquire", r#"{"limit_id": "slae", "limit_key": "u"}"#)
        .problem(404, "unknown_limit");
}
