//! A session over a store with a manual clock, and scripted conversations.
//!
//! A script has one command per line, with its reply after an arrow:
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

/// Start of the clocks: a whole second, long after the epoch.
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

/// Allows all callers, or those with a token.
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

/// A service over a store with a manual clock.
pub(crate) struct RespFixture {
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) store: Arc<RecordingStore>,
    pub(crate) service: Arc<RespService>,
}

/// The kind of store.
#[derive(Debug, Clone, Copy)]
pub(crate) enum StoreKind {
    Map,
    Memory,
}

impl RespFixture {
    pub(crate) fn new(kind: StoreKind, timing: ReplyTiming, authenticator: TokenTable) -> RespFixture {
        let clock = Arc::new(ManualClock::at(START));
        let store: Arc<dyn LimitStore> = match kind {
            StoreKind::Map => Arc::new(MapStore::new(Arc::clone(&clock), 7)),
            StoreKind::Memory => Arc::new(MemoryStore::new(Arc::clone(&clock), Memory::default())),
        };
        for limit in tidegate_config::limits::read_text("limits.yaml", LIMITS).expect("they are sound") {
            store.put(limit, ExpectedVersion::Absent).expect("there is none yet");
        }
        let store = Arc::new(RecordingStore::new(store, timing));
        let service =
            Arc::new(RespService::new(Arc::clone(&store) as Arc<dyn LimitStore>, Arc::new(authenticator)));
        RespFixture { clock, store, service }
    }

    pub(crate) fn plain() -> RespFixture {
        RespFixture::new(StoreKind::Map, ReplyTiming::Now, OPEN)
    }

    pub(crate) fn session(&self) -> RespSession {
        RespSession::new(Arc::clone(&self.service))
    }
}

/// When a store replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplyTiming {
    Now,
    Durable,
    Later,
    Never,
}

/// A store that counts batches and replies in the given way.
pub(crate) struct RecordingStore {
    inner: Arc<dyn LimitStore>,
    timing: ReplyTiming,
    batches: AtomicUsize,
    /// Whether compact batches are passed on.
    passes_compact: bool,
}

impl RecordingStore {
    /// A store that gets orders only.
    pub(crate) fn new(inner: Arc<dyn LimitStore>, timing: ReplyTiming) -> RecordingStore {
        RecordingStore { inner, timing, batches: AtomicUsize::new(0), passes_compact: false }
    }

    /// A store that also gets compact batches.
    pub(crate) fn bidding(self) -> RecordingStore {
        RecordingStore { passes_compact: true, ..self }
    }

    /// Number of batches since the last call.
    pub(crate) fn batches(&self) -> usize {
        self.batches.swap(0, Ordering::Relaxed)
    }

    fn reply_as_configured<T: Send + 'static>(&self, reply_as_configured: StoreReply<T>) -> StoreReply<T> {
        let reply = reply_as_configured.now();
        let never = || Unavailable { reason: "nobody\r\nthere".to_owned() };
        match self.timing {
            ReplyTiming::Now => StoreReply::Now(reply),
            ReplyTiming::Durable => {
                StoreReply::Durable(reply, Lsn(self.batches.load(Ordering::Relaxed) as u64))
            }
            ReplyTiming::Later => StoreReply::Later(Box::pin(async move { Ok(reply) }) as Later<T>),
            ReplyTiming::Never => StoreReply::Later(Box::pin(async move { Err(never()) }) as Later<T>),
        }
    }
}

