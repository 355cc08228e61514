//! The slow and the silent: who takes too long is cut off, and nobody else waits for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::fixture::{Backend, Stage, file, get, wait_until};
use super::http_client::{FAR_TOO_LONG, Wire};

/// How long a dripping client waits between two drops.
const DROP: Duration = Duration::from_millis(20);

/// Says a beginning, and then a drop at a time until somebody has enough; what was said then.
#[track_caller]
fn drips(mut client: Wire, beginning: &str, drop: &str) -> Vec<u8> {
    client.say(beginning);
    for _ in 0..FAR_TOO_LONG.as_millis() / DROP.as_millis() {
        if client.ends_within(DROP) {
            return client.rest();
        }
        client.shout(drop);
    }
    panic!("it may drip for ever");
}

#[test]
fn who_drips_a_head_is_told_and_cut_off() {
    let backend = Backend::echo();
    let stage = Stage::new(&file("headerTimeout: 200ms", "", &[&backend]));
    for (beginning, answers) in [
        ("GET / HTTP/1.1\r\nX: ".to_owned(), 0),
        ("G".to_owned(), 0),
        (get("a.test") + "GET /", 1),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhelloGET /".to_owned(), 1),
    ] {
        let said = drips(stage.client(), &beginning, "x");
        let said = String::from_utf8_lossy(&said);
        assert!(said.contains("HTTP/1.1 408 Request Timeout\r\n"), "{beginning:?}: {said}");
        assert_eq!(said.matches("HTTP/1.1 200 ").count(), answers);
    }
    let mut client = stage.client();
    client.say("GET /");
    assert_eq!(client.hear().status(), 408);
    client.is_over();
    // Others are served meanwhile, and slowness in time is none.
    let mut slow = stage.client();
    slow.say("GET / HTTP/1.1\r\n");
    assert_eq!(stage.ask(get("a.test")).status(), 200);
    slow.say("Host: a\r\n\r\n");
    assert_eq!(slow.hear().status(), 200);
    drop(slow);
    stage.end();
}

/// A greeting of HTTP/2, too.
#[test]
fn who_drips_a_greeting_is_cut_off() {
    let backend = Backend::echo();
    let stage = Stage::new(&file("headerTimeout: 200ms", "", &[&backend]));
    let mut client = stage.client();
    let is_cut = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r".iter().any(|byte| {
        client.shout([*byte]);
        client.ends_within(5 * DROP)
    });
    assert!(is_cut);
    stage.end();
}

#[test]
fn who_does_not_go_on_with_a_body_is_told_and_cut_off() {
    let backend = Backend::echo();
    let stage = Stage::new(&file("bodyTimeout: 200ms", "", &[&backend]));
    for request in [
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
    ] {
        let mut client = stage.client();
        assert_eq!(client.ask(request).status(), 408, "{request:?}");
        client.is_over();
    }
    assert_eq!(backend.requests(), 0, "none was whole");
    stage.end();
}

/// A body that nobody wants, too.
#[test]
fn who_does_not_go_on_with_a_refused_body_is_cut_off() {
    let backend = Backend::echo();
    let stage = Stage::new(&file("bodyTimeout: 200ms; rateLimit: {maxQps: 0}", "", &[&backend]));
    let mut client = stage.client();
    let answer = client.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello");
    assert_eq!(answer.status(), 429);
    client.is_over();
    stage.end();
}

/// A backend that says one thing, and then more than anybody takes.
fn torrent() -> (Backend, Arc<AtomicBool>) {
    let is_over = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&is_over);
    let backend = Backend::raw(move |mut wire, _| {
        use std::io::Write;
        if wire.message(false).is_err() {
            return;
        }
        wire.shout("HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n");
        let much = vec![b'x'; 65_536];
        while wire.stream.write_all(&much).is_ok() {}
        ended.store(true, Ordering::SeqCst);
    });
    (backend, is_over)
}

#[test]
fn who_does_not_take_a_response_is_cut_off() {
    let (backend, is_over) = torrent();
    let stage = Stage::new(&file("bodyTimeout: 200ms", "", &[&backend]));
    let mut client = stage.client();
    client.say(get("a.test"));
    // The client is still there, and the gateway has done with it.
    stage.is_empty();
    wait_until("the backend knows", || is_over.load(Ordering::SeqCst));
    assert!(client.message(false).is_err(), "it is not whole");
    stage.end();
}

#[test]
fn who_stops_in_the_middle_of_a_response_is_cut_off() {
    let backend = Backend::raw(|mut wire, _| {
        let _head = wire.head();
        wire.say("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
        wire.is_over_somehow();
    });
    let stage = Stage::new(&file("bodyTimeout: 200ms", "", &[&backend]));
    let mut client = stage.client();
    client.say(get("a.test"));
    assert!(client.message(false).is_err(), "it is not whole");
    client.is_over_somehow();
    stage.end();
}

#[test]
fn who_says_nothing_is_cut_off_without_a_word() {
    let backend = Backend::echo();
    let stage = Stage::new(&file("idleTimeout: 200ms", "", &[&backend]));
    stage.client().is_over();
    let mut client = stage.client();
    for _ in 0..3 {
        client.is_silent_for(Duration::from_millis(50));
        assert_eq!(client.ask(get("a.test")).status(), 200);
    }
    client.is_over();
    stage.end();
}

/// Connections to backends that nobody uses are closed, too.
#[test]
fn kept_connections_are_not_kept_for_ever() {
    let (ended, ends) = std::sync::mpsc::channel();
    let backend = Backend::raw(move |mut wire, _| {
        while wire.message(false).is_ok() {
            wire.shout(super::fixture::response("x"));
        }
        ended.send(()).expect("somebody waits");
    });
    let stage = Stage::new(&file("", "idleTimeout: 100ms", &[&backend]));
    assert_eq!(stage.ask(get("a.test")).status(), 200);
    ends.recv_timeout(FAR_TOO_LONG).expect("it is closed");
    stage.end();
}

/// C-F12: who says nothing is counted all the same.
#[test]
fn the_silent_are_counted() {
    let backend = Backend::echo();
    let stage = Stage::new(&file("rateLimit: {maxConnections: 3}", "", &[&backend]));
    let silent: Vec<Wire> = (0..3).map(|_| stage.client()).collect();
    wait_until("all are known", || stage.gateway.connections() == 3);
    let mut last = stage.client();
    assert_eq!(last.ask(get("a.test")).status(), 429);
    last.is_over();
    drop(silent);
    stage.is_empty();
    assert_eq!(stage.ask(get("a.test")).status(), 200);
    stage.end();
}
