//! Compact batches have the same effects and replies as ordinary orders.
//!
//! Two stores get the same commands at the same times. One supports compact batches; the other is wrapped so that it gets orders
//! only.

use std::sync::Arc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate::Limiter;
use tidegate::catalog::{Catalog, ExpectedVersion};
use tidegate::clock::ManualClock;
use tidegate::model::LimitSpec;
use tidegate::store::LimitStats;
use tidegate::store::{LimitStore, Memory, MemoryStore, Store};
use tidegate_server::resp::{FeedNext, FeedOutcome, RespService, RespSession, SessionCounts};
use tidegate_testkit::test_scale::cases;

use crate::resp::fixture::{OPEN, RecordingStore, ReplyTiming, START, TokenTable, encode, read_aloud, words};
use tidegate_server::tokens::Role;

const LIMITS: &str = "limits:
  - {id: bucket, items: [{policy: bucket, limit: 3, window: 10s, per: key}]}
  - {id: day, items: [{policy: day, limit: 4, per: key}]}
  - {id: interval, items: [{policy: interval, limit: 3, window: 20s, per: key}]}
  - {id: trial, items: [{policy: total, limit: 5, per: key, charge: ask}]}
  - {id: sale, items: [{policy: total, limit: 30}]}
  - {id: shared, items: [{policy: bucket, limit: 20, window: 30s}]}
  - {id: free, items: [{policy: day, limit: -1, per: key}]}
  - {id: zero, items: [{policy: total, limit: 0, per: key}]}
  - {id: huge, items: [{policy: bucket, limit: 900000000000, window: 1h, per: key}]}
  - {id: two, items: [{policy: total, limit: 9}, {policy: interval, limit: 2, per: key, window: 10s}]}
  - {id: sliding, items: [{policy: sliding, limit: 3, per: key, window: 15s}]}
  - {id: slots, items: [{policy: concurrency, limit: 2, ttl: 60s}]}
  - {id: shadow, mode: shadow, items: [{policy: total, limit: 1, per: key}]}
  - {id: asleep, mode: off, items: [{policy: total, limit: 0}]}
  - id: ended
    ends_at: 2023-11-14T22:14:00Z
    items: [{policy: bucket, limit: 3, window: 10s, per: key}]
  - id: excepted
    items: [{name: rate, policy: bucket, limit: 3, window: 10s, per: key}]
    overrides: [{key: a, item: rate, limit: 1}]
";

/// What the limit `bucket` is edited to, and back.
const EDITS: [&str; 3] = [
    "limits: [{id: bucket, items: [{policy: bucket, limit: 2, window: 5s, per: key}]}]",
    "limits: [{id: bucket, items: [{policy: bucket, limit: 3, window: 10s, per: key}, {policy: total, limit: 50}]}]",
    "limits: [{id: bucket, items: [{name: renamed, policy: total, limit: 6}]}]",
];

const IDS: [&str; 18] = [
    "bucket", "day", "interval", "trial", "sale", "shared", "free", "zero", "huge", "two", "sliding",
    "slots", "shadow", "asleep", "ended", "excepted", "nobody", "",
];
const KEYS: [&str; 6] = ["a", "b", "c", "d", "", "a-somewhat-longer-key-than-the-others"];

fn specs(text: &str) -> Vec<LimitSpec> {
    tidegate_config::limits::read_text("limits.yaml", text).expect("they are sound")
}

/// A store and a session.
struct BatchFixture {
    clock: Arc<ManualClock>,
    store: Arc<MemoryStore>,
    session: RespSession,
    counts: SessionCounts,
    output: Vec<u8>,
    kept: Vec<u8>,
}

impl BatchFixture {
    fn new(wrap: impl FnOnce(Arc<MemoryStore>) -> Arc<dyn LimitStore>, tokens: TokenTable) -> BatchFixture {
        let clock = Arc::new(ManualClock::at(START));
        let memory = Memory { secret: [7, 11], ..Memory::default() };
        let store = Arc::new(MemoryStore::new(Arc::clone(&clock), memory));
        for limit in specs(LIMITS) {
            store.put(limit, ExpectedVersion::Absent).expect("there is none yet");
        }
        let service = RespService::new(wrap(Arc::clone(&store)), Arc::new(tokens));
        let session = RespSession::new(Arc::new(service));
        BatchFixture {
            clock,
            store,
            session,
            counts: SessionCounts::default(),
            output: Vec::new(),
            kept: Vec::new(),
        }
    }

    fn pair(tokens: TokenTable) -> [BatchFixture; 2] {
        let in_short = BatchFixture::new(|store| store, tokens);
        let as_orders =
            BatchFixture::new(|store| Arc::new(RecordingStore::new(store, ReplyTiming::Now)), tokens);
        [in_short, as_orders]
    }

