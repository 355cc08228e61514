//! The limits on connections and on failed authentications.

use tidegate_server::serve::ConnectionBounds;

use crate::resp::fixture::{encode, words};
use crate::serve::fixture::{ServerFixture, acquire, wide};

/// How often an address may fail in a burst.
const FORGIVEN: usize = 20;

#[test]
fn connections_are_bounded_and_slots_are_reused() {
    let fixture = ServerFixture::new(ConnectionBounds { connections: 2, ..wide() });
    let (mut http, mut resp) = (fixture.http(), fixture.resp());
    assert_eq!(http.ask(&acquire("free", "ada")).status, 200);
    assert_eq!(resp.command("PING"), "+PONG");

    let mut third = fixture.http();
    third.shout(&acquire("free", "ada"));
    let answer = third.answer().expect("an answer");
    answer.is_problem(503, "overloaded");
    assert_eq!((answer.field("retry-after"), answer.field("connection")), (Some("1"), Some("close")));
    third.is_cut_off();
    let mut fourth = fixture.resp();
    fourth.shout(&words("PING"));
    assert_eq!(fourth.reply().as_deref(), Some("-UNAVAILABLE too many connections; try again soon"));
    fourth.is_cut_off();

    // Open connections are not affected.
    assert_eq!(http.ask(&acquire("free", "ada")).status, 200);
    assert_eq!(resp.command("PING"), "+PONG");
    drop(http);
    let mut tries = 0;
    loop {
        assert_eq!(resp.command("PING"), "+PONG");
        let mut next = fixture.http();
        next.shout(&acquire("free", "ada"));
        match next.answer().expect("an answer").status {
            200 => break,
            status => assert_eq!(status, 503),
        }
        tries += 1;
        assert!(tries < 100_000, "there is never room again");
    }
    fixture.end();
}

#[test]
fn rejected_connections_do_not_affect_open_ones() {
    let fixture = ServerFixture::new(ConnectionBounds { connections: 4, ..wide() });
    let (mut http, mut resp) = (fixture.http(), fixture.resp());
    assert_eq!(resp.command("PING"), "+PONG");
    assert_eq!(http.ask(&acquire("free", "ada")).status, 200);
    let crowd: Vec<_> = (0..600).map(|_| [fixture.http(), fixture.resp()]).collect();
    for _ in 0..10 {
        assert_eq!(resp.command("PING"), "+PONG");
        assert_eq!(http.ask(&acquire("free", "ada")).status, 200);
    }
    assert!(fixture.server.connections() <= 4);
    drop(crowd);
    fixture.end();
}

fn with_token(token: &str) -> Vec<u8> {
    format!("GET /v1/gate/free/ada HTTP/1.1\r\nAuthorization: Bearer {token}\r\n\r\n").into_bytes()
}

#[test]
fn wrong_tokens_are_limited_and_the_right_one_passes() {
    let (fixture, token) = ServerFixture::locked(wide());
    let (mut right, mut wrong) = (fixture.http(), fixture.http());
    assert_eq!(right.ask(&with_token(&token)).status, 200);
    for _ in 0..FORGIVEN {
        wrong.ask(&with_token("guess")).is_problem(401, "unauthorized");
        assert_eq!(right.ask(&with_token(&token)).status, 200);
    }
    let answer = wrong.ask(&with_token("guess"));
    answer.is_problem(429, "too_many_attempts");
    let health = b"GET /healthz HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer guess\r\n\r\n";
    assert_eq!(fixture.http().ask(health).status, 200, "health needs no token");
    let wait: u64 = answer.field("retry-after").expect("when").parse().expect("seconds");
    assert!((1..=60).contains(&wait), "{wait}");
    assert_eq!(wrong.ask(&with_token(&token)).status, 200, "a right token from the same address passes");
    assert_eq!(right.ask(&with_token(&token)).status, 200);
    assert_eq!(fixture.http().ask(b"GET /healthz HTTP/1.1\r\n\r\n").status, 200, "so does who needs none");

    // Both protocols share the count.
    let mut resp = fixture.resp();
    let mut asks = encode(&["AUTH", "guess"]);
    asks.extend(words("PING"));
    resp.say(&asks);
    let output = String::from_utf8(resp.rest()).expect("text");
    let (first, second) = output.split_once("\r\n").expect("two lines");
    assert!(
        first.starts_with("-WRONGPASS ") && second.starts_with("-ERR too many failed attempts"),
        "{output}"
    );
    assert_eq!(fixture.resp().command(&format!("AUTH {token}")), "+OK");
    fixture.end();
}

#[test]
fn pipelined_guesses_end_at_the_limit() {
    let (fixture, token) = ServerFixture::locked(wide());
    let mut resp = fixture.resp();
    resp.say(&encode(&["AUTH", "guess"]).repeat(1_000));
    let output = String::from_utf8(resp.rest()).expect("text");
    assert_eq!(output.matches("-WRONGPASS").count(), FORGIVEN + 1, "{output}");
    assert_eq!(output.matches("-ERR too many failed attempts").count(), 1);
    assert_eq!(fixture.resp().command(&format!("AUTH {token}")), "+OK");
    fixture.end();
}

#[test]
fn unauthenticated_request_is_refused_before_its_body() {
    let (fixture, _) = ServerFixture::locked(wide());
    let mut client = fixture.http();
    client.say(b"POST /v1/acquire HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n{");
    client.answer().expect("an answer").is_problem(401, "unauthorized");
    fixture.end();
}

/// A declared length over the bound is refused before the body is sent.
#[test]
fn declared_oversized_body_is_refused_at_once() {
    let (fixture, token) = ServerFixture::locked(wide());
    let mut client = fixture.http();
    let head = format!(
        "POST /v1/acquire HTTP/1.1\r\nAuthorization: Bearer {token}\r\nContent-Length: 1048577\r\n\r\n{{"
    );
    client.say(head.as_bytes());
    let answer = client.answer().expect("an answer");
    answer.is_problem(413, "too_large");
    assert!(answer.text().contains("this one has 1048577"), "{}", answer.text());
    // The first reason is reported.
    let mut stranger = fixture.http();
    stranger.say(b"POST /v1/acquire HTTP/1.1\r\nContent-Length: 1048577\r\n\r\n{");
    stranger.answer().expect("an answer").is_problem(401, "unauthorized");
    let mut lost = fixture.http();
    let head = format!(
        "POST /nowhere HTTP/1.1\r\nAuthorization: Bearer {token}\r\nContent-Length: 1048577\r\n\r\n{{"
    );
    lost.say(head.as_bytes());
    lost.answer().expect("an answer").is_problem(404, "not_found");
    fixture.end();
}
