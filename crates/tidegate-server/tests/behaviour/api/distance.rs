//! A store where somebody else decides: no call blocks its worker, and an answer that is lost is an outage.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use serde_json::json;
use tidegate::store::{Memory, MemoryStore};
use tidegate_server::tokens::{Caller, Permissions};
use tidegate_testkit::remote_stub::{RemoteLink, RemoteStub};

use crate::api::stage::{Stage, Told};

const SHUT: &str = r#"{"id": "shut", "items": [{"policy": "total", "limit": 50, "per": "key"}, {"policy": "concurrency", "limit": 2, "ttl": "60s"}]}"#;
const OPEN: &str = r#"{"id": "open", "on_outage": "admit", "items": [{"policy": "total", "limit": 5}]}"#;
const ACQUIRE: &str = r#"{"limit_id": "shut", "limit_key": "u"}"#;
const PATIENT: &str = r#"{"limit_id": "shut", "limit_key": "u", "max_wait_ms": 10000}"#;

type Call<'a> = Pin<Box<dyn Future<Output = Told> + Send + 'a>>;

/// A door to a store at the other end of this link, and two limits.
fn stage(link: &RemoteLink) -> Stage {
    let memory = Memory { secret: [7, 8], ..Memory::default() };
    let stage = Stage::over(|clock| {
        Arc::new(RemoteStub::new(Arc::new(MemoryStore::new(clock, memory)), link.clone()))
    });
    for limit in [SHUT, OPEN] {
        told(&stage, link, "POST /v1/limits", limit).is(201);
    }
    stage
}

fn sent<'a>(stage: &'a Stage, line: &str, body: &str) -> Call<'a> {
    let mut call =
        Box::pin(stage.send(&Caller::Authenticated(Permissions::all()), line, &[], body)) as Call<'a>;
    assert!(look(&mut call).is_pending(), "{line} does not wait");
    call
}

