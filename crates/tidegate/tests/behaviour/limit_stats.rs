//! Statistics of a limit: exact counts that can be read during decisions.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

use tidegate::Limiter;
use tidegate::catalog::{Catalog, ExpectedVersion, RemovalMode};
use tidegate::clock::SystemClock;
use tidegate::model::{Ask, ItemSpec, LimitSpec, Mode, Policy, Verdict};
use tidegate::store::{MapStore, Memory, MemoryStore, Store};

use crate::fixture::{DecisionExt, HandleExt, seconds, slots_of};

type LimiterFixture = crate::fixture::LimiterFixture<MemoryStore>;

/// Five units in total, two per key.
fn five_and_two() -> LimitSpec {
    let total = |limit| ItemSpec::of(Policy::Total, limit);
    LimitSpec::named("l").with(total(5)).with(total(2).per_key())
}

#[test]
fn statistics_count_every_decision() {
    let fixture = LimiterFixture::new();
    fixture.put(five_and_two());
    let ask = |key| fixture.limiter.handle("l").of(key).try_acquire().is_granted();
    let decided = ["ada", "ada", "ada", "bob", "bob", "cid", "cid", "dan"].map(ask);
    assert_eq!(decided, [true, true, false, true, true, true, false, false]);
    assert!(fixture.limiter.handle("l").of("dan").peek().refused().is_some());
    let seen = fixture.limiter.observe("l").expect("the memory store counts");
    assert_eq!((seen.granted, seen.refused, seen.shadowed, seen.waiting), (5, 3, 0, 0));
    assert_eq!(
        (seen.refused_by("all/total"), seen.refused_by("key/total"), seen.refused_by("no")),
        (2, 1, 0)
    );
    assert_eq!(seen.items.iter().map(|item| item.refused).sum::<u64>(), seen.refused);
    assert_eq!(seen.rows, Some(3), "a key with refusals only has no row");
    let bytes = seen.bytes.expect("its rows are here");
    assert!(bytes > 0 && bytes < 1 << 20, "{bytes} bytes");
}

#[test]
fn repeated_request_is_counted_once() {
    let fixture = LimiterFixture::new();
    fixture.put(five_and_two());
    for _ in 0..3 {
        let handle = fixture.limiter.handle("l");
        let question = handle.of("ada").request_id("r");
        assert!(question.try_acquire().is_granted());
    }
    assert_eq!(fixture.limiter.observe("l").map(|seen| (seen.granted, seen.refused)), Some((1, 0)));
}

#[test]
fn shadow_refusals_are_counted_separately() {
    let fixture = LimiterFixture::new();
    fixture.put(LimitSpec { mode: Mode::Shadow, ..five_and_two() });
    for _ in 0..7 {
        assert!(fixture.limiter.handle("l").of("ada").try_acquire().is_granted());
    }
    let seen = fixture.limiter.observe("l").expect("the memory store counts");
    assert_eq!((seen.granted, seen.refused, seen.shadowed), (7, 0, 5));
}

#[test]
fn refused_order_counts_at_binding_limit() {
    let fixture = LimiterFixture::new();
    for (id, limit) in [("wide", 10), ("narrow", 1)] {
        fixture.put(LimitSpec::named(id).with(ItemSpec::of(Policy::Total, limit)));
    }
    for round in 0..3 {
        let asks = [Ask::one("wide", None), Ask::one("narrow", None)];
        assert_eq!(fixture.limiter.request(&asks).try_acquire().is_granted(), round == 0);
    }
    let seen = |id| fixture.limiter.observe(id).map(|seen| (seen.granted, seen.refused));
    assert_eq!((seen("wide"), seen("narrow")), (Some((1, 0)), Some((1, 2))));
}

#[test]
fn waiting_request_is_reported() {
    let fixture = LimiterFixture::with_slots(1);
    fixture.put(LimitSpec::named("m").with(slots_of(1)));
    let held = fixture.take(1);
    let mut first = fixture.wait(1, seconds(60)).starts();
    let second = fixture.wait(1, seconds(60)).starts();
    let waiting = |id| fixture.limiter.observe(id).map(|seen| seen.waiting);
    assert_eq!((waiting("l"), waiting("m")), (Some(2), Some(0)));
    drop(second);
    drop(held);
    drop(first.expect_granted());
    let seen = fixture.limiter.observe("l").expect("the memory store counts");
    assert_eq!((seen.waiting, seen.granted), (0, 2));
    fixture.ends_with(0);
}

