//! A load generator: threads that send orders without pause, and counts of their results.
//!
//! Invariants during any database failure: every confirmed grant is stored, every stored charge was confirmed or got no answer,
//! and no limit exceeds its capacity.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tidegate::catalog::{Catalog, ExpectedVersion};
use tidegate::model::{Ask, ItemSpec, LeaseId, LimitSpec, Order, Policy};
use tidegate::reply::{Detail, GrantedLease, Outcome, Replies};
use tidegate::store::Store;
use tidegate::store::Unavailable;
use tidegate_postgres::PostgresStore;

/// The number of client threads.
const CLIENT_THREADS: usize = 8;

/// A limit with a total, for all keys and for each key, that is never exhausted.
pub(crate) const STOCK: &str = "stock";
/// A limit with a small total that is soon exhausted.
pub(crate) const TIGHT: &str = "tight";
/// The capacity of `TIGHT`.
pub(crate) const TIGHT_CAPACITY: u64 = 25;
/// A limit of concurrent leases.
pub(crate) const SLOTS: &str = "slots";
const SLOT_COUNT: u64 = 5;
/// Slots that are acquired before the failure and held through it.
const KEPT_SLOTS: usize = 2;

/// The timeout of every wait.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// The results that clients received.
#[derive(Default)]
pub(crate) struct LoadCounts {
    granted: AtomicU64,
    unanswered: AtomicU64,
    tight: AtomicU64,
    tight_unanswered: AtomicU64,
    /// Slots that clients hold now.
    live: AtomicU64,
    /// Slot grants and releases that got no answer.
    slots_unanswered: AtomicU64,
    outages: Mutex<Vec<String>>,
    stop: AtomicBool,
}

impl LoadCounts {
    pub(crate) fn granted(&self) -> u64 {
        self.granted.load(Ordering::SeqCst)
    }

    pub(crate) fn unanswered(&self) -> u64 {
        self.unanswered.load(Ordering::SeqCst)
    }

    /// The reasons of failed requests, without duplicates.
    pub(crate) fn outages(&self) -> Vec<String> {
        let mut outages = self.outages.lock().expect("no panic").clone();
        outages.sort();
        outages.dedup();
        outages
    }

    /// Waits for this many more grants.
    #[track_caller]
    pub(crate) fn wait_for_grants(&self, more: u64) {
        let before = self.granted();
        eventually("orders are granted", || self.granted() >= before + more);
    }

    fn record_outage(&self, why: &Unavailable) {
        self.outages.lock().expect("no panic").push(why.reason.clone());
    }
}

/// The limits under load.
pub(crate) fn limits() -> [LimitSpec; 3] {
    let slot = Policy::Concurrency { ttl: Duration::from_secs(600) };
    [
        LimitSpec::named(STOCK)
            .with(ItemSpec::of(Policy::Total, 1_000_000_000))
            .with(ItemSpec::of(Policy::Total, 1_000_000_000).per_key()),
        LimitSpec::named(TIGHT).with(ItemSpec::of(Policy::Total, TIGHT_CAPACITY)),
        LimitSpec::named(SLOTS).with(ItemSpec::of(slot, SLOT_COUNT)),
    ]
}

/// Acquires one unit of a limit.
pub(crate) fn acquire_one(store: &PostgresStore, limit_id: &str, key: &[u8]) -> Result<Outcome, Unavailable> {
    let asks = [Ask { limit_id, key: Some(key), count: 1 }];
    let answers = store.submit(&[Order::acquire(&asks)], Replies::new(Detail::Verdicts)).wait(store)?;
    let answer = answers.get(0).expect("one answer for one order");
    let answer = answer.as_ref().unwrap_or_else(|rejection| panic!("the order is valid: {rejection}"));
    assert!(!answer.degraded, "a store gives no degraded answers");
    Ok(answer.outcome.clone())
}

/// The lease of a grant.
#[track_caller]
pub(crate) fn expect_lease(outcome: &Outcome) -> GrantedLease {
    match outcome {
        Outcome::Granted(Some(grant)) => grant.clone(),
        other => panic!("expected a lease, got {other:?}"),
    }
}

/// The usage of a limit's first item, for all keys or for one key.
#[track_caller]
pub(crate) fn current_usage(store: &PostgresStore, limit_id: &str, key: Option<&[u8]>) -> u64 {
    let usage = store.usage(limit_id, key).wait(store).expect("the store answers").expect("a known limit");
    usage.items.first().expect("one item").current_count
}

/// Waits until a condition holds.
#[track_caller]
pub(crate) fn eventually(what: &str, is_so: impl FnMut() -> bool) {
    assert!(holds_within(WAIT_TIMEOUT, is_so), "timed out waiting until {what}");
}

