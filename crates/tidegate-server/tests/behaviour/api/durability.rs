//! A store with a log: every call that changes something is answered when that is durable, or not as if it were.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use serde_json::json;
use tidegate::store::MapStore;
use tidegate_server::tokens::{Caller, Permissions};
use tidegate_testkit::logged_store::{LoggedStore, ManualLog};

use crate::api::stage::{Stage, Told};

const SHUT: &str = r#"{"id": "shut", "items": [{"policy": "total", "limit": 50, "per": "key"}, {"policy": "concurrency", "limit": 5, "ttl": "60s"}]}"#;
const OPEN: &str = r#"{"id": "open", "on_outage": "admit", "items": [{"policy": "total", "limit": 5}]}"#;
const OVERRIDE: &str = r#"{"item": "key/total", "limit": 7}"#;

/// A door to a store with this log, and two limits.
fn stage(log: &ManualLog) -> Stage {
    let stage =
        Stage::over(|clock| Arc::new(LoggedStore::new(Arc::new(MapStore::new(clock, 7)), log.clone())));
    for limit in [SHUT, OPEN] {
        told_when_durable(&stage, log, "POST /v1/limits", limit).is(201);
    }
    stage
}

type Call<'a> = Pin<Box<dyn Future<Output = Told> + Send + 'a>>;

fn sent<'a>(stage: &'a Stage, line: &str, body: &str) -> Call<'a> {
    Box::pin(stage.send(&Caller::Authenticated(Permissions::all()), line, &[], body))
}

