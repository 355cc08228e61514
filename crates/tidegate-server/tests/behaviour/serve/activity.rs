//! Events over sockets: told piece by piece, beside everything else, and not for longer than the server lives.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tidegate::clock::ManualClock;
use tidegate::model::LeaseId;
use tidegate_server::serve::ConnectionBounds;

use crate::resp::stage::START;
use crate::serve::stage::{Client, Stage, first_answer, post, wide};

/// Begins a task of this user.
fn begin(stage: &Stage, user: &str) -> String {
    let answer = stage.http().ask(&post(&format!("/v1/activity/{user}"), ""));
    assert_eq!(answer.status, 201, "{answer:?}");
    answer.json()["active_id"].as_str().expect("a name").to_owned()
}

fn call(method: &str, path: &str) -> Vec<u8> {
    format!("{method} {path} HTTP/1.1\r\nHost: h\r\n\r\n").into_bytes()
}

/// Somebody who watches, and has heard the first event.
fn watch(stage: &Stage, user: &str, id: &str) -> Client {
    let mut client = stage.http();
    client.say(&call("GET", &format!("/v1/activity/{user}/{id}/events")));
    let head = client.answer().expect("a head");
    assert_eq!((head.status, head.field("content-type")), (200, Some("text/event-stream")), "{head:?}");
    assert_eq!(head.field("transfer-encoding"), Some("chunked"));
    let (name, data) = event(&mut client).expect("an event");
    assert_eq!((name.as_str(), &data["active_id"]), ("active", &id.into()));
    client
}

/// The next event; `None` if the body is at its end.
fn event(client: &mut Client) -> Option<(String, Value)> {
    let chunk = client.hear_until(|heard| {
        let line = heard.windows(2).position(|two| two == b"\r\n")?;
        let length = std::str::from_utf8(&heard[..line]).ok()?;
        let length = usize::from_str_radix(length, 16).expect("the length of a chunk");
        let chunk = heard.get(line + 2..line + 2 + length)?.to_vec();
        heard.get(line + length + 2..line + length + 4).map(|_| (chunk, line + length + 4))
    });
    let chunk = String::from_utf8(chunk.expect("a chunk, and not the end of the connection")).expect("text");
    let (name, data) = chunk.strip_prefix("event: ")?.split_once("\ndata: ").expect("an event");
    Some((name.to_owned(), serde_json::from_str(data).expect("JSON")))
}

/// It is told how the task ended, and then the body ends and the connection does not.
fn hears_the_end(client: &mut Client, reason: &str) {
    let (name, data) = event(client).expect("an event");
    assert_eq!((name.as_str(), &data["reason"]), ("ended", &reason.into()));
    assert_eq!(event(client), None);
    assert_eq!(client.ask(&call("GET", "/healthz")).status, 200, "the connection goes on");
}

#[test]
fn whoever_watches_is_told_of_the_end_wherever_it_comes_from() {
    let clock = Arc::new(ManualClock::at(START));
    let stage = Stage::timed(&clock);
    let ids = ["ada", "bob", "eve"].map(|user| begin(&stage, user));
    let mut ada = [watch(&stage, "ada", &ids[0]), watch(&stage, "ada", &ids[0])];
    let mut bob = watch(&stage, "bob", &ids[1]);
    let mut eve = watch(&stage, "eve", &ids[2]);
    // ConnectionEnd HTTP.
    assert_eq!(stage.http().ask(&call("DELETE", "/v1/activity/ada")).json()["removed"], 1);
    for each in &mut ada {
        hears_the_end(each, "released");
    }
    // At the store, as another process would.
    let lease = LeaseId::parse(&ids[1]).expect("an id");
    let until = stage.store.renew(lease, Some(Duration::from_secs(400))).now().expect("a renewal");
    assert!(until.is_some());
    assert_eq!(event(&mut bob).map(|(name, _)| name).as_deref(), Some("renewed"));
    assert!(stage.store.release(lease).now());
    hears_the_end(&mut bob, "released");
    // By itself.
    clock.advance(Duration::from_secs(300));
    hears_the_end(&mut eve, "expired");
    let path = format!("/v1/activity/eve/{}/events", ids[2]);
    stage.http().ask(&call("GET", &path)).is_problem(410, "unknown_lease");
    stage.is_well();
    stage.end();
}

#[test]
fn a_head_is_answered_without_events() {
    let stage = Stage::new(wide());
    let id = begin(&stage, "ada");
    let mut client = stage.http();
    client.say(&call("HEAD", &format!("/v1/activity/ada/{id}/events")));
    let head = client.hear_until(|heard| first_answer(heard, true)).expect("a head");
    assert_eq!((head.status, head.field("content-type")), (200, Some("text/event-stream")));
    assert_eq!(client.ask(&call("GET", "/healthz")).status, 200);
    stage.end();
}

#[test]
fn whoever_watches_is_not_idle() {
    let stage = Stage::new(ConnectionBounds { idle: Duration::from_millis(20), ..wide() });
    let id = begin(&stage, "ada");
    let mut watching = watch(&stage, "ada", &id);
    for _ in 0..5 {
        // Somebody who is idle is sent away meanwhile.
        stage.http().is_cut_off();
    }
    stage.http().ask(&call("DELETE", &format!("/v1/activity/ada/{id}")));
    let (name, _) = event(&mut watching).expect("an event");
    assert_eq!(name, "ended");
    stage.end();
}

#[test]
fn whoever_leaves_is_not_told_any_more() {
    let stage = Stage::new(wide());
    let id = begin(&stage, "ada");
    let watching: Vec<Client> = (0..10).map(|_| watch(&stage, "ada", &id)).collect();
    stage.until("all are here", |stage| stage.server.connections() >= 10);
    drop(watching);
    stage.until("all have left", |stage| stage.server.connections() <= 1);
    stage.end();
}

#[test]
fn streams_end_with_the_server() {
    let stage = Stage::new(wide());
    let id = begin(&stage, "ada");
    let mut watching: Vec<Client> = (0..10).map(|_| watch(&stage, "ada", &id)).collect();
    let store = Arc::clone(&stage.store);
    stage.end();
    for client in &mut watching {
        assert_eq!(event(client), None, "the body is whole, and nothing is said of the task");
        client.is_cut_off();
    }
    let lease = LeaseId::parse(&id).expect("an id");
    assert!(store.held_until(&[lease]).now()[0].is_some(), "it goes on");
}
