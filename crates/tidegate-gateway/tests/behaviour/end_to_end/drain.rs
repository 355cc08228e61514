//! Draining: active requests complete, and the drain ends in time.

use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::mpsc::channel;

use super::fixture::{TestBackend, TestGateway, file, get, response, wait_until};
use super::http_client::TEST_TIMEOUT;

#[test]
fn drain_closes_idle_connections_at_once() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::with_workers(&file("", "", &[&backend]), 2);
    let mut silent = gateway.client();
    let mut idle = gateway.client();
    assert_eq!(idle.request(get("a.test")).status(), 200);
    let mut half = gateway.client();
    half.send("PRI * HT");
    let address = gateway.inner.address();
    wait_until("all are known", || gateway.inner.connections() == 3);
    gateway.drain();
    for client in [&mut silent, &mut idle, &mut half] {
        client.assert_closed();
    }
    assert!(TcpStream::connect(address).is_err(), "the listener is closed");
}

#[test]
fn drain_completes_active_requests() {
    let (arrived, arrivals) = channel();
    let (go, may_go) = channel::<()>();
    let may_go = Mutex::new(may_go);
    let backend = TestBackend::new(move |_, wire| {
        arrived.send(()).expect("the test waits");
        let _told = may_go.lock().expect("no panic").recv_timeout(TEST_TIMEOUT);
        wire.send(response("done"));
        true
    });
    let gateway = TestGateway::in_front_of(&backend);
    let address = gateway.inner.address();
    let mut client = gateway.client();
    client.send(get("a.test"));
    arrivals.recv_timeout(TEST_TIMEOUT).expect("it is at the backend");
    let ending = std::thread::spawn(move || gateway.drain());
    wait_until("the listener is closed", || TcpStream::connect(address).is_err());
    go.send(()).expect("it waits");
    let response = client.read_response();
    assert_eq!((response.text().as_str(), response.closes()), ("done", true));
    client.assert_closed();
    ending.join().expect("it ends");
}

/// A request that has started before the shutdown may complete and is answered.
#[test]
fn drain_serves_a_request_that_has_started() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::in_front_of(&backend);
    let address = gateway.inner.address();
    let mut client = gateway.client();
    assert_eq!(client.request(get("a.test")).status(), 200);
    client.send("GET / HTTP/1.1\r\nHo");
    // Requests after this one were received later by the same worker.
    for _ in 0..2 {
        assert_eq!(gateway.request(get("a.test")).status(), 200);
    }
    let ending = std::thread::spawn(move || gateway.drain());
    wait_until("the listener is closed", || TcpStream::connect(address).is_err());
    client.send("st: a.test\r\n\r\n");
    let response = client.read_response();
    assert_eq!((response.status(), response.closes()), (200, true));
    client.assert_closed();
    ending.join().expect("it ends");
}

#[test]
fn drain_timeout_cuts_off_active_requests() {
    let backend = TestBackend::with_connections(|mut wire, _| {
        let head = wire.head();
        if head.contains("Upgrade") {
            wire.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n");
        }
        wire.assert_closes_eventually();
    });
    let gateway = TestGateway::with_workers(&file("drainTimeout: 200ms", "", &[&backend]), 2);
    let mut tunnel = gateway.client();
    tunnel.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n");
    assert!(tunnel.head().contains(" 101 "));
    let mut waiting = gateway.client();
    waiting.send(get("a.test"));
    wait_until("both are at the backend", || gateway.inner.active_requests() == 2);
    gateway.drain();
    tunnel.assert_closed();
    waiting.assert_closed();
}

#[test]
fn dropped_gateway_stops() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::in_front_of(&backend);
    let address = gateway.inner.address();
    let mut client = gateway.client();
    assert_eq!(client.request(get("a.test")).status(), 200);
    let store = gateway.inner.limits().store().clone();
    assert!(store.leases() > 0);
    drop(gateway);
    client.assert_closed();
    wait_until("nothing is counted any more", || store.leases() == 0);
    wait_until("the listener is closed", || TcpStream::connect(address).is_err());
}

#[test]
fn aborted_requests_are_logged() {
    let backend = TestBackend::with_connections(|mut wire, _| {
        let head = wire.head();
        if head.contains("Upgrade") {
            wire.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nhello");
        } else if head.contains("/half") {
            wire.send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
        }
        wire.assert_closes_eventually();
    });
    for is_hurried in [false, true] {
        let timeout = if is_hurried { "drainTimeout: 1h" } else { "drainTimeout: 200ms" };
        let (gateway, lines) = TestGateway::with_access_log(&file(timeout, "", &[&backend]));
        let mut tunnel = gateway.client();
        tunnel.send("GET /tunnel HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n");
        assert!(tunnel.head().contains(" 101 "));
        assert_eq!(tunnel.read_exactly(5).expect("a word"), b"hello");
        let mut half = gateway.client();
        half.send("GET /half HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(half.head().contains(" 200 "));
        assert_eq!(half.read_exactly(4).expect("half of it"), b"half");
        let mut waiting = gateway.client();
        waiting.send("GET /waiting HTTP/1.1\r\nHost: a\r\n\r\n");
        let mut second = super::http2_frames::open_connection(&gateway);
        second.send(super::http2_frames::headers_frame(1, true, &[]));
        wait_until("all are at the backend", || gateway.inner.active_requests() == 4);
        let abort_signal = gateway.inner.abort_signal();
        if is_hurried {
            abort_signal.trigger();
        }
        gateway.drain();
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
        tunnel.assert_closed();
        waiting.assert_closed();
    }
}
