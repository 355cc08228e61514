//! A stage for sessions: a store whose clock is moved by hand, and a client that reads what it is told.
//!
//! Stories are written as they happen, one command per line and what it is answered behind an arrow:
//!
//! ```text
//!   0s     TG.ACQUIRE login ada      -> [1, 5, 4, -1, 15000, '', '']
//!   1.5s   TG.PEEK login ada         -> ...
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate::catalog::{ApplyError, Edit, EditOutcome, Origin, PutError, Watcher};
use tidegate::catalog::{Catalog, ExpectedVersion, RemovalMode};
use tidegate::clock::ManualClock;
use tidegate::model::{LeaseId, LeaseTerm, Limit, LimitSpec, Order, Tick, Timestamp};
use tidegate::reply::{OrderError, Replies};
use tidegate::store::{Actual, LimitStore, MapStore, Memory, MemoryStore, Settlement, Store, StoreReply};
use tidegate::store::{Capabilities, CompactBatch, CompactReplies, Later, Lsn, Unavailable, Usage};
use tidegate_server::resp::{Authenticator, FeedNext, FeedOutcome, RespService, RespSession};
use tidegate_server::tokens::{Permissions, Role};

/// Where the clocks begin: at a whole second long after the epoch.
pub(crate) const START: Timestamp = Timestamp::from_ticks(1_700_000_000_000_000_000);

pub(crate) const LIMITS: &str = "limits:
  - {id: login, items: [{policy: sliding, limit: 5, per: key, window: 15s}]}
  - {id: sale, items: [{policy: total, limit: 10}, {policy: interval, limit: 2, per: key, window: 10s}]}
  - {id: builds, items: [{policy: concurrency, limit: 1, ttl: 60s}]}
  - {id: free, items: [{policy: total, limit: -1}]}
  - {id: asleep, mode: off, items: [{policy: total, limit: 0}]}
  - {id: shop/cart, items: [{policy: total, limit: 3, per: key}]}
  - {id: lenient, on_outage: admit, items: [{policy: total, limit: 3}]}
";

/// Lets everybody in, or those with a token.
#[derive(Clone, Copy)]
pub(crate) struct TokenTable(pub(crate) &'static [(&'static str, Role, Option<&'static str>)]);

impl Authenticator for TokenTable {
    fn authenticate(&self, token: &[u8]) -> Option<Permissions> {
        let known = self.0.iter().find(|(known, ..)| known.as_bytes() == token);
        known.map(|(_, role, prefix)| Permissions {
            role: *role,
            prefix: prefix.unwrap_or_default().to_owned(),
        })
    }

    fn allows_anonymous(&self) -> bool {
        self.0.is_empty()
    }
}

pub(crate) const OPEN: TokenTable = TokenTable(&[]);

/// A door with a store behind it, and the hands of its clock.
pub(crate) struct Stage {
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) store: Arc<Recording>,
    pub(crate) door: Arc<RespService>,
}

/// Which store is behind the door.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Map,
    Memory,
}

impl Stage {
    pub(crate) fn new(kind: Kind, manner: Manner, authenticator: TokenTable) -> Stage {
        let clock = Arc::new(ManualClock::at(START));
        let store: Arc<dyn LimitStore> = match kind {
            Kind::Map => Arc::new(MapStore::new(Arc::clone(&clock), 7)),
            Kind::Memory => Arc::new(MemoryStore::new(Arc::clone(&clock), Memory::default())),
        };
        for limit in tidegate_config::limits::read_text("limits.yaml", LIMITS).expect("they are sound") {
            store.put(limit, ExpectedVersion::Absent).expect("there is none yet");
        }
        let store = Arc::new(Recording::new(store, manner));
        let door =
            Arc::new(RespService::new(Arc::clone(&store) as Arc<dyn LimitStore>, Arc::new(authenticator)));
        Stage { clock, store, door }
    }

    pub(crate) fn plain() -> Stage {
        Stage::new(Kind::Map, Manner::Now, OPEN)
    }

    pub(crate) fn session(&self) -> RespSession {
        RespSession::new(Arc::clone(&self.door))
    }
}

