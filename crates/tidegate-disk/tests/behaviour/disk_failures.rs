//! Disk failures: the store never panics, never grants a unit twice, and reports the reason.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use tidegate::catalog::PutError;
use tidegate::catalog::{Catalog, ExpectedVersion};
use tidegate::clock::ManualClock;
use tidegate::model::{Amount, Ask, Intent, ItemSpec, LimitSpec, Order, Policy, Timestamp};
use tidegate::reply::{Detail, Replies};
use tidegate::store::StoreReply;
use tidegate::store::journal::Tag;
use tidegate::store::{Store, Unavailable};
use tidegate_core::usage_record::NO_END;
use tidegate_core::{Span, UsageRecord};
use tidegate_disk::directory::{DiskCall, DiskFault, FaultDuration, SimulatedDirectory};
use tidegate_disk::record::RecordWriter;
use tidegate_disk::wal::{self, OpenError, WriteAheadLog};
use tidegate_disk::{DiskOptions, DiskStore};

use crate::store::{OPTIONS, open};

const START: Timestamp = Timestamp::from_ticks(1_700_000_000_000_000_000);
const CAPACITY: Amount = 5_000;
const LIMIT: &str = "stock";

struct FailureFixture {
    directory: Arc<SimulatedDirectory>,
    clock: Arc<ManualClock>,
}

impl FailureFixture {
    fn new() -> FailureFixture {
        FailureFixture { directory: Arc::default(), clock: Arc::new(ManualClock::at(START)) }
    }

    /// Opens a store with one limit, of which five units are used.
    fn open_store(&self) -> DiskStore {
        let store = open(&self.directory, &self.clock);
        // Every unit is logged, so every reply waits for the disk.
        let sync = tidegate_core::Durability::Sync;
        let spec = LimitSpec {
            durability: sync,
            ..LimitSpec::named(LIMIT).with(ItemSpec::of(Policy::Total, CAPACITY))
        };
        store.put(spec, ExpectedVersion::Absent).expect("it makes sense");
        assert_eq!(acquire(&store, 5), Ok(true));
        store
    }

    fn try_open(&self, options: DiskOptions) -> Result<DiskStore, OpenError> {
        let (directory, clock) = (Arc::clone(&self.directory), Arc::clone(&self.clock));
        DiskStore::open_files(directory, clock, options, &mut |_, _| {}).map(|(store, _)| store)
    }

    #[track_caller]
    fn refused(&self) -> OpenError {
        self.try_open(OPTIONS).expect_err("it must not open")
    }
}

/// Acquires units and waits for the reply. Returns whether they were granted.
fn acquire(store: &DiskStore, count: Amount) -> Result<bool, Unavailable> {
    let asks = [Ask { limit_id: LIMIT, key: None, count }];
    let answers = wait_reply(store, store.submit(&[Order::acquire(&asks)], Replies::new(Detail::Verdicts)))?;
    Ok(answers.get(0).expect("one").as_ref().expect("it makes sense").is_granted())
}

/// Waits for a reply.
fn wait_reply<T>(store: &DiskStore, reply: StoreReply<T>) -> Result<T, Unavailable> {
    match reply {
        StoreReply::Now(value) => Ok(value),
        StoreReply::Durable(value, lsn) => store.wait_durable(lsn).map(|()| value),
        StoreReply::Later(mut later) => match later.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(reply) => reply,
            Poll::Pending => panic!("only this thread decides"),
        },
    }
}

