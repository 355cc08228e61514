//! A server with its sockets, and minimal HTTP and RESP clients.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use tidegate::Limiter;
use tidegate::catalog::ExpectedVersion;
use tidegate::clock::ManualClock;
use tidegate::store::{LimitStore, Memory, MemoryStore};
use tidegate_server::http::HttpApi;
use tidegate_server::metrics::ServerMetrics;
use tidegate_server::resp::RespService;
use tidegate_server::serve::{ConnectionBounds, ListenConfig, Server, ServerHandlers};
use tidegate_server::tokens::{Role, TokenSpec, TokenTable};
use tidegate_testkit::logged_store::{LoggedStore, ManualLog};

use crate::resp::fixture::{START, read_aloud, words};

/// Worker threads of the servers.
const WORKERS: usize = 2;

/// Longer than any operation here, so that a missing reply is a failure and not a hang.
pub(crate) const FAR_TOO_LONG: Duration = Duration::from_secs(60);

pub(crate) const LIMITS: &str = "limits:
  - {id: free, items: [{policy: total, limit: -1}]}
  - {id: twice, items: [{policy: total, limit: 2, per: key}]}
  - {id: builds, items: [{policy: concurrency, limit: 1, ttl: 60s}]}
";

/// Bounds that a well-behaved client never reaches.
pub(crate) fn wide() -> ConnectionBounds {
    ConnectionBounds {
        head: FAR_TOO_LONG,
        request: FAR_TOO_LONG,
        write: FAR_TOO_LONG,
        drain: FAR_TOO_LONG,
        ..ConnectionBounds::default()
    }
}

/// A running server and its store.
pub(crate) struct ServerFixture {
    pub(crate) server: Server,
    pub(crate) limiter: Limiter,
    pub(crate) store: Arc<dyn LimitStore>,
    panics_before: usize,
}

impl ServerFixture {
    pub(crate) fn new(bounds: ConnectionBounds) -> ServerFixture {
        ServerFixture::with(LIMITS, bounds, TokenTable::allow_all())
    }

    /// A server with one token, and the token.
    pub(crate) fn locked(bounds: ConnectionBounds) -> (ServerFixture, String) {
        let new = tidegate_server::tokens::NewToken::generate().expect("there is randomness");
        let spec = TokenSpec {
            name: "shop".to_owned(),
            sha256: new.sha256,
            role: Role::Decide,
            prefix: String::new(),
        };
        let tokens = TokenTable::new(vec![spec]).expect("valid input");
        (ServerFixture::with(LIMITS, bounds, tokens), new.secret)
    }

    pub(crate) fn with(limits: &str, bounds: ConnectionBounds, tokens: TokenTable) -> ServerFixture {
        ServerFixture::of(WORKERS, limits, bounds, tokens)
    }

    /// A server with a single worker.
    pub(crate) fn single(bounds: ConnectionBounds) -> ServerFixture {
        ServerFixture::of(1, LIMITS, bounds, TokenTable::allow_all())
    }

    /// A server with a single worker over a store with this log. Its limits are durable.
    pub(crate) fn logged(log: &ManualLog) -> ServerFixture {
        let store = LoggedStore::new(Arc::new(memory_store()), log.clone());
        let fixture = ServerFixture::over(Arc::new(store), 1, LIMITS, wide(), TokenTable::allow_all());
        log.sync_all();
        fixture
    }

    /// A server whose store has a manual clock, with bounds that are never reached.
    pub(crate) fn timed(clock: &Arc<ManualClock>) -> ServerFixture {
        let store = MemoryStore::new(Arc::clone(clock), Memory::default());
        ServerFixture::over(Arc::new(store), WORKERS, LIMITS, wide(), TokenTable::allow_all())
    }

    fn of(workers: usize, limits: &str, bounds: ConnectionBounds, tokens: TokenTable) -> ServerFixture {
        ServerFixture::over(Arc::new(memory_store()), workers, limits, bounds, tokens)
    }

