//! A server with its sockets, and clients that know no more of HTTP and RESP than they need.

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

use crate::resp::stage::{START, read_aloud, words};

/// How many threads the servers have.
const WORKERS: usize = 2;

/// Longer than anything takes here, so that what never comes is a failure and not a hang.
pub(crate) const FAR_TOO_LONG: Duration = Duration::from_secs(60);

pub(crate) const LIMITS: &str = "limits:
  - {id: free, items: [{policy: total, limit: -1}]}
  - {id: twice, items: [{policy: total, limit: 2, per: key}]}
  - {id: builds, items: [{policy: concurrency, limit: 1, ttl: 60s}]}
";

/// ConnectionBounds that are never reached by a client that does nothing strange.
pub(crate) fn wide() -> ConnectionBounds {
    ConnectionBounds {
        head: FAR_TOO_LONG,
        request: FAR_TOO_LONG,
        write: FAR_TOO_LONG,
        drain: FAR_TOO_LONG,
        ..ConnectionBounds::default()
    }
}

/// A server that runs, and what it runs on.
pub(crate) struct Stage {
    pub(crate) server: Server,
    pub(crate) limiter: Limiter,
    pub(crate) store: Arc<dyn LimitStore>,
    panics_before: usize,
}

impl Stage {
    pub(crate) fn new(bounds: ConnectionBounds) -> Stage {
        Stage::with(LIMITS, bounds, TokenTable::allow_all())
    }

    /// A server with one token, and the token.
    pub(crate) fn locked(bounds: ConnectionBounds) -> (Stage, String) {
        let new = tidegate_server::tokens::NewToken::generate().expect("there is randomness");
        let spec = TokenSpec {
            name: "shop".to_owned(),
            sha256: new.sha256,
            role: Role::Decide,
            prefix: String::new(),
        };
        let tokens = TokenTable::new(vec![spec]).expect("it makes sense");
        (Stage::with(LIMITS, bounds, tokens), new.secret)
    }

    pub(crate) fn with(limits: &str, bounds: ConnectionBounds, tokens: TokenTable) -> Stage {
        Stage::of(WORKERS, limits, bounds, tokens)
    }

    /// A server whose only worker does everything, one thing after the other.
    pub(crate) fn single(bounds: ConnectionBounds) -> Stage {
        Stage::of(1, LIMITS, bounds, TokenTable::allow_all())
    }

    /// A server whose only worker answers for a store with this log. Its limits are durable.
    pub(crate) fn logged(log: &ManualLog) -> Stage {
        let store = LoggedStore::new(Arc::new(memory_store()), log.clone());
        let stage = Stage::over(Arc::new(store), 1, LIMITS, wide(), TokenTable::allow_all());
        log.sync_all();
        stage
    }

    /// A server whose store's time is moved by hand, with bounds that are never reached.
    pub(crate) fn timed(clock: &Arc<ManualClock>) -> Stage {
        let store = MemoryStore::new(Arc::clone(clock), Memory::default());
        Stage::over(Arc::new(store), WORKERS, LIMITS, wide(), TokenTable::allow_all())
    }

    fn of(workers: usize, limits: &str, bounds: ConnectionBounds, tokens: TokenTable) -> Stage {
        Stage::over(Arc::new(memory_store()), workers, limits, bounds, tokens)
    }

    fn over(
        store: Arc<dyn LimitStore>,
        workers: usize,
        limits: &str,
        bounds: ConnectionBounds,
        tokens: TokenTable,
    ) -> Stage {
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
        Stage { server, limiter, store, panics_before: PANICS.load(Ordering::SeqCst) }
    }

    pub(crate) fn http_address(&self) -> SocketAddr {
        self.server.http().expect("it listens")
    }

    pub(crate) fn resp_address(&self) -> SocketAddr {
        self.server.resp().expect("it listens")
    }

    /// A client at the HTTP resp.
    pub(crate) fn http(&self) -> Client {
        Client::to(self.http_address())
    }

    /// A client at the RESP resp.
    pub(crate) fn resp(&self) -> Client {
        Client::to(self.resp_address())
    }

