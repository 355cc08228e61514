//! Batches of edits: all are made or none, and no order sees a part of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tidegate::catalog::{ApplyError, Change, Edit, EditOutcome, PutError};
use tidegate::catalog::{ExpectedVersion, RemovalMode};
use tidegate::model::{Amount, Ask, ItemSpec, Limit, LimitSpec, Order, Policy};
use tidegate::reply::{Detail, OrderError, Replies};
use tidegate::store::LimitStore;

use super::decisions::{sliding, total};
use super::{Behaviour, StoreFixture, lease};

pub(super) const ALL: &[Behaviour] = &[
    ("apply_makes_many_edits", apply_makes_many_edits),
    ("apply_with_one_bad_edit_changes_nothing", apply_with_one_bad_edit_changes_nothing),
    ("apply_keeps_counts", apply_keeps_counts),
    ("limit_retired_by_apply_returns_with_its_counts", limit_retired_by_apply_returns_with_its_counts),
    ("limit_forgotten_by_apply_starts_at_zero", limit_forgotten_by_apply_starts_at_zero),
    ("concurrent_order_sees_all_edits_of_apply_or_none", concurrent_order_sees_all_edits_of_apply_or_none),
    ("concurrent_lookup_sees_all_edits_of_apply_or_none", concurrent_lookup_sees_all_edits_of_apply_or_none),
];

fn put(spec: LimitSpec) -> Edit {
    Edit::Put(spec, ExpectedVersion::Anything)
}

fn remove(id: &str, mode: RemovalMode) -> Edit {
    Edit::Remove(id.to_owned(), mode)
}

fn limit(id: &str, most: Amount) -> LimitSpec {
    LimitSpec::named(id).with(total(most))
}

/// An outcome as text, with id and version of the limit.
fn outcome_text(edited: &EditOutcome) -> String {
    let line = |word: &str, limit: &Limit| format!("{word} {} {}", limit.id(), limit.version());
    match edited {
        EditOutcome::Added(limit) => line("added", limit),
        EditOutcome::Replaced(limit) => line("replaced", limit),
        EditOutcome::Unchanged(limit) => line("unchanged", limit),
        EditOutcome::Removed(limit) => line("removed", limit),
        EditOutcome::Absent => "absent".to_owned(),
    }
}

/// Collects the changes that watchers receive. Each line says whether limit `last` exists already.
fn record_changes(fixture: &StoreFixture, last: &'static str) -> Arc<Mutex<Vec<String>>> {
    let changes = Arc::new(Mutex::new(Vec::new()));
    let (sink, store) = (Arc::clone(&changes), Arc::clone(&fixture.store));
    fixture.store.watch(Box::new(move |change| {
        let (word, limit) = match change {
            Change::Put(limit) => ("put", limit),
            Change::Removed(limit) => ("removed", limit),
        };
        let done = store.get(last).is_some();
        let line = format!("{word} {} {}, {done}", limit.id(), limit.version());
        sink.lock().expect("no panic while the lock is held").push(line);
    }));
    changes
}

fn apply_makes_many_edits(fixture: &StoreFixture) {
    for id in ["same", "other", "gone"] {
        fixture.add(limit(id, 1));
    }
    let changes = record_changes(fixture, "zz");
    let same = fixture.store.get("same").expect("the limit was added");
    let applied = fixture.store.apply(vec![
        put(limit("new", 1)),
        put(limit("same", 1)),
        put(limit("other", 2)),
        remove("gone", RemovalMode::Retire),
        remove("nobody", RemovalMode::Forget),
        Edit::Put(limit("zz", 1), ExpectedVersion::Absent),
    ]);
    let applied: Vec<_> = applied.expect("valid edits").iter().map(outcome_text).collect();
    assert_eq!(
        applied,
        ["added new 1", "unchanged same 1", "replaced other 2", "removed gone 1", "absent", "added zz 1"]
    );
    let ids: Vec<_> = fixture.store.list().iter().map(|limit| limit.id().to_owned()).collect();
    assert_eq!(ids, ["new", "other", "same", "zz"]);
    let untouched = fixture.store.get("same").expect("the limit was kept");
    assert_eq!(same.version(), untouched.version(), "an equal definition is no edit");
    let changes = changes.lock().expect("no panic while the lock is held");
    assert_eq!(
        *changes,
        ["put new 1, true", "put other 2, true", "removed gone 1, true", "put zz 1, true"],
        "watchers are told of changes only, after all edits are made"
    );
    assert!(fixture.store.apply(Vec::new()).expect("an empty batch is valid").is_empty());
}