    /// Feeds more bytes and collects the replies.
    fn feed_all(&mut self, bytes: &[u8]) {
        self.kept.extend_from_slice(bytes);
        loop {
            let FeedOutcome { consumed, then, counts, .. } = self.session.feed(&self.kept, &mut self.output);
            self.kept.drain(..consumed);
            self.counts += counts;
            match then {
                FeedNext::Feed => {}
                FeedNext::Read | FeedNext::Close => return,
                FeedNext::Wait(_) => panic!("it speaks at once"),
            }
        }
    }

    fn observed(&self) -> Vec<Option<LimitStats>> {
        IDS.iter().map(|id| self.store.observe(id)).collect()
    }

    fn used(&self) -> Vec<String> {
        let keys = KEYS.iter().map(|key| Some(key.as_bytes())).chain([None]);
        let places = keys.flat_map(|key| IDS.iter().map(move |id| (*id, key)));
        places.map(|(id, key)| format!("{:?}", self.store.usage(id, key).now())).collect()
    }
}

/// A step of the test.
#[derive(Debug, Clone)]
enum TestStep {
    /// Feeds a pipeline in pieces of this size.
    Pipeline(Vec<Vec<String>>, usize),
    /// Advances the clocks by this many milliseconds.
    Wait(u64),
    Edit(usize),
    Reset(usize),
    /// Removes a limit, or restores all of them.
    Remove(usize),
}

fn command() -> impl Strategy<Value = Vec<String>> {
    let id =
        prop_oneof![6 => prop::sample::select(IDS[..6].to_vec()), 3 => prop::sample::select(IDS.to_vec())];
    let key = prop::sample::select(KEYS.to_vec());
    let count = prop_oneof![
        8 => Just(None),
        3 => prop::sample::select(vec!["0", "1", "2", "7", "18446744073709551615", "01", "-1", "x", "REQ"]).prop_map(Some),
    ];
    let owned = |words: Vec<&str>| words.into_iter().map(str::to_owned).collect::<Vec<String>>();
    let acquire = (id.clone(), key.clone(), count).prop_map(move |(id, key, count)| {
        let mut words = vec!["TG.ACQUIRE", id, key];
        words.extend(count);
        owned(words)
    });
    let other = (id, key, 0..9_usize).prop_map(move |(id, key, which)| {
        owned(match which {
            0 => vec!["TG.PEEK", id, key],
            1 => vec!["tg.acquire", id, key],
            2 => vec!["TG.ACQUIRE", id, key, "REQ", "r1"],
            3 => vec!["PING"],
            4 => vec!["HELLO", "3"],
            5 => vec!["THROTTLE", key, "2", "2", "60"],
            6 => vec!["TG.ACQUIRE", id],
            7 => vec!["AUTH", "nothing"],
            _ => vec!["GET", key],
        })
    });
    prop_oneof![12 => acquire, 1 => other]
}

fn events() -> impl Strategy<Value = Vec<TestStep>> {
    let size = prop_oneof![3 => Just(usize::MAX), 1 => 1..90_usize];
    let event = prop_oneof![
        8 => (vec(command(), 1..40), size).prop_map(|(commands, size)| TestStep::Pipeline(commands, size)),
        2 => (0..30_000_u64).prop_map(TestStep::Wait),
        1 => (0..EDITS.len()).prop_map(TestStep::Edit),
        1 => (0..IDS.len()).prop_map(TestStep::Reset),
        1 => (0..IDS.len()).prop_map(TestStep::Remove),
    ];
    vec(event, 1..12)
}