fn look(call: &mut Call<'_>) -> Poll<Told> {
    call.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

#[track_caller]
fn answered(mut call: Call<'_>) -> Told {
    match look(&mut call) {
        Poll::Ready(told) => told,
        Poll::Pending => panic!("it still waits"),
    }
}

/// Sends this; it waits for the store, and is answered when that has.
#[track_caller]
fn told(stage: &Stage, link: &RemoteLink, line: &str, body: &str) -> Told {
    let call = sent(stage, line, body);
    assert_eq!(link.deliver_all(), 1, "{line} is one round trip");
    answered(call)
}

/// Takes one and holds it; its lease.
fn held(stage: &Stage, link: &RemoteLink) -> String {
    let body = r#"{"limit_id": "shut", "limit_key": "u", "hold": true}"#;
    let told = told(stage, link, "POST /v1/acquire", body).is(200);
    told.at("/lease/id").as_str().expect("a lease").to_owned()
}

/// Every call that goes to the store, and how it is answered.
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
fn every_call_is_answered_when_the_store_has() {
    let link = RemoteLink::manual_decisions();
    let stage = stage(&link);
    let (lease, other) = (held(&stage, &link), held(&stage, &link));
    for (line, body, status) in calls(&lease, &other) {
        told(&stage, &link, line, &body).is(status);
    }
    for (line, body) in [
        ("POST /v1/acquire", ACQUIRE),
        ("POST /v1/acquire", PATIENT),
        ("POST /v1/peek", ACQUIRE),
        ("GET /v1/gate/shut/u", ""),
    ] {
        told(&stage, &link, line, body);
    }
    for path in ["/v1/limits", "/v1/limits/shut", "/metrics", "/readyz"] {
        stage.get(path).is(200);
    }
}

#[test]
fn who_waits_in_line_is_served_when_something_is_given_back() {
    let link = RemoteLink::manual_replies();
    let stage = stage(&link);
    let (lease, _other) = (held(&stage, &link), held(&stage, &link));
    let mut patient = sent(&stage, "POST /v1/acquire", PATIENT);
    while link.deliver_all() > 0 {
        assert!(look(&mut patient).is_pending());
    }
    assert_eq!(stage.limiter.waiting("shut"), 1);
    let body = format!("{{\"lease_id\": \"{lease}\"}}");
    told(&stage, &link, "POST /v1/release", &body).is(200).says(r#"{"released": true}"#);
    assert!(look(&mut patient).is_pending(), "it has asked again");
    link.deliver_all();
    assert!(answered(patient).allowed());

    let mut late = sent(&stage, "POST /v1/acquire", PATIENT);
    while link.deliver_all() > 0 {
        assert!(look(&mut late).is_pending());
    }
    stage.pulse.advance(Duration::from_secs(10));
    assert!(look(&mut late).is_pending(), "it looks a last time");
    link.deliver_all();
    assert!(!answered(late).allowed());
}

#[test]
fn who_gives_up_before_they_are_told_gives_back_what_they_were_granted() {
    let link = RemoteLink::manual_replies();
    let stage = stage(&link);
    let used = || {
        let usage = told(&stage, &link, "GET /v1/limits/shut/usage", "").is(200);
        usage.at("/policy_status/0/current_count")
    };
    let call = sent(&stage, "POST /v1/acquire", ACQUIRE);
    drop(call);
    link.deliver_all();
    assert_eq!(used(), json!(0));
}

#[test]
fn limits_are_refused_as_by_a_store_at_hand() {
    let link = RemoteLink::manual_decisions();
    let stage = stage(&link);
    told(&stage, &link, "POST /v1/limits", OPEN).problem(409, "limit_exists");
    // Two who have read the same version, or that it is there.
    let (first, second) =
        (sent(&stage, "DELETE /v1/limits/open", ""), sent(&stage, "DELETE /v1/limits/open", ""));
    link.deliver_all();
    answered(first).is(204);
    answered(second).problem(404, "unknown_limit");
    let etag = stage.get("/v1/limits/shut").is(200).header("etag").expect("an ETag").to_owned();
    let who = Caller::Authenticated(Permissions::all());
    let replacing = |limit: &str| {
        let body = SHUT.replace("50", limit);
        let mut call =
            Box::pin(stage.send(&who, "PUT /v1/limits/shut", &[("if-match", &etag)], &body)) as Call<'_>;
        assert!(look(&mut call).is_pending());
        call
    };
    let (first, second) = (replacing("60"), replacing("70"));
    link.deliver_all();
    answered(first).is(200);
    answered(second).problem(412, "stale_etag");
}

#[test]
fn two_who_change_overrides_at_once_both_succeed() {
    let link = RemoteLink::manual_decisions();
    let stage = stage(&link);
    let body = r#"{"item": "key/total", "limit": 7}"#;
    let (first, mut second) = (
        sent(&stage, "PUT /v1/limits/shut/overrides/v", body),
        sent(&stage, "PUT /v1/limits/shut/overrides/w", body),
    );
    link.deliver_all();
    answered(first).is(200);
    assert!(look(&mut second).is_pending(), "it begins again");
    link.deliver_all();
    answered(second).is(200);
    let limit = stage.get("/v1/limits/shut").is(200);
    assert_eq!(limit.at("/overrides").as_array().map(Vec::len), Some(2));
}

#[test]
fn what_an_operator_puts_is_no_limit_of_a_file() {
    let link = RemoteLink::immediate();
    let memory = Memory { secret: [7, 8], ..Memory::default() };
    let stage =
        Stage::over(|clock| Arc::new(RemoteStub::new(Arc::new(MemoryStore::new(clock, memory)), link)));
    stage.ask("POST /v1/limits", OPEN).is(201);
    assert!(stage.store.applied().is_empty());
}

#[test]
fn an_answer_that_is_lost_is_an_outage() {
    for link in [RemoteLink::manual_replies(), RemoteLink::manual_decisions()] {
        let stage = stage(&link);
        let (lease, other) = (held(&stage, &link), held(&stage, &link));
        let open = r#"{"limit_id": "open"}"#;
        let patient = sent(&stage, "POST /v1/acquire", PATIENT);
        let decisions = [
            (sent(&stage, "POST /v1/acquire", ACQUIRE), false),
            (sent(&stage, "POST /v1/acquire", open), true),
            (sent(&stage, "POST /v1/peek", open), true),
            (patient, false),
        ];
        link.fail_all("db-7.internal is down");
        for (call, allowed) in decisions {
            let told = answered(call).is(200);
            assert_eq!((told.at("/allowed"), told.at("/degraded")), (json!(allowed), json!(true)));
        }
        assert_eq!(stage.limiter.waiting_in_all(), 0);
        for (line, body, _) in calls(&lease, &other) {
            if line.contains("overrides") {
                continue;
            }
            let call = sent(&stage, line, &body);
            link.fail_all("db-7.internal is down");
            let detail = answered(call).problem(503, "store_unavailable");
            assert!(!detail.contains("db-7"), "what happened is for the log: {detail}");
            if line.starts_with("DELETE") {
                break;
            }
        }
    }
}