fn apply_with_one_bad_edit_changes_nothing(fixture: &StoreFixture) {
    fixture.add(limit("there", 1));
    fixture.edit(limit("there", 2));
    fixture.add(limit("gone", 1));
    let changes = record_changes(fixture, "there");
    let refused = fixture.store.apply(vec![
        put(limit("new", 1)),
        remove("gone", RemovalMode::Forget),
        put(limit("there", 3)),
        put(LimitSpec::named("empty")),
        Edit::Put(limit("nobody", 1), ExpectedVersion::Present),
        remove("there", RemovalMode::Forget),
    ]);
    let ApplyError { refused } = refused.expect_err("three invalid edits");
    let ids: Vec<_> = refused.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(ids, ["empty", "nobody", "there"], "every error is reported");
    assert_eq!(refused[1].1, PutError::Unknown);
    for index in [0, 2] {
        assert!(matches!(refused[index].1, PutError::Invalid(_)), "{:?}", refused[index]);
    }

    let stale = vec![put(limit("new", 1)), Edit::Put(limit("there", 3), ExpectedVersion::Version(1))];
    let stale = fixture.store.apply(stale).expect_err("the version is stale");
    assert_eq!(stale.refused, [("there".to_owned(), PutError::Stale { version: 2 })]);
    let exists = fixture.store.apply(vec![Edit::Put(limit("there", 2), ExpectedVersion::Absent)]);
    assert_eq!(exists.expect_err("the limit exists").refused[0].1, PutError::Exists);

    let now: Vec<_> =
        fixture.store.list().iter().map(|limit| (limit.id().to_owned(), limit.version())).collect();
    assert_eq!(now, [("gone".to_owned(), 1), ("there".to_owned(), 2)]);
    assert!(changes.lock().expect("no panic while the lock is held").is_empty());
}

fn apply_keeps_counts(fixture: &StoreFixture) {
    fixture.add(LimitSpec::named("l").with(total(5)).with(sliding(3, 60).per_key()));
    assert!(fixture.granted("l", "u", 3));
    let next = LimitSpec::named("l").with(sliding(4, 60).per_key()).with(total(9).per_key());
    fixture.store.apply(vec![put(next), put(limit("m", 1))]).expect("valid edits");
    assert_eq!((fixture.used("l", "u", "key/sliding-60s"), fixture.used("l", "u", "key/total")), (3, 0));
    assert!(fixture.granted("l", "u", 1) && !fixture.granted("l", "u", 1) && fixture.granted("m", "u", 1));
}

fn limit_retired_by_apply_returns_with_its_counts(fixture: &StoreFixture) {
    fixture.add(limit("same", 1));
    fixture.add(limit("other", 1));
    assert!(fixture.granted("same", "u", 1) && fixture.granted("other", "u", 1));
    let gone = vec![remove("same", RemovalMode::Retire), remove("other", RemovalMode::Retire)];
    fixture.store.apply(gone).expect("the limits exist");
    assert!(fixture.store.get("same").is_none() && fixture.store.get("other").is_none(), "unknown at once");
    fixture.pass_seconds(7 * 86_400 - 1);
    let back = fixture.store.apply(vec![put(limit("same", 1)), put(limit("other", 2))]).expect("valid edits");
    assert_eq!(back.iter().map(outcome_text).collect::<Vec<_>>(), ["added same 1", "added other 2"]);
    assert!(!fixture.granted("same", "u", 1), "a reverted edit does not oversell");
    assert!(fixture.granted("other", "u", 1) && !fixture.granted("other", "u", 1));

    fixture.store.apply(vec![remove("same", RemovalMode::Retire)]).expect("the limit exists");
    fixture.pass_seconds(7 * 86_400);
    fixture.store.apply(vec![put(limit("same", 1))]).expect("a valid edit");
    assert!(fixture.granted("same", "u", 1), "retirement ends");
}

fn limit_forgotten_by_apply_starts_at_zero(fixture: &StoreFixture) {
    let slot = || {
        let policy = Policy::Concurrency { ttl: Duration::from_secs(60) };
        LimitSpec::named("slots").with(ItemSpec::of(policy, 1))
    };
    fixture.add(slot());
    let held = fixture.take("slots", "u", 1);
    fixture.store.apply(vec![remove("slots", RemovalMode::Forget)]).expect("the limit exists");
    assert!(!fixture.store.release(lease(&held).lease).decided(), "its leases are gone");
    fixture.store.apply(vec![put(slot())]).expect("a valid edit");
    assert!(fixture.granted("slots", "u", 1), "a later add starts at zero");
}

/// Least number of orders per thread, and of edits meanwhile.
const ASKS: u64 = 400;
const CHANGES: u64 = 200;

