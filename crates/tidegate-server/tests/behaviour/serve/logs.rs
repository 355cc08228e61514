//! A store with a log, behind one worker: nobody is answered before the log is written, and nobody else waits for it.

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tidegate::store::Lsn;
use tidegate_testkit::logged_store::ManualLog;

use crate::resp::stage::words;
use crate::serve::second::{connected, runtime, told};
use crate::serve::stage::{Client, Stage, acquire, patient, peek, post};

const FULL: &str = "the disk is full";
const GRANTED: &str = "[1, -1, -1, -1, -1, '', '']";
const FAILED: &str = "-UNAVAILABLE the store cannot answer: the disk is full";

/// The same question in a way that hyper has to read.
fn chunked(request: &[u8]) -> Vec<u8> {
    let text = std::str::from_utf8(request).expect("text");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    let head: Vec<&str> = head.lines().filter(|line| !line.starts_with("Content-Length")).collect();
    let head = head.join("\r\n");
    format!("{head}\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len())
        .into_bytes()
}

fn open_leases(stage: &Stage) -> usize {
    stage.store.extent().expect("it counts").leases
}

/// Says this, and when it waits for the log, others are answered and it is not.
#[track_caller]
fn waits(stage: &Stage, log: &ManualLog, client: &mut Client, said: &[u8]) {
    client.say(said);
    log.wait_for_waiters(1);
    stage.is_well();
    client.has_been_told_nothing();
}

#[test]
fn answers_of_http_wait_for_the_log_in_order_and_others_do_not() {
    let log = ManualLog::manual();
    let stage = Stage::logged(&log);
    for way in [<[u8]>::to_vec, chunked] {
        let mut client = stage.http();
        let both = [way(&acquire("free", "ada")), way(&peek("twice", "ada"))].concat();
        waits(&stage, &log, &mut client, &both);
        log.sync_all();
        assert_eq!(client.answer().expect("an answer").json()["readings"][0]["limit_id"], "free");
        assert_eq!(client.answer().expect("an answer").json()["readings"][0]["limit_id"], "twice");
        assert_eq!(client.ask(&way(&peek("free", "ada"))).status, 200, "a look waits for nothing");
    }
    stage.end();
}

#[test]
fn what_was_ready_before_is_said_before() {
    let log = ManualLog::manual();
    let stage = Stage::logged(&log);
    let mut client = stage.http();
    client.say(&[peek("twice", "ada"), acquire("free", "ada"), peek("free", "ada")].concat());
    assert_eq!(client.answer().expect("an answer").json()["readings"][0]["limit_id"], "twice");
    waits(&stage, &log, &mut client, b"");
    log.sync_all();
    assert_eq!(client.answer().expect("an answer").json()["allowed"], true);
    assert_eq!(client.answer().expect("an answer").json()["allowed"], true);
    stage.end();
}

#[test]
fn calls_of_http_2_wait_each_for_its_own() {
    let log = ManualLog::manual();
    let stage = Stage::logged(&log);
    let ask = |path: &str| {
        let body = Full::new(Bytes::from_static(br#"{"limit_id":"free","limit_key":"ada"}"#));
        Request::post(format!("http://h/v1/{path}")).body(body).expect("a request")
    };
    runtime().block_on(async {
        let mut send = connected(&stage).await;
        let mut other = send.clone();
        let (acquire, look) = (ask("acquire"), ask("peek"));
        let waiting = tokio::spawn(async move { told(&mut other, acquire).await });
        while log.waiter_count() == 0 {
            tokio::task::yield_now().await;
        }
        let (status, _, body) = told(&mut send, look).await;
        assert_eq!((status, &body["allowed"]), (200, &true.into()));
        assert!(!waiting.is_finished());
        log.sync_all();
        let (status, _, body) = waiting.await.expect("an answer");
        assert_eq!((status, &body["allowed"], &body["degraded"]), (200, &true.into(), &false.into()));
    });
    stage.end();
}

#[test]
fn pipelines_of_resp_say_what_is_ready_and_wait_for_the_rest_in_order() {
    let log = ManualLog::manual();
    let stage = Stage::logged(&log);
    let mut client = stage.resp();
    let line =
        ["PING", "TG.ACQUIRE free ada", "TG.PEEK twice ada", "ECHO one", "TG.ACQUIRE free bob", "PING"];
    client.say(&line.map(words).concat());
    assert_eq!(client.reply().expect("a reply"), "+PONG");
    waits(&stage, &log, &mut client, b"");
    log.sync_to(Lsn(log.tip().0 - 1));
    let mut reply = || client.reply().expect("a reply");
    assert_eq!(
        (reply(), reply(), reply()),
        (GRANTED.into(), "[1, 2, 2, -1, -1, '', '']".into(), "'one'".into())
    );
    waits(&stage, &log, &mut client, b"");
    log.sync_all();
    let mut reply = || client.reply().expect("a reply");
    assert_eq!((reply(), reply()), (GRANTED.into(), "+PONG".into()));
    assert_eq!(client.tell("TG.PEEK free ada"), GRANTED, "a look waits for nothing");
    stage.end();
}

#[test]
fn giving_back_and_renewing_over_resp_wait_too() {
    let log = ManualLog::manual();
    let stage = Stage::logged(&log);
    let mut client = stage.resp();
    waits(&stage, &log, &mut client, &words("TG.ACQUIRE builds ada"));
    log.sync_all();
    let granted = client.reply().expect("a reply");
    let lease = granted.rsplit('\'').nth(1).expect("a lease").to_owned();
    waits(&stage, &log, &mut client, &words(&format!("TG.RENEW {lease} 1000")));
    log.sync_all();
    assert!(client.reply().expect("a reply").parse::<u64>().is_ok(), "an instant");
    waits(&stage, &log, &mut client, &words(&format!("TG.RELEASE {lease}")));
    log.sync_all();
    assert_eq!(client.reply().expect("a reply"), "1");
    assert_eq!(client.tell(&format!("TG.RELEASE {lease}")), "0", "what is gone already waits for nothing");
    stage.end();
}

#[test]
fn a_log_that_fails_is_told_to_each_command_that_depends_on_it() {
    let log = ManualLog::manual();
    let stage = Stage::logged(&log);
    let mut client = stage.resp();
    let line = ["TG.ACQUIRE free ada", "TG.ACQUIRE free bob", "ECHO one", "TG.ACQUIRE free cid", "ECHO two"];
    client.say(&line.map(words).concat());
    log.wait_for_waiters(1);
    log.fail(FULL);
    let said: Vec<String> = (0..5).map(|_| client.reply().expect("a reply")).collect();
    assert_eq!(said, [FAILED, FAILED, "'one'", FAILED, "'two'"]);
    assert_eq!(client.tell("PING"), "+PONG", "the connection goes on");
    assert_eq!(client.tell("TG.ACQUIRE free ada"), FAILED);
    assert_eq!(client.tell("TG.PEEK free ada"), GRANTED);
    stage.end();
}

#[test]
fn a_log_that_fails_makes_http_answer_by_rule() {
    let log = ManualLog::manual();
    let stage = Stage::logged(&log);
    let (mut plain, mut general) = (stage.http(), stage.http());
    plain.say(&acquire("free", "ada"));
    general.say(&chunked(&acquire("free", "ada")));
    log.wait_for_waiters(2);
    log.fail(FULL);
    for client in [&mut plain, &mut general] {
        let said = client.answer().expect("an answer").json();
        assert_eq!((&said["allowed"], &said["degraded"]), (&false.into(), &true.into()));
    }
    plain.ask(&post("/v1/limits/free/reset", "")).is_problem(503, "store_unavailable");
    let ready = plain.ask(b"GET /readyz HTTP/1.1\r\nHost: h\r\n\r\n");
    ready.is_problem(503, "not_ready");
    assert!(ready.text().contains(FULL), "{}", ready.text());
    let metrics = plain.ask(b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n").text();
    assert!(metrics.contains("\ntidegate_store_log_failed 1\n"), "{metrics}");
    stage.end();
}

#[test]
fn who_leaves_before_they_are_told_leaves_nothing_behind() {
    let log = ManualLog::manual();
    let stage = Stage::logged(&log);
    for request in
        [acquire("builds", "ada"), patient("builds", "ada", 60_000), chunked(&acquire("builds", "ada"))]
    {
        let mut client = stage.http();
        client.say(&request);
        stage.until("it is granted", |stage| open_leases(stage) == 1);
        client.has_been_told_nothing();
        drop(client);
        stage.until("it is given back", |stage| open_leases(stage) == 0);
    }
    stage.end();
}

#[test]
fn who_waits_in_line_waits_for_the_log_behind_it() {
    let log = ManualLog::manual();
    let stage = Stage::logged(&log);
    let (mut holder, mut waiting) = (stage.http(), stage.http());
    waits(&stage, &log, &mut holder, &acquire("builds", "ada"));
    log.sync_all();
    let held = holder.answer().expect("an answer").json();
    let lease = held["lease"]["id"].as_str().expect("a lease").to_owned();
    waiting.say(&patient("builds", "bob", 60_000));
    stage.until("one waits", |stage| stage.limiter.waiting_in_all() == 1);
    holder.say(&post("/v1/release", &format!("{{\"lease_id\":\"{lease}\"}}")));
    log.wait_for_waiters(2);
    assert_eq!(stage.limiter.waiting_in_all(), 0, "the line does not wait for the log");
    waiting.has_been_told_nothing();
    holder.has_been_told_nothing();
    log.sync_all();
    assert_eq!(holder.answer().expect("an answer").text(), "{\"released\":true}");
    assert_eq!(waiting.answer().expect("an answer").json()["allowed"], true);
    stage.end();
}

#[test]
fn who_waits_for_the_log_is_answered_before_the_end() {
    let log = ManualLog::manual();
    let stage = Stage::logged(&log);
    let (mut http, mut resp, mut idle) = (stage.http(), stage.resp(), stage.resp());
    http.say(&acquire("free", "ada"));
    resp.say(&words("TG.ACQUIRE free ada"));
    log.wait_for_waiters(2);
    assert_eq!(idle.tell("PING"), "+PONG");
    let draining = std::thread::spawn(move || stage.end());
    idle.is_cut_off();
    http.has_been_told_nothing();
    log.sync_all();
    assert_eq!(http.answer().expect("an answer").status, 200);
    assert_eq!(resp.reply().expect("a reply"), GRANTED);
    draining.join().expect("the end comes");
}
