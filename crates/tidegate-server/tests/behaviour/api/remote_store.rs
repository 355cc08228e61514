//! A remote store: no call blocks its worker, and a lost reply is an outage.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use serde_json::json;
use tidegate::store::{Memory, MemoryStore};
use tidegate_server::tokens::{Caller, Permissions};
use tidegate_testkit::remote_stub::{RemoteLink, RemoteStub};

use crate::api::fixture::{ApiFixture, ApiResponse};

const SHUT: &str = r#"{"id": "shut", "items": [{"policy": "total", "limit": 50, "per": "key"}, {"policy": "concurrency", "limit": 2, "ttl": "60s"}]}"#;
const OPEN: &str = r#"{"id": "open", "on_outage": "admit", "items": [{"policy": "total", "limit": 5}]}"#;
const ACQUIRE: &str = r#"{"limit_id": "shut", "limit_key": "u"}"#;
const PATIENT: &str = r#"{"limit_id": "shut", "limit_key": "u", "max_wait_ms": 10000}"#;

type Call<'a> = Pin<Box<dyn Future<Output = ApiResponse> + Send + 'a>>;

/// An API over a remote store with two limits.
fn fixture(link: &RemoteLink) -> ApiFixture {
    let memory = Memory { secret: [7, 8], ..Memory::default() };
    let fixture = ApiFixture::over(|clock| {
        Arc::new(RemoteStub::new(Arc::new(MemoryStore::new(clock, memory)), link.clone()))
    });
    for limit in [SHUT, OPEN] {
        send_and_deliver(&fixture, link, "POST /v1/limits", limit).is(201);
    }
    fixture
}

fn sent<'a>(fixture: &'a ApiFixture, line: &str, body: &str) -> Call<'a> {
    let mut call =
        Box::pin(fixture.send(&Caller::Authenticated(Permissions::all()), line, &[], body)) as Call<'a>;
    assert!(look(&mut call).is_pending(), "{line} does not wait");
    call
}

