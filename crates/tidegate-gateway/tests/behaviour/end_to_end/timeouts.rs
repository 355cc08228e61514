//! Slow and silent peers are disconnected and do not delay others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::fixture::{TestBackend, TestGateway, file, get, wait_until};
use super::http_client::{TEST_TIMEOUT, WireClient};

/// The pause between two pieces of a slow client.
const DRIP_INTERVAL: Duration = Duration::from_millis(20);

/// Sends a beginning and then small pieces until the gateway closes. Returns the response.
#[track_caller]
fn drip(mut client: WireClient, beginning: &str, drop: &str) -> Vec<u8> {
    client.send(beginning);
    for _ in 0..TEST_TIMEOUT.as_millis() / DRIP_INTERVAL.as_millis() {
        if client.ends_within(DRIP_INTERVAL) {
            return client.read_to_end();
        }
        client.try_send(drop);
    }
    panic!("it may drip for ever");
}

#[test]
fn slow_head_gets_408_and_is_closed() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::new(&file("headerTimeout: 200ms", "", &[&backend]));
    for (beginning, responses) in [
        ("GET / HTTP/1.1\r\nX: ".to_owned(), 0),
        ("G".to_owned(), 0),
        (get("a.test") + "GET /", 1),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhelloGET /".to_owned(), 1),
    ] {
        let bytes = drip(gateway.client(), &beginning, "x");
        let bytes = String::from_utf8_lossy(&bytes);
        assert!(bytes.contains("HTTP/1.1 408 Request Timeout\r\n"), "{beginning:?}: {bytes}");
        assert_eq!(bytes.matches("HTTP/1.1 200 ").count(), responses);
    }
    let mut client = gateway.client();
    client.send("GET /");
    assert_eq!(client.read_response().status(), 408);
    client.assert_closed();
    // Others are served meanwhile, and slow clients within the timeout are served too.
    let mut slow = gateway.client();
    slow.send("GET / HTTP/1.1\r\n");
    assert_eq!(gateway.request(get("a.test")).status(), 200);
    slow.send("Host: a\r\n\r\n");
    assert_eq!(slow.read_response().status(), 200);
    drop(slow);
    gateway.end();
}

/// The HTTP/2 preface has the same timeout.
#[test]
fn slow_http2_preface_is_closed() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::new(&file("headerTimeout: 200ms", "", &[&backend]));
    let mut client = gateway.client();
    let is_cut = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r".iter().any(|byte| {
        client.try_send([*byte]);
        client.ends_within(5 * DRIP_INTERVAL)
    });
    assert!(is_cut);
    gateway.end();
}

#[test]
fn stalled_body_gets_408_and_is_closed() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::new(&file("bodyTimeout: 200ms", "", &[&backend]));
    for request in [
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
    ] {
        let mut client = gateway.client();
        assert_eq!(client.request(request).status(), 408, "{request:?}");
        client.assert_closed();
    }
    assert_eq!(backend.request_count(), 0, "none was whole");
    gateway.end();
}

/// An unwanted body has the same timeout.
#[test]
fn stalled_refused_body_is_closed() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::new(&file("bodyTimeout: 200ms; rateLimit: {maxQps: 0}", "", &[&backend]));
    let mut client = gateway.client();
    let response = client.request("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello");
    assert_eq!(response.status(), 429);
    client.assert_closed();
    gateway.end();
}

/// A backend that sends one piece and then more than any client reads.
fn endless_backend() -> (TestBackend, Arc<AtomicBool>) {
    let is_over = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&is_over);
    let backend = TestBackend::with_connections(move |mut wire, _| {
        use std::io::Write;
        if wire.read_message(false).is_err() {
            return;
        }
        wire.try_send("HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n");
        let much = vec![b'x'; 65_536];
        while wire.stream.write_all(&much).is_ok() {}
        ended.store(true, Ordering::SeqCst);
    });
    (backend, is_over)
}

#[test]
fn client_that_does_not_read_is_disconnected() {
    let (backend, is_over) = endless_backend();
    let gateway = TestGateway::new(&file("bodyTimeout: 200ms", "", &[&backend]));
    let mut client = gateway.client();
    client.send(get("a.test"));
    // The client is still connected and the gateway has released it.
    gateway.wait_until_empty();
    wait_until("the backend knows", || is_over.load(Ordering::SeqCst));
    assert!(client.read_message(false).is_err(), "it is not whole");
    gateway.end();
}

#[test]
fn client_that_stops_reading_is_disconnected() {
    let backend = TestBackend::with_connections(|mut wire, _| {
        let _head = wire.head();
        wire.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello");
        wire.assert_closes_eventually();
    });
    let gateway = TestGateway::new(&file("bodyTimeout: 200ms", "", &[&backend]));
    let mut client = gateway.client();
    client.send(get("a.test"));
    assert!(client.read_message(false).is_err(), "it is not whole");
    client.assert_closes_eventually();
    gateway.end();
}

#[test]
fn idle_connection_is_closed_silently() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::new(&file("idleTimeout: 200ms", "", &[&backend]));
    gateway.client().assert_closed();
    let mut client = gateway.client();
    for _ in 0..3 {
        client.assert_silent_for(Duration::from_millis(50));
        assert_eq!(client.request(get("a.test")).status(), 200);
    }
    client.assert_closed();
    gateway.end();
}

/// Idle connections to backends are closed too.
#[test]
fn idle_backend_connections_are_closed() {
    let (ended, ends) = std::sync::mpsc::channel();
    let backend = TestBackend::with_connections(move |mut wire, _| {
        while wire.read_message(false).is_ok() {
            wire.try_send(super::fixture::response("x"));
        }
        ended.send(()).expect("the test waits");
    });
    let gateway = TestGateway::new(&file("", "idleTimeout: 100ms", &[&backend]));
    assert_eq!(gateway.request(get("a.test")).status(), 200);
    ends.recv_timeout(TEST_TIMEOUT).expect("it is closed");
    gateway.end();
}

/// Silent connections are counted.
#[test]
fn silent_connections_are_counted() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::new(&file("rateLimit: {maxConnections: 3}", "", &[&backend]));
    let silent: Vec<WireClient> = (0..3).map(|_| gateway.client()).collect();
    wait_until("all are known", || gateway.inner.connections() == 3);
    let mut last = gateway.client();
    assert_eq!(last.request(get("a.test")).status(), 429);
    last.assert_closed();
    drop(silent);
    gateway.wait_until_empty();
    assert_eq!(gateway.request(get("a.test")).status(), 200);
    gateway.end();
}
