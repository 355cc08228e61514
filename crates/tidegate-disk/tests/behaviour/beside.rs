//! Snapshots beside everything else: what is changed while one is taken is neither lost nor made up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tidegate::store::Store;
use tidegate::{
    Answers, Ask, Catalog, Detail, Expect, ItemSpec, LimitSpec, ManualClock, Order, Parting, Policy,
    Timestamp,
};
use tidegate_disk::files::Simulated;

use crate::store::open;

/// How many times limits are changed.
const CHANGES: u64 = 400;

#[test]
fn limits_that_change_while_snapshots_are_taken_are_as_they_were_told() {
    let clock = Arc::new(ManualClock::at(Timestamp::from_ticks(1_700_000_000_000_000_000)));
    let files: Arc<Simulated> = Arc::default();
    let store = open(&files, &clock);
    let limit = |id: &str, change: u64| {
        let item = ItemSpec::of(Policy::Total, 1_000_000).per_key();
        LimitSpec { description: Some(change.to_string()), ..LimitSpec::named(id).with(item) }
    };
    store.put(limit("edited", 0), Expect::Absent).expect("it makes sense");
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                store.snapshot().expect("the disk is well");
            }
        });
        for change in 1..=CHANGES {
            store.put(limit("edited", change), Expect::Present).expect("it makes sense");
            store.put(limit("added", change), Expect::Absent).expect("it makes sense");
            let asks = ["edited", "added"].map(|limit_id| Ask { limit_id, key: Some(b"u"), count: 1 });
            let _ = store.submit(&[Order::acquire(&asks)], Answers::new(Detail::Verdicts));
            if change < CHANGES {
                assert!(store.remove("added", Parting::Forget));
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    store.wait_durable(store.tip().expect("it has a log")).expect("the disk is well");
    let again = open(&Arc::new(files.killed()), &clock);
    let told = |store: &dyn Catalog| {
        let limits = store.list();
        limits.iter().map(|limit| (limit.id().to_owned(), limit.version())).collect::<Vec<_>>()
    };
    assert_eq!(told(&again), told(&store));
    let used = again.usage("edited", Some(b"u")).decided().expect("it is there").count;
    assert!(used >= Some(CHANGES), "{used:?}");
}