    /// New clients are answered rightly at both doors, and no worker has panicked.
    #[track_caller]
    pub(crate) fn is_well(&self) {
        self.has_not_panicked();
        let answer = self.http().ask(&peek("free", "somebody"));
        assert_eq!((answer.status, answer.json()["allowed"].as_bool()), (200, Some(true)));
        assert_eq!(self.resp().tell("TG.PEEK free somebody"), "[1, -1, -1, -1, -1, '', '']");
    }

    #[track_caller]
    fn has_not_panicked(&self) {
        assert_eq!(PANICS.load(Ordering::SeqCst), self.panics_before, "a worker panicked");
    }

    /// Asks somebody who is not concerned, until it is so.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, is_so: impl Fn(&Stage) -> bool) {
        let mut clock = self.resp();
        // So many answers take seconds on the fastest machine, and longer where everything does.
        for _ in 0..200_000 {
            if is_so(self) {
                return;
            }
            assert_eq!(clock.tell("PING"), "+PONG");
        }
        panic!("it never happens that {what}");
    }

    /// How many connections were cut off at this door for this reason.
    pub(crate) fn cuts(&self, door: &str, reason: &str) -> u64 {
        let page = self.http().ask(b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n").text();
        let name = format!("tidegate_connections_cut_total{{door=\"{door}\",reason=\"{reason}\"}} ");
        let line = page.lines().find_map(|line| line.strip_prefix(&name)).expect("it is counted");
        line.parse().expect("a number")
    }

    /// So many connections were cut off at this door for this reason, when those are counted of which the client knows.
    #[track_caller]
    pub(crate) fn has_cut(&self, door: &str, reason: &str, times: u64) {
        self.until("as many are counted", |stage| stage.cuts(door, reason) >= times);
        assert_eq!(self.cuts(door, reason), times, "{door}, {reason}");
    }

    /// Ends the server.
    #[track_caller]
    pub(crate) fn end(self) {
        let Stage { server, panics_before, .. } = self;
        server.drain();
        assert_eq!(PANICS.load(Ordering::SeqCst), panics_before, "a worker panicked");
    }
}

fn memory_store() -> MemoryStore {
    MemoryStore::new(Arc::new(ManualClock::at(START)), Memory::default())
}

/// How many workers have panicked, of all servers of this process.
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

/// A POST with this body.
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

/// An ask that may be kept waiting.
pub(crate) fn patient(limit_id: &str, key: &str, max_wait_ms: u64) -> Vec<u8> {
    let body =
        format!("{{\"limit_id\":\"{limit_id}\",\"limit_key\":\"{key}\",\"max_wait_ms\":{max_wait_ms}}}");
    post("/v1/acquire", &body)
}

/// A client at either resp, and what it has read and not yet looked at.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    heard: Vec<u8>,
}