impl Store for RecordingStore {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn submit(&self, orders: &[Order<'_>], buffer: Replies) -> StoreReply<Replies> {
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.reply_as_configured(self.inner.submit(orders, buffer))
    }
    fn submit_compact(
        &self,
        batch: &CompactBatch<'_>,
        replies: &mut CompactReplies,
    ) -> Result<Option<Lsn>, Unavailable> {
        replies.clear();
        if self.passes_compact { self.inner.submit_compact(batch, replies) } else { Ok(None) }
    }
    fn release(&self, lease: LeaseId) -> StoreReply<bool> {
        self.reply_as_configured(self.inner.release(lease))
    }
    fn renew(
        &self,
        lease: LeaseId,
        ttl: Option<Duration>,
    ) -> StoreReply<Result<Option<Timestamp>, OrderError>> {
        self.reply_as_configured(self.inner.renew(lease, ttl))
    }
    fn settle(&self, lease: LeaseId, actual: Actual<'_>) -> StoreReply<Result<Settlement, OrderError>> {
        self.reply_as_configured(self.inner.settle(lease, actual))
    }
    fn reset(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<(), OrderError>> {
        self.reply_as_configured(self.inner.reset(limit_id, key))
    }
    fn usage(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Usage, OrderError>> {
        self.reply_as_configured(self.inner.usage(limit_id, key))
    }

    fn holders(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Vec<LeaseTerm>, OrderError>> {
        self.reply_as_configured(self.inner.holders(limit_id, key))
    }

    fn held_until(&self, leases: &[LeaseId]) -> StoreReply<Vec<Option<Timestamp>>> {
        self.reply_as_configured(self.inner.held_until(leases))
    }
}

impl Catalog for RecordingStore {
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

/// A command as an array of bulk strings.
pub(crate) fn encode<A: AsRef<[u8]>>(arguments: &[A]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        bytes.extend(format!("${}\r\n", argument.as_ref().len()).bytes());
        bytes.extend(argument.as_ref());
        bytes.extend(b"\r\n");
    }
    bytes
}

/// The words of a line as a command; `''` is an empty argument.
pub(crate) fn words(line: &str) -> Vec<u8> {
    let words: Vec<&str> = line.split_whitespace().map(|word| if word == "''" { "" } else { word }).collect();
    encode(&words)
}

/// How a conversation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConversationEnd {
    Open,
    Closed,
}

/// Feeds a session with these pieces, as a connection does.
pub(crate) fn converse<'a>(
    session: &mut RespSession,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> (Vec<u8>, ConversationEnd) {
    let (mut buffer, mut output) = (Vec::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            let mut more = Vec::new();
            let FeedOutcome { consumed, then, .. } = session.feed(&buffer, &mut more);
            buffer.drain(..consumed);
            output.append(&mut more);
            match then {
                FeedNext::Read => break,
                FeedNext::Feed => {}
                FeedNext::Wait(awaited) => session.resume(ready(awaited.resolve()), &mut output),
                FeedNext::Close => return (output, ConversationEnd::Closed),
            }
        }
    }
    (output, ConversationEnd::Open)
}

/// The result of a future that does not wait.
pub(crate) fn ready<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(it) => it,
        std::task::Poll::Pending => panic!("it does not wait"),
    }
}

/// Sends one command and parses its reply.
pub(crate) fn say(session: &mut RespSession, line: &str) -> String {
    read_aloud(&converse(session, [&words(line)[..]]).0)
}

/// Formats replies for scripts.
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

/// Runs a script over every kind of store.
#[track_caller]
pub(crate) fn check(story: &str) {
    for kind in [StoreKind::Map, StoreKind::Memory] {
        for timing in [ReplyTiming::Now, ReplyTiming::Durable, ReplyTiming::Later] {
            let fixture = RespFixture::new(kind, timing, OPEN);
            play(&fixture, &mut fixture.session(), story);
        }
    }
}

/// Runs a script with this fixture.
#[track_caller]
pub(crate) fn play(fixture: &RespFixture, session: &mut RespSession, story: &str) {
    for line in story.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (when, rest) = line.split_once(' ').expect("a time and a command");
        let (command, expected) = rest.split_once("->").expect("a command and its answer");
        let seconds: f64 = when.trim_end_matches('s').parse().expect("seconds");
        fixture.clock.set(START.plus(Tick::NANOSECOND.span(Duration::from_secs_f64(seconds))));
        assert_eq!(say(session, command), expected.trim(), "at {line}");
    }
}