    fn over(
        store: Arc<dyn LimitStore>,
        workers: usize,
        limits: &str,
        bounds: ConnectionBounds,
        tokens: TokenTable,
    ) -> ServerFixture {
        count_panics();
        for limit in tidegate_config::limits::read_text("limits.yaml", limits).expect("they are sound") {
            store.put(limit, ExpectedVersion::Absent).expect("there is none yet");
        }
        let limiter = Limiter::new(Arc::clone(&store));
        let authenticator = Arc::new(tokens);
        let metrics = Arc::new(ServerMetrics::new(workers));
        let api = HttpApi::new(Arc::clone(&store), limiter.clone()).metrics(Arc::clone(&metrics));
        let resp = RespService::new(Arc::clone(&store), Arc::clone(&authenticator) as _)
            .with_limiter(limiter.clone());
        let anywhere = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        let places = ListenConfig { http: anywhere, resp: anywhere, workers };
        let server = Server::start(ServerHandlers { api, resp, authenticator, metrics }, &places, bounds)
            .expect("there are free ports");
        ServerFixture { server, limiter, store, panics_before: PANICS.load(Ordering::SeqCst) }
    }

    pub(crate) fn http_address(&self) -> SocketAddr {
        self.server.http().expect("it listens")
    }

    pub(crate) fn resp_address(&self) -> SocketAddr {
        self.server.resp().expect("it listens")
    }

    /// An HTTP client.
    pub(crate) fn http(&self) -> Client {
        Client::to(self.http_address())
    }

    /// A RESP client.
    pub(crate) fn resp(&self) -> Client {
        Client::to(self.resp_address())
    }

    /// Both protocols answer new clients, and no worker has panicked.
    #[track_caller]
    pub(crate) fn is_well(&self) {
        self.has_not_panicked();
        let answer = self.http().ask(&peek("free", "somebody"));
        assert_eq!((answer.status, answer.json()["allowed"].as_bool()), (200, Some(true)));
        assert_eq!(self.resp().command("TG.PEEK free somebody"), "[1, -1, -1, -1, -1, '', '']");
    }

    #[track_caller]
    fn has_not_panicked(&self) {
        assert_eq!(PANICS.load(Ordering::SeqCst), self.panics_before, "a worker panicked");
    }

    /// Polls another connection until the condition holds.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, is_so: impl Fn(&ServerFixture) -> bool) {
        let mut clock = self.resp();
        // So many replies take seconds on the fastest machine.
        for _ in 0..200_000 {
            if is_so(self) {
                return;
            }
            assert_eq!(clock.command("PING"), "+PONG");
        }
        panic!("it never happens that {what}");
    }

    /// How many connections of this protocol were cut for this reason.
    pub(crate) fn cuts(&self, protocol: &str, reason: &str) -> u64 {
        let page = self.http().ask(b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n").text();
        let name = format!("tidegate_connections_cut_total{{door=\"{protocol}\",reason=\"{reason}\"}} ");
        let line = page.lines().find_map(|line| line.strip_prefix(&name)).expect("it is counted");
        line.parse().expect("a number")
    }

    /// Waits until this many connections were cut for this reason, and checks that there are no more.
    #[track_caller]
    pub(crate) fn has_cut(&self, protocol: &str, reason: &str, times: u64) {
        self.until("as many are counted", |fixture| fixture.cuts(protocol, reason) >= times);
        assert_eq!(self.cuts(protocol, reason), times, "{protocol}, {reason}");
    }

    /// Shuts the server down.
    #[track_caller]
    pub(crate) fn end(self) {
        let ServerFixture { server, panics_before, .. } = self;
        server.drain();
        assert_eq!(PANICS.load(Ordering::SeqCst), panics_before, "a worker panicked");
    }
}

fn memory_store() -> MemoryStore {
    MemoryStore::new(Arc::new(ManualClock::at(START)), Memory::default())
}

