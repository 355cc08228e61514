//! Event streams over sockets: incremental, concurrent with other requests, closed on shutdown.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tidegate::clock::ManualClock;
use tidegate::model::LeaseId;
use tidegate_server::serve::ConnectionBounds;

use crate::resp::fixture::START;
use crate::serve::fixture::{Client, ServerFixture, first_answer, post, wide};

/// Starts a task of this user.
fn begin(fixture: &ServerFixture, user: &str) -> String {
    let answer = fixture.http().ask(&post(&format!("/v1/activity/{user}"), ""));
    assert_eq!(answer.status, 201, "{answer:?}");
    answer.json()["active_id"].as_str().expect("a name").to_owned()
}

fn call(method: &str, path: &str) -> Vec<u8> {
    format!("{method} {path} HTTP/1.1\r\nHost: h\r\n\r\n").into_bytes()
}

/// Opens an event stream and reads the first event.
fn watch(fixture: &ServerFixture, user: &str, id: &str) -> Client {
    let mut client = fixture.http();
    client.say(&call("GET", &format!("/v1/activity/{user}/{id}/events")));
    let head = client.answer().expect("a head");
    assert_eq!((head.status, head.field("content-type")), (200, Some("text/event-stream")), "{head:?}");
    assert_eq!(head.field("transfer-encoding"), Some("chunked"));
    let (name, data) = event(&mut client).expect("an event");
    assert_eq!((name.as_str(), &data["active_id"]), ("active", &id.into()));
    client
}

/// The next event; `None` at the end of the body.
fn event(client: &mut Client) -> Option<(String, Value)> {
    let chunk = client.read_until(|received| {
        let line = received.windows(2).position(|two| two == b"\r\n")?;
        let length = std::str::from_utf8(&received[..line]).ok()?;
        let length = usize::from_str_radix(length, 16).expect("the length of a chunk");
        let chunk = received.get(line + 2..line + 2 + length)?.to_vec();
        received.get(line + length + 2..line + length + 4).map(|_| (chunk, line + length + 4))
    });
    let chunk = String::from_utf8(chunk.expect("a chunk, and not the end of the connection")).expect("text");
    let (name, data) = chunk.strip_prefix("event: ")?.split_once("\ndata: ").expect("an event");
    Some((name.to_owned(), serde_json::from_str(data).expect("JSON")))
}

/// Checks that the end of the task is reported, then the body ends and the connection stays open.
fn expect_end_event(client: &mut Client, reason: &str) {
    let (name, data) = event(client).expect("an event");
    assert_eq!((name.as_str(), &data["reason"]), ("ended", &reason.into()));
    assert_eq!(event(client), None);
    assert_eq!(client.ask(&call("GET", "/healthz")).status, 200, "the connection goes on");
}

#[test]
fn stream_reports_the_end_from_any_source() {
    let clock = Arc::new(ManualClock::at(START));
    let fixture = ServerFixture::timed(&clock);
    let ids = ["ada", "bob", "eve"].map(|user| begin(&fixture, user));
    let mut ada = [watch(&fixture, "ada", &ids[0]), watch(&fixture, "ada", &ids[0])];
    let mut bob = watch(&fixture, "bob", &ids[1]);
    let mut eve = watch(&fixture, "eve", &ids[2]);
    // Ended over HTTP.
    assert_eq!(fixture.http().ask(&call("DELETE", "/v1/activity/ada")).json()["removed"], 1);
    for each in &mut ada {
        expect_end_event(each, "released");
    }
    // Ended at the store, as another process would.
    let lease = LeaseId::parse(&ids[1]).expect("an id");
    let until = fixture.store.renew(lease, Some(Duration::from_secs(400))).now().expect("a renewal");
    assert!(until.is_some());
    assert_eq!(event(&mut bob).map(|(name, _)| name).as_deref(), Some("renewed"));
    assert!(fixture.store.release(lease).now());
    expect_end_event(&mut bob, "released");
    // Expired.
    clock.advance(Duration::from_secs(300));
    expect_end_event(&mut eve, "expired");
    let path = format!("/v1/activity/eve/{}/events", ids[2]);
    fixture.http().ask(&call("GET", &path)).is_problem(410, "unknown_lease");
    fixture.is_well();
    fixture.end();
}

#[test]
fn head_request_gets_no_events() {
    let fixture = ServerFixture::new(wide());
    let id = begin(&fixture, "ada");
    let mut client = fixture.http();
    client.say(&call("HEAD", &format!("/v1/activity/ada/{id}/events")));
    let head = client.read_until(|received| first_answer(received, true)).expect("a head");
    assert_eq!((head.status, head.field("content-type")), (200, Some("text/event-stream")));
    assert_eq!(client.ask(&call("GET", "/healthz")).status, 200);
    fixture.end();
}

#[test]
fn open_stream_is_not_idle() {
    let fixture = ServerFixture::new(ConnectionBounds { idle: Duration::from_millis(20), ..wide() });
    let id = begin(&fixture, "ada");
    let mut watching = watch(&fixture, "ada", &id);
    for _ in 0..5 {
        // Meanwhile an idle connection is closed.
        fixture.http().is_cut_off();
    }
    fixture.http().ask(&call("DELETE", &format!("/v1/activity/ada/{id}")));
    let (name, _) = event(&mut watching).expect("an event");
    assert_eq!(name, "ended");
    fixture.end();
}

#[test]
fn closed_stream_is_dropped() {
    let fixture = ServerFixture::new(wide());
    let id = begin(&fixture, "ada");
    let watching: Vec<Client> = (0..10).map(|_| watch(&fixture, "ada", &id)).collect();
    fixture.until("all are here", |fixture| fixture.server.connections() >= 10);
    drop(watching);
    fixture.until("all have left", |fixture| fixture.server.connections() <= 1);
    fixture.end();
}

#[test]
fn streams_end_on_shutdown() {
    let fixture = ServerFixture::new(wide());
    let id = begin(&fixture, "ada");
    let mut watching: Vec<Client> = (0..10).map(|_| watch(&fixture, "ada", &id)).collect();
    let store = Arc::clone(&fixture.store);
    fixture.end();
    for client in &mut watching {
        assert_eq!(event(client), None, "the body is whole, and nothing is said of the task");
        client.is_cut_off();
    }
    let lease = LeaseId::parse(&id).expect("an id");
    assert!(store.held_until(&[lease]).now()[0].is_some(), "it goes on");
}
