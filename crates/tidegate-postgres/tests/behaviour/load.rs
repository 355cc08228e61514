//! Load: threads that ask without pause, and what they were told.
//!
//! Whatever happens to the database meanwhile, the books must fit: what was told is counted, what was counted was told or is in doubt, and
//! nobody was told more than there is.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tidegate::catalog::{Catalog, ExpectedVersion};
use tidegate::model::{Ask, ItemSpec, LeaseId, LimitSpec, Order, Policy};
use tidegate::reply::{Detail, GrantedLease, Outcome, Replies};
use tidegate::store::Store;
use tidegate::store::Unavailable;
use tidegate_postgres::PostgresStore;

/// How many threads ask.
const ASKERS: usize = 8;

/// A total that nobody uses up, for all keys together and for each.
pub(crate) const STOCK: &str = "stock";
/// A total that is used up soon.
pub(crate) const TIGHT: &str = "tight";
/// How many there are of the latter.
pub(crate) const TIGHT_CAPACITY: u64 = 25;
/// What only so many hold at a time.
pub(crate) const SLOTS: &str = "slots";
const SLOT_COUNT: u64 = 5;
/// Slots that are taken before the trouble begins, and held through it.
const KEPT: usize = 2;

/// The longest that anything is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// What everybody was told.
#[derive(Default)]
pub(crate) struct Books {
    granted: AtomicU64,
    doubtful: AtomicU64,
    tight: AtomicU64,
    tight_doubtful: AtomicU64,
    /// Slots that somebody knows to have.
    live: AtomicU64,
    /// Slots of which nobody knows whether they were granted or given back.
    slots_doubtful: AtomicU64,
    outages: Mutex<Vec<String>>,
    stop: AtomicBool,
}

impl Books {
    pub(crate) fn granted(&self) -> u64 {
        self.granted.load(Ordering::SeqCst)
    }

    pub(crate) fn doubtful(&self) -> u64 {
        self.doubtful.load(Ordering::SeqCst)
    }

    /// Why somebody was not answered, each reason once.
    pub(crate) fn outages(&self) -> Vec<String> {
        let mut outages = self.outages.lock().expect("no panic").clone();
        outages.sort();
        outages.dedup();
        outages
    }

    /// Waits until so many more were granted than now.
    #[track_caller]
    pub(crate) fn go_on(&self, more: u64) {
        let before = self.granted();
        eventually("orders are granted", || self.granted() >= before + more);
    }

    fn note(&self, why: &Unavailable) {
        self.outages.lock().expect("no panic").push(why.reason.clone());
    }
}

/// The limits that are asked.
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

/// Asks for one of a limit.
pub(crate) fn take(store: &PostgresStore, limit_id: &str, key: &[u8]) -> Result<Outcome, Unavailable> {
    let asks = [Ask { limit_id, key: Some(key), count: 1 }];
    let answers = store.submit(&[Order::acquire(&asks)], Replies::new(Detail::Verdicts)).wait(store)?;
    let answer = answers.get(0).expect("one answer for one order");
    let answer = answer.as_ref().unwrap_or_else(|rejection| panic!("a sensible order: {rejection}"));
    assert!(!answer.degraded, "a store does not guess");
    Ok(answer.outcome.clone())
}

/// The lease of one more slot.
#[track_caller]
pub(crate) fn lease(outcome: &Outcome) -> GrantedLease {
    match outcome {
        Outcome::Granted(Some(grant)) => grant.clone(),
        other => panic!("expected a lease, got {other:?}"),
    }
}

/// What is counted of a limit, for all keys or for one.
#[track_caller]
pub(crate) fn used(store: &PostgresStore, limit_id: &str, key: Option<&[u8]>) -> u64 {
    let usage = store.usage(limit_id, key).wait(store).expect("it answers").expect("a known limit");
    usage.items.first().expect("one item").current_count
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn eventually(what: &str, is_so: impl FnMut() -> bool) {
    assert!(within(PATIENCE, is_so), "it never came to this: {what}");
}

/// Whether something comes to be so in this time.
#[expect(
    clippy::disallowed_methods,
    reason = "a database of one's own tells nobody what it does; it is looked at"
)]
pub(crate) fn within(at_most: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let began = std::time::Instant::now();
    while !is_so() {
        if began.elapsed() > at_most {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// Lets threads ask while this happens, and judges what they were told. The store must answer again by itself.
#[track_caller]
pub(crate) fn under_load(store: &PostgresStore, happens: impl FnOnce(&Books)) -> Books {
    for spec in limits() {
        store.put(spec, ExpectedVersion::Absent).expect("a new limit");
    }
    let kept: Vec<LeaseId> =
        (0..KEPT).map(|_| lease(&take(store, SLOTS, b"kept").expect("a slot")).lease).collect();
    let books = Books::default();
    std::thread::scope(|scope| {
        for index in 0..ASKERS {
            let books = &books;
            scope.spawn(move || ask(store, index, books));
        }
        // However this ends, they must.
        let _stop = Stop(&books);
        books.go_on(50);
        happens(&books);
        books.go_on(50);
    });
    judge(store, &books, &kept);
    books
}

struct Stop<'a>(&'a Books);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::SeqCst);
    }
}

