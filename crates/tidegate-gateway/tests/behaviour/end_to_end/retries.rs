//! Failing endpoints: which requests are retried, and where.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::fixture::{TestBackend, TestGateway, echo, file, get, response, wait_until};
use super::http_client::{TEST_TIMEOUT, WireClient};

const POST: &str = "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\nhello";

/// Responds to the first request of every connection with its number and closes on the second.
fn backend_closing_second_request() -> (TestBackend, Arc<AtomicUsize>) {
    let ignored = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ignored);
    let backend = TestBackend::with_connections(move |mut wire, number| {
        if wire.read_message(false).is_ok() {
            wire.try_send(response(number.to_string()));
            if wire.read_message(false).is_ok() {
                count.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    (backend, ignored)
}

#[test]
fn closed_pooled_connection_is_retried() {
    let (backend, ignored) = backend_closing_second_request();
    let gateway = TestGateway::in_front_of(&backend);
    let mut client = gateway.client();
    for number in 1..=5 {
        assert_eq!(client.request(get("a.test")).text(), number.to_string());
    }
    assert_eq!(ignored.load(Ordering::SeqCst), 4, "each was asked for again, once");
    drop(client);
    gateway.end();
}

#[test]
fn non_idempotent_request_is_not_retried() {
    let (backend, ignored) = backend_closing_second_request();
    let gateway = TestGateway::in_front_of(&backend);
    for request in [
        POST,
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
        "PATCH / HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        let (before, connections) = (ignored.load(Ordering::SeqCst), backend.connection_count());
        assert_eq!(gateway.request(get("a.test")).status(), 200);
        assert_eq!(gateway.request(request).status(), 502, "{request:?}");
        assert_eq!(ignored.load(Ordering::SeqCst) - before, 1);
        assert_eq!(backend.connection_count() - connections, 1, "no other endpoint was tried");
    }
    gateway.end();
}

/// A connection that was closed in the pool is not used.
#[test]
fn closed_pooled_connection_is_not_used() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::in_front_of(&backend);
    let mut client = gateway.client();
    for _ in 0..10 {
        assert_eq!(client.request(POST).status(), 200);
        backend.close_connections();
    }
    assert_eq!(backend.connection_count(), 10);
    drop(client);
    gateway.end();
}

#[test]
fn unreachable_endpoint_is_skipped() {
    let mut dead = TestBackend::echo();
    let alive = TestBackend::echo();
    let gateway = TestGateway::new(&file("", "", &[&dead, &alive]));
    dead.end();
    for _ in 0..10 {
        assert_eq!(gateway.request(POST).status(), 200);
    }
    assert_eq!(alive.request_count(), 10);
    gateway.end();
}

#[test]
fn endpoint_that_closes_is_skipped_for_idempotent_requests() {
    let rude = TestBackend::always_then_close("");
    let kind = TestBackend::echo();
    let gateway = TestGateway::new(&file("", "", &[&rude, &kind]));
    for _ in 0..10 {
        assert_eq!(gateway.request(get("a.test")).status(), 200);
    }
    let statuses: Vec<u16> = (0..10).map(|_| gateway.request(POST).status()).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 502).count(), 5, "{statuses:?}");
    assert_eq!(kind.request_count(), 15);
    gateway.end();
}

#[test]
fn backend_restart_is_recovered() {
    let (arrived, arrivals) = channel();
    let mut backend = TestBackend::new(move |_, _| {
        arrived.send(()).expect("the test waits");
        std::thread::park_timeout(TEST_TIMEOUT);
        false
    });
    let gateway = TestGateway::in_front_of(&backend);
    let address = backend.address();
    let mut waiting: Vec<WireClient> = (0..5).map(|_| gateway.client()).collect();
    for client in &mut waiting {
        client.send(POST);
        arrivals.recv_timeout(TEST_TIMEOUT).expect("it is at the backend");
    }
    backend.end();
    for client in &mut waiting {
        assert_eq!(client.read_response().status(), 502);
    }
    drop(waiting);
    assert_eq!(gateway.request(get("a.test")).status(), 502);
    gateway.wait_until_empty();
    let again = TestBackend::new_at(address, echo);
    wait_until("it is found again", || gateway.request(get("a.test")).status() == 200);
    assert!(again.request_count() > 0);
    gateway.end();
}

/// A listener that never accepts, with the connections that fill its queue.
fn never_accepting() -> (Socket, Vec<TcpStream>) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).expect("a free port");
    socket.listen(0).expect("it is bound");
    let address = socket.local_addr().expect("it is bound").as_socket().expect("of the Internet");
    let mut waiting = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
        waiting.push(stream);
        assert!(waiting.len() < 100, "it accepts");
    }
    (socket, waiting)
}

#[test]
fn slow_endpoint_returns_504() {
    let (socket, _waiting) = never_accepting();
    let port = socket.local_addr().expect("it is bound").as_socket().expect("of the Internet").port();
    let silent = TestBackend::with_connections(|mut wire, _| wire.assert_closes_eventually());
    let text = file("", "connectTimeout: 100ms; responseTimeout: 100ms", &[&silent]);
    let gateway = TestGateway::new(&text.replace(&silent.port().to_string(), &port.to_string()));
    let mut client = gateway.client();
    for _ in 0..2 {
        let response = client.request(get("a.test"));
        assert_eq!((response.status(), response.text().as_str()), (504, "Gateway Timeout"));
    }
    drop(client);
    gateway.end();
    let gateway = TestGateway::new(&text);
    for request in [get("a.test"), POST.to_owned()] {
        assert_eq!(gateway.request(request).status(), 504);
    }
    assert_eq!(silent.connection_count(), 2, "a request that may have been processed is not retried");
    gateway.end();
}

#[test]
fn least_loaded_endpoint_is_picked() {
    /// Reports the backend of a request and waits for a signal before responding.
    fn gated_backend(name: usize, notify: Sender<usize>) -> (TestBackend, Sender<()>) {
        let (go, gone): (Sender<()>, Receiver<()>) = channel();
        let gone = Mutex::new(gone);
        let backend = TestBackend::new(move |_, wire| {
            notify.send(name).expect("the test waits");
            let _gone = gone.lock().expect("no panic").recv();
            wire.try_send(response("done"));
            true
        });
        (backend, go)
    }
    let (notify, notified) = channel();
    let (one, go_one) = gated_backend(0, notify.clone());
    let (two, go_two) = gated_backend(1, notify);
    let gateway = TestGateway::new(&file("", "loadBalance: least-connection", &[&one, &two]));
    let mut open = [Vec::new(), Vec::new()];
    let ask = |open: &mut [Vec<WireClient>; 2]| {
        let mut client = gateway.client();
        client.send(get("a.test"));
        open[notified.recv_timeout(TEST_TIMEOUT).expect("it is somewhere")].push(client);
    };
    for _ in 0..6 {
        ask(&mut open);
    }
    assert_eq!((open[0].len(), open[1].len()), (3, 3));
    for _ in 0..3 {
        go_one.send(()).expect("it waits");
    }
    for mut client in open[0].drain(..) {
        assert_eq!(client.read_response().text(), "done");
    }
    wait_until("three are left", || gateway.inner.active_requests() == 3);
    for _ in 0..3 {
        ask(&mut open);
    }
    assert_eq!((open[0].len(), open[1].len()), (3, 3), "the one that was free got all");
    drop((go_one, go_two));
    drop(open);
    gateway.end();
}