/// How many workers have panicked, over all servers of this process.
static PANICS: AtomicUsize = AtomicUsize::new(0);

fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if std::thread::current().name().is_some_and(|name| name.starts_with("worker-")) {
                PANICS.fetch_add(1, Ordering::SeqCst);
            }
            usual(panic);
        }));
    });
}

/// A POST request with this body.
pub(crate) fn post(path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
}

fn question(limit_id: &str, key: &str) -> String {
    format!("{{\"limit_id\":\"{limit_id}\",\"limit_key\":\"{key}\"}}")
}

pub(crate) fn acquire(limit_id: &str, key: &str) -> Vec<u8> {
    post("/v1/acquire", &question(limit_id, key))
}

pub(crate) fn peek(limit_id: &str, key: &str) -> Vec<u8> {
    post("/v1/peek", &question(limit_id, key))
}

/// An acquire that may wait.
pub(crate) fn patient(limit_id: &str, key: &str, max_wait_ms: u64) -> Vec<u8> {
    let body =
        format!("{{\"limit_id\":\"{limit_id}\",\"limit_key\":\"{key}\",\"max_wait_ms\":{max_wait_ms}}}");
    post("/v1/acquire", &body)
}

/// A client of either protocol, with bytes read and not yet parsed.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    received: Vec<u8>,
}

/// An HTTP response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl HttpResponse {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("text")
    }

    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (known, value) = line.split_once(": ")?;
            known.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    /// Checks that this is a problem of this code.
    #[track_caller]
    pub(crate) fn is_problem(&self, status: u16, code: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.field("content-type"), Some("application/problem+json"), "{self:?}");
        assert_eq!(self.json()["code"], code, "{self:?}");
    }
}

