//! Acquire and peek: one ask or a set, again by its id, with patience.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use serde_json::json;
use tidegate_server::tokens::{Caller, Permissions};

use crate::api::stage::Stage;

const SALE: &str = r#"{"id": "sale", "items": [{"policy": "total", "limit": 3}, {"policy": "day", "limit": 2, "per": "key"}]}"#;
const SLOTS: &str = r#"{"id": "slots", "items": [{"policy": "concurrency", "limit": 1, "ttl": "30s"}]}"#;
const BUCKET: &str = r#"{"id": "bucket", "items": [{"policy": "bucket", "limit": 1, "window": "1500ms"}]}"#;

#[test]
fn a_grant_says_what_is_left() {
    let stage = Stage::with(&[SALE]);
    let ask = r#"{"limit_id": "sale", "limit_key": "u1"}"#;
    let granted = |total: u64, day: u64| {
        json!({"allowed": true, "lease": null, "binding": null, "wait": null, "retry_after_ms": null, "degraded": false,
            "readings": [
                {"limit_id": "sale", "item": "all/total", "limit": 3, "used": total, "remaining": 3 - total, "resets_at": null},
                {"limit_id": "sale", "item": "key/day", "limit": 2, "used": day, "remaining": 2 - day, "resets_at": "2026-01-21T00:00:00Z"}]})
        .to_string()
    };
    stage.ask("POST /v1/peek", ask).is(200);
    stage.ask("POST /v1/acquire", ask).is(200).says(&granted(1, 1));
    stage.ask("POST /v1/acquire", ask).is(200).says(&granted(2, 2));
}

