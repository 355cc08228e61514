//! Protocol upgrades: after 101 both ends exchange raw bytes.

use std::time::Duration;

use super::fixture::{TestBackend, TestGateway, file, wait_until};
use super::http_client::WireClient;

const UPGRADE_REQUEST: &str = "GET /chat HTTP/1.1\r\nHost: a.test\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n";
const UPGRADE_RESPONSE: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: y\r\n\r\n";

/// A backend that accepts the upgrade and echoes until the end.
fn echo_tunnel_backend() -> TestBackend {
    TestBackend::with_connections(|mut wire, _| {
        let head = wire.head();
        assert!(head.contains("Connection: Upgrade\r\nUpgrade: websocket\r\n"), "{head}");
        assert!(head.contains("Sec-WebSocket-Key: x\r\n"), "{head}");
        wire.send(format!("{UPGRADE_RESPONSE}welcome"));
        while let Ok(byte) = wire.read_exactly(1) {
            wire.try_send(byte);
        }
        wire.try_send("bye");
    })
}

fn open_tunnel(gateway: &TestGateway) -> WireClient {
    let mut client = gateway.client();
    client.send(format!("{UPGRADE_REQUEST}early"));
    let response = client.head();
    assert!(response.starts_with("HTTP/1.1 101 Switching Protocols\r\n"), "{response}");
    assert!(
        response.contains("Connection: Upgrade\r\n") && response.contains("Upgrade: websocket\r\n"),
        "{response}"
    );
    assert!(response.contains("Sec-WebSocket-Accept: y\r\n"), "{response}");
    assert_eq!(client.read_exactly(12).expect("early bytes of both ends"), b"welcomeearly");
    client
}

#[test]
fn upgraded_connection_relays_both_directions() {
    let backend = echo_tunnel_backend();
    let gateway = TestGateway::in_front_of(&backend);
    let mut client = open_tunnel(&gateway);
    let large = vec![7; 1 << 16];
    let mut out = WireClient::new(client.stream.try_clone().expect("a socket"));
    std::thread::scope(|threads| {
        threads.spawn(|| out.send(&large));
        assert_eq!(client.read_exactly(large.len()).expect("an echo"), large);
    });
    client.send("GET /smuggled HTTP/1.1\r\n\r\n");
    assert_eq!(client.read_exactly(26).expect("an echo"), b"GET /smuggled HTTP/1.1\r\n\r\n");
    assert_eq!(gateway.inner.active_requests(), 1);
    client.shutdown_write();
    assert_eq!(client.read_to_end(), b"bye", "a half-closed client still reads");
    drop(client);
    gateway.end();
}

#[test]
fn either_end_closes_the_tunnel() {
    let (notify, notified) = std::sync::mpsc::channel();
    let backend = TestBackend::with_connections(move |mut wire, number| {
        let _head = wire.head();
        wire.send(UPGRADE_RESPONSE);
        if number % 2 == 0 {
            return;
        }
        let _until_the_end = wire.read_to_end();
        notify.send(number).expect("the test waits");
    });
    let gateway = TestGateway::in_front_of(&backend);
    let open_tunnel = || {
        let mut client = gateway.client();
        client.send(UPGRADE_REQUEST);
        assert!(client.head().contains("101"));
        client
    };
    open_tunnel().reset();
    assert_eq!(notified.recv_timeout(Duration::from_secs(10)), Ok(1));
    open_tunnel().assert_closed();
    drop(open_tunnel());
    assert_eq!(notified.recv_timeout(Duration::from_secs(10)), Ok(3));
    gateway.end();
}

#[test]
fn idle_tunnel_is_closed() {
    let backend = echo_tunnel_backend();
    let gateway = TestGateway::new(&file("tunnelTimeout: 300ms", "", &[&backend]));
    let mut client = open_tunnel(&gateway);
    for _ in 0..4 {
        client.assert_silent_for(Duration::from_millis(100));
        client.send("x");
        assert_eq!(client.read_exactly(1).expect("an echo"), b"x");
    }
    client.assert_closed();
    gateway.end();
}

/// A backend may refuse the upgrade; then it is a normal request.
#[test]
fn refused_upgrade_is_a_plain_request() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::in_front_of(&backend);
    let mut client = gateway.client();
    for _ in 0..2 {
        assert_eq!(client.request(UPGRADE_REQUEST).echoed().line, "GET /chat HTTP/1.1");
    }
    assert_eq!(backend.connection_count(), 1);
    drop(client);
    gateway.end();
}

/// With a body or from an HTTP/1.0 client there is no upgrade.
#[test]
fn upgrade_with_a_body_is_ignored() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::in_front_of(&backend);
    for request in [
        "POST / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 5\r\n\r\nhello",
        "GET / HTTP/1.0\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n",
    ] {
        let echoed = gateway.request(request).echoed();
        assert_eq!((echoed.field("upgrade"), echoed.field("connection")), (None, None));
    }
    gateway.end();
}

#[test]
fn tunnels_are_counted_while_open() {
    let backend = echo_tunnel_backend();
    let gateway = TestGateway::new(&file("", "loadBalance: least-connection", &[&backend]));
    let open: Vec<WireClient> = (0..5).map(|_| open_tunnel(&gateway)).collect();
    assert_eq!((gateway.inner.active_requests(), gateway.inner.connections()), (5, 5));
    drop(open);
    wait_until("they are gone", || gateway.inner.active_requests() == 0);
    gateway.end();
}