/// Polls a condition. Returns whether it holds within this time.
#[expect(clippy::disallowed_methods, reason = "the state of a database can only be polled")]
pub(crate) fn holds_within(at_most: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let began = std::time::Instant::now();
    while !is_so() {
        if began.elapsed() > at_most {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// Runs a function under load and checks the counts. The store must recover by itself.
#[track_caller]
pub(crate) fn under_load(store: &PostgresStore, action: impl FnOnce(&LoadCounts)) -> LoadCounts {
    for spec in limits() {
        store.put(spec, ExpectedVersion::Absent).expect("a new limit");
    }
    let kept: Vec<LeaseId> = (0..KEPT_SLOTS)
        .map(|_| expect_lease(&acquire_one(store, SLOTS, b"kept").expect("a slot")).lease)
        .collect();
    let counts = LoadCounts::default();
    std::thread::scope(|scope| {
        for index in 0..CLIENT_THREADS {
            let counts = &counts;
            scope.spawn(move || run_client(store, index, counts));
        }
        // Stops the threads even after a panic.
        let _stop = StopClientsOnDrop(&counts);
        counts.wait_for_grants(50);
        action(&counts);
        counts.wait_for_grants(50);
    });
    check_counts(store, &counts, &kept);
    counts
}

struct StopClientsOnDrop<'a>(&'a LoadCounts);

impl Drop for StopClientsOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::SeqCst);
    }
}

/// The loop of a client thread: acquires a unit of each limit in turn.
fn run_client(store: &PostgresStore, index: usize, counts: &LoadCounts) {
    let key = format!("key-{}", index % 4);
    let count = |to: &AtomicU64| {
        to.fetch_add(1, Ordering::SeqCst);
    };
    while !counts.stop.load(Ordering::SeqCst) {
        match acquire_one(store, STOCK, key.as_bytes()) {
            Ok(Outcome::Granted(_)) => count(&counts.granted),
            Ok(Outcome::Denied(denied)) => panic!("this limit is never exhausted: {denied:?}"),
            Err(why) => {
                count(&counts.unanswered);
                counts.record_outage(&why);
            }
        }
        match acquire_one(store, TIGHT, key.as_bytes()) {
            Ok(Outcome::Granted(_)) => count(&counts.tight),
            Ok(Outcome::Denied(_)) => {}
            Err(_) => count(&counts.tight_unanswered),
        }
        use_slot(store, key.as_bytes(), counts);
    }
}

fn use_slot(store: &PostgresStore, key: &[u8], counts: &LoadCounts) {
    match acquire_one(store, SLOTS, key) {
        Ok(Outcome::Granted(grant)) => {
            let grant = grant.expect("a slot grant has a lease");
            let live = counts.live.fetch_add(1, Ordering::SeqCst) + 1;
            assert!(live + KEPT_SLOTS as u64 <= SLOT_COUNT, "{live} slots are held besides {KEPT_SLOTS}");
            counts.live.fetch_sub(1, Ordering::SeqCst);
            match store.release(grant.lease).wait(store) {
                Ok(released) => assert!(released, "the lease is unknown"),
                Err(_) => {
                    counts.slots_unanswered.fetch_add(1, Ordering::SeqCst);
                }
            }
        }
        Ok(Outcome::Denied(_)) => {}
        Err(_) => {
            counts.slots_unanswered.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[track_caller]
fn check_counts(store: &PostgresStore, counts: &LoadCounts, kept: &[LeaseId]) {
    let (granted, unanswered) = (counts.granted(), counts.unanswered());
    let all = current_usage(store, STOCK, None);
    let fits =
        |counted: u64, confirmed: u64, in_doubt: u64| (confirmed..=confirmed + in_doubt).contains(&counted);
    assert!(
        fits(all, granted, unanswered),
        "{granted} granted and {unanswered} without answer, {all} counted"
    );
    let each: u64 =
        (0..4).map(|key| current_usage(store, STOCK, Some(format!("key-{key}").as_bytes()))).sum();
    assert_eq!(each, all, "the key rows and the row of all keys agree");
    let (tight, in_doubt) =
        (counts.tight.load(Ordering::SeqCst), counts.tight_unanswered.load(Ordering::SeqCst));
    let counted = current_usage(store, TIGHT, None);
    assert!(counted <= TIGHT_CAPACITY, "{counted} of {TIGHT_CAPACITY} were granted");
    assert!(
        fits(counted, tight, in_doubt),
        "{tight} granted and {in_doubt} without answer, {counted} counted"
    );
    let in_doubt = counts.slots_unanswered.load(Ordering::SeqCst);
    let held = current_usage(store, SLOTS, None);
    let kept_count = kept.len() as u64;
    assert!(fits(held, kept_count, in_doubt), "{kept_count} kept and {in_doubt} without answer, {held} held");
    let holders = store.holders(SLOTS, None).wait(store).expect("the store answers").expect("a known limit");
    assert_eq!(holders.len() as u64, held, "each slot is held by one lease");
    let ends = store.held_until(kept).wait(store).expect("the store answers");
    assert!(ends.iter().all(Option::is_some), "a lease was lost: {ends:?}");
    for &id in kept {
        assert_eq!(store.release(id).wait(store), Ok(true), "a kept lease can be released");
        assert_eq!(store.release(id).wait(store), Ok(false), "a lease can be released only once");
    }
    assert_eq!(current_usage(store, SLOTS, None), held - kept_count);
    assert_eq!(store.outage(), None, "the store reports no outage");
}