fn apply_step(side: &mut BatchFixture, event: &TestStep) {
    match event {
        TestStep::Pipeline(commands, size) => {
            let bytes: Vec<u8> = commands.iter().flat_map(|command| encode(command)).collect();
            bytes.chunks((*size).min(bytes.len().max(1))).for_each(|piece| side.feed_all(piece));
        }
        TestStep::Wait(ms) => side.clock.advance(Duration::from_millis(*ms)),
        TestStep::Edit(which) => {
            for limit in specs(EDITS[*which]) {
                // The limit may have been removed.
                let _put = side.store.put(limit, ExpectedVersion::Anything);
            }
        }
        TestStep::Reset(which) => drop(side.store.reset(IDS[*which], None).now()),
        TestStep::Remove(which) => {
            side.store.remove(IDS[*which], tidegate::catalog::RemovalMode::Forget);
            for limit in specs(LIMITS) {
                let _there = side.store.put(limit, ExpectedVersion::Absent);
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn compact_batches_match_orders(events in events()) {
        let [mut in_short, mut as_orders] = BatchFixture::pair(OPEN);
        for event in &events {
            apply_step(&mut in_short, event);
            apply_step(&mut as_orders, event);
            prop_assert_eq!(
                in_short.output.escape_ascii().to_string(),
                as_orders.output.escape_ascii().to_string(),
                "after {:?}", event
            );
            in_short.output.clear();
            as_orders.output.clear();
        }
        prop_assert_eq!(in_short.counts, as_orders.counts);
        prop_assert_eq!(in_short.observed(), as_orders.observed());
        prop_assert_eq!(in_short.used(), as_orders.used());
    }
}

/// Checks that the test above tests something: plain acquires use the compact path, and the other store gets orders.
#[test]
fn plain_pipelines_use_compact_batches() {
    let clock = Arc::new(ManualClock::at(START));
    let store = Arc::new(MemoryStore::new(Arc::clone(&clock), Memory::default()));
    for limit in specs(LIMITS) {
        store.put(limit, ExpectedVersion::Absent).expect("there is none yet");
    }
    let counting = Arc::new(RecordingStore::new(store, ReplyTiming::Now).bidding());
    let service = RespService::new(Arc::clone(&counting) as Arc<dyn LimitStore>, Arc::new(OPEN));
    let mut session = RespSession::new(Arc::new(service));
    let mut output = Vec::new();
    for (line, batches) in [
        ("TG.ACQUIRE bucket a", 0),
        ("TG.ACQUIRE day a 2", 0),
        ("TG.ACQUIRE sale a", 0),
        ("TG.ACQUIRE two a", 1),
        ("TG.ACQUIRE excepted a", 1),
        ("TG.ACQUIRE excepted b", 1),
        ("TG.ACQUIRE excepted b", 0),
        ("TG.PEEK bucket a", 1),
        ("TG.ACQUIRE bucket a REQ x", 1),
    ] {
        let bytes: Vec<u8> = std::iter::repeat_n(words(line), 20).flatten().collect();
        session.feed(&bytes, &mut output);
        assert_eq!(counting.batches(), batches, "{line}");
    }
}

/// A token that is removed or changed invalidates cached frame prefixes.
#[test]
fn frame_prefixes_depend_on_permissions() {
    const TOKENS: TokenTable = TokenTable(&[
        ("all", Role::Decide, None),
        ("days", Role::Decide, Some("day")),
        ("reader", Role::Read, None),
    ]);
    for mut side in BatchFixture::pair(TOKENS) {
        let lines = [
            "TG.ACQUIRE bucket a",
            "AUTH all",
            "TG.ACQUIRE bucket a",
            "TG.ACQUIRE bucket a",
            "AUTH days",
            "TG.ACQUIRE bucket a",
            "TG.ACQUIRE day a",
            "TG.ACQUIRE day a",
            "AUTH reader",
            "TG.ACQUIRE day a",
        ];
        side.feed_all(&lines.iter().flat_map(|line| words(line)).collect::<Vec<u8>>());
        let granted =
            |limit: u32, left: u32, reset: u32| format!("[1, {limit}, {left}, -1, {reset}, '', '']");
        assert_eq!(
            read_aloud(&side.output),
            [
                "-NOAUTH Authentication required.".to_owned(),
                "+OK".to_owned(),
                granted(3, 2, 3334),
                granted(3, 1, 6667),
                "+OK".to_owned(),
                "-NOPERM this token is for other limits".to_owned(),
                granted(4, 3, 6_400_000),
                granted(4, 2, 6_400_000),
                "+OK".to_owned(),
                "-NOPERM a token of role read may not run the 'tg.acquire' command".to_owned(),
            ]
            .join(" ")
        );
    }
}

/// With a waiter in the queue a compact request becomes an order and does not overtake.
#[test]
fn compact_requests_do_not_overtake_waiters() {
    let clock = Arc::new(ManualClock::at(START));
    let store: Arc<dyn LimitStore> = Arc::new(MemoryStore::new(Arc::clone(&clock), Memory::default()));
    for limit in specs(LIMITS) {
        store.put(limit, ExpectedVersion::Absent).expect("there is none yet");
    }
    let limiter = Limiter::new(Arc::clone(&store));
    let service = RespService::new(Arc::clone(&store), Arc::new(OPEN)).with_limiter(limiter.clone());
    let mut session = RespSession::new(Arc::new(service));
    let mut output = Vec::new();
    let take = |count: u32| words(&format!("TG.ACQUIRE bucket a {count}"));
    session.feed(&take(3), &mut output);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        let mut waiting = std::pin::pin!(
            limiter
                .limit("bucket")
                .expect("the limit exists")
                .of("a")
                .count(3)
                .within(Duration::from_secs(60))
        );
        let waits = std::future::poll_fn(|cx| std::task::Poll::Ready(waiting.as_mut().poll(cx).is_pending()));
        assert!(waits.await);
        clock.advance(Duration::from_secs(4));
        output.clear();
        session.feed(&take(1), &mut output);
        assert_eq!(
            read_aloud(&output),
            "[0, 3, 1, -1, 6001, 'key/bucket-10s', '']",
            "one would fit, but not for them"
        );
    });
}
