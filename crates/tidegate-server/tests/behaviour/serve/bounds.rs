//! Too many connections, and too many wrong tokens.

use tidegate_server::serve::ConnectionBounds;

use crate::resp::stage::{encode, words};
use crate::serve::stage::{Stage, acquire, wide};

/// How often an address may show a wrong token at once.
const FORGIVEN: usize = 20;

#[test]
fn there_is_room_for_so_many_and_again_when_somebody_leaves() {
    let stage = Stage::new(ConnectionBounds { connections: 2, ..wide() });
    let (mut http, mut resp) = (stage.http(), stage.resp());
    assert_eq!(http.ask(&acquire("free", "ada")).status, 200);
    assert_eq!(resp.tell("PING"), "+PONG");

    let mut third = stage.http();
    third.shout(&acquire("free", "ada"));
    let answer = third.answer().expect("an answer");
    answer.is_problem(503, "overloaded");
    assert_eq!((answer.field("retry-after"), answer.field("connection")), (Some("1"), Some("close")));
    third.is_cut_off();
    let mut fourth = stage.resp();
    fourth.shout(&words("PING"));
    assert_eq!(fourth.reply().as_deref(), Some("-UNAVAILABLE too many connections; try again soon"));
    fourth.is_cut_off();

    // Those who are in do not notice.
    assert_eq!(http.ask(&acquire("free", "ada")).status, 200);
    assert_eq!(resp.tell("PING"), "+PONG");
    drop(http);
    let mut tries = 0;
    loop {
        assert_eq!(resp.tell("PING"), "+PONG");
        let mut next = stage.http();
        next.shout(&acquire("free", "ada"));
        match next.answer().expect("an answer").status {
            200 => break,
            status => assert_eq!(status, 503),
        }
        tries += 1;
        assert!(tries < 100_000, "there is never room again");
    }
    stage.end();
}

#[test]
fn a_crowd_at_the_door_does_not_harm_those_inside() {
    let stage = Stage::new(ConnectionBounds { connections: 4, ..wide() });
    let (mut http, mut resp) = (stage.http(), stage.resp());
    assert_eq!(resp.tell("PING"), "+PONG");
    assert_eq!(http.ask(&acquire("free", "ada")).status, 200);
    let crowd: Vec<_> = (0..600).map(|_| [stage.http(), stage.resp()]).collect();
    for _ in 0..10 {
        assert_eq!(resp.tell("PING"), "+PONG");
        assert_eq!(http.ask(&acquire("free", "ada")).status, 200);
    }
    assert!(stage.server.connections() <= 4);
    drop(crowd);
    stage.end();
}

fn with_token(token: &str) -> Vec<u8> {
    format!("GET /v1/gate/free/ada HTTP/1.1\r\nAuthorization: Bearer {token}\r\n\r\n").into_bytes()
}

#[test]
fn wrong_tokens_are_counted_and_the_right_one_always_passes() {
    let (stage, token) = Stage::locked(wide());
    let (mut right, mut wrong) = (stage.http(), stage.http());
    assert_eq!(right.ask(&with_token(&token)).status, 200);
    for _ in 0..FORGIVEN {
        wrong.ask(&with_token("guess")).is_problem(401, "unauthorized");
        assert_eq!(right.ask(&with_token(&token)).status, 200);
    }
    let answer = wrong.ask(&with_token("guess"));
    answer.is_problem(429, "too_many_attempts");
    let health = b"GET /healthz HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer guess\r\n\r\n";
    assert_eq!(stage.http().ask(health).status, 200, "whether it is well is everybody's to know");
    let wait: u64 = answer.field("retry-after").expect("when").parse().expect("seconds");
    assert!((1..=60).contains(&wait), "{wait}");
    assert_eq!(wrong.ask(&with_token(&token)).status, 200, "a right token from the same address passes");
    assert_eq!(right.ask(&with_token(&token)).status, 200);
    assert_eq!(stage.http().ask(b"GET /healthz HTTP/1.1\r\n\r\n").status, 200, "so does who needs none");

    // The other door counts with it.
    let mut resp = stage.resp();
    let mut asks = encode(&["AUTH", "guess"]);
    asks.extend(words("PING"));
    resp.say(&asks);
    let said = String::from_utf8(resp.rest()).expect("text");
    let (first, second) = said.split_once("\r\n").expect("two lines");
    assert!(
        first.starts_with("-WRONGPASS ") && second.starts_with("-ERR too many failed attempts"),
        "{said}"
    );
    assert_eq!(stage.resp().tell(&format!("AUTH {token}")), "+OK");
    stage.end();
}

#[test]
fn guesses_that_are_pipelined_end_at_the_first_too_many() {
    let (stage, token) = Stage::locked(wide());
    let mut resp = stage.resp();
    resp.say(&encode(&["AUTH", "guess"]).repeat(1_000));
    let said = String::from_utf8(resp.rest()).expect("text");
    assert_eq!(said.matches("-WRONGPASS").count(), FORGIVEN + 1, "{said}");
    assert_eq!(said.matches("-ERR too many failed attempts").count(), 1);
    assert_eq!(stage.resp().tell(&format!("AUTH {token}")), "+OK");
    stage.end();
}

#[test]
fn a_stranger_is_sent_away_before_their_body_is_read() {
    let (stage, _) = Stage::locked(wide());
    let mut client = stage.http();
    client.say(b"POST /v1/acquire HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n{");
    client.answer().expect("an answer").is_problem(401, "unauthorized");
    stage.end();
}

/// Caller says that too much will come hears that it is too much, and need not send it first.
#[test]
fn a_body_that_is_announced_too_large_is_not_waited_for() {
    let (stage, token) = Stage::locked(wide());
    let mut client = stage.http();
    let head = format!(
        "POST /v1/acquire HTTP/1.1\r\nAuthorization: Bearer {token}\r\nContent-Length: 1048577\r\n\r\n{{"
    );
    client.say(head.as_bytes());
    let answer = client.answer().expect("an answer");
    answer.is_problem(413, "too_large");
    assert!(answer.text().contains("this one has 1048577"), "{}", answer.text());
    // What comes first is told first.
    let mut stranger = stage.http();
    stranger.say(b"POST /v1/acquire HTTP/1.1\r\nContent-Length: 1048577\r\n\r\n{");
    stranger.answer().expect("an answer").is_problem(401, "unauthorized");
    let mut lost = stage.http();
    let head = format!(
        "POST /nowhere HTTP/1.1\r\nAuthorization: Bearer {token}\r\nContent-Length: 1048577\r\n\r\n{{"
    );
    lost.say(head.as_bytes());
    lost.answer().expect("an answer").is_problem(404, "not_found");
    stage.end();
}