/// Acquires units from four threads until the store fails or the limit is used up. Returns the reported
/// grants.
fn acquire_all(store: &DiskStore) -> Amount {
    let reported = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while acquire(store, 1) == Ok(true) {
                    reported.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    reported.into_inner()
}

fn used(store: &DiskStore) -> Amount {
    let asks = [Ask { limit_id: LIMIT, key: None, count: 1 }];
    let answers = store.submit(&[Order::peek(&asks)], Replies::new(Detail::Readings)).decided();
    let answer = answers.get(0).expect("one").as_ref().expect("it makes sense");
    answers.readings(answer)[0].reading.used
}

#[test]
fn disk_failure_stops_grants_and_keeps_reported_ones() {
    for (call, pass) in [(DiskCall::Write, 9), (DiskCall::Sync, 9), (DiskCall::Write, 0), (DiskCall::Sync, 0)]
    {
        let fixture = FailureFixture::new();
        let store = fixture.open_store();
        fixture.directory.fail(call, pass, DiskFault::IoError, FaultDuration::Once);
        let reported = 5 + acquire_all(&store);
        assert!(reported < CAPACITY, "{call:?}: it continued to grant");
        let why = store.outage().expect("the disk failed");
        assert!(why.reason.contains("check the disk, then restart"), "{call:?}: {why}");
        // The store does not recover by itself, and all calls return the same error.
        assert_eq!(acquire(&store, 1), Err(why.clone()), "{call:?}");
        assert_eq!(wait_reply(&store, store.reset(LIMIT, None)).map(drop), Err(why.clone()), "{call:?}");
        let put = store
            .put(LimitSpec::named("other").with(ItemSpec::of(Policy::Total, 1)), ExpectedVersion::Absent);
        assert!(matches!(put, Err(PutError::Unavailable(_))), "{call:?}: {put:?}");
        assert!(store.snapshot().is_err() && store.stop().is_err(), "{call:?}");
        drop(store);
        let store = open(&fixture.directory, &fixture.clock);
        assert!(store.outage().is_none());
        // Four decisions may have been made and not reported.
        assert!(
            (reported..=reported + 4).contains(&used(&store)),
            "{call:?}: {} of {reported}",
            used(&store)
        );
        assert!(reported + acquire_all(&store) <= CAPACITY, "{call:?}: granted twice");
        assert_eq!(used(&store), CAPACITY);
    }
}

#[test]
fn full_disk_resumes_when_there_is_room() {
    let fixture = FailureFixture::new();
    let store = fixture.open_store();
    fixture.directory.set_capacity(Some(fixture.directory.used() + 1));
    let reported = 5 + acquire_all(&store);
    assert!(reported < CAPACITY, "it continued to grant");
    let why = store.outage().expect("the disk is full");
    assert!(why.reason.contains("room"), "{why}");
    fixture.directory.set_capacity(None);
    while store.outage().is_some() {
        thread::yield_now();
    }
    let reported = reported + acquire_all(&store);
    // Four decisions may have been made and not reported.
    assert!((CAPACITY - 4..=CAPACITY).contains(&reported), "{reported}");
    store.stop().expect("there is room");
    let store = open(&fixture.directory, &fixture.clock);
    assert_eq!(used(&store), CAPACITY);
}

#[test]
fn orders_without_records_succeed_while_disk_is_full() {
    let fixture = FailureFixture::new();
    let store = fixture.open_store();
    let volatile = |id: &str, policy| LimitSpec {
        durability: tidegate_core::Durability::Volatile,
        ..LimitSpec::named(id).with(ItemSpec::of(policy, 3))
    };
    store.put(volatile("views", Policy::Total), ExpectedVersion::Absent).expect("it makes sense");
    let pool = Policy::Concurrency { ttl: Duration::from_secs(60) };
    store.put(volatile("pool", pool), ExpectedVersion::Absent).expect("it makes sense");
    store.wait_durable(store.log_end().expect("it has a log")).expect("there is room");
    fixture.directory.set_capacity(Some(fixture.directory.used() + 1));
    acquire_all(&store);
    let why = store.outage().expect("the disk is full");
    let ask = |limit_id, intent, request_id| {
        let asks = [Ask { limit_id, key: None, count: 1 }];
        let order = Order { intent, request_id, ..Order::acquire(&asks) };
        let answers = wait_reply(&store, store.submit(&[order], Replies::new(Detail::Verdicts)))?;
        Ok(answers.get(0).expect("one").as_ref().expect("it makes sense").is_granted())
    };
    for granted in [true, true, true, false] {
        assert_eq!(ask("views", Intent::Acquire, None), Ok(granted), "and it counts");
    }
    assert_eq!(ask(LIMIT, Intent::Peek, None), Ok(true), "who looks changes nothing");
    assert_eq!(ask("pool", Intent::Peek, None), Ok(true));
    assert_eq!(ask(LIMIT, Intent::Acquire, None), Err(why.clone()));
    assert_eq!(ask("pool", Intent::Acquire, None), Err(why.clone()), "a lease is written down");
    assert_eq!(ask("views", Intent::Acquire, Some(&b"one"[..])), Err(why.clone()), "and so is a request id");
    let both = [LIMIT, "views"].map(|limit_id| Ask { limit_id, key: None, count: 1 });
    let answers = store.submit(&[Order::acquire(&both)], Replies::new(Detail::Verdicts));
    assert_eq!(wait_reply(&store, answers).map(drop), Err(why), "and what is not volatile");
}

#[test]
fn second_store_in_directory_is_refused() {
    let fixture = FailureFixture::new();
    let store = fixture.open_store();
    assert!(matches!(fixture.refused(), OpenError::Locked { .. }));
    assert_eq!(acquire(&store, 1), Ok(true), "the one that has it goes on");
    drop(store);
    assert_eq!(used(&open(&fixture.directory, &fixture.clock)), 6);
}

#[test]
fn read_only_file_system_is_named_error() {
    for call in [DiskCall::Lock, DiskCall::Write] {
        let fixture = FailureFixture::new();
        drop(fixture.open_store());
        fixture.directory.fail(call, 0, DiskFault::ReadOnly, FaultDuration::Permanent);
        assert!(matches!(fixture.refused(), OpenError::ReadOnly { .. }), "{call:?}");
        fixture.directory.repair();
        assert_eq!(used(&open(&fixture.directory, &fixture.clock)), 5, "{call:?}");
    }
}

/// Changes the format version in a file.
fn set_version(directory: &SimulatedDirectory, name: &str, version: u32) {
    let mut bytes = directory.bytes(name).expect("it is there");
    bytes[8..12].copy_from_slice(&version.to_le_bytes());
    let sum = crc32c::crc32c(&bytes[..12]);
    bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    directory.put(name, bytes);
}

#[test]
fn unknown_format_version_is_refused() {
    let fixture = FailureFixture::new();
    let store = fixture.open_store();
    store.snapshot().expect("the disk is well");
    drop(store);
    let names = fixture.directory.names();
    assert!(names.iter().any(|name| name.starts_with("snapshot-")), "{names:?}");
    for name in names.iter().filter(|name| *name != "lock") {
        let whole = fixture.directory.bytes(name).expect("it was listed");
        set_version(&fixture.directory, name, 2);
        let newer = fixture.refused();
        assert!(matches!(&newer, OpenError::NewerFormat { found: 2, .. }), "{name}: {newer}");
        set_version(&fixture.directory, name, 0);
        let unknown = fixture.refused();
        assert!(matches!(&unknown, OpenError::UnknownFormat { found: 0, .. }), "{name}: {unknown}");
        fixture.directory.put(name, whole);
    }
    assert_eq!(used(&open(&fixture.directory, &fixture.clock)), 5);
}

#[test]
fn missing_segment_is_named_error() {
    let fixture = FailureFixture::new();
    let store = fixture.open_store();
    // Creates several segments.
    while fixture.directory.names().iter().filter(|name| name.starts_with("log-")).count() < 4 {
        assert_eq!(acquire(&store, 1), Ok(true));
    }
    let reported = used(&store);
    drop(store);
    let segments: Vec<String> =
        fixture.directory.names().into_iter().filter(|name| name.starts_with("log-")).collect();
    for name in &segments[..segments.len() - 1] {
        let whole = fixture.directory.bytes(name).expect("it was listed");
        fixture.directory.take(name);
        let missing = fixture.refused();
        let by_name =
            matches!(&missing, OpenError::SegmentMissing { .. } | OpenError::SnapshotMissing { .. });
        assert!(by_name, "{name}: {missing}");
        fixture.directory.put(name, whole);
    }
    assert_eq!(used(&open(&fixture.directory, &fixture.clock)), reported);
}

/// Appends valid blocks to the log of a closed store.
fn append(directory: &Arc<SimulatedDirectory>, bytes: &[u8]) {
    let log_options = wal::LogOptions { segment_bytes: OPTIONS.segment_bytes };
    let (log, _) =
        WriteAheadLog::open(Arc::<SimulatedDirectory>::clone(directory), log_options, &mut |_| Ok(()))
            .expect("it is whole");
    log.append(bytes, START.ticks()).expect("there is room");
    log.stop().expect("the disk is well");
}

#[test]
fn invalid_record_is_named_error() {
    let row = |generation, version, trace| {
        let mut records = RecordWriter::default();
        records.row(generation, version, Some(Tag { low: 1, high: 2 }), &[(0, trace)]);
        records.bytes().to_vec()
    };
    let count = UsageRecord::Count { count: 1, last_time: START, until: NO_END };
    let arrival = UsageRecord::Bucket { tat: START, step: Span::from_ticks(1), credits: Span::ZERO };
    let cases: [(Vec<u8>, &str); 6] = [
        (vec![99, 0], "of a kind that this version does not know"),
        (vec![1, 200], "the end too early"),
        (vec![3, 1, 1], "the end too early"),
        (row(77, 1, count), "a row of version 1 of limit number 77, which was never written down"),
        (row(1, 9, count), "a row of version 9 of limit number 1, which was never written down"),
        (row(1, 1, arrival), "a row of version 1 of limit number 1"),
    ];
    for (bytes, what) in cases {
        let fixture = FailureFixture::new();
        drop(fixture.open_store());
        append(&fixture.directory, &bytes);
        let rejected = fixture.refused();
        assert!(
            matches!(&rejected, OpenError::Rejected { file, .. } if file.starts_with("log-")),
            "{rejected:?}"
        );
        assert!(rejected.to_string().contains(what), "{rejected}");
    }
}

#[test]
fn rows_beyond_memory_budget_fail_the_open() {
    const KEYS: usize = 40_000;
    let fixture = FailureFixture::new();
    let store = fixture.open_store();
    let hour = Policy::Interval { window: Duration::from_secs(3_600) };
    store
        .put(LimitSpec::named("keys").with(ItemSpec::of(hour, 1).per_key()), ExpectedVersion::Absent)
        .expect("it makes sense");
    for index in 0..KEYS {
        let name = index.to_string();
        let asks = [Ask::one("keys", Some(name.as_bytes()))];
        let answers = store.submit(&[Order::acquire(&asks)], Replies::new(Detail::Verdicts)).decided();
        assert!(answers.get(0).expect("one").as_ref().expect("it makes sense").is_granted());
    }
    store.wait_durable(store.log_end().expect("it has a log")).expect("the disk is well");
    // A record after the rows makes recovery insert them earlier than at the end.
    wait_reply(&store, store.reset(LIMIT, None)).expect("the disk is well").expect("it is there");
    drop(store);
    // First from the log, then from a snapshot.
    for _ in 0..2 {
        let little = DiskOptions { capacity_bytes: 1 << 20, ..OPTIONS };
        let crowded = fixture.try_open(little).expect_err("there is no room");
        assert!(matches!(crowded, OpenError::Crowded { .. }), "{crowded}");
        let advice = crowded.to_string();
        assert!(advice.contains("store.memory") && !advice.contains("backup"), "{advice}");
        let store = open(&fixture.directory, &fixture.clock);
        let asks = [Ask::one("keys", Some(b"39999"))];
        let answers = store.submit(&[Order::peek(&asks)], Replies::new(Detail::Verdicts)).decided();
        assert!(!answers.get(0).expect("one").as_ref().expect("it makes sense").is_granted());
        store.stop().expect("nothing is in the way");
    }
}
