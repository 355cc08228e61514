//! A clock that panics in the middle of an operation ends this operation and no other.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate::catalog::{Catalog, ExpectedVersion};
use tidegate::clock::{Clock, ManualClock};
use tidegate::model::{Ask, Hold, ItemSpec, LimitSpec, Order, Policy, Precision, Tick, Timestamp};
use tidegate::reply::{Detail, Outcome, Replies};
use tidegate::store::{Actual, Memory, MemoryStore, Store};

/// Panics on request.
struct PanickingClock {
    clock: ManualClock,
    panics: Arc<AtomicBool>,
}

impl Clock for PanickingClock {
    fn now(&self) -> Timestamp {
        assert!(!self.panics.load(Ordering::Relaxed), "the clock panics");
        self.clock.now()
    }

    fn tick(&self) -> Tick {
        self.clock.tick()
    }
}

const LIMITS: [&str; 5] = ["bucket", "sliding", "shared", "two", "lease"];

fn spec(id: &str, limit: u64) -> LimitSpec {
    let window = Duration::from_secs(60);
    let bucket = ItemSpec::of(Policy::Bucket { window, burst: None }, limit);
    let sliding = ItemSpec::of(Policy::Sliding { window, precision: Precision::Exact }, limit);
    let total = ItemSpec::of(Policy::Total, limit);
    let lease = ItemSpec::of(Policy::Concurrency { ttl: window }, limit);
    let spec = LimitSpec::named(id);
    match id {
        "bucket" => spec.with(bucket.per_key()),
        "sliding" => spec.with(sliding.per_key()),
        "shared" => spec.with(total),
        "two" => spec.with(bucket.per_key()).with(total.per_key()),
        _ => spec.with(lease.per_key()),
    }
}

fn is_granted(store: &MemoryStore, id: &str) -> bool {
    let asks = [Ask::one(id, Some(b"ada"))];
    let replies = store.submit(&[Order::acquire(&asks)], Replies::new(Detail::Readings)).now();
    replies.get(0).expect("one order").as_ref().expect("a valid order").is_granted()
}

#[test]
fn panic_of_clock_leaves_every_row_usable() {
    let panics = Arc::new(AtomicBool::new(false));
    let clock = PanickingClock {
        clock: ManualClock::at(Timestamp::from_ticks(1_000_000_000_000)),
        panics: Arc::clone(&panics),
    };
    let store = MemoryStore::new(clock, Memory::default());
    for id in LIMITS {
        store.put(spec(id, 1_000), ExpectedVersion::Absent).expect("a valid limit");
        assert!(is_granted(&store, id));
    }
    let asks = [Ask::one("lease", Some(b"eve"))];
    let held = Order { hold: Hold::Yes, ..Order::acquire(&asks) };
    let replies = store.submit(&[held], Replies::new(Detail::Verdicts)).now();
    let Some(Ok(reply)) = replies.get(0) else { panic!("{replies:?}") };
    let Outcome::Granted(Some(grant)) = &reply.outcome else { panic!("{reply:?}") };
    let lease = grant.lease;
    let operations: [(&str, &dyn Fn()); 7] = [
        ("submit", &|| assert!(is_granted(&store, "bucket"))),
        ("put", &|| drop(store.put(spec("two", 900), ExpectedVersion::Present))),
        ("reset", &|| drop(store.reset("bucket", None))),
        ("reset of a key", &|| drop(store.reset("two", Some(b"ada")))),
        ("renew", &|| drop(store.renew(lease, None))),
        ("settle", &|| drop(store.settle(lease, Actual::Every(1)))),
        ("release", &|| drop(store.release(lease))),
    ];
    for (round, (name, operation)) in operations.into_iter().enumerate() {
        panics.store(true, Ordering::Relaxed);
        assert!(catch_unwind(AssertUnwindSafe(operation)).is_err(), "{name} reads the clock");
        panics.store(false, Ordering::Relaxed);
        for id in LIMITS {
            assert!(is_granted(&store, id), "{id} after {name}");
            let edited = spec(id, 2_000 + round as u64);
            store.put(edited, ExpectedVersion::Present).expect("a valid limit");
            assert!(is_granted(&store, id), "{id} after {name} and an edit");
        }
    }
    assert!(store.release(lease).now(), "the lease is still there");
    // Two grants at first or in each round, and nothing of the operations that panicked.
    let used = store.usage("shared", None).now().expect("it exists").items[0].current_count;
    assert_eq!(used, 1 + 2 * operations.len() as u64);
}
