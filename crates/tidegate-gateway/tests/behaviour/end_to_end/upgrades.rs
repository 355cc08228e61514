//! Upgrades: after 101 both ends say what they like.

use std::time::Duration;

use super::fixture::{Backend, Stage, file, wait_until};
use super::http_client::Wire;

const ASKS: &str = "GET /chat HTTP/1.1\r\nHost: a.test\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n";
const AGREES: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: y\r\n\r\n";

/// A backend that agrees, and says everything again that it hears, until there is no more.
fn parrot() -> Backend {
    Backend::raw(|mut wire, _| {
        let head = wire.head();
        assert!(head.contains("Connection: Upgrade\r\nUpgrade: websocket\r\n"), "{head}");
        assert!(head.contains("Sec-WebSocket-Key: x\r\n"), "{head}");
        wire.say(format!("{AGREES}welcome"));
        while let Ok(byte) = wire.exactly(1) {
            wire.shout(byte);
        }
        wire.shout("bye");
    })
}

fn upgraded(stage: &Stage) -> Wire {
    let mut client = stage.client();
    client.say(format!("{ASKS}early"));
    let answer = client.head();
    assert!(answer.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{answer}");
    assert!(
        answer.contains("Connection: Upgrade\r\n") && answer.contains("Upgrade: websocket\r\n"),
        "{answer}"
    );
    assert!(answer.contains("Sec-WebSocket-Accept: y\r\n"), "{answer}");
    assert_eq!(client.exactly(12).expect("what both said at once"), b"welcomeearly");
    client
}

#[test]
fn both_ends_say_what_they_like() {
    let backend = parrot();
    let stage = Stage::before(&backend);
    let mut client = upgraded(&stage);
    let large = vec![7; 1 << 16];
    let mut out = Wire::new(client.stream.try_clone().expect("a socket"));
    std::thread::scope(|threads| {
        threads.spawn(|| out.say(&large));
        assert_eq!(client.exactly(large.len()).expect("an echo"), large);
    });
    client.say("GET /smuggled HTTP/1.1\r\n\r\n");
    assert_eq!(client.exactly(26).expect("an echo"), b"GET /smuggled HTTP/1.1\r\n\r\n");
    assert_eq!(stage.gateway.under_way(), 1);
    client.say_no_more();
    assert_eq!(client.rest(), b"bye", "who has said everything still hears");
    drop(client);
    stage.end();
}

#[test]
fn whoever_ends_it_ends_it_for_both() {
    let (told, tell) = std::sync::mpsc::channel();
    let backend = Backend::raw(move |mut wire, number| {
        let _head = wire.head();
        wire.say(AGREES);
        if number % 2 == 0 {
            return;
        }
        let _until_the_end = wire.rest();
        told.send(number).expect("somebody waits");
    });
    let stage = Stage::before(&backend);
    let upgraded = || {
        let mut client = stage.client();
        client.say(ASKS);
        assert!(client.head().contains("101"));
        client
    };
    upgraded().vanish();
    assert_eq!(tell.recv_timeout(Duration::from_secs(10)), Ok(1));
    upgraded().is_over();
    drop(upgraded());
    assert_eq!(tell.recv_timeout(Duration::from_secs(10)), Ok(3));
    stage.end();
}

#[test]
fn a_tunnel_in_which_nothing_is_said_ends() {
    let backend = parrot();
    let stage = Stage::new(&file("tunnelTimeout: 300ms", "", &[&backend]));
    let mut client = upgraded(&stage);
    for _ in 0..4 {
        client.is_silent_for(Duration::from_millis(100));
        client.say("x");
        assert_eq!(client.exactly(1).expect("an echo"), b"x");
    }
    client.is_over();
    stage.end();
}

/// A backend need not agree; then it is a request like any other.
#[test]
fn an_upgrade_that_is_refused_is_a_request() {
    let backend = Backend::echo();
    let stage = Stage::before(&backend);
    let mut client = stage.client();
    for _ in 0..2 {
        assert_eq!(client.ask(ASKS).echoed().line, "GET /chat HTTP/1.1");
    }
    assert_eq!(backend.connections(), 1);
    drop(client);
    stage.end();
}

/// With a body, or from an old client, nobody goes over to anything.
#[test]
fn an_upgrade_with_a_body_is_none() {
    let backend = Backend::echo();
    let stage = Stage::before(&backend);
    for request in [
        "POST / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 5\r\n\r\nhello",
        "GET / HTTP/1.0\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n",
    ] {
        let echoed = stage.ask(request).echoed();
        assert_eq!((echoed.field("upgrade"), echoed.field("connection")), (None, None));
    }
    stage.end();
}

#[test]
fn tunnels_are_counted_while_they_last() {
    let backend = parrot();
    let stage = Stage::new(&file("", "loadBalance: least-connection", &[&backend]));
    let open: Vec<Wire> = (0..5).map(|_| upgraded(&stage)).collect();
    assert_eq!((stage.gateway.under_way(), stage.gateway.connections()), (5, 5));
    drop(open);
    wait_until("they are gone", || stage.gateway.under_way() == 0);
    stage.end();
}
