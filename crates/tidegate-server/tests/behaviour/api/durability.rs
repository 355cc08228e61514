//! A store with a log: changes are answered when they are durable.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use serde_json::json;
use tidegate::store::MapStore;
use tidegate_server::tokens::{Caller, Permissions};
use tidegate_testkit::logged_store::{LoggedStore, ManualLog};

use crate::api::fixture::{ApiFixture, ApiResponse};

const SHUT: &str = r#"{"id": "shut", "items": [{"policy": "total", "limit": 50, "per": "key"}, {"policy": "concurrency", "limit": 5, "ttl": "60s"}]}"#;
const OPEN: &str = r#"{"id": "open", "on_outage": "admit", "items": [{"policy": "total", "limit": 5}]}"#;
const OVERRIDE: &str = r#"{"item": "key/total", "limit": 7}"#;

/// An API over a store with this log and two limits.
fn fixture(log: &ManualLog) -> ApiFixture {
    let fixture =
        ApiFixture::over(|clock| Arc::new(LoggedStore::new(Arc::new(MapStore::new(clock, 7)), log.clone())));
    for limit in [SHUT, OPEN] {
        send_and_sync(&fixture, log, "POST /v1/limits", limit).is(201);
    }
    fixture
}

type Call<'a> = Pin<Box<dyn Future<Output = ApiResponse> + Send + 'a>>;

fn sent<'a>(fixture: &'a ApiFixture, line: &str, body: &str) -> Call<'a> {
    Box::pin(fixture.send(&Caller::Authenticated(Permissions::all()), line, &[], body))
}

fn look(call: &mut Call<'_>) -> Poll<ApiResponse> {
    call.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Sends a request that waits for the log, syncs, and returns the response.
#[track_caller]
fn send_and_sync(fixture: &ApiFixture, log: &ManualLog, line: &str, body: &str) -> ApiResponse {
    let mut call = sent(fixture, line, body);
    assert!(look(&mut call).is_pending(), "{line} does not wait");
    log.sync_all();
    match look(&mut call) {
        Poll::Ready(response) => response,
        Poll::Pending => panic!("{line} still waits"),
    }
}

/// Acquires one with a hold; returns the lease.
fn held(fixture: &ApiFixture, log: &ManualLog) -> String {
    let body = r#"{"limit_id": "shut", "limit_key": "u", "hold": true}"#;
    let response = send_and_sync(fixture, log, "POST /v1/acquire", body).is(200);
    response.at("/lease/id").as_str().expect("a lease").to_owned()
}

/// Every request that changes something, with its status.
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
fn changes_are_answered_when_durable() {
    let log = ManualLog::manual();
    let fixture = fixture(&log);
    let (lease, other) = (held(&fixture, &log), held(&fixture, &log));
    for (line, body, status) in changes(&lease, &other) {
        send_and_sync(&fixture, &log, line, &body).is(status);
    }
}

#[test]
fn reads_are_answered_at_once() {
    let log = ManualLog::manual();
    let fixture = fixture(&log);
    let mut five: Vec<_> =
        (0..5).map(|_| sent(&fixture, "POST /v1/acquire", r#"{"limit_id": "open"}"#)).collect();
    assert!(five.iter_mut().all(|call| look(call).is_pending()));
    let refused = fixture.ask("POST /v1/acquire", r#"{"limit_id": "open"}"#).is(200);
    assert_eq!(refused.at("/allowed"), json!(false));
    fixture.ask("POST /v1/peek", r#"{"limit_id": "open"}"#).is(200);
    fixture.get("/v1/limits/open/usage").is(200);
    fixture.get("/v1/limits").is(200);
    fixture.ask("POST /v1/release", r#"{"lease_id": "0123456789abcdef0123456789abcdef"}"#).is(200);
    fixture.get("/readyz").is(200);
    let metrics = fixture.get("/metrics").is(200).response;
    let metrics = String::from_utf8_lossy(metrics.body());
    assert!(metrics.contains("\ntidegate_store_log_failed 0\n"), "{metrics}");
    assert!(metrics.contains("\ntidegate_store_log_segments 1\n"), "{metrics}");
    assert!(metrics.contains(&format!("\ntidegate_store_log_bytes {}\n", log.log_end().0)), "{metrics}");
}

#[test]
fn failed_log_is_an_outage() {
    let log = ManualLog::manual();
    let fixture = fixture(&log);
    let (lease, other) = (held(&fixture, &log), held(&fixture, &log));
    let mut refused = sent(&fixture, "POST /v1/acquire", r#"{"limit_id": "shut", "limit_key": "u"}"#);
    let mut admitted = sent(&fixture, "GET /v1/gate/open/u", "");
    assert!(look(&mut refused).is_pending() && look(&mut admitted).is_pending());
    log.fail("the disk is full");
    for (mut call, allowed) in [(refused, false), (admitted, true)] {
        let Poll::Ready(response) = look(&mut call) else { panic!("it still waits") };
        let response = response.is(200);
        assert_eq!((response.at("/allowed"), response.at("/degraded")), (json!(allowed), json!(true)));
    }
    for (line, body, _) in changes(&lease, &other) {
        match line {
            "POST /v1/acquire" => {
                assert_eq!(fixture.ask(line, &body).is(200).at("/degraded"), json!(true));
            }
            // It was put before the log failed.
            "DELETE /v1/limits/shut/overrides/v" => {}
            _ => drop(fixture.ask(line, &body).problem(503, "store_unavailable")),
        }
    }
    let detail = fixture.get("/readyz").problem(503, "not_ready");
    assert!(detail.contains("the disk is full"), "{detail}");
}

#[test]
fn abandoned_acquire_releases_its_grant() {
    let log = ManualLog::manual();
    let fixture = fixture(&log);
    let used = || fixture.get("/v1/limits/shut/usage").is(200).at("/policy_status/0/current_count");
    let mut call = sent(&fixture, "POST /v1/acquire", r#"{"limit_id": "shut", "limit_key": "u"}"#);
    assert!(look(&mut call).is_pending());
    assert_eq!(used(), json!(1));
    drop(call);
    assert_eq!(used(), json!(0));
    // A retry with the request id finds the grant.
    let body = r#"{"limit_id": "shut", "limit_key": "u", "request_id": "r"}"#;
    let mut call = sent(&fixture, "POST /v1/acquire", body);
    assert!(look(&mut call).is_pending());
    drop(call);
    assert_eq!(used(), json!(1));
    let again = send_and_sync(&fixture, &log, "POST /v1/acquire", body).is(200);
    assert_eq!((again.at("/allowed"), used()), (json!(true), json!(1)));
}
