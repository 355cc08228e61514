//! What these tests play on: a gateway, and backends that do what a test says.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tidegate_gateway::access_log::Format;
use tidegate_gateway::{Counted, Gateway, Logbook, Means};

use super::http_client::{FAR_TOO_LONG, Message, Wire};
use crate::fixture::spec;

/// How long it is waited before something is looked at again.
const MOMENT: Duration = Duration::from_millis(5);

/// Waits until something is so.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..FAR_TOO_LONG.as_millis() / MOMENT.as_millis() {
        if is_so() {
            return;
        }
        std::thread::park_timeout(MOMENT);
    }
    panic!("in vain: {what}");
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

/// A gateway.
pub(crate) struct Stage {
    pub(crate) gateway: Gateway,
}

/// The file of a gateway with one backend, to which every request goes.
pub(crate) fn file(server: &str, backend: &str, endpoints: &[&Backend]) -> String {
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

impl Stage {
    pub(crate) fn new(text: &str) -> Stage {
        Stage::with(text, 1)
    }

    pub(crate) fn with(text: &str, workers: usize) -> Stage {
        Stage::by(text, Means { workers, ..Means::default() })
    }

    /// With an access log, and where it can be read.
    pub(crate) fn logged(text: &str) -> (Stage, Lines) {
        let lines = Lines::default();
        let logbook = Logbook::over(lines.clone(), Format::Text).expect("a thread");
        let stage = Stage::by(text, Means { logbook: Some(logbook.clone()), ..Means::default() });
        (stage, Lines { logbook: Some(logbook), ..lines })
    }

    fn by(text: &str, means: Means) -> Stage {
        let mut spec = spec(text);
        spec.server.listen = SocketAddr::from(([127, 0, 0, 1], 0));
        Stage { gateway: Gateway::start(spec, means).expect("it starts") }
    }

    /// In front of one backend, without any limits.
    pub(crate) fn before(backend: &Backend) -> Stage {
        Stage::new(&file("", "", &[backend]))
    }

    pub(crate) fn client(&self) -> Wire {
        Wire::new(TcpStream::connect(self.gateway.address()).expect("it listens"))
    }

    /// A client from another address of this machine.
    pub(crate) fn client_at(&self, last: u8) -> Wire {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let from = SocketAddr::from((Ipv4Addr::new(127, 0, 0, last), 0));
        socket.bind(&from.into()).expect("all of 127.0.0.0/8 is here");
        socket.connect(&self.gateway.address().into()).expect("it listens");
        Wire::new(socket.into())
    }

    /// Asks on a connection of its own.
    #[track_caller]
    pub(crate) fn ask(&self, request: impl AsRef<[u8]>) -> Message {
        self.client().ask(request)
    }

    pub(crate) fn reload(&self, text: &str) -> tidegate_gateway::Reloaded {
        self.gateway.reload(spec(text)).expect("it makes sense")
    }

    pub(crate) fn counted(&self, whose: Counted<'_>) -> u64 {
        self.gateway.limits().current_connections(whose)
    }

    /// Nobody is counted anywhere any more.
    #[track_caller]
    pub(crate) fn is_empty(&self) {
        wait_until("everybody is gone, and nothing is counted", || {
            self.gateway.connections() == 0
                && self.counted(Counted::Server) == 0
                && self.gateway.limits().store().leases() == 0
                && self.gateway.under_way() == 0
        });
    }

    /// When everybody has left.
    #[track_caller]
    pub(crate) fn end(self) {
        self.is_empty();
        self.drain();
    }

    /// Whoever is there or not: when it is over nothing is counted any more.
    #[track_caller]
    pub(crate) fn drain(self) {
        let store = self.gateway.limits().store().clone();
        self.gateway.drain();
        assert_eq!(store.leases(), 0, "connections are counted that nobody has");
    }
}

/// The lines of an access log.
#[derive(Clone, Default)]
pub(crate) struct Lines {
    written: Arc<Mutex<Vec<u8>>>,
    logbook: Option<Logbook>,
}

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        locked(&self.written).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Lines {
    /// What is written so far.
    pub(crate) fn all(&self) -> Vec<String> {
        if let Some(logbook) = &self.logbook {
            logbook.finish(FAR_TOO_LONG);
        }
        String::from_utf8_lossy(&locked(&self.written)).lines().map(str::to_owned).collect()
    }

    /// The first line, when there is one.
    #[track_caller]
    pub(crate) fn first(&self) -> String {
        wait_until("there is a line", || !self.all().is_empty());
        self.all().swap_remove(0)
    }
}

/// What a backend does with a request; whether the connection goes on.
type Script = Box<dyn Fn(&Message, &mut Wire) -> bool + Send + Sync>;
/// What a backend does with a connection.
type Manner = Box<dyn Fn(Wire, usize, &Shared) + Send + Sync>;

struct Shared {
    is_over: AtomicBool,
    connections: AtomicUsize,
    heard: Mutex<Vec<Message>>,
    open: Mutex<HashMap<usize, TcpStream>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A backend, on threads of its own.
pub(crate) struct Backend {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Backend {
    /// One that does as it likes with every connection, which are counted from 1.
    pub(crate) fn raw(manner: impl Fn(Wire, usize) + Send + Sync + 'static) -> Backend {
        Backend::at(
            SocketAddr::from(([127, 0, 0, 1], 0)),
            Box::new(move |wire, number, _shared| manner(wire, number)),
        )
    }

    fn at(address: SocketAddr, manner: Manner) -> Backend {
        let listener = TcpListener::bind(address).expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared {
            is_over: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            heard: Mutex::default(),
            open: Mutex::default(),
        });
        let known = Arc::clone(&shared);
        let manner: Arc<Manner> = Arc::new(manner);
        let thread = std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let mut open = locked(&known.open);
                if known.is_over.load(Ordering::SeqCst) {
                    return;
                }
                let number = known.connections.fetch_add(1, Ordering::SeqCst) + 1;
                open.insert(number, stream.try_clone().expect("a socket"));
                drop(open);
                let (known, manner) = (Arc::clone(&known), Arc::clone(&manner));
                std::thread::spawn(move || {
                    manner(Wire::new(stream), number, &known);
                    locked(&known.open).remove(&number);
                });
            }
        });
        Backend { address, shared, thread: Some(thread) }
    }

    /// One that hears whole requests.
    pub(crate) fn new(script: impl Fn(&Message, &mut Wire) -> bool + Send + Sync + 'static) -> Backend {
        Backend::new_at(SocketAddr::from(([127, 0, 0, 1], 0)), script)
    }

    /// The same where another was before.
    pub(crate) fn new_at(
        address: SocketAddr,
        script: impl Fn(&Message, &mut Wire) -> bool + Send + Sync + 'static,
    ) -> Backend {
        let script: Script = Box::new(script);
        let manner = move |mut wire: Wire, connection: usize, shared: &Shared| {
            while let Ok(mut message) = wire.message(false) {
                message.connection = connection;
                locked(&shared.heard).push(message.clone());
                if !script(&message, &mut wire) {
                    return;
                }
            }
        };
        Backend::at(address, Box::new(manner))
    }

    /// One that answers with what it was asked.
    pub(crate) fn echo() -> Backend {
        Backend::new(echo)
    }

    /// One that always says the same, and goes on.
    pub(crate) fn saying(bytes: impl AsRef<[u8]>) -> Backend {
        let bytes = bytes.as_ref().to_vec();
        Backend::new(move |_, wire| {
            wire.shout(&bytes);
            true
        })
    }

    /// One that always says the same, and closes.
    pub(crate) fn closing(bytes: impl AsRef<[u8]>) -> Backend {
        let bytes = bytes.as_ref().to_vec();
        Backend::new(move |_, wire| {
            wire.shout(&bytes);
            false
        })
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The requests that it has heard.
    pub(crate) fn heard(&self) -> Vec<Message> {
        locked(&self.shared.heard).clone()
    }

    /// How many these are.
    pub(crate) fn requests(&self) -> usize {
        locked(&self.shared.heard).len()
    }

    /// How many connections it was given.
    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Closes every connection, and listens on.
    pub(crate) fn hang_up(&self) {
        for stream in locked(&self.shared.open).values() {
            let _open_or_not = stream.shutdown(Shutdown::Both);
        }
    }

    /// Ends, with all its connections.
    pub(crate) fn end(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        let _woken = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _over = thread.join();
        }
        self.hang_up();
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.end();
    }
}

/// Replies with the request: its line and fields as they came, then its body.
pub(crate) fn echo(message: &Message, wire: &mut Wire) -> bool {
    let mut said = message.line.clone();
    for (name, value) in message.fields.iter().chain(&message.trailers) {
        write!(said, "\r\n{name}: {value}").expect("text has room");
    }
    let mut said = (said + "\r\n\r\n").into_bytes();
    said.extend_from_slice(&message.body);
    let mut all = response(&said);
    if message.line.starts_with("HEAD ") {
        all.truncate(all.len() - said.len());
    }
    wire.shout(all);
    true
}