/// When a store speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    Now,
    Durable,
    Later,
    Never,
}

/// A store that counts batches, and speaks when it is told to.
pub(crate) struct Recording {
    inner: Arc<dyn LimitStore>,
    manner: Manner,
    batches: AtomicUsize,
    /// Whether bids are handed on.
    bids: bool,
}

impl Recording {
    /// A store that is put orders only.
    pub(crate) fn new(inner: Arc<dyn LimitStore>, manner: Manner) -> Recording {
        Recording { inner, manner, batches: AtomicUsize::new(0), bids: false }
    }

    /// The same, which hands on bids.
    pub(crate) fn bidding(self) -> Recording {
        Recording { bids: true, ..self }
    }

    /// How many batches there were since this was asked last.
    pub(crate) fn batches(&self) -> usize {
        self.batches.swap(0, Ordering::Relaxed)
    }

    fn spoken<T: Send + 'static>(&self, spoken: StoreReply<T>) -> StoreReply<T> {
        let reply = spoken.now();
        let never = || Unavailable { reason: "nobody\r\nthere".to_owned() };
        match self.manner {
            Manner::Now => StoreReply::Now(reply),
            Manner::Durable => StoreReply::Durable(reply, Lsn(self.batches.load(Ordering::Relaxed) as u64)),
            Manner::Later => StoreReply::Later(Box::pin(async move { Ok(reply) }) as Later<T>),
            Manner::Never => StoreReply::Later(Box::pin(async move { Err(never()) }) as Later<T>),
        }
    }
}

impl Store for Recording {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn submit(&self, orders: &[Order<'_>], buffer: Replies) -> StoreReply<Replies> {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.spoken(self.inner.submit(orders, buffer))
    }
    fn bid(&self, bids: &CompactBatch<'_>, gists: &mut CompactReplies) -> Result<Option<Lsn>, Unavailable> {
        gists.clear();
        if self.bids { self.inner.bid(bids, gists) } else { Ok(None) }
    }
    fn release(&self, lease: LeaseId) -> StoreReply<bool> {
        self.spoken(self.inner.release(lease))
    }
    fn renew(
        &self,
        lease: LeaseId,
        ttl: Option<Duration>,
    ) -> StoreReply<Result<Option<Timestamp>, OrderError>> {
        self.spoken(self.inner.renew(lease, ttl))
    }
    fn settle(&self, lease: LeaseId, actual: Actual<'_>) -> StoreReply<Result<Settlement, OrderError>> {
        self.spoken(self.inner.settle(lease, actual))
    }
    fn reset(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<(), OrderError>> {
        self.spoken(self.inner.reset(limit_id, key))
    }
    fn usage(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Usage, OrderError>> {
        self.spoken(self.inner.usage(limit_id, key))
    }

    fn holders(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Vec<LeaseTerm>, OrderError>> {
        self.spoken(self.inner.holders(limit_id, key))
    }

    fn held_until(&self, leases: &[LeaseId]) -> StoreReply<Vec<Option<Timestamp>>> {
        self.spoken(self.inner.held_until(leases))
    }
}

impl Catalog for Recording {
    fn get(&self, id: &str) -> Option<Arc<Limit>> {
        self.inner.get(id)
    }
    fn list(&self) -> Vec<Arc<Limit>> {
        self.inner.list()
    }
    fn put(&self, spec: LimitSpec, expect: ExpectedVersion) -> Result<Arc<Limit>, PutError> {
        self.inner.put(spec, expect)
    }
    fn remove(&self, id: &str, parting: RemovalMode) -> bool {
        self.inner.remove(id, parting)
    }
    fn apply(&self, edits: Vec<Edit>) -> Result<Vec<EditOutcome>, ApplyError> {
        self.inner.apply(edits)
    }

    fn edit(&self, edits: Vec<Edit>, origin: Origin) -> StoreReply<Result<Vec<EditOutcome>, ApplyError>> {
        self.inner.edit(edits, origin)
    }
    fn watch(&self, watcher: Watcher) {
        self.inner.watch(watcher);
    }
}

/// A command as a client writes it.
pub(crate) fn encode<A: AsRef<[u8]>>(arguments: &[A]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        bytes.extend(format!("${}\r\n", argument.as_ref().len()).bytes());
        bytes.extend(argument.as_ref());
        bytes.extend(b"\r\n");
    }
    bytes
}

/// The words of a line as a command; `''` is the empty one.
pub(crate) fn words(line: &str) -> Vec<u8> {
    let words: Vec<&str> = line.split_whitespace().map(|word| if word == "''" { "" } else { word }).collect();
    encode(&words)
}

/// How a conversation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Open,
    Closed,
}

/// Feeds a session like somebody with a socket would, in these pieces.
pub(crate) fn converse<'a>(
    session: &mut RespSession,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<u8>, End) {
    let (mut buffer, mut said) = (Vec::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            let mut output = Vec::new();
            let FeedOutcome { consumed, then, .. } = session.feed(&buffer, &mut output);
            buffer.drain(..consumed);
            said.append(&mut output);
            match then {
                FeedNext::Read => break,
                FeedNext::Feed => {}
                FeedNext::Wait(awaited) => session.resume(ready(awaited.resolve()), &mut said),
                FeedNext::Close => return (said, End::Closed),
            }
        }
    }
    (said, End::Open)
}