/// One thread: a unit of each limit in turn.
fn ask(store: &PostgresStore, index: usize, books: &Books) {
    let key = format!("key-{}", index % 4);
    let count = |to: &AtomicU64| {
        to.fetch_add(1, Ordering::SeqCst);
    };
    while !books.stop.load(Ordering::SeqCst) {
        match take(store, STOCK, key.as_bytes()) {
            Ok(Outcome::Granted(_)) => count(&books.granted),
            Ok(Outcome::Denied(denied)) => panic!("there is enough for all: {denied:?}"),
            Err(why) => {
                count(&books.doubtful);
                books.note(&why);
            }
        }
        match take(store, TIGHT, key.as_bytes()) {
            Ok(Outcome::Granted(_)) => count(&books.tight),
            Ok(Outcome::Denied(_)) => {}
            Err(_) => count(&books.tight_doubtful),
        }
        hold_a_slot(store, key.as_bytes(), books);
    }
}

fn hold_a_slot(store: &PostgresStore, key: &[u8], books: &Books) {
    match take(store, SLOTS, key) {
        Ok(Outcome::Granted(grant)) => {
            let grant = grant.expect("a slot comes with a lease");
            let live = books.live.fetch_add(1, Ordering::SeqCst) + 1;
            assert!(live + KEPT as u64 <= SLOT_COUNT, "{live} have slots beside {KEPT}");
            books.live.fetch_sub(1, Ordering::SeqCst);
            match store.release(grant.lease).wait(store) {
                Ok(released) => assert!(released, "a lease was lost"),
                Err(_) => {
                    books.slots_doubtful.fetch_add(1, Ordering::SeqCst);
                }
            }
        }
        Ok(Outcome::Denied(_)) => {}
        Err(_) => {
            books.slots_doubtful.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[track_caller]
fn judge(store: &PostgresStore, books: &Books, kept: &[LeaseId]) {
    let (granted, doubtful) = (books.granted(), books.doubtful());
    let all = used(store, STOCK, None);
    let fits = |used: u64, told: u64, doubt: u64| (told..=told + doubt).contains(&used);
    assert!(fits(all, granted, doubtful), "{granted} granted and {doubtful} in doubt, {all} counted");
    let each: u64 = (0..4).map(|key| used(store, STOCK, Some(format!("key-{key}").as_bytes()))).sum();
    assert_eq!(each, all, "what the keys count is what all count");
    let (tight, in_doubt) = (books.tight.load(Ordering::SeqCst), books.tight_doubtful.load(Ordering::SeqCst));
    let counted = used(store, TIGHT, None);
    assert!(counted <= TIGHT_CAPACITY, "{counted} of {TIGHT_CAPACITY} were given out");
    assert!(fits(counted, tight, in_doubt), "{tight} granted and {in_doubt} in doubt, {counted} counted");
    let in_doubt = books.slots_doubtful.load(Ordering::SeqCst);
    let held = used(store, SLOTS, None);
    let kept_count = kept.len() as u64;
    assert!(fits(held, kept_count, in_doubt), "{kept_count} kept and {in_doubt} in doubt, {held} held");
    let holders = store.holders(SLOTS, None).wait(store).expect("it answers").expect("a known limit");
    assert_eq!(holders.len() as u64, held, "each is held by one lease");
    let ends = store.held_until(kept).wait(store).expect("it answers");
    assert!(ends.iter().all(Option::is_some), "a lease was lost: {ends:?}");
    for &id in kept {
        assert_eq!(store.release(id).wait(store), Ok(true), "what was held can be given back");
        assert_eq!(store.release(id).wait(store), Ok(false), "and only once");
    }
    assert_eq!(used(store, SLOTS, None), held - kept_count);
    assert_eq!(store.outage(), None, "all is well again");
}
