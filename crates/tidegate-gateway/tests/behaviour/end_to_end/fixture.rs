//! Fixtures: a gateway under test and scripted backends.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tidegate_gateway::access_log::AccessLogFormat;
use tidegate_gateway::{AccessLogWriter, ConnectionCounter, Gateway, GatewayOptions};

use super::http_client::{Message, TEST_TIMEOUT, WireClient};
use crate::fixture::spec;

/// How often a condition is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Waits until a condition holds.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..TEST_TIMEOUT.as_millis() / POLL_INTERVAL.as_millis() {
        if is_so() {
            return;
        }
        std::thread::park_timeout(POLL_INTERVAL);
    }
    panic!("timed out: {what}");
}

/// A request for a host.
pub(crate) fn get(host: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

/// A response with this body.
pub(crate) fn response(body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let mut all = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
    all.extend_from_slice(body);
    all
}

/// A gateway under test.
pub(crate) struct TestGateway {
    pub(crate) inner: Gateway,
}

/// Settings with one backend that serves every request.
pub(crate) fn file(server: &str, backend: &str, endpoints: &[&TestBackend]) -> String {
    let ends: Vec<String> =
        endpoints.iter().map(|each| format!("{{host: 127.0.0.1, port: {}}}", each.port())).collect();
    format!(
        "server:\n  listen: 127.0.0.1:0\n{}\nbackends:\n  - name: b\n    endpoints: [{}]\n{}\nroutes: [{{backend: b}}]\n",
        indented(server, 2),
        ends.join(", "),
        indented(backend, 4),
    )
}

fn indented(text: &str, by: usize) -> String {
    let lines: Vec<String> =
        text.split("; ").filter(|line| !line.is_empty()).map(|line| " ".repeat(by) + line).collect();
    lines.join("\n")
}

impl TestGateway {
    pub(crate) fn new(text: &str) -> TestGateway {
        TestGateway::with_workers(text, 1)
    }

    pub(crate) fn with_workers(text: &str, workers: usize) -> TestGateway {
        TestGateway::with_options(text, GatewayOptions { workers, ..GatewayOptions::default() })
    }

    /// With an access log that the test can read.
    pub(crate) fn with_access_log(text: &str) -> (TestGateway, LogLines) {
        let lines = LogLines::default();
        let access_log = AccessLogWriter::start(lines.clone(), AccessLogFormat::Text).expect("a thread");
        let gateway = TestGateway::with_options(
            text,
            GatewayOptions { access_log: Some(access_log.clone()), ..GatewayOptions::default() },
        );
        (gateway, LogLines { access_log: Some(access_log), ..lines })
    }

    fn with_options(text: &str, options: GatewayOptions) -> TestGateway {
        let mut spec = spec(text);
        spec.server.listen = SocketAddr::from(([127, 0, 0, 1], 0));
        TestGateway { inner: Gateway::start(spec, options).expect("it starts") }
    }

    /// In front of one backend, without limits.
    pub(crate) fn in_front_of(backend: &TestBackend) -> TestGateway {
        TestGateway::new(&file("", "", &[backend]))
    }

    pub(crate) fn client(&self) -> WireClient {
        WireClient::new(TcpStream::connect(self.inner.address()).expect("it listens"))
    }

    /// A client from another loopback address.
    pub(crate) fn client_at(&self, last: u8) -> WireClient {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let from = SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), 0));
        socket.bind(&from.into()).expect("all of 127.0.0.0/8 is here");
        socket.connect(&self.inner.address().into()).expect("it listens");
        WireClient::new(socket.into())
    }

    /// Sends a request on a new connection.
    #[track_caller]
    pub(crate) fn request(&self, request: impl AsRef<[u8]>) -> Message {
        self.client().request(request)
    }

    pub(crate) fn reload(&self, text: &str) -> tidegate_gateway::ReloadSummary {
        self.inner.reload(spec(text)).expect("valid")
    }

    pub(crate) fn counted(&self, counter: ConnectionCounter<'_>) -> u64 {
        self.inner.limits().current_connections(counter)
    }

    /// Waits until no connection is open and nothing is counted.
    #[track_caller]
    pub(crate) fn wait_until_empty(&self) {
        wait_until("all connections are closed and nothing is counted", || {
            self.inner.connections() == 0
                && self.counted(ConnectionCounter::Server) == 0
                && self.inner.limits().store().leases() == 0
                && self.inner.active_requests() == 0
        });
    }

    /// Stops the gateway after all connections are closed.
    #[track_caller]
    pub(crate) fn end(self) {
        self.wait_until_empty();
        self.drain();
    }

    /// Stops the gateway. No lease may be left.
    #[track_caller]
    pub(crate) fn drain(self) {
        let store = self.inner.limits().store().clone();
        self.inner.drain();
        assert_eq!(store.leases(), 0, "no lease is left");
    }
}

/// The lines of an access log.
#[derive(Clone, Default)]
pub(crate) struct LogLines {
    written: Arc<Mutex<Vec<u8>>>,
    access_log: Option<AccessLogWriter>,
}

impl std::io::Write for LogLines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        locked(&self.written).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl LogLines {
    /// The lines written so far.
    pub(crate) fn all(&self) -> Vec<String> {
        if let Some(access_log) = &self.access_log {
            access_log.finish(TEST_TIMEOUT);
        }
        String::from_utf8_lossy(&locked(&self.written)).lines().map(str::to_owned).collect()
    }