#[test]
fn statistics_follow_item_names_and_end_with_limit() {
    let fixture = LimiterFixture::new();
    fixture.put(five_and_two());
    let ask = |key| fixture.limiter.handle("l").of(key).try_acquire().is_granted();
    assert_eq!(["ada", "ada", "ada"].map(ask), [true, true, false]);
    fixture.put(LimitSpec::named("l").with(ItemSpec::of(Policy::Total, 2)));
    assert!(!ask("ada"));
    fixture.put(five_and_two());
    assert_eq!(["bob", "bob", "bob"].map(ask), [true, true, false]);
    let seen = fixture.limiter.observe("l").expect("the memory store counts");
    assert_eq!((seen.granted, seen.refused_by("key/total"), seen.refused_by("all/total")), (4, 2, 1));
    assert!(fixture.store.remove("l", RemovalMode::Forget));
    assert_eq!(fixture.limiter.observe("l"), None);
    fixture.put(five_and_two());
    assert_eq!(
        fixture.limiter.observe("l").map(|seen| (seen.granted, seen.refused, seen.rows)),
        Some((0, 0, Some(0)))
    );
}

#[test]
fn store_without_statistics_reports_none() {
    let store = MapStore::new(SystemClock::new(), 7);
    store.put(five_and_two(), ExpectedVersion::Absent).expect("a valid limit");
    let limiter = Limiter::new(Arc::new(store));
    assert!(limiter.handle("l").of("ada").try_acquire().is_granted());
    assert_eq!(limiter.observe("l"), None);
    assert_eq!(
        Limiter::builder().build().expect("valid settings").observe("l"),
        None,
        "there are no statistics of an unknown limit"
    );
}

/// Concurrent readers see counts that only rise and never exceed the requests. The final counts are complete.
#[test]
fn statistics_can_be_read_during_decisions() {
    const THREADS: u64 = 3;
    const ASKS: u64 = 4_000;
    let store = MemoryStore::new(SystemClock::new(), Memory::default());
    let half = ItemSpec::of(Policy::Total, THREADS * ASKS / 2);
    store.put(LimitSpec::named("l").with(half), ExpectedVersion::Absent).expect("a valid limit");
    let (gate, limiter) = (store.handle("l").expect("it was put"), Limiter::new(Arc::new(store.clone())));
    let done = AtomicBool::new(false);
    let start = Barrier::new(1 + usize::try_from(THREADS).expect("few"));
    let granted = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut before = (0, 0);
            start.wait();
            while !done.load(Ordering::Relaxed) {
                let seen = limiter.observe("l").expect("the memory store counts");
                assert!(before.0 <= seen.granted && before.1 <= seen.refused, "counts rise");
                assert!(seen.granted + seen.refused <= THREADS * ASKS, "no more than was asked");
                before = (seen.granted, seen.refused);
            }
        });
        let askers: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    start.wait();
                    (0..ASKS).filter(|_| gate.try_acquire(b"", 1) == Ok(Verdict::Granted)).count()
                })
            })
            .collect();
        let granted: usize = askers.into_iter().map(|asker| asker.join().expect("no panic")).sum();
        done.store(true, Ordering::Relaxed);
        watcher.join().expect("no panic");
        granted as u64
    });
    let seen = store.observe("l").expect("the memory store counts");
    assert_eq!((granted, seen.granted, seen.refused), (THREADS * ASKS / 2, granted, THREADS * ASKS / 2));
    assert_eq!(seen.items[0].refused, seen.refused);
}

#[test]
fn store_size_sums_all_limits() {
    let fixture = LimiterFixture::new();
    let before = fixture.store.size().expect("the memory store counts");
    assert_eq!(before.leases, 0);
    fixture.put(LimitSpec::named("a").with(slots_of(5)));
    fixture.put(five_and_two());
    let held = fixture.limiter.handle("a").of("ada").try_acquire().expect("a question");
    assert!(fixture.limiter.handle("l").of("ada").try_acquire().is_granted());
    let after = fixture.store.size().expect("the memory store counts");
    assert_eq!((after.leases, after.bytes), (1, fixture.store.bytes()));
    assert!(before.bytes < after.bytes && after.bytes <= after.budget_bytes, "{before:?} {after:?}");
    assert_eq!(after.budget_bytes, before.budget_bytes);
    drop(held);
    assert_eq!(fixture.store.size().map(|size| size.leases), Some(0));
    assert_eq!(MapStore::new(SystemClock::new(), 7).size(), None, "the plain store does not count");
}
