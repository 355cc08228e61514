//! What a disk does to a store. Nothing panics, nothing is sold twice, and whoever asks is told why.

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
const MOST: Amount = 5_000;
const LIMIT: &str = "stock";

struct Stage {
    directory: Arc<SimulatedDirectory>,
    clock: Arc<ManualClock>,
}

impl Stage {
    fn new() -> Stage {
        Stage { directory: Arc::default(), clock: Arc::new(ManualClock::at(START)) }
    }

    /// A store with a limit of which some is sold.
    fn begin(&self) -> DiskStore {
        let store = open(&self.directory, &self.clock);
        // Every unit is written down, so that every answer waits for the disk.
        let sync = tidegate_core::Durability::Sync;
        let spec =
            LimitSpec { durability: sync, ..LimitSpec::named(LIMIT).with(ItemSpec::of(Policy::Total, MOST)) };
        store.put(spec, ExpectedVersion::Absent).expect("it makes sense");
        assert_eq!(buy(&store, 5), Ok(true));
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

/// Buys so much and waits for the answer; whether it was granted.
fn buy(store: &DiskStore, count: Amount) -> Result<bool, Unavailable> {
    let asks = [Ask { limit_id: LIMIT, key: None, count }];
    let answers = heard(store, store.submit(&[Order::acquire(&asks)], Replies::new(Detail::Verdicts)))?;
    Ok(answers.get(0).expect("one").as_ref().expect("it makes sense").is_granted())
}

/// What is said in the end.
fn heard<T>(store: &DiskStore, spoken: StoreReply<T>) -> Result<T, Unavailable> {
    match spoken {
        StoreReply::Now(reply) => Ok(reply),
        StoreReply::Durable(reply, lsn) => store.wait_durable(lsn).map(|()| reply),
        StoreReply::Later(mut later) => match later.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(reply) => reply,
            Poll::Pending => panic!("nobody else decides"),
        },
    }
}

/// Everybody buys until the store cannot answer any more, or has nothing left; what they were told they got.
fn crowd(store: &DiskStore) -> Amount {
    let told = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while buy(store, 1) == Ok(true) {
                    told.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    told.into_inner()
}

fn used(store: &DiskStore) -> Amount {
    let asks = [Ask { limit_id: LIMIT, key: None, count: 1 }];
    let answers = store.submit(&[Order::peek(&asks)], Replies::new(Detail::Readings)).decided();
    let answer = answers.get(0).expect("one").as_ref().expect("it makes sense");
    answers.readings(answer)[0].reading.used
}

#[test]
fn a_disk_that_fails_ends_the_selling_and_loses_nothing_that_was_told() {
    for (call, pass) in [(DiskCall::Write, 9), (DiskCall::Sync, 9), (DiskCall::Write, 0), (DiskCall::Sync, 0)]
    {
        let stage = Stage::new();
        let store = stage.begin();
        stage.directory.fail(call, pass, DiskFault::IoError, FaultDuration::Once);
        let told = 5 + crowd(&store);
        assert!(told < MOST, "{call:?}: it went on selling");
        let why = store.trouble().expect("the disk failed");
        assert!(why.reason.contains("check the disk, then restart"), "{call:?}: {why}");
        // Nothing goes on by itself, and everybody is told the same.
        assert_eq!(buy(&store, 1), Err(why.clone()), "{call:?}");
        assert_eq!(heard(&store, store.reset(LIMIT, None)).map(drop), Err(why.clone()), "{call:?}");
        let put = store
            .put(LimitSpec::named("other").with(ItemSpec::of(Policy::Total, 1)), ExpectedVersion::Absent);
        assert!(matches!(put, Err(PutError::Unavailable(_))), "{call:?}: {put:?}");
        assert!(store.snapshot().is_err() && store.stop().is_err(), "{call:?}");
        drop(store);
        let store = open(&stage.directory, &stage.clock);
        assert!(store.trouble().is_none());
        // Four buyers may have been decided on and told nothing.
        assert!((told..=told + 4).contains(&used(&store)), "{call:?}: {} of {told}", used(&store));
        assert!(told + crowd(&store) <= MOST, "{call:?}: sold twice");
        assert_eq!(used(&store), MOST);
    }
}

#[test]
fn a_full_disk_is_waited_for() {
    let stage = Stage::new();
    let store = stage.begin();
    stage.directory.set_capacity(Some(stage.directory.used() + 1));
    let told = 5 + crowd(&store);
    assert!(told < MOST, "it went on selling");
    let why = store.trouble().expect("the disk is full");
    assert!(why.reason.contains("room"), "{why}");
    stage.directory.set_capacity(None);
    while store.trouble().is_some() {
        thread::yield_now();
    }
    let told = told + crowd(&store);
    // Four buyers may have been decided on and told nothing.
    assert!((MOST - 4..=MOST).contains(&told), "{told}");
    store.stop().expect("there is room");
    let store = open(&stage.directory, &stage.clock);
    assert_eq!(used(&store), MOST);
}

#[test]
fn what_needs_no_log_goes_on_while_the_disk_is_full() {
    let stage = Stage::new();
    let store = stage.begin();
    let volatile = |id: &str, policy| LimitSpec {
        durability: tidegate_core::Durability::Volatile,
        ..LimitSpec::named(id).with(ItemSpec::of(policy, 3))
    };
    store.put(volatile("views", Policy::Total), ExpectedVersion::Absent).expect("it makes sense");
    let pool = Policy::Concurrency { ttl: Duration::from_secs(60) };
    store.put(volatile("pool", pool), ExpectedVersion::Absent).expect("it makes sense");
    store.wait_durable(store.tip().expect("it has a log")).expect("there is room");
    stage.directory.set_capacity(Some(stage.directory.used() + 1));
    crowd(&store);
    let why = store.trouble().expect("the disk is full");
    let ask = |limit_id, intent, request_id| {
        let asks = [Ask { limit_id, key: None, count: 1 }];
        let order = Order { intent, request_id, ..Order::acquire(&asks) };
        let answers = heard(&store, store.submit(&[order], Replies::new(Detail::Verdicts)))?;
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
    assert_eq!(heard(&store, answers).map(drop), Err(why), "and what is not volatile");
}

#[test]
fn a_directory_has_one_store_at_a_time() {
    let stage = Stage::new();
    let store = stage.begin();
    assert!(matches!(stage.refused(), OpenError::Locked { .. }));
    assert_eq!(buy(&store, 1), Ok(true), "the one that has it goes on");
    drop(store);
    assert_eq!(used(&open(&stage.directory, &stage.clock)), 6);
}

#[test]
fn a_file_system_for_reading_only_is_refused_by_name() {
    for call in [DiskCall::Lock, DiskCall::Write] {
        let stage = Stage::new();
        drop(stage.begin());
        stage.directory.fail(call, 0, DiskFault::ReadOnly, FaultDuration::Permanent);
        assert!(matches!(stage.refused(), OpenError::ReadOnly { .. }), "{call:?}");
        stage.directory.repair();
        assert_eq!(used(&open(&stage.directory, &stage.clock)), 5, "{call:?}");
    }
}

/// Makes a file say that it has another format.
fn set_version(directory: &SimulatedDirectory, name: &str, version: u32) {
    let mut bytes = directory.bytes(name).expect("it is there");
    bytes[8..12].copy_from_slice(&version.to_le_bytes());
    let sum = crc32c::crc32c(&bytes[..12]);
    bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    directory.put(name, bytes);
}

#[test]
fn formats_that_are_not_known_are_refused_and_never_guessed_at() {
    let stage = Stage::new();
    let store = stage.begin();
    store.snapshot().expect("the disk is well");
    drop(store);
    let names = stage.directory.names();
    assert!(names.iter().any(|name| name.starts_with("snapshot-")), "{names:?}");
    for name in names.iter().filter(|name| *name != "lock") {
        let whole = stage.directory.bytes(name).expect("it was listed");
        set_version(&stage.directory, name, 2);
        let newer = stage.refused();
        assert!(matches!(&newer, OpenError::NewerFormat { found: 2, .. }), "{name}: {newer}");
        set_version(&stage.directory, name, 0);
        let unknown = stage.refused();
        assert!(matches!(&unknown, OpenError::UnknownFormat { found: 0, .. }), "{name}: {unknown}");
        stage.directory.put(name, whole);
    }
    assert_eq!(used(&open(&stage.directory, &stage.clock)), 5);
}

#[test]
fn a_missing_part_of_the_log_is_refused_by_name() {
    let stage = Stage::new();
    let store = stage.begin();
    // A few segments.
    while stage.directory.names().iter().filter(|name| name.starts_with("log-")).count() < 4 {
        assert_eq!(buy(&store, 1), Ok(true));
    }
    let told = used(&store);
    drop(store);
    let segments: Vec<String> =
        stage.directory.names().into_iter().filter(|name| name.starts_with("log-")).collect();
    for name in &segments[..segments.len() - 1] {
        let whole = stage.directory.bytes(name).expect("it was listed");
        stage.directory.take(name);
        let missing = stage.refused();
        let by_name =
            matches!(&missing, OpenError::SegmentMissing { .. } | OpenError::SnapshotMissing { .. });
        assert!(by_name, "{name}: {missing}");
        stage.directory.put(name, whole);
    }
    assert_eq!(used(&open(&stage.directory, &stage.clock)), told);
}

/// Adds bytes to the log of a store that is closed, as whoever wrote it would have.
fn append(directory: &Arc<SimulatedDirectory>, bytes: &[u8]) {
    let log_options = wal::LogOptions { segment_bytes: OPTIONS.segment_bytes };
    let (log, _) =
        WriteAheadLog::open(Arc::<SimulatedDirectory>::clone(directory), log_options, &mut |_| Ok(()))
            .expect("it is whole");
    log.append(bytes, START.ticks()).expect("there is room");
    log.stop().expect("the disk is well");
}

#[test]
fn records_that_make_no_sense_are_refused_by_name() {
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
        let stage = Stage::new();
        drop(stage.begin());
        append(&stage.directory, &bytes);
        let rejected = stage.refused();
        assert!(
            matches!(&rejected, OpenError::Rejected { file, .. } if file.starts_with("log-")),
            "{rejected:?}"
        );
        assert!(rejected.to_string().contains(what), "{rejected}");
    }
}

#[test]
fn more_rows_than_fit_are_not_forgotten() {
    const KEYS: usize = 40_000;
    let stage = Stage::new();
    let store = stage.begin();
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
    store.wait_durable(store.tip().expect("it has a log")).expect("the disk is well");
    // What comes after the rows makes them take their places; without it they do at the end.
    heard(&store, store.reset(LIMIT, None)).expect("the disk is well").expect("it is there");
    drop(store);
    // From the log, and then from a snapshot.
    for _ in 0..2 {
        let little = DiskOptions { capacity_bytes: 1 << 20, ..OPTIONS };
        let crowded = stage.try_open(little).expect_err("there is no room");
        assert!(matches!(crowded, OpenError::Crowded { .. }), "{crowded}");
        let advice = crowded.to_string();
        assert!(advice.contains("store.memory") && !advice.contains("backup"), "{advice}");
        let store = open(&stage.directory, &stage.clock);
        let asks = [Ask::one("keys", Some(b"39999"))];
        let answers = store.submit(&[Order::peek(&asks)], Replies::new(Detail::Verdicts)).decided();
        assert!(!answers.get(0).expect("one").as_ref().expect("it makes sense").is_granted());
        store.stop().expect("nothing is in the way");
    }
}