    /// Waits for the first line.
    #[track_caller]
    pub(crate) fn first(&self) -> String {
        wait_until("there is a line", || !self.all().is_empty());
        self.all().swap_remove(0)
    }
}

/// Handles a request. Returns whether the connection stays open.
type RequestHandler = Box<dyn Fn(&Message, &mut WireClient) -> bool + Send + Sync>;
/// Handles a connection.
type ConnectionHandler = Box<dyn Fn(WireClient, usize, &BackendState) + Send + Sync>;

struct BackendState {
    is_over: AtomicBool,
    connections: AtomicUsize,
    received: Mutex<Vec<Message>>,
    open: Mutex<HashMap<usize, TcpStream>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A scripted backend on its own threads.
pub(crate) struct TestBackend {
    address: SocketAddr,
    shared: Arc<BackendState>,
    thread: Option<JoinHandle<()>>,
}

impl TestBackend {
    /// Passes every connection to `handler`, numbered from 1.
    pub(crate) fn with_connections(
        handler: impl Fn(WireClient, usize) + Send + Sync + 'static,
    ) -> TestBackend {
        TestBackend::at(
            SocketAddr::from(([127, 0, 0, 1], 0)),
            Box::new(move |wire, number, _shared| handler(wire, number)),
        )
    }

    fn at(address: SocketAddr, handler: ConnectionHandler) -> TestBackend {
        let listener = TcpListener::bind(address).expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(BackendState {
            is_over: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            received: Mutex::default(),
            open: Mutex::default(),
        });
        let known = Arc::clone(&shared);
        let handler: Arc<ConnectionHandler> = Arc::new(handler);
        let thread = std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let mut open = locked(&known.open);
                if known.is_over.load(Ordering::SeqCst) {
                    return;
                }
                let number = known.connections.fetch_add(1, Ordering::SeqCst) + 1;
                open.insert(number, stream.try_clone().expect("a socket"));
                drop(open);
                let (known, handler) = (Arc::clone(&known), Arc::clone(&handler));
                std::thread::spawn(move || {
                    handler(WireClient::new(stream), number, &known);
                    locked(&known.open).remove(&number);
                });
            }
        });
        TestBackend { address, shared, thread: Some(thread) }
    }

    /// Parses requests and passes them to `handler`.
    pub(crate) fn new(
        handler: impl Fn(&Message, &mut WireClient) -> bool + Send + Sync + 'static,
    ) -> TestBackend {
        TestBackend::new_at(SocketAddr::from(([127, 0, 0, 1], 0)), handler)
    }

    /// The same at a given address.
    pub(crate) fn new_at(
        address: SocketAddr,
        handler: impl Fn(&Message, &mut WireClient) -> bool + Send + Sync + 'static,
    ) -> TestBackend {
        let handler: RequestHandler = Box::new(handler);
        let handler = move |mut wire: WireClient, connection: usize, shared: &BackendState| {
            while let Ok(mut message) = wire.read_message(false) {
                message.connection = connection;
                locked(&shared.received).push(message.clone());
                if !handler(&message, &mut wire) {
                    return;
                }
            }
        };
        TestBackend::at(address, Box::new(handler))
    }

    /// Responds with the request it received.
    pub(crate) fn echo() -> TestBackend {
        TestBackend::new(echo)
    }

    /// Always sends the same bytes and keeps the connection open.
    pub(crate) fn always(bytes: impl AsRef<[u8]>) -> TestBackend {
        let bytes = bytes.as_ref().to_vec();
        TestBackend::new(move |_, wire| {
            wire.try_send(&bytes);
            true
        })
    }

    /// Always sends the same bytes and closes the connection.
    pub(crate) fn always_then_close(bytes: impl AsRef<[u8]>) -> TestBackend {
        let bytes = bytes.as_ref().to_vec();
        TestBackend::new(move |_, wire| {
            wire.try_send(&bytes);
            false
        })
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The received requests.
    pub(crate) fn requests_received(&self) -> Vec<Message> {
        locked(&self.shared.received).clone()
    }

    /// The number of received requests.
    pub(crate) fn request_count(&self) -> usize {
        locked(&self.shared.received).len()
    }

    /// The number of accepted connections.
    pub(crate) fn connection_count(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Closes every connection and continues to listen.
    pub(crate) fn close_connections(&self) {
        for stream in locked(&self.shared.open).values() {
            let _best_effort = stream.shutdown(Shutdown::Both);
        }
    }

    /// Stops listening and closes every connection.
    pub(crate) fn end(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        let _woken = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _over = thread.join();
        }
        self.close_connections();
    }
}

impl Drop for TestBackend {
    fn drop(&mut self) {
        self.end();
    }
}

/// Responds with the request: its line and fields as received, then its body.
pub(crate) fn echo(message: &Message, wire: &mut WireClient) -> bool {
    let mut echo_text = message.line.clone();
    for (name, value) in message.fields.iter().chain(&message.trailers) {
        write!(echo_text, "\r\n{name}: {value}").expect("text has room");
    }
    let mut echo_text = (echo_text + "\r\n\r\n").into_bytes();
    echo_text.extend_from_slice(&message.body);
    let mut all = response(&echo_text);
    if message.line.starts_with("HEAD ") {
        all.truncate(all.len() - echo_text.len());
    }
    wire.try_send(all);
    true
}