/// An answer of HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
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

    /// Is a problem of this code.
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
        Client { stream, heard: Vec::new() }
    }

    #[track_caller]
    pub(crate) fn say(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server listens");
    }

    /// Says as much as the server wants to hear.
    pub(crate) fn shout(&mut self, bytes: &[u8]) {
        let _heard_or_not = self.stream.write_all(bytes);
    }

    /// Says nothing more, and goes on listening.
    pub(crate) fn has_said_everything(&self) {
        let _perhaps_gone = self.stream.shutdown(Shutdown::Write);
    }

    /// Reads more; `false` at the end.
    fn hear(&mut self) -> io::Result<bool> {
        let mut piece = [0; 16 * 1024];
        let length = self.stream.read(&mut piece)?;
        self.heard.extend_from_slice(&piece[..length]);
        Ok(length > 0)
    }

    #[track_caller]
    pub(crate) fn hear_until<T>(&mut self, find: impl Fn(&[u8]) -> Option<(T, usize)>) -> Option<T> {
        loop {
            if let Some((found, length)) = find(&self.heard) {
                self.heard.drain(..length);
                if self.heard.is_empty() {
                    self.heard = Vec::new();
                }
                return Some(found);
            }
            match self.hear() {
                Ok(true) => {}
                Ok(false) => {
                    assert!(self.heard.is_empty(), "half an answer: {}", self.heard.escape_ascii());
                    return None;
                }
                Err(error) if is_cut(&error) => return None,
                Err(error) => panic!("{error}, after {}", self.heard.escape_ascii()),
            }
        }
    }

    /// Sends a request and reads its answer.
    #[track_caller]
    pub(crate) fn ask(&mut self, request: &[u8]) -> Answer {
        self.say(request);
        self.answer().expect("an answer")
    }

    /// The next answer of HTTP, if there is one before the end.
    #[track_caller]
    pub(crate) fn answer(&mut self) -> Option<Answer> {
        self.hear_until(|heard| first_answer(heard, false))
    }

    /// Sends a command and reads its reply.
    #[track_caller]
    pub(crate) fn tell(&mut self, line: &str) -> String {
        self.say(&words(line));
        self.reply().expect("a reply")
    }

    /// The next reply of RESP, if there is one before the end.
    #[track_caller]
    pub(crate) fn reply(&mut self) -> Option<String> {
        self.hear_until(|heard| {
            let length = reply_length(heard)?;
            Some((read_aloud(&heard[..length]), length))
        })
    }

    /// Nothing was said to it that it has not heard.
    #[track_caller]
    pub(crate) fn has_been_told_nothing(&mut self) {
        self.stream.set_nonblocking(true).expect("a socket");
        let told = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false).expect("a socket");
        assert!(self.heard.is_empty(), "{}", self.heard.escape_ascii());
        assert_eq!(told.map_err(|error| error.kind()), Err(io::ErrorKind::WouldBlock));
    }

    /// Everything until the end.
    #[track_caller]
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        loop {
            match self.hear() {
                Ok(true) => {}
                Ok(false) => return std::mem::take(&mut self.heard),
                Err(error) if is_cut(&error) => return std::mem::take(&mut self.heard),
                Err(error) => panic!("{error}: the connection does not end"),
            }
        }
    }

    /// Hears everything until the end, and remembers nothing; how much it was. It must be less than `most`.
    pub(crate) fn listen_to_the_end(&mut self, most: usize) {
        let mut length = 0;
        while matches!(self.hear(), Ok(true)) {
            length += self.heard.len();
            assert!(length < most, "it does not end");
            self.heard.clear();
        }
    }

    /// The connection is over, without another word.
    #[track_caller]
    pub(crate) fn is_cut_off(&mut self) {
        let rest = self.rest();
        assert!(rest.is_empty(), "{}", rest.escape_ascii());
    }

    /// Whether the connection is over by now; waits a moment for it.
    pub(crate) fn is_over_within(&mut self, moment: Duration) -> bool {
        self.stream.set_read_timeout(Some(moment)).expect("a socket");
        let over = match self.hear() {
            Ok(more) => !more,
            Err(error) => is_cut(&error),
        };
        self.stream.set_read_timeout(Some(FAR_TOO_LONG)).expect("a socket");
        over
    }
}

/// Whether the other side has ended the connection, rather than said nothing for too long.
fn is_cut(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionAborted
    )
}

/// The answer at the beginning of these bytes, and how long it is. What `HEAD` is answered has no body.
pub(crate) fn first_answer(heard: &[u8], is_head: bool) -> Option<(Answer, usize)> {
    let end = heard.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(&heard[..end]).expect("a head is text").trim_end().to_owned();
    let status = head.get(9..12).and_then(|status| status.parse().ok()).expect("a status");
    let mut answer = Answer { status, head, body: Vec::new() };
    let length = answer.field("content-length").filter(|_| !is_head);
    let length = length.map_or(0, |length| length.parse().expect("a length"));
    answer.body = heard.get(end..end + length)?.to_vec();
    Some((answer, end + length))
}

/// How long the reply at the beginning of these bytes is; `None` if it is not whole.
pub(crate) fn reply_length(heard: &[u8]) -> Option<usize> {
    let line = heard.windows(2).position(|two| two == b"\r\n")? + 2;
    let text = std::str::from_utf8(&heard[1..line - 2]).expect("a line is text");
    let number = || text.parse::<usize>().expect("a length");
    let several = |count: usize| {
        (0..count).try_fold(line, |end, _| reply_length(heard.get(end..)?).map(|length| end + length))
    };
    let end = match heard[0] {
        b'$' if text == "-1" => line,
        b'$' | b'=' => line + number() + 2,
        b'*' => several(number())?,
        b'%' => several(number() * 2)?,
        _ => line,
    };
    (end <= heard.len()).then_some(end)
}