fn look(call: &mut Call<'_>) -> Poll<Told> {
    call.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Sends this; it waits for the log, and is answered when that is written.
#[track_caller]
fn told_when_durable(stage: &Stage, log: &ManualLog, line: &str, body: &str) -> Told {
    let mut call = sent(stage, line, body);
    assert!(look(&mut call).is_pending(), "{line} does not wait");
    log.sync_all();
    match look(&mut call) {
        Poll::Ready(told) => told,
        Poll::Pending => panic!("{line} still waits"),
    }
}

/// Takes one and holds it; its lease.
fn held(stage: &Stage, log: &ManualLog) -> String {
    let body = r#"{"limit_id": "shut", "limit_key": "u", "hold": true}"#;
    let told = told_when_durable(stage, log, "POST /v1/acquire", body).is(200);
    told.at("/lease/id").as_str().expect("a lease").to_owned()
}

/// Every call that changes something, by how it is answered.
fn changes(lease: &str, other: &str) -> Vec<(&'static str, String, u16)> {
    let id = |lease: &str| format!("{{\"lease_id\": \"{lease}\"}}");
    let acquire = r#"{"limit_id": "shut", "limit_key": "u"}"#.to_owned();
    let patient = r#"{"limit_id": "shut", "limit_key": "u", "max_wait_ms": 1000}"#.to_owned();
    vec![
        ("POST /v1/acquire", acquire, 200),
        ("POST /v1/acquire", patient, 200),
        ("GET /v1/gate/shut/u", String::new(), 200),
        ("POST /v1/renew", id(lease), 200),
        ("POST /v1/release", id(lease), 200),
        ("POST /v1/settle", format!("{{\"lease_id\": \"{other}\", \"actual\": 0}}"), 200),
        ("POST /v1/limits/shut/reset", String::new(), 204),
        ("PUT /v1/limits/shut/overrides/v", OVERRIDE.to_owned(), 200),
        ("DELETE /v1/limits/shut/overrides/v", String::new(), 204),
        ("PUT /v1/limits/open", OPEN.replace('5', "6"), 200),
        ("DELETE /v1/limits/open", String::new(), 204),
        ("POST /v1/limits", OPEN.replace("open", "more"), 201),
    ]
}

#[test]
fn every_call_that_changes_something_is_answered_when_that_is_durable() {
    let log = ManualLog::manual();
    let stage = stage(&log);
    let (lease, other) = (held(&stage, &log), held(&stage, &log));
    for (line, body, status) in changes(&lease, &other) {
        told_when_durable(&stage, &log, line, &body).is(status);
    }
}

#[test]
fn what_changes_nothing_is_answered_at_once() {
    let log = ManualLog::manual();
    let stage = stage(&log);
    let mut five: Vec<_> =
        (0..5).map(|_| sent(&stage, "POST /v1/acquire", r#"{"limit_id": "open"}"#)).collect();
    assert!(five.iter_mut().all(|call| look(call).is_pending()));
    let refused = stage.ask("POST /v1/acquire", r#"{"limit_id": "open"}"#).is(200);
    assert_eq!(refused.at("/allowed"), json!(false));
    stage.ask("POST /v1/peek", r#"{"limit_id": "open"}"#).is(200);
    stage.get("/v1/limits/open/usage").is(200);
    stage.get("/v1/limits").is(200);
    stage.ask("POST /v1/release", r#"{"lease_id": "0123456789abcdef0123456789abcdef"}"#).is(200);
    stage.get("/readyz").is(200);
    let metrics = stage.get("/metrics").is(200).response;
    let metrics = String::from_utf8_lossy(metrics.body());
    assert!(metrics.contains("\ntidegate_store_log_failed 0\n"), "{metrics}");
    assert!(metrics.contains("\ntidegate_store_log_segments 1\n"), "{metrics}");
    assert!(metrics.contains(&format!("\ntidegate_store_log_bytes {}\n", log.tip().0)), "{metrics}");
}

#[test]
fn a_log_that_fails_is_an_outage() {
    let log = ManualLog::manual();
    let stage = stage(&log);
    let (lease, other) = (held(&stage, &log), held(&stage, &log));
    let mut refused = sent(&stage, "POST /v1/acquire", r#"{"limit_id": "shut", "limit_key": "u"}"#);
    let mut admitted = sent(&stage, "GET /v1/gate/open/u", "");
    assert!(look(&mut refused).is_pending() && look(&mut admitted).is_pending());
    log.fail("the disk is full");
    for (mut call, allowed) in [(refused, false), (admitted, true)] {
        let Poll::Ready(told) = look(&mut call) else { panic!("it still waits") };
        let told = told.is(200);
        assert_eq!((told.at("/allowed"), told.at("/degraded")), (json!(allowed), json!(true)));
    }
    for (line, body, _) in changes(&lease, &other) {
        match line {
            "POST /v1/acquire" => {
                assert_eq!(stage.ask(line, &body).is(200).at("/degraded"), json!(true));
            }
            // It was put before anybody knew that it cannot be written down.
            "DELETE /v1/limits/shut/overrides/v" => {}
            _ => drop(stage.ask(line, &body).problem(503, "store_unavailable")),
        }
    }
    let detail = stage.get("/readyz").problem(503, "not_ready");
    assert!(detail.contains("the disk is full"), "{detail}");
}

#[test]
fn who_gives_up_before_they_are_told_gives_back_what_they_were_granted() {
    let log = ManualLog::manual();
    let stage = stage(&log);
    let used = || stage.get("/v1/limits/shut/usage").is(200).at("/policy_status/0/current_count");
    let mut call = sent(&stage, "POST /v1/acquire", r#"{"limit_id": "shut", "limit_key": "u"}"#);
    assert!(look(&mut call).is_pending());
    assert_eq!(used(), json!(1));
    drop(call);
    assert_eq!(used(), json!(0));
    // Whoever may repeat the question finds what it was granted.
    let body = r#"{"limit_id": "shut", "limit_key": "u", "request_id": "r"}"#;
    let mut call = sent(&stage, "POST /v1/acquire", body);
    assert!(look(&mut call).is_pending());
    drop(call);
    assert_eq!(used(), json!(1));
    let again = told_when_durable(&stage, &log, "POST /v1/acquire", body).is(200);
    assert_eq!((again.at("/allowed"), used()), (json!(true), json!(1)));
}
