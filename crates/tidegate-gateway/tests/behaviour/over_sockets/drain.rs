//! The end: nobody is cut off who is being served, and nobody stays for ever.

use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::mpsc::channel;

use super::stage::{Backend, Stage, file, get, response, wait_until};
use super::wire::FAR_TOO_LONG;

#[test]
fn whoever_says_nothing_is_let_go_at_once() {
    let backend = Backend::echo();
    let stage = Stage::with(&file("", "", &[&backend]), 2);
    let mut silent = stage.client();
    let mut idle = stage.client();
    assert_eq!(idle.ask(get("a.test")).status(), 200);
    let mut half = stage.client();
    half.say("PRI * HT");
    let address = stage.gateway.address();
    wait_until("all are known", || stage.gateway.connections() == 3);
    stage.drain();
    for client in [&mut silent, &mut idle, &mut half] {
        client.is_over();
    }
    assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
}

#[test]
fn whoever_is_being_served_is_served() {
    let (arrived, arrivals) = channel();
    let (go, may_go) = channel::<()>();
    let may_go = Mutex::new(may_go);
    let backend = Backend::new(move |_, wire| {
        arrived.send(()).expect("somebody waits");
        let _told = may_go.lock().expect("no panic").recv_timeout(FAR_TOO_LONG);
        wire.say(response("done"));
        true
    });
    let stage = Stage::before(&backend);
    let address = stage.gateway.address();
    let mut client = stage.client();
    client.say(get("a.test"));
    arrivals.recv_timeout(FAR_TOO_LONG).expect("it is at the backend");
    let ending = std::thread::spawn(move || stage.drain());
    wait_until("nobody listens any more", || TcpStream::connect(address).is_err());
    go.send(()).expect("it waits");
    let answer = client.hear();
    assert_eq!((answer.text().as_str(), answer.closes()), ("done", true));
    client.is_over();
    ending.join().expect("it ends");
}

/// What was begun when the gateway was told to end may still be said, and is answered.
#[test]
fn half_a_request_may_become_a_whole_one() {
    let backend = Backend::echo();
    let stage = Stage::before(&backend);
    let address = stage.gateway.address();
    let mut client = stage.client();
    assert_eq!(client.ask(get("a.test")).status(), 200);
    client.say("GET / HTTP/1.1\r\nHo");
    // Whoever is asked next is asked after this was heard, on the same worker.
    for _ in 0..2 {
        assert_eq!(stage.ask(get("a.test")).status(), 200);
    }
    let ending = std::thread::spawn(move || stage.drain());
    wait_until("nobody listens any more", || TcpStream::connect(address).is_err());
    client.say("st: a.test\r\n\r\n");
    let answer = client.hear();
    assert_eq!((answer.status(), answer.closes()), (200, true));
    client.is_over();
    ending.join().expect("it ends");
}

#[test]
fn whoever_takes_too_long_is_cut_off() {
    let backend = Backend::raw(|mut wire, _| {
        let head = wire.head();
        if head.contains("Upgrade") {
            wire.say("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n");
        }
        wire.is_over_somehow();
    });
    let stage = Stage::with(&file("drainTimeout: 200ms", "", &[&backend]), 2);
    let mut tunnel = stage.client();
    tunnel.say("GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n");
    assert!(tunnel.head().contains(" 101 "));
    let mut waiting = stage.client();
    waiting.say(get("a.test"));
    wait_until("both are at the backend", || stage.gateway.under_way() == 2);
    stage.drain();
    tunnel.is_over();
    waiting.is_over();
}

#[test]
fn a_gateway_that_is_dropped_ends() {
    let backend = Backend::echo();
    let stage = Stage::before(&backend);
    let address = stage.gateway.address();
    let mut client = stage.client();
    assert_eq!(client.ask(get("a.test")).status(), 200);
    let store = stage.gateway.limits().store().clone();
    assert!(store.leases() > 0);
    drop(stage);
    client.is_over();
    wait_until("nothing is counted any more", || store.leases() == 0);
    wait_until("nobody listens any more", || TcpStream::connect(address).is_err());
}

#[test]
fn whoever_is_cut_off_has_a_line() {
    let backend = Backend::raw(|mut wire, _| {
        let head = wire.head();
        if head.contains("Upgrade") {
            wire.say("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nhello");
        } else if head.contains("/half") {
            wire.say("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
        }
        wire.is_over_somehow();
    });
    for is_hurried in [false, true] {
        let timeout = if is_hurried { "drainTimeout: 1h" } else { "drainTimeout: 200ms" };
        let (stage, lines) = Stage::logged(&file(timeout, "", &[&backend]));
        let mut tunnel = stage.client();
        tunnel.say("GET /tunnel HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n");
        assert!(tunnel.head().contains(" 101 "));
        assert_eq!(tunnel.exactly(5).expect("a word"), b"hello");
        let mut half = stage.client();
        half.say("GET /half HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(half.head().contains(" 200 "));
        assert_eq!(half.exactly(4).expect("half of it"), b"half");
        let mut waiting = stage.client();
        waiting.say("GET /waiting HTTP/1.1\r\nHost: a\r\n\r\n");
        let mut second = super::frames::begin(&stage);
        second.say(super::frames::head(1, true, &[]));
        wait_until("all are at the backend", || stage.gateway.under_way() == 4);
        let cutting = stage.gateway.cutting();
        if is_hurried {
            cutting.trigger();
        }
        stage.drain();
        let mut all = lines.all();
        all.sort_unstable_by_key(|line| {
            line.split(" HTTP/").next().and_then(|line| line.split(" /").nth(1)).map(str::to_owned)
        });
        let starts = [
            "/ HTTP/2.0\" 0 0 ",
            "/half HTTP/1.1\" 200 4 ",
            "/tunnel HTTP/1.1\" 101 5 ",
            "/waiting HTTP/1.1\" 0 0 ",
        ];
        assert_eq!(all.len(), starts.len(), "{all:?}");
        for (line, start) in all.iter().zip(starts) {
            assert!(line.contains(start) && line.ends_with(" why=\"the gateway ended\""), "{start}: {line}");
        }
        tunnel.is_over();
        waiting.is_over();
    }
}
