//! Half-open sockets: one side is gone or silent and the other does not know. Everything ends by timeout and
//! nothing stays counted.

use tidegate_gateway::ConnectionCounter;

use super::fixture::{TestBackend, TestGateway, file, get, response, wait_until};
use super::http_client::WireClient;

/// Short timeouts, so that silent peers are detected.
const SERVER: &str = "headerTimeout: 300ms; bodyTimeout: 300ms; idleTimeout: 300ms; tunnelTimeout: 300ms; rateLimit: {maxConnections: 100, maxConnectionsPerClient: 100}";
const BACKEND: &str = "responseTimeout: 300ms; rateLimit: {maxConnections: 100}";

const POST: &str = "POST /body HTTP/1.1\r\nHost: a.test\r\nContent-Length: 10\r\n\r\nhalf ";
const UPGRADE: &str = "GET /tunnel HTTP/1.1\r\nHost: a.test\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";

/// The point at which a client fails.
struct StopPoint {
    name: &'static str,
    /// The bytes it has sent.
    sent: &'static str,
    /// Waits until the point is reached.
    wait_for_progress: fn(&TestGateway, &mut WireClient),
}

const STOP_POINTS: [StopPoint; 7] = [
    StopPoint { name: "nothing sent", sent: "", wait_for_progress: let_gateway_read },
    StopPoint { name: "half a head", sent: "GET / HTTP/1.1\r\nHo", wait_for_progress: let_gateway_read },
    StopPoint { name: "half a body", sent: POST, wait_for_progress: let_gateway_read },
    StopPoint {
        name: "waiting for the response",
        sent: "GET /never HTTP/1.1\r\nHost: a.test\r\n\r\n",
        wait_for_progress: wait_until_forwarded,
    },
    StopPoint {
        name: "half of the response",
        sent: "GET /half HTTP/1.1\r\nHost: a.test\r\n\r\n",
        wait_for_progress: read_response_head,
    },
    StopPoint {
        name: "response received",
        sent: "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n",
        wait_for_progress: read_whole_response,
    },
    StopPoint { name: "tunnel open", sent: UPGRADE, wait_for_progress: read_response_head },
];

fn let_gateway_read(_: &TestGateway, client: &mut WireClient) {
    client.let_peer_read();
}

fn wait_until_forwarded(gateway: &TestGateway, _: &mut WireClient) {
    wait_until("it is at the backend", || gateway.inner.active_requests() == 1);
}

fn read_response_head(_: &TestGateway, client: &mut WireClient) {
    assert!(client.head().starts_with("HTTP/1.1 "));
}

fn read_whole_response(_: &TestGateway, client: &mut WireClient) {
    assert_eq!(client.read_response().status(), 200);
}

/// How a client fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientFailure {
    /// It shuts down writing and continues to read.
    ShutsDownWrite,
    /// It resets the connection.
    Resets,
    /// It stays open and neither sends nor reads.
    Stalls,
}

fn backend() -> TestBackend {
    TestBackend::new(|request, wire| {
        match request.line.split(' ').nth(1) {
            Some("/never") => wire.assert_closes_eventually(),
            Some("/half") => {
                wire.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf ");
                wire.assert_closes_eventually();
            }
            Some("/tunnel") => {
                wire.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n");
                wire.assert_closes_eventually();
            }
            _ => {
                wire.send(response("ok"));
                return true;
            }
        }
        false
    })
}

fn apply_failure(client: WireClient, failure: ClientFailure) -> Option<WireClient> {
    match failure {
        ClientFailure::Resets => {
            client.reset();
            return None;
        }
        ClientFailure::ShutsDownWrite => client.shutdown_write(),
        ClientFailure::Stalls => {}
    }
    Some(client)
}

#[test]
fn half_open_sockets_leave_no_counts() {
    let backend = backend();
    let gateway = TestGateway::new(&file(SERVER, BACKEND, &[&backend]));
    for failure in [ClientFailure::ShutsDownWrite, ClientFailure::Resets, ClientFailure::Stalls] {
        for StopPoint { name, sent, wait_for_progress } in STOP_POINTS {
            let mut client = gateway.client();
            client.send(sent);
            wait_until("it is known", || gateway.counted(ConnectionCounter::Server) == 1);
            wait_for_progress(&gateway, &mut client);
            // The client is kept until the end, so that the test does not close it.
            let kept = apply_failure(client, failure);
            wait_until(&format!("{failure:?} at {name}: nothing is counted"), || {
                gateway.inner.connections() == 0
                    && gateway.counted(ConnectionCounter::Server) == 0
                    && gateway.counted(ConnectionCounter::Backend("b")) == 0
                    && gateway.counted(ConnectionCounter::Client(b"127.0.0.1")) == 0
                    && gateway.inner.limits().store().leases() == 0
                    && gateway.inner.active_requests() == 0
            });
            drop(kept);
            assert_eq!(gateway.request(get("a.test")).status(), 200, "{failure:?} at {name}");
        }
    }
    gateway.end();
}
