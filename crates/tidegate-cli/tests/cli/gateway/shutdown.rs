//! How it ends: told once it finishes what is under way, told twice it does not.

use std::net::TcpStream;

use super::backend::Backend;
use super::fixture::{Gateway, settings, wait_until};
use super::http_client::Wire;

#[test]
fn told_to_stop_it_finishes_what_is_under_way() {
    for signal in ["TERM", "INT"] {
        let (backend, gate) = Backend::gated();
        let mut gateway = Gateway::of(&settings(backend.port(), "", ""));
        let mut asking = Wire::to(gateway.address).expect("it listens");
        asking.say("GET /last", "h").expect("it listens");
        gate.has_arrived();
        let mut idle = Wire::to(gateway.address).expect("it listens");
        gateway.signal(signal);
        assert!(idle.is_over(), "who says nothing is let go");
        wait_until("nobody is let in any more", || TcpStream::connect(gateway.address).is_err());
        let health = gateway.manage("GET /health").json(503);
        assert_eq!(health["status"], "DRAINING", "whoever balances load sees it");
        gate.open();
        let told = asking.hear().expect("it is answered");
        assert_eq!(told.header("connection"), Some("close"));
        assert_eq!(told.is(200), "ok");
        let status = gateway.ended();
        assert_eq!(status.code(), Some(0), "{}", gateway.err.text());
        assert!(gateway.out.text().contains("\"GET /last HTTP/1.1\" 200 2 "), "{}", gateway.out.text());
    }
}

#[test]
fn told_twice_it_ends_at_once() {
    let (backend, gate) = Backend::gated();
    let mut gateway = Gateway::of(&settings(backend.port(), "", "  drainTimeout: 1h"));
    let mut asking = Wire::to(gateway.address).expect("it listens");
    asking.say("GET /", "h").expect("it listens");
    gate.has_arrived();
    gateway.signal("TERM");
    gateway.err.wait_for("told to stop");
    // Reading the settings again is no reason to hurry.
    gateway.signal("HUP");
    wait_until("nobody is let in any more", || TcpStream::connect(gateway.address).is_err());
    gateway.signal("TERM");
    assert_eq!(gateway.ended().code(), Some(1));
    assert!(asking.hear().is_err(), "nobody answers any more");
    is_told(&gateway);
}

#[test]
fn who_takes_too_long_is_not_waited_for() {
    let (backend, gate) = Backend::gated();
    let mut gateway = Gateway::of(&settings(backend.port(), "", "  drainTimeout: 200ms"));
    let mut asking = Wire::to(gateway.address).expect("it listens");
    asking.say("GET /", "h").expect("it listens");
    gate.has_arrived();
    gateway.signal("TERM");
    assert_eq!(gateway.ended().code(), Some(0), "{}", gateway.err.text());
    assert!(asking.hear().is_err(), "nobody answers any more");
    is_told(&gateway);
}

/// Whatever was cut off has a line, and the log says how much that was.
fn is_told(gateway: &Gateway) {
    let lines = gateway.out.text();
    assert!(
        lines.contains("\"GET / HTTP/1.1\" 0 0 ") && lines.contains(" why=\"the gateway ended\""),
        "{lines}"
    );
    let log = gateway.err.text();
    assert!(log.contains("were cut off cut=1"), "{log}");
}
