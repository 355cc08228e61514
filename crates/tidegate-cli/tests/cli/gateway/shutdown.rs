//! Shutdown: the first signal drains, the second aborts.

use std::net::TcpStream;

use super::backend::TestBackend;
use super::fixture::{TestGateway, settings, wait_until};
use super::http_client::HttpClient;

#[test]
fn sigterm_completes_active_requests() {
    for signal in ["TERM", "INT"] {
        let (backend, gate) = TestBackend::gated();
        let mut gateway = TestGateway::of(&settings(backend.port(), "", ""));
        let mut client = HttpClient::to(gateway.address).expect("it listens");
        client.send("GET /last", "h").expect("it listens");
        gate.wait_for_request();
        let mut idle = HttpClient::to(gateway.address).expect("it listens");
        gateway.signal(signal);
        assert!(idle.is_closed(), "idle connections are closed");
        wait_until("the listener is closed", || TcpStream::connect(gateway.address).is_err());
        let health = gateway.manage("GET /health").json(503);
        assert_eq!(health["status"], "DRAINING", "load balancers see it");
        gate.open();
        let response = client.read_response().expect("it is answered");
        assert_eq!(response.header("connection"), Some("close"));
        assert_eq!(response.is(200), "ok");
        let status = gateway.ended();
        assert_eq!(status.code(), Some(0), "{}", gateway.err.text());
        assert!(gateway.out.text().contains("\"GET /last HTTP/1.1\" 200 2 "), "{}", gateway.out.text());
    }
}

#[test]
fn second_sigterm_stops_at_once() {
    let (backend, gate) = TestBackend::gated();
    let mut gateway = TestGateway::of(&settings(backend.port(), "", "  drainTimeout: 1h"));
    let mut client = HttpClient::to(gateway.address).expect("it listens");
    client.send("GET /", "h").expect("it listens");
    gate.wait_for_request();
    gateway.signal("TERM");
    gateway.err.wait_for("stopping; active requests");
    // SIGHUP does not shorten the drain.
    gateway.signal("HUP");
    wait_until("the listener is closed", || TcpStream::connect(gateway.address).is_err());
    gateway.signal("TERM");
    assert_eq!(gateway.ended().code(), Some(1));
    assert!(client.read_response().is_err(), "the connection is cut off");
    assert_abort_is_logged(&gateway);
}

#[test]
fn drain_timeout_cuts_off_slow_requests() {
    let (backend, gate) = TestBackend::gated();
    let mut gateway = TestGateway::of(&settings(backend.port(), "", "  drainTimeout: 200ms"));
    let mut client = HttpClient::to(gateway.address).expect("it listens");
    client.send("GET /", "h").expect("it listens");
    gate.wait_for_request();
    gateway.signal("TERM");
    assert_eq!(gateway.ended().code(), Some(0), "{}", gateway.err.text());
    assert!(client.read_response().is_err(), "the connection is cut off");
    assert_abort_is_logged(&gateway);
}

/// Every aborted request is logged, and the log contains their number.
fn assert_abort_is_logged(gateway: &TestGateway) {
    let lines = gateway.out.text();
    assert!(
        lines.contains("\"GET / HTTP/1.1\" 0 0 ") && lines.contains(" why=\"the gateway ended\""),
        "{lines}"
    );
    let log = gateway.err.text();
    assert!(log.contains("were cut off at the end of the drain aborted=1"), "{log}");
}