impl Client {
    pub(crate) fn to(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).expect("it listens");
        Client::over(stream)
    }

    pub(crate) fn over(stream: TcpStream) -> Client {
        stream.set_nodelay(true).expect("a socket");
        stream.set_read_timeout(Some(FAR_TOO_LONG)).expect("a socket");
        stream.set_write_timeout(Some(FAR_TOO_LONG)).expect("a socket");
        Client { stream, received: Vec::new() }
    }

    #[track_caller]
    pub(crate) fn say(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server listens");
    }

    /// Sends as much as the server accepts.
    pub(crate) fn shout(&mut self, bytes: &[u8]) {
        let _heard_or_not = self.stream.write_all(bytes);
    }

    /// Closes the write side and keeps reading.
    pub(crate) fn has_said_everything(&self) {
        let _perhaps_gone = self.stream.shutdown(Shutdown::Write);
    }

    /// Reads more; `false` at the end.
    fn read_more(&mut self) -> io::Result<bool> {
        let mut piece = [0; 16 * 1024];
        let length = self.stream.read(&mut piece)?;
        self.received.extend_from_slice(&piece[..length]);
        Ok(length > 0)
    }

    #[track_caller]
    pub(crate) fn read_until<T>(&mut self, find: impl Fn(&[u8]) -> Option<(T, usize)>) -> Option<T> {
        loop {
            if let Some((found, length)) = find(&self.received) {
                self.received.drain(..length);
                if self.received.is_empty() {
                    self.received = Vec::new();
                }
                return Some(found);
            }
            match self.read_more() {
                Ok(true) => {}
                Ok(false) => {
                    assert!(self.received.is_empty(), "half an answer: {}", self.received.escape_ascii());
                    return None;
                }
                Err(error) if is_cut(&error) => return None,
                Err(error) => panic!("{error}, after {}", self.received.escape_ascii()),
            }
        }
    }

    /// Sends a request and reads its response.
    #[track_caller]
    pub(crate) fn ask(&mut self, request: &[u8]) -> HttpResponse {
        self.say(request);
        self.answer().expect("an answer")
    }

    /// The next HTTP response, if there is one before the end.
    #[track_caller]
    pub(crate) fn answer(&mut self) -> Option<HttpResponse> {
        self.read_until(|received| first_answer(received, false))
    }

    /// Sends a command and reads its reply.
    #[track_caller]
    pub(crate) fn command(&mut self, line: &str) -> String {
        self.say(&words(line));
        self.reply().expect("a reply")
    }

    /// The next RESP reply, if there is one before the end.
    #[track_caller]
    pub(crate) fn reply(&mut self) -> Option<String> {
        self.read_until(|received| {
            let length = reply_length(received)?;
            Some((read_aloud(&received[..length]), length))
        })
    }

    /// Checks that there is no unread output.
    #[track_caller]
    pub(crate) fn has_been_told_nothing(&mut self) {
        self.stream.set_nonblocking(true).expect("a socket");
        let peeked = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false).expect("a socket");
        assert!(self.received.is_empty(), "{}", self.received.escape_ascii());
        assert_eq!(peeked.map_err(|error| error.kind()), Err(io::ErrorKind::WouldBlock));
    }

    /// Everything until the end.
    #[track_caller]
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        loop {
            match self.read_more() {
                Ok(true) => {}
                Ok(false) => return std::mem::take(&mut self.received),
                Err(error) if is_cut(&error) => return std::mem::take(&mut self.received),
                Err(error) => panic!("{error}: the connection does not end"),
            }
        }
    }

    /// Reads and discards everything until the end; returns the length, which must be below `most`.
    pub(crate) fn listen_to_the_end(&mut self, most: usize) {
        let mut length = 0;
        while matches!(self.read_more(), Ok(true)) {
            length += self.received.len();
            assert!(length < most, "it does not end");
            self.received.clear();
        }
    }

    /// Checks that the connection ends without further output.
    #[track_caller]
    pub(crate) fn is_cut_off(&mut self) {
        let rest = self.rest();
        assert!(rest.is_empty(), "{}", rest.escape_ascii());
    }

    /// Whether the connection has ended; waits a moment for it.
    pub(crate) fn is_over_within(&mut self, moment: Duration) -> bool {
        self.stream.set_read_timeout(Some(moment)).expect("a socket");
        let over = match self.read_more() {
            Ok(more) => !more,
            Err(error) => is_cut(&error),
        };
        self.stream.set_read_timeout(Some(FAR_TOO_LONG)).expect("a socket");
        over
    }
}

/// Whether the peer closed the connection, as opposed to a read timeout.
fn is_cut(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionAborted
    )
}

/// The response at the start of these bytes, and its length. A response to `HEAD` has no body.
pub(crate) fn first_answer(received: &[u8], is_head: bool) -> Option<(HttpResponse, usize)> {
    let end = received.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(&received[..end]).expect("a head is text").trim_end().to_owned();
    let status = head.get(9..12).and_then(|status| status.parse().ok()).expect("a status");
    let mut answer = HttpResponse { status, head, body: Vec::new() };
    let length = answer.field("content-length").filter(|_| !is_head);
    let length = length.map_or(0, |length| length.parse().expect("a length"));
    answer.body = received.get(end..end + length)?.to_vec();
    Some((answer, end + length))
}

/// Length of the reply at the start of these bytes; `None` if it is incomplete.
pub(crate) fn reply_length(received: &[u8]) -> Option<usize> {
    let line = received.windows(2).position(|two| two == b"\r\n")? + 2;
    let text = std::str::from_utf8(&received[1..line - 2]).expect("a line is text");
    let number = || text.parse::<usize>().expect("a length");
    let several = |count: usize| {
        (0..count).try_fold(line, |end, _| reply_length(received.get(end..)?).map(|length| end + length))
    };
    let end = match received[0] {
        b'$' if text == "-1" => line,
        b'$' | b'=' => line + number() + 2,
        b'*' => several(number())?,
        b'%' => several(number() * 2)?,
        _ => line,
    };
    (end <= received.len()).then_some(end)
}