fn look(call: &mut Call<'_>) -> Poll<ApiResponse> {
    call.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

#[track_caller]
fn answered(mut call: Call<'_>) -> ApiResponse {
    match look(&mut call) {
        Poll::Ready(response) => response,
        Poll::Pending => panic!("it still waits"),
    }
}

/// Sends a request that waits for the store, delivers the reply, and returns the response.
#[track_caller]
fn send_and_deliver(fixture: &ApiFixture, link: &RemoteLink, line: &str, body: &str) -> ApiResponse {
    let call = sent(fixture, line, body);
    assert_eq!(link.deliver_all(), 1, "{line} is one round trip");
    answered(call)
}

/// Acquires one with a hold; returns the lease.
fn held(fixture: &ApiFixture, link: &RemoteLink) -> String {
    let body = r#"{"limit_id": "shut", "limit_key": "u", "hold": true}"#;
    let response = send_and_deliver(fixture, link, "POST /v1/acquire", body).is(200);
    response.at("/lease/id").as_str().expect("a lease").to_owned()
}

/// Every request that calls the store, and its status.
fn calls(lease: &str, other: &str) -> Vec<(&'static str, String, u16)> {
    let id = |lease: &str| format!("{{\"lease_id\": \"{lease}\"}}");
    vec![
        ("POST /v1/renew", id(lease), 200),
        ("POST /v1/release", id(lease), 200),
        ("POST /v1/settle", format!("{{\"lease_id\": \"{other}\", \"actual\": 0}}"), 200),
        ("POST /v1/limits/shut/reset", String::new(), 204),
        ("GET /v1/limits/shut/usage", String::new(), 200),
        ("PUT /v1/limits/shut/overrides/v", r#"{"item": "key/total", "limit": 7}"#.to_owned(), 200),
        ("DELETE /v1/limits/shut/overrides/v", String::new(), 204),
        ("PUT /v1/limits/open", OPEN.replace('5', "6"), 200),
        ("DELETE /v1/limits/open", String::new(), 204),
        ("POST /v1/limits", OPEN.replace("open", "more"), 201),
    ]
}

#[test]
fn every_call_is_answered_after_the_store() {
    let link = RemoteLink::manual_decisions();
    let fixture = fixture(&link);
    let (lease, other) = (held(&fixture, &link), held(&fixture, &link));
    for (line, body, status) in calls(&lease, &other) {
        send_and_deliver(&fixture, &link, line, &body).is(status);
    }
    for (line, body) in [
        ("POST /v1/acquire", ACQUIRE),
        ("POST /v1/acquire", PATIENT),
        ("POST /v1/peek", ACQUIRE),
        ("GET /v1/gate/shut/u", ""),
    ] {
        send_and_deliver(&fixture, &link, line, body);
    }
    for path in ["/v1/limits", "/v1/limits/shut", "/metrics", "/readyz"] {
        fixture.get(path).is(200);
    }
}

#[test]
fn waiter_is_granted_after_a_release() {
    let link = RemoteLink::manual_replies();
    let fixture = fixture(&link);
    let (lease, _other) = (held(&fixture, &link), held(&fixture, &link));
    let mut patient = sent(&fixture, "POST /v1/acquire", PATIENT);
    while link.deliver_all() > 0 {
        assert!(look(&mut patient).is_pending());
    }
    assert_eq!(fixture.limiter.waiting("shut"), 1);
    let body = format!("{{\"lease_id\": \"{lease}\"}}");
    send_and_deliver(&fixture, &link, "POST /v1/release", &body).is(200).says(r#"{"released": true}"#);
    assert!(look(&mut patient).is_pending(), "it has asked again");
    link.deliver_all();
    assert!(answered(patient).allowed());

    let mut late = sent(&fixture, "POST /v1/acquire", PATIENT);
    while link.deliver_all() > 0 {
        assert!(look(&mut late).is_pending());
    }
    fixture.pulse.advance(Duration::from_secs(10));
    assert!(look(&mut late).is_pending(), "it looks a last time");
    link.deliver_all();
    assert!(!answered(late).allowed());
}

#[test]
fn abandoned_acquire_releases_its_grant() {
    let link = RemoteLink::manual_replies();
    let fixture = fixture(&link);
    let used = || {
        let usage = send_and_deliver(&fixture, &link, "GET /v1/limits/shut/usage", "").is(200);
        usage.at("/policy_status/0/current_count")
    };
    let call = sent(&fixture, "POST /v1/acquire", ACQUIRE);
    drop(call);
    link.deliver_all();
    assert_eq!(used(), json!(0));
}

#[test]
fn catalog_errors_match_those_of_a_local_store() {
    let link = RemoteLink::manual_decisions();
    let fixture = fixture(&link);
    send_and_deliver(&fixture, &link, "POST /v1/limits", OPEN).problem(409, "limit_exists");
    // Two clients that have read the same version, or none.
    let (first, second) =
        (sent(&fixture, "DELETE /v1/limits/open", ""), sent(&fixture, "DELETE /v1/limits/open", ""));
    link.deliver_all();
    answered(first).is(204);
    answered(second).problem(404, "unknown_limit");
    let etag = fixture.get("/v1/limits/shut").is(200).header("etag").expect("an ETag").to_owned();
    let who = Caller::Authenticated(Permissions::all());
    let replacing = |limit: &str| {
        let body = SHUT.replace("50", limit);
        let mut call =
            Box::pin(fixture.send(&who, "PUT /v1/limits/shut", &[("if-match", &etag)], &body)) as Call<'_>;
        assert!(look(&mut call).is_pending());
        call
    };
    let (first, second) = (replacing("60"), replacing("70"));
    link.deliver_all();
    answered(first).is(200);
    answered(second).problem(412, "stale_etag");
}

#[test]
fn concurrent_override_changes_both_succeed() {
    let link = RemoteLink::manual_decisions();
    let fixture = fixture(&link);
    let body = r#"{"item": "key/total", "limit": 7}"#;
    let (first, mut second) = (
        sent(&fixture, "PUT /v1/limits/shut/overrides/v", body),
        sent(&fixture, "PUT /v1/limits/shut/overrides/w", body),
    );
    link.deliver_all();
    answered(first).is(200);
    assert!(look(&mut second).is_pending(), "it begins again");
    link.deliver_all();
    answered(second).is(200);
    let limit = fixture.get("/v1/limits/shut").is(200);
    assert_eq!(limit.at("/overrides").as_array().map(Vec::len), Some(2));
}

#[test]
fn limit_put_over_api_is_not_a_file_limit() {
    let link = RemoteLink::immediate();
    let memory = Memory { secret: [7, 8], ..Memory::default() };
    let fixture =
        ApiFixture::over(|clock| Arc::new(RemoteStub::new(Arc::new(MemoryStore::new(clock, memory)), link)));
    fixture.ask("POST /v1/limits", OPEN).is(201);
    assert!(fixture.store.applied().is_empty());
}

#[test]
fn lost_reply_is_an_outage() {
    for link in [RemoteLink::manual_replies(), RemoteLink::manual_decisions()] {
        let fixture = fixture(&link);
        let (lease, other) = (held(&fixture, &link), held(&fixture, &link));
        let open = r#"{"limit_id": "open"}"#;
        let patient = sent(&fixture, "POST /v1/acquire", PATIENT);
        let decisions = [
            (sent(&fixture, "POST /v1/acquire", ACQUIRE), false),
            (sent(&fixture, "POST /v1/acquire", open), true),
            (sent(&fixture, "POST /v1/peek", open), true),
            (patient, false),
        ];
        link.fail_all("db-7.internal is down");
        for (call, allowed) in decisions {
            let response = answered(call).is(200);
            assert_eq!((response.at("/allowed"), response.at("/degraded")), (json!(allowed), json!(true)));
        }
        assert_eq!(fixture.limiter.waiting_in_all(), 0);
        for (line, body, _) in calls(&lease, &other) {
            if line.contains("overrides") {
                continue;
            }
            let call = sent(&fixture, line, &body);
            link.fail_all("db-7.internal is down");
            let detail = answered(call).problem(503, "store_unavailable");
            assert!(!detail.contains("db-7"), "what happened is for the log: {detail}");
            if line.starts_with("DELETE") {
                break;
            }
        }
    }
}
