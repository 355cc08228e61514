//! A store with a log behind one worker: replies wait for the log, and other connections do not.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tidegate::store::Lsn;
use tidegate_testkit::logged_store::ManualLog;

use crate::resp::fixture::words;
use crate::serve::fixture::{Client, ServerFixture, acquire, patient, peek, post};
use crate::serve::http2::{connected, runtime, send_request};

const FULL: &str = "the disk is full";
const GRANTED: &str = "[1, -1, -1, -1, -1, '', '']";
const FAILED: &str = "-UNAVAILABLE the store cannot answer: the disk is full";

/// The same request in a form that hyper has to parse.
fn chunked(request: &[u8]) -> Vec<u8> {
    let text = std::str::from_utf8(request).expect("text");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    let head: Vec<&str> = head.lines().filter(|line| !line.starts_with("Content-Length")).collect();
    let head = head.join("\r\n");
    format!("{head}\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len())
        .into_bytes()
}

fn open_leases(fixture: &ServerFixture) -> usize {
    fixture.store.size().expect("it counts").leases
}

/// Sends this and checks that it waits for the log while other connections are answered.
#[track_caller]
fn waits(fixture: &ServerFixture, log: &ManualLog, client: &mut Client, output: &[u8]) {
    client.say(output);
    log.wait_for_waiters(1);
    fixture.is_well();
    client.has_been_told_nothing();
}

#[test]
fn http_responses_wait_for_the_log_in_order() {
    let log = ManualLog::manual();
    let fixture = ServerFixture::logged(&log);
    for way in [<[u8]>::to_vec, chunked] {
        let mut client = fixture.http();
        let both = [way(&acquire("free", "ada")), way(&peek("twice", "ada"))].concat();
        waits(&fixture, &log, &mut client, &both);
        log.sync_all();
        assert_eq!(client.answer().expect("an answer").json()["readings"][0]["limit_id"], "free");
        assert_eq!(client.answer().expect("an answer").json()["readings"][0]["limit_id"], "twice");
        assert_eq!(client.ask(&way(&peek("free", "ada"))).status, 200, "a look waits for nothing");
    }
    fixture.end();
}

#[test]
fn ready_http_responses_are_sent_before_the_wait() {
    let log = ManualLog::manual();
    let fixture = ServerFixture::logged(&log);
    let mut client = fixture.http();
    client.say(&[peek("twice", "ada"), acquire("free", "ada"), peek("free", "ada")].concat());
    assert_eq!(client.answer().expect("an answer").json()["readings"][0]["limit_id"], "twice");
    waits(&fixture, &log, &mut client, b"");
    log.sync_all();
    assert_eq!(client.answer().expect("an answer").json()["allowed"], true);
    assert_eq!(client.answer().expect("an answer").json()["allowed"], true);
    fixture.end();
}

#[test]
fn http2_streams_wait_for_the_log_separately() {
    let log = ManualLog::manual();
    let fixture = ServerFixture::logged(&log);
    let ask = |path: &str| {
        let body = Full::new(Bytes::from_static(br#"{"limit_id":"free","limit_key":"ada"}"#));
        Request::post(format!("http://h/v1/{path}")).body(body).expect("a request")
    };
    runtime().block_on(async {
        let mut send = connected(&fixture).await;
        let mut other = send.clone();
        let (acquire, look) = (ask("acquire"), ask("peek"));
        let waiting = tokio::spawn(async move { send_request(&mut other, acquire).await });
        while log.waiter_count() == 0 {
            tokio::task::yield_now().await;
        }
        let (status, _, body) = send_request(&mut send, look).await;
        assert_eq!((status, &body["allowed"]), (200, &true.into()));
        assert!(!waiting.is_finished());
        log.sync_all();
        let (status, _, body) = waiting.await.expect("an answer");
        assert_eq!((status, &body["allowed"], &body["degraded"]), (200, &true.into(), &false.into()));
    });
    fixture.end();
}

#[test]
fn resp_pipeline_sends_ready_replies_and_waits_in_order() {
    let log = ManualLog::manual();
    let fixture = ServerFixture::logged(&log);
    let mut client = fixture.resp();
    let line =
        ["PING", "TG.ACQUIRE free ada", "TG.PEEK twice ada", "ECHO one", "TG.ACQUIRE free bob", "PING"];
    client.say(&line.map(words).concat());
    assert_eq!(client.reply().expect("a reply"), "+PONG");
    waits(&fixture, &log, &mut client, b"");
    log.sync_to(Lsn(log.log_end().0 - 1));
    let mut reply = || client.reply().expect("a reply");
    assert_eq!(
        (reply(), reply(), reply()),
        (GRANTED.into(), "[1, 2, 2, -1, -1, '', '']".into(), "'one'".into())
    );
    waits(&fixture, &log, &mut client, b"");
    log.sync_all();
    let mut reply = || client.reply().expect("a reply");
    assert_eq!((reply(), reply()), (GRANTED.into(), "+PONG".into()));
    assert_eq!(client.command("TG.PEEK free ada"), GRANTED, "a look waits for nothing");
    fixture.end();
}

#[test]
fn resp_release_and_renew_wait_for_the_log() {
    let log = ManualLog::manual();
    let fixture = ServerFixture::logged(&log);
    let mut client = fixture.resp();
    waits(&fixture, &log, &mut client, &words("TG.ACQUIRE builds ada"));
    log.sync_all();
    let granted = client.reply().expect("a reply");
    let lease = granted.rsplit('\'').nth(1).expect("a lease").to_owned();
    waits(&fixture, &log, &mut client, &words(&format!("TG.RENEW {lease} 1000")));
    log.sync_all();
    assert!(client.reply().expect("a reply").parse::<u64>().is_ok(), "an instant");
    waits(&fixture, &log, &mut client, &words(&format!("TG.RELEASE {lease}")));
    log.sync_all();
    assert_eq!(client.reply().expect("a reply"), "1");
    assert_eq!(client.command(&format!("TG.RELEASE {lease}")), "0", "what is gone already waits for nothing");
    fixture.end();
}

#[test]
fn failed_log_is_an_error_for_each_deferred_command() {
    let log = ManualLog::manual();
    let fixture = ServerFixture::logged(&log);
    let mut client = fixture.resp();
    let line = ["TG.ACQUIRE free ada", "TG.ACQUIRE free bob", "ECHO one", "TG.ACQUIRE free cid", "ECHO two"];
    client.say(&line.map(words).concat());
    log.wait_for_waiters(1);
    log.fail(FULL);
    let output: Vec<String> = (0..5).map(|_| client.reply().expect("a reply")).collect();
    assert_eq!(output, [FAILED, FAILED, "'one'", FAILED, "'two'"]);
    assert_eq!(client.command("PING"), "+PONG", "the connection goes on");
    assert_eq!(client.command("TG.ACQUIRE free ada"), FAILED);
    assert_eq!(client.command("TG.PEEK free ada"), GRANTED);
    fixture.end();
}

#[test]
fn failed_log_makes_http_follow_on_outage() {
    let log = ManualLog::manual();
    let fixture = ServerFixture::logged(&log);
    let (mut plain, mut general) = (fixture.http(), fixture.http());
    plain.say(&acquire("free", "ada"));
    general.say(&chunked(&acquire("free", "ada")));
    log.wait_for_waiters(2);
    log.fail(FULL);
    for client in [&mut plain, &mut general] {
        let output = client.answer().expect("an answer").json();
        assert_eq!((&output["allowed"], &output["degraded"]), (&false.into(), &true.into()));
    }
    plain.ask(&post("/v1/limits/free/reset", "")).is_problem(503, "store_unavailable");
    let ready = plain.ask(b"GET /readyz HTTP/1.1\r\nHost: h\r\n\r\n");
    ready.is_problem(503, "not_ready");
    assert!(ready.text().contains(FULL), "{}", ready.text());
    let metrics = plain.ask(b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n").text();
    assert!(metrics.contains("\ntidegate_store_log_failed 1\n"), "{metrics}");
    fixture.end();
}

#[test]
fn disconnected_client_leaves_no_lease() {
    let log = ManualLog::manual();
    let fixture = ServerFixture::logged(&log);
    for request in
        [acquire("builds", "ada"), patient("builds", "ada", 60_000), chunked(&acquire("builds", "ada"))]
    {
        let mut client = fixture.http();
        client.say(&request);
        fixture.until("it is granted", |fixture| open_leases(fixture) == 1);
        client.has_been_told_nothing();
        drop(client);
        fixture.until("it is given back", |fixture| open_leases(fixture) == 0);
    }
    fixture.end();
}

#[test]
fn granted_waiter_waits_for_the_log() {
    let log = ManualLog::manual();
    let fixture = ServerFixture::logged(&log);
    let (mut holder, mut waiting) = (fixture.http(), fixture.http());
    waits(&fixture, &log, &mut holder, &acquire("builds", "ada"));
    log.sync_all();
    let held = holder.answer().expect("an answer").json();
    let lease = held["lease"]["id"].as_str().expect("a lease").to_owned();
    waiting.say(&patient("builds", "bob", 60_000));
    fixture.until("one waits", |fixture| fixture.limiter.waiting_in_all() == 1);
    holder.say(&post("/v1/release", &format!("{{\"lease_id\":\"{lease}\"}}")));
    log.wait_for_waiters(2);
    assert_eq!(fixture.limiter.waiting_in_all(), 0, "the line does not wait for the log");
    waiting.has_been_told_nothing();
    holder.has_been_told_nothing();
    log.sync_all();
    assert_eq!(holder.answer().expect("an answer").text(), "{\"released\":true}");
    assert_eq!(waiting.answer().expect("an answer").json()["allowed"], true);
    fixture.end();
}

#[test]
fn shutdown_waits_for_deferred_replies() {
    let log = ManualLog::manual();
    let fixture = ServerFixture::logged(&log);
    let (mut http, mut resp, mut idle) = (fixture.http(), fixture.resp(), fixture.resp());
    http.say(&acquire("free", "ada"));
    resp.say(&words("TG.ACQUIRE free ada"));
    log.wait_for_waiters(2);
    assert_eq!(idle.command("PING"), "+PONG");
    let draining = std::thread::spawn(move || fixture.end());
    idle.is_cut_off();
    http.has_been_told_nothing();
    log.sync_all();
    assert_eq!(http.answer().expect("an answer").status, 200);
    assert_eq!(resp.reply().expect("a reply"), GRANTED);
    draining.join().expect("the end comes");
}