#[test]
fn a_refusal_says_who_refused_and_when_to_come_back() {
    let stage = Stage::with(&[SALE, BUCKET]);
    let ask = r#"{"limit_id": "sale", "limit_key": "u1", "count": 2}"#;
    assert!(stage.ask("POST /v1/acquire", ask).allowed());
    let one = r#"{"limit_id": "sale", "limit_key": "u1"}"#;
    stage.ask("POST /v1/acquire", one).is(200).says(
        r#"{"allowed": false, "lease": null, "binding": {"limit_id": "sale", "item": "key/day"}, "wait": "until",
            "retry_after_ms": 86400000, "degraded": false, "readings": [
            {"limit_id": "sale", "item": "all/total", "limit": 3, "used": 2, "remaining": 1, "resets_at": null},
            {"limit_id": "sale", "item": "key/day", "limit": 2, "used": 2, "remaining": 0, "resets_at": "2026-01-21T00:00:00Z"}]}"#,
    );
    let never =
        stage.ask("POST /v1/acquire", r#"{"limit_id": "sale", "limit_key": "u2", "count": 4}"#).is(200);
    assert_eq!((never.at("/wait"), never.at("/retry_after_ms")), (json!("never"), json!(null)));

    // Rounded up, and true.
    assert!(stage.ask("POST /v1/acquire", r#"{"limit_id": "bucket"}"#).allowed());
    stage.clock.advance(Duration::from_nanos(1));
    let refused = stage.ask("POST /v1/acquire", r#"{"limit_id": "bucket"}"#);
    assert_eq!(refused.at("/retry_after_ms"), json!(1500));
    stage.clock.advance(Duration::from_millis(1500));
    assert!(stage.ask("POST /v1/acquire", r#"{"limit_id": "bucket"}"#).allowed());
}

#[test]
fn the_fields_of_a_decision_are_in_the_order_of_the_contract() {
    let stage = Stage::with(&[SLOTS]);
    for _ in 0..2 {
        let text = stage.ask("POST /v1/acquire", r#"{"limit_id": "slots"}"#).text();
        let places: Vec<_> =
            ["allowed", "lease", "binding", "wait", "retry_after_ms", "degraded", "readings"]
                .iter()
                .map(|field| text.find(&format!("\"{field}\":")).expect(field))
                .collect();
        assert!(places.is_sorted(), "{text}");
    }
}

#[test]
fn a_peek_changes_nothing() {
    let stage = Stage::with(&[SALE, SLOTS]);
    for _ in 0..5 {
        assert!(
            stage.ask("POST /v1/peek", r#"{"limit_id": "sale", "limit_key": "u", "count": 2}"#).allowed()
        );
        let peeked = stage.ask("POST /v1/peek", r#"{"limit_id": "slots", "hold": true}"#);
        assert_eq!((peeked.allowed(), peeked.at("/lease")), (true, json!(null)));
    }
    assert_eq!(stage.get("/v1/limits/sale/usage").at("/count"), json!(0));
}

#[test]
fn a_set_is_granted_whole_or_not_at_all() {
    let stage = Stage::with(&[SALE, BUCKET]);
    let set = r#"{"asks": [{"limit_id": "bucket"}, {"limit_id": "sale", "limit_key": "u", "count": 2}]}"#;
    let granted = stage.ask("POST /v1/acquire", set);
    assert!(granted.allowed());
    assert_eq!(granted.at("/readings").as_array().map(Vec::len), Some(3));
    stage.clock.advance(Duration::from_secs(2));
    let refused = stage.ask("POST /v1/acquire", set);
    assert_eq!(refused.at("/binding"), json!({"limit_id": "sale", "item": "all/total"}));
    assert!(stage.ask("POST /v1/acquire", r#"{"limit_id": "bucket"}"#).allowed(), "nothing was taken of it");
}

#[test]
fn a_set_has_one_to_thirty_two_asks() {
    let stage = Stage::with(&[r#"{"id": "many", "items": [{"policy": "total", "limit": 100}]}"#]);
    let set = |asks: usize| format!("{{\"asks\": [{}]}}", vec![r#"{"limit_id": "many"}"#; asks].join(","));
    stage.ask("POST /v1/acquire", &set(0)).problem(400, "bad_request");
    assert!(stage.ask("POST /v1/acquire", &set(1)).allowed());
    assert!(stage.ask("POST /v1/acquire", &set(32)).allowed());
    assert!(stage.ask("POST /v1/acquire", &set(33)).problem(400, "bad_request").contains("1 to 32"));
    assert_eq!(stage.get("/v1/limits/many/usage").at("/count"), json!(33), "asks of one item add up");
}

#[test]
fn a_request_is_charged_once() {
    let stage = Stage::with(&[SALE, SLOTS]);
    let ask = r#"{"limit_id": "sale", "limit_key": "u", "request_id": "r1"}"#;
    let first = stage.ask("POST /v1/acquire", ask).is(200);
    stage.ask("POST /v1/acquire", ask).is(200).says(&first.text());
    assert_eq!(stage.get("/v1/limits/sale/usage").at("/count"), json!(1));
    let other = r#"{"limit_id": "sale", "limit_key": "v", "request_id": "r1"}"#;
    stage.ask("POST /v1/acquire", other).problem(409, "request_id_reused");
    let long = format!(r#"{{"limit_id": "sale", "limit_key": "u", "request_id": "{}"}}"#, "x".repeat(257));
    stage.ask("POST /v1/acquire", &long).problem(400, "bad_request");

    let slot = r#"{"limit_id": "slots", "request_id": "r2"}"#;
    let lease = stage.ask("POST /v1/acquire", slot).at("/lease");
    assert_eq!(
        stage.ask("POST /v1/acquire", slot).at("/lease"),
        lease,
        "the same lease, not given back between"
    );
    assert!(!stage.ask("POST /v1/acquire", r#"{"limit_id": "slots"}"#).allowed());

    let refused = r#"{"limit_id": "slots", "request_id": "r3"}"#;
    assert!(!stage.ask("POST /v1/acquire", refused).allowed());
    stage.clock.advance(Duration::from_secs(30));
    assert!(stage.ask("POST /v1/acquire", refused).allowed(), "a refusal stays retryable");
}

#[test]
fn an_answer_may_wait_until_it_fits() {
    let stage = Stage::with(&[SLOTS]);
    let everybody = Caller::Authenticated(Permissions::all());
    let lease = stage.ask("POST /v1/acquire", r#"{"limit_id": "slots"}"#).at("/lease/id");
    let mut context = Context::from_waker(Waker::noop());
    let patient = r#"{"limit_id": "slots", "max_wait_ms": 60000}"#;
    let mut first = pin!(stage.send(&everybody, "POST /v1/acquire", &[], patient));
    let mut second = pin!(stage.send(&everybody, "POST /v1/acquire", &[], patient));
    assert!(first.as_mut().poll(&mut context).is_pending());
    assert!(second.as_mut().poll(&mut context).is_pending());
    assert_eq!(stage.limiter.waiting("slots"), 2);

    stage.ask("POST /v1/release", &json!({"lease_id": lease}).to_string()).is(200);
    assert!(second.as_mut().poll(&mut context).is_pending(), "first come first served");
    let Poll::Ready(told) = first.as_mut().poll(&mut context) else { panic!("it is free") };
    assert!(told.allowed());

    stage.pulse.advance(Duration::from_secs(60));
    let Poll::Ready(told) = second.as_mut().poll(&mut context) else { panic!("patience is over") };
    assert_eq!((told.allowed(), told.at("/wait")), (false, json!("on_release")));
    assert_eq!(stage.limiter.waiting("slots"), 0);
}

#[test]
fn patience_has_an_end() {
    let stage = Stage::with(&[SALE]);
    for path in ["/v1/acquire", "/v1/peek"] {
        let ask = r#"{"limit_id": "sale", "limit_key": "u", "max_wait_ms": 60001}"#;
        assert!(stage.ask(&format!("POST {path}"), ask).problem(400, "bad_request").contains("60000"));
    }
}

#[test]
fn numbers_are_whole_and_fit() {
    let stage = Stage::with(&[SALE]);
    for (field, bounds) in [
        ("count", "from 0 to 18446744073709551615"),
        ("ttl_ms", "of milliseconds above 0"),
        ("max_wait_ms", "from 0 to 60000"),
    ] {
        for value in ["-1", "1.5", "18446744073709551616", "1e3", "\"1\"", "true", "[1]", "-0.0"] {
            let ask = format!(r#"{{"limit_id": "sale", "limit_key": "u", "{field}": {value}}}"#);
            let detail = stage.ask("POST /v1/acquire", &ask).problem(400, "bad_request");
            let allowed = format!("{field} to be a whole number {bounds}");
            assert!(detail.contains(&allowed), "{field} {value}: {detail}");
        }
    }
    let most = r#"{"limit_id": "sale", "limit_key": "u", "count": 18446744073709551615}"#;
    assert_eq!(stage.ask("POST /v1/acquire", most).is(200).at("/wait"), json!("never"));
    let ask = r#"{"limit_id": "sale", "limit_key": "u", "hold": true, "ttl_ms": 0}"#;
    assert!(stage.ask("POST /v1/acquire", ask).problem(400, "bad_request").contains("ttl"));
    assert_eq!(stage.get("/v1/limits/sale/usage").at("/count"), json!(0));
}

#[test]
fn asks_that_make_no_sense_are_refused() {
    let stage = Stage::with(&[SALE]);
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
            let detail = stage.ask(&format!("POST /v1/{path}"), body).problem(400, "bad_request");
            assert!(detail.contains(why), "{body}: {detail}");
        }
    }
    let long = format!(r#"{{"limit_id": "sale", "limit_key": "{}"}}"#, "k".repeat(1025));
    assert!(stage.ask("POST /v1/acquire", &long).problem(400, "bad_request").contains("1024"));
    assert!(stage.ask("POST /v1/acquire", r#"{"limit_id": "sale", "limit_key": "\u0000海\n"}"#).allowed());
    stage.ask("POST /v1/acquire", r#"{"limit_id": "slae", "limit_key": "u"}"#).problem(404, "unknown_limit");
}
