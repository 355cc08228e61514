//! Snapshots during other operations neither lose nor invent changes.

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

/// The number of limit edits.
const CHANGES: u64 = 400;

#[test]
fn limit_edits_during_snapshots_are_recovered() {
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
    store.wait_durable(store.log_end().expect("it has a log")).expect("the disk is well");
    let again = open(&Arc::new(directory.killed()), &clock);
    let limit_versions = |store: &dyn Catalog| {
        let limits = store.list();
        limits.iter().map(|limit| (limit.id().to_owned(), limit.version())).collect::<Vec<_>>()
    };
    assert_eq!(limit_versions(&again), limit_versions(&store));
    let used = again.usage("edited", Some(b"u")).decided().expect("it is there").count;
    assert!(used >= Some(CHANGES), "{used:?}");
}

/// A store is stopped while other threads still acquire. All reported grants count after the next opening,
/// including those without a record.
#[test]
fn replies_during_stop_are_recovered() {
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
        let granted: Vec<u64> = thread::scope(|scope| {
            let spawn_client = |key: u64| {
                let (store, name) = (&store, [b'0' + u8::try_from(key).expect("few")]);
                scope.spawn(move || {
                    let asks = [Ask { limit_id: "busy", key: Some(&name), count: 1 }];
                    let mut reported = 0;
                    loop {
                        let reply = store.submit(&[Order::acquire(&asks)], Replies::new(Detail::Verdicts));
                        let is_reported = match reply {
                            tidegate::store::StoreReply::Now(_) => true,
                            tidegate::store::StoreReply::Durable(_, lsn) => store.wait_durable(lsn).is_ok(),
                            tidegate::store::StoreReply::Later(_) => return reported,
                        };
                        reported += u64::from(is_reported);
                    }
                })
            };
            let clients: Vec<_> = (0..KEYS).map(spawn_client).collect();
            // Stop at a different moment in each round.
            (0..round).for_each(|_| thread::yield_now());
            store.stop().expect("the disk is well");
            clients.into_iter().map(|client| client.join().expect("no thread panics")).collect()
        });
        let again = open(&directory, &clock);
        let all = again.usage("busy", None).decided().expect("it is there").count;
        assert!(all >= Some(granted.iter().sum()), "{all:?} of {granted:?}");
        for (key, granted) in granted.iter().enumerate() {
            let name = [b'0' + u8::try_from(key).expect("few")];
            let used =
                again.usage("busy", Some(&name)).decided().expect("it is there").items[0].current_count;
            assert!(used >= *granted, "{used} of {granted}");
        }
    }
}