/// Runs two threads that submit orders while this thread edits limits, until each has done enough.
fn while_limits_change(
    store: &Arc<dyn LimitStore>,
    ask: impl Fn(&dyn LimitStore) + Sync,
    edits: impl Fn(u64) -> Vec<Edit>,
) {
    let asked = [AtomicU64::new(0), AtomicU64::new(0)];
    let changes = AtomicU64::new(0);
    thread::scope(|scope| {
        for own_count in &asked {
            let (ask, changes) = (&ask, &changes);
            scope.spawn(move || {
                // A thread that fails must not block the others.
                let _done = DoneOnDrop(own_count, ASKS);
                while own_count.load(Ordering::Relaxed) < ASKS || changes.load(Ordering::Relaxed) < CHANGES {
                    ask(&**store);
                    own_count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let _done = DoneOnDrop(&changes, CHANGES);
        let total = || asked.iter().map(|one| one.load(Ordering::Relaxed)).sum::<u64>();
        let busy = || asked.iter().any(|one| one.load(Ordering::Relaxed) < ASKS);
        for change in 0.. {
            if change >= CHANGES && !busy() {
                break;
            }
            let before = total();
            store.apply(edits(change)).expect("valid edits");
            changes.fetch_add(1, Ordering::Relaxed);
            // Edits may be faster than orders: let the orders proceed.
            while change >= CHANGES && busy() && total() == before {
                thread::yield_now();
            }
        }
    });
}

/// Reports on drop that its thread has done enough.
struct DoneOnDrop<'a>(&'a AtomicU64, u64);

impl Drop for DoneOnDrop<'_> {
    fn drop(&mut self) {
        self.0.fetch_max(self.1, Ordering::Relaxed);
    }
}

fn concurrent_order_sees_all_edits_of_apply_or_none(fixture: &StoreFixture) {
    const IDS: [&str; 4] = ["a", "b", "c", "d"];
    const MOST: [Amount; 2] = [50_000_000, 60_000_000];
    // Two limits have one item and two have more: a store may decide them on different paths.
    let all = |most: Amount| {
        let spec = |id: &str| match id {
            "a" | "b" => LimitSpec::named(id).with(total(most)),
            _ => LimitSpec::named(id).with(total(most)).with(total(most).per_key()),
        };
        IDS.iter().map(|id| put(spec(id))).collect::<Vec<_>>()
    };
    fixture.store.apply(all(MOST[0])).expect("valid edits");
    let granted = AtomicU64::new(0);
    let ask = |store: &dyn LimitStore| {
        for ids in [&IDS[..2], &IDS[..]] {
            let asks: Vec<_> = ids.iter().map(|id| Ask { limit_id: id, key: Some(b"u"), count: 1 }).collect();
            for order in [Order::acquire(&asks), Order::peek(&asks)] {
                let answers = store.submit(&[order], Replies::new(Detail::Readings)).decided();
                let answer = answers.get(0).expect("one reply").as_ref().expect("a valid order");
                assert!(answer.is_granted());
                let capacities: Vec<_> = answers
                    .readings(answer)
                    .iter()
                    .map(|reading| (reading.limit.spec().items[0].limit, reading.reading.capacity))
                    .collect();
                assert!(
                    capacities.iter().all(|other| *other == capacities[0]),
                    "some new and some old: {capacities:?}"
                );
            }
            granted.fetch_add(u64::from(ids.len() == 2), Ordering::Relaxed);
        }
    };
    while_limits_change(&fixture.store, ask, |change| all(MOST[usize::from(change % 2 == 0)]));
    let granted = granted.load(Ordering::Relaxed);
    assert_eq!(fixture.used("a", "u", "all/total"), 2 * granted, "nothing was lost or counted twice");
    assert_eq!(fixture.used("d", "u", "key/total"), granted);
}

fn concurrent_lookup_sees_all_edits_of_apply_or_none(fixture: &StoreFixture) {
    let there = vec![put(limit("a", 60_000_000)), put(limit("b", 60_000_000))];
    let gone = vec![remove("a", RemovalMode::Retire), remove("b", RemovalMode::Retire)];
    fixture.store.apply(there.clone()).expect("valid edits");
    let ask = |store: &dyn LimitStore| {
        for ids in [["a", "b"], ["b", "a"]] {
            let asks = ids.map(|limit_id| Ask { limit_id, key: Some(b"u"), count: 1 });
            let answers = store.submit(&[Order::acquire(&asks)], Replies::new(Detail::Verdicts)).decided();
            match answers.get(0).expect("one reply") {
                Ok(answer) => assert!(answer.is_granted()),
                // The error names the first unknown limit. If that were the second, the first would still exist.
                Err(OrderError::UnknownLimit { limit_id }) => {
                    assert_eq!(limit_id, ids[0], "only a part of the batch was visible");
                }
                Err(other) => panic!("unexpected error: {other}"),
            }
        }
    };
    while_limits_change(
        &fixture.store,
        ask,
        |change| if change % 2 == 0 { gone.clone() } else { there.clone() },
    );
}