/// What a future says that does not really wait.
pub(crate) fn ready<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(it) => it,
        std::task::Poll::Pending => panic!("it does not wait"),
    }
}

/// Says one command and reads what is answered.
pub(crate) fn say(session: &mut RespSession, line: &str) -> String {
    read_aloud(&converse(session, [&words(line)[..]]).0)
}

/// Replies as people would note them down.
pub(crate) fn read_aloud(mut bytes: &[u8]) -> String {
    let mut replies = Vec::new();
    while !bytes.is_empty() {
        replies.push(one(&mut bytes));
    }
    replies.join(" ")
}

fn one(bytes: &mut &[u8]) -> String {
    let end = bytes.windows(2).position(|two| two == b"\r\n").expect("a line ends");
    let line = std::str::from_utf8(&bytes[..end]).expect("lines are text").to_owned();
    *bytes = &bytes[end + 2..];
    let (kind, rest) = line.split_at(1);
    let length = || rest.parse::<usize>().expect("a length");
    let several = |bytes: &mut &[u8], count: usize| (0..count).map(|_| one(bytes)).collect::<Vec<_>>();
    let mut blob = || {
        let (blob, after) = bytes.split_at(length());
        assert!(after.starts_with(b"\r\n"), "a blob ends");
        *bytes = &after[2..];
        blob.escape_ascii().to_string()
    };
    match kind {
        ":" => rest.parse::<i64>().expect("an integer").to_string(),
        "+" | "-" => line,
        "_" => "nil".to_owned(),
        "$" if rest == "-1" => "nil2".to_owned(),
        "$" => format!("'{}'", blob()),
        "=" => format!("={}", blob()),
        "*" => format!("[{}]", several(bytes, length()).join(", ")),
        "%" => {
            let flat = several(bytes, length() * 2);
            format!("{{{}}}", flat.chunks(2).map(|pair| pair.join(": ")).collect::<Vec<_>>().join(", "))
        }
        other => panic!("no reply begins with {other}"),
    }
}

/// Plays a story over every store.
#[track_caller]
pub(crate) fn check(story: &str) {
    for kind in [Kind::Map, Kind::Memory] {
        for manner in [Manner::Now, Manner::Durable, Manner::Later] {
            let stage = Stage::new(kind, manner, OPEN);
            play(&stage, &mut stage.session(), story);
        }
    }
}

/// Plays a story on this stage.
#[track_caller]
pub(crate) fn play(stage: &Stage, session: &mut RespSession, story: &str) {
    for line in story.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (when, rest) = line.split_once(' ').expect("a time and a command");
        let (command, expected) = rest.split_once("->").expect("a command and its answer");
        let seconds: f64 = when.trim_end_matches('s').parse().expect("seconds");
        stage.clock.set(START.plus(Tick::NANOSECOND.span(Duration::from_secs_f64(seconds))));
        assert_eq!(say(session, command), expected.trim(), "at {line}");
    }
}
