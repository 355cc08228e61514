//! Snapshots beside everything else: what is changed while one is taken is neither lost nor made up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tidegate::catalog::{Catalog, ExpectedVersion, RemovalMode};
use tidegate::clock::ManualClock;
use tidegate::model::{Ask, ItemSpec, LimitSpec, Order, Policy, Timestamp};
use tidegate::reply::{Detail, Replies};
use tidegate::store::Store;
use tidegate_disk::directory::SimulatedDirectory;

use crate::store::open;

/// How many times limits are changed.
const CHANGES: u64 = 400;

#[test]
fn limits_that_change_while_snapshots_are_taken_are_as_they_were_told() {
    let clock = Arc::new(ManualClock::at(Timestamp::from_ticks(1_700_000_000_000_000_000)));
    let directory: Arc<SimulatedDirectory> = Arc::default();
    let store = open(&directory, &clock);
    let limit = |id: &str, change: u64| {
        let item = ItemSpec::of(Policy::Total, 1_000_000).per_key();
        LimitSpec { description: Some(change.to_string()), ..LimitSpec::named(id).with(item) }
    };
    store.put(limit("edited", 0), ExpectedVersion::Absent).expect("it makes sense");
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                store.snapshot().expect("the disk is well");
            }
        });
        for change in 1..=CHANGES {
            store.put(limit("edited", change), ExpectedVersion::Present).expect("it makes sense");
            store.put(limit("added", change), ExpectedVersion::Absent).expect("it makes sense");
            let asks = ["edited", "added"].map(|limit_id| Ask { limit_id, key: Some(b"u"), count: 1 });
            let _ = store.submit(&[Order::acquire(&asks)], Replies::new(Detail::Verdicts));
            if change < CHANGES {
                assert!(store.remove("added", RemovalMode::Forget));
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    store.wait_durable(store.tip().expect("it has a log")).expect("the disk is well");
    let again = open(&Arc::new(directory.killed()), &clock);
    let told = |store: &dyn Catalog| {
        let limits = store.list();
        limits.iter().map(|limit| (limit.id().to_owned(), limit.version())).collect::<Vec<_>>()
    };
    assert_eq!(told(&again), told(&store));
    let used = again.usage("edited", Some(b"u")).decided().expect("it is there").count;
    assert!(used >= Some(CHANGES), "{used:?}");
}

/// A store is stopped while others still ask. Whatever they were told counts when it is opened again, also what needed no record.
#[test]
fn whoever_is_told_something_while_a_store_stops_is_believed_afterwards() {
    const ROUNDS: u64 = 30;
    const KEYS: u64 = 4;
    let clock = Arc::new(ManualClock::at(Timestamp::from_ticks(1_700_000_000_000_000_000)));
    let day = Policy::Interval { window: std::time::Duration::from_secs(86_400) };
    for round in 0..ROUNDS {
        let directory: Arc<SimulatedDirectory> = Arc::default();
        let store = open(&directory, &clock);
        let (shared, own) =
            (ItemSpec::of(Policy::Total, 100_000_000), ItemSpec::of(day, 100_000_000).per_key());
        store
            .put(LimitSpec::named("busy").with(shared).with(own), ExpectedVersion::Absent)
            .expect("it makes sense");
        let sold: Vec<u64> = thread::scope(|scope| {
            let asking = |key: u64| {
                let (store, name) = (&store, [b'0' + u8::try_from(key).expect("few")]);
                scope.spawn(move || {
                    let asks = [Ask { limit_id: "busy", key: Some(&name), count: 1 }];
                    let mut told = 0;
                    loop {
                        let heard = store.submit(&[Order::acquire(&asks)], Replies::new(Detail::Verdicts));
                        let is_told = match heard {
                            tidegate::store::StoreReply::Now(_) => true,
                            tidegate::store::StoreReply::Durable(_, lsn) => store.wait_durable(lsn).is_ok(),
                            tidegate::store::StoreReply::Later(_) => return told,
                        };
                        told += u64::from(is_told);
                    }
                })
            };
            let askers: Vec<_> = (0..KEYS).map(asking).collect();
            // Not always as soon.
            (0..round).for_each(|_| thread::yield_now());
            store.stop().expect("the disk is well");
            askers.into_iter().map(|asker| asker.join().expect("nobody panics")).collect()
        });
        let again = open(&directory, &clock);
        let all = again.usage("busy", None).decided().expect("it is there").count;
        assert!(all >= Some(sold.iter().sum()), "{all:?} of {sold:?}");
        for (key, sold) in sold.iter().enumerate() {
            let name = [b'0' + u8::try_from(key).expect("few")];
            let used =
                again.usage("busy", Some(&name)).decided().expect("it is there").items[0].current_count;
            assert!(used >= *sold, "{used} of {sold}");
        }
    }
}
