//! Decisions of several threads on the same rows, at early instants, and during edits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tidegate_core::calendar::Unit;
use tidegate_core::{
    Amount, Ask, Capacity, Hold, Intent, ItemSpec, LimitSpec, Order, OverrideSpec, Policy, Precision,
    Timestamp, Verdict, Wait,
};
use tidegate_testkit::test_scale::scaled;

use super::super::line::Tag;
use super::super::{Memory, MemoryHandle, MemoryStore};
use super::one_row::{Attempt, RowDecision};
use super::{ResolvedAsk, RowsDecision, Setback, admit, decide_rows};
use crate::catalog::{Catalog, ExpectedVersion};
use crate::clock::ManualClock;
use crate::reply::{Detail, Replies};
use crate::store::Store;

const START: Timestamp = Timestamp::from_ticks(1_790_000_000_000_000_000);
const CENTURY: Duration = Duration::from_secs(36_525 * 86_400);
const THREADS: u64 = 4;

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_ticks(START.ticks() + seconds * 1_000_000_000)
}

/// A store whose clock stands still.
fn store() -> MemoryStore {
    MemoryStore::new(Arc::new(ManualClock::at(START)), Memory { secret: [7, 8], ..Memory::default() })
}

fn named(name: &str, policy: Policy, limit: Amount) -> ItemSpec {
    ItemSpec { name: Some(name.to_owned()), ..ItemSpec::of(policy, limit) }
}

fn total(limit: Amount) -> ItemSpec {
    named("total", Policy::Total, limit)
}

/// An item whose words are far in the future after a few charges.
fn slow_bucket() -> ItemSpec {
    named("bucket", Policy::Bucket { window: CENTURY, burst: None }, 1_000_000_000)
}

fn interval(limit: Amount) -> ItemSpec {
    named("interval", Policy::Interval { window: Duration::from_secs(10) }, limit)
}

fn sliding(limit: Amount) -> ItemSpec {
    let policy = Policy::Sliding { window: Duration::from_secs(10), precision: Precision::Exact };
    named("sliding", policy, limit)
}

fn put(store: &MemoryStore, id: &str, items: impl IntoIterator<Item = ItemSpec>) {
    let spec = items.into_iter().fold(LimitSpec::named(id), LimitSpec::with);
    store.put(spec, ExpectedVersion::Anything).expect("a valid limit");
}

/// The units of the item `total`.
fn used(store: &MemoryStore, id: &str, key: Option<&[u8]>) -> Amount {
    let usage = store.usage(id, key).now().expect("it was put");
    usage.items.iter().find(|item| item.item == "total").expect("it has a total").current_count
}

fn handle(store: &MemoryStore, id: &str) -> MemoryHandle {
    store.handle(id).expect("it was put")
}

/// Ends all threads after a panic.
struct EndOnPanic<'a>(&'a AtomicBool);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// Ends all threads.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Wakes a thread, also after a panic.
struct UnparkOnDrop<'a>(&'a std::thread::Thread);

impl Drop for UnparkOnDrop<'_> {
    fn drop(&mut self) {
        self.0.unpark();
    }
}

/// Runs this in several threads until each has had so many turns, or `ends`. Returns the sum of what it returned.
fn in_threads(turns: usize, ends: &AtomicBool, work: impl Fn(u64, u64) -> u64 + Sync) -> u64 {
    let sum = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (sum, work) = (&sum, &work);
            scope.spawn(move || {
                let _end = EndOnPanic(ends);
                for turn in 0..turns as u64 {
                    if ends.load(Ordering::Relaxed) {
                        break;
                    }
                    sum.fetch_add(work(thread, turn), Ordering::Relaxed);
                }
            });
        }
    });
    sum.into_inner()
}

fn granted(verdict: Verdict) -> u64 {
    u64::from(verdict == Verdict::Granted)
}

#[test]
fn charges_of_several_threads_add_up() {
    const LIMIT: Amount = 100_000;
    for (items, key) in [
        (vec![total(LIMIT).per_key()], Some(&b"ada"[..])),
        (vec![total(LIMIT)], None),
        (vec![total(LIMIT).per_key(), slow_bucket().per_key()], Some(b"ada")),
        (vec![total(LIMIT), slow_bucket(), interval(1 << 40)], None),
        (vec![total(LIMIT).per_key(), slow_bucket()], Some(b"ada")),
    ] {
        let store = store();
        put(&store, "l", items);
        let handle = handle(&store, "l");
        let work = |_, _| granted(handle.try_acquire(b"ada", 1).expect("a valid key"));
        let sum = in_threads(40_000, &AtomicBool::new(false), work);
        assert_eq!((sum, used(&store, "l", key)), (LIMIT, LIMIT));
    }
}

/// Threads charge different rows of one line in different combinations.
#[test]
fn charges_of_sets_add_up() {
    let store = store();
    let ids = ["a", "b", "c", "d"];
    for id in ids {
        put(&store, id, [total(1_000_000)]);
    }
    put(&store, "keyed", [total(1_000_000).per_key()]);
    let sets = [&["a", "b", "keyed"][..], &["b", "c"], &["c", "d", "a"], &["d", "keyed"]];
    let handles: Vec<_> = sets.iter().map(|ids| store.handle_set(ids).expect("they were put")).collect();
    let turns = 20_000;
    in_threads(turns, &AtomicBool::new(false), |thread, turn| {
        let index = usize::try_from(thread + turn).expect("few") % sets.len();
        let keys: Vec<_> = sets[index].iter().map(|id| (*id == "keyed").then_some(&b"ada"[..])).collect();
        granted(handles[index].try_acquire(&keys).expect("valid keys"))
    });
    let turns = turns as u64 * THREADS;
    for id in ids {
        let expected = turns / 4 * sets.iter().filter(|set| set.contains(&id)).count() as u64;
        assert_eq!(used(&store, id, None), expected, "of {id}");
    }
    assert_eq!(used(&store, "keyed", Some(b"ada")), turns / 2);
}

/// A row that is found twice would count twice.
#[test]
fn new_key_of_several_threads_has_one_row() {
    for items in [vec![total(3).per_key()], vec![total(3).per_key(), sliding(100).per_key()]] {
        let store = store();
        put(&store, "l", items);
        let handle = handle(&store, "l");
        let keys = scaled(20_000);
        let sum = in_threads(keys, &AtomicBool::new(false), |_, turn| {
            granted(handle.try_acquire(&turn.to_le_bytes(), 1).expect("a valid key"))
        });
        assert_eq!(sum, 3 * keys as u64);
        assert_eq!(store.observe("l").expect("it was put").rows, Some(keys as u64));
    }
}

/// The turns of a thread after which the next edit may happen.
const TURNS_PER_EDIT: u64 = 500;

/// Edits change where the items of a row are stored. All limits have the item `total`.
fn charges_during_edits_add_up(versions: &[Vec<ItemSpec>], key: Option<&[u8]>) {
    let store = store();
    put(&store, "l", versions[0].clone());
    let (handle, ends) = (handle(&store, "l"), AtomicBool::new(false));
    let sum = std::thread::scope(|scope| {
        let editor = scope.spawn(|| {
            let _end = EndOnDrop(&ends);
            for edit in 1..scaled(700) {
                put(&store, "l", versions[edit % versions.len()].clone());
                // Most decisions are made without an edit.
                std::thread::park();
                if ends.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let _unparked = UnparkOnDrop(editor.thread());
        in_threads(usize::MAX, &ends, |thread, turn| {
            if turn % TURNS_PER_EDIT == TURNS_PER_EDIT - 1 {
                editor.thread().unpark();
            }
            match thread {
                0 => {
                    let mut verdicts = [Verdict::Granted; 20];
                    handle.try_batch(&[&b"ada"[..]; 20], 1, &mut verdicts).expect("valid keys");
                    verdicts.into_iter().map(granted).sum()
                }
                _ => granted(handle.try_acquire(b"ada", 1).expect("a valid key")),
            }
        })
    });
    assert_eq!(used(&store, "l", key), sum);
}

#[test]
fn charges_during_edits_of_keyed_items_add_up() {
    let (total, bucket) = (total(1 << 40).per_key(), slow_bucket().per_key());
    let interval = interval(1 << 40).per_key();
    charges_during_edits_add_up(
        &[vec![total.clone(), bucket.clone()], vec![bucket, total.clone()]],
        Some(b"ada"),
    );
    charges_during_edits_add_up(&[vec![total.clone()], vec![interval, total]], Some(b"ada"));
}

#[test]
fn charges_during_edits_of_shared_items_add_up() {
    let (total, bucket) = (total(1 << 40), slow_bucket());
    charges_during_edits_add_up(&[vec![total.clone(), bucket.clone()], vec![bucket, total]], None);
}

#[test]
fn charges_during_edits_of_sliding_items_add_up() {
    let (total, bucket) = (total(1 << 40).per_key(), slow_bucket().per_key());
    let bucketed = Policy::Sliding { window: Duration::from_secs(10), precision: Precision::Bucketed };
    let bucketed = named("bucketed", bucketed, 1 << 40).per_key();
    let versions =
        [vec![bucketed.clone(), total.clone()], vec![total.clone(), bucketed], vec![bucket, total]];
    charges_during_edits_add_up(&versions, Some(b"ada"));
}

/// One attempt on the row of a key, or of all keys, as a handle makes it.
fn attempt_one(store: &MemoryStore, key: Option<&[u8]>, now: Timestamp) -> Result<RowDecision, Setback> {
    attempt(store, key, 1, now)
}

fn attempt(
    store: &MemoryStore,
    key: Option<&[u8]>,
    count: Amount,
    now: Timestamp,
) -> Result<RowDecision, Setback> {
    let table = store.state.table("l").expect("it was put");
    let reader = table.snapshot.read();
    let attempt = Attempt { table: &table, reader, head: reader.head(), count, now };
    match key {
        None => attempt.decide_all(),
        Some(key) => {
            let tag = table.printer.print(key);
            let lines = table.home_lines(tag).ok_or(Setback::Absent { ask: 0 })?;
            attempt.decide_key(lines, tag)
        }
    }
}

fn decide_at(store: &MemoryStore, key: Option<&[u8]>, now: Timestamp) -> Option<RowsDecision> {
    let table = store.state.table("l").expect("it was put");
    let ask = ResolvedAsk { table: &table, key, tag: None, count: 1 };
    decide_rows(&[ask], Intent::Acquire, now, &mut None)
}

/// Another thread has changed a row under the lock of its leaf at a later instant.
#[test]
fn decision_is_not_earlier_than_floor() {
    for (items, key) in [
        (vec![slow_bucket().per_key()], Some(&b"ada"[..])),
        (vec![slow_bucket().per_key(), interval(9).per_key()], Some(b"ada")),
        (vec![slow_bucket()], None),
        (vec![slow_bucket(), interval(9)], None),
        (vec![slow_bucket(), total(9).per_key()], Some(b"ada")),
    ] {
        let store = store();
        put(&store, "l", items);
        assert_eq!(decide_at(&store, key, at(0)), Some(RowsDecision::Granted(at(0))));
        let table = store.state.table("l").expect("it was put");
        let leaf = key.and_then(|key| table.leaf(table.printer.print(key)));
        leaf.map_or(&table.all.header, |leaf| &leaf.header).raise(at(5));
        let is_simple =
            table.snapshot.read().head().counts_keys() != table.snapshot.read().head().counts_all();
        if is_simple {
            assert_eq!(attempt_one(&store, key, at(4)), Err(Setback::At(at(5))));
            assert_eq!(attempt_one(&store, key, at(5)), Ok(RowDecision::Granted));
        }
        assert_eq!(decide_at(&store, key, at(4)), Some(RowsDecision::Granted(at(5))));
    }
}

/// The engine raises no floor when it charges a row.
#[test]
fn locked_decision_is_not_earlier_than_last_charge() {
    for (items, key) in [(total(1 << 40).per_key(), Some(&b"ada"[..])), (total(1 << 40), None)] {
        let store = store();
        put(&store, "l", [items]);
        for second in [0, 5] {
            assert_eq!(decide_at(&store, key, at(second)), Some(RowsDecision::Granted(at(second))));
        }
        let asks = [Ask::one("l", key)];
        let order = Order { hold: Hold::Yes, ..Order::acquire(&asks) };
        let replies = store.submit(&[order], Replies::new(Detail::Verdicts)).now();
        let reply = replies.get(0).expect("one reply").as_ref().expect("a valid order");
        assert_eq!(reply.at, at(5));
    }
}

/// Expired entries that were dropped at a later instant would still count at an earlier one.
#[test]
fn decision_is_not_earlier_than_drop_of_expired_entries() {
    for (items, key) in [
        (vec![sliding(400).per_key()], Some(&b"ada"[..])),
        (vec![sliding(400).per_key(), total(1_000).per_key()], Some(b"ada")),
        (vec![sliding(400)], None),
        (vec![sliding(400), total(1_000).per_key()], Some(b"ada")),
    ] {
        for is_handle in [false, true] {
            let store = store();
            put(&store, "l", items.clone());
            let table = store.state.table("l").expect("it was put");
            let decide = |count, now| {
                let ask = ResolvedAsk { table: &table, key, tag: None, count };
                decide_rows(&[ask], Intent::Acquire, now, &mut None)
            };
            let after = |milliseconds: u64| Timestamp::from_ticks(START.ticks() + milliseconds * 1_000_000);
            for number in 0..200 {
                assert_eq!(decide(2, after(number)), Some(RowsDecision::Granted(after(number))));
            }
            // Three quarters have expired, and 399 units do not fit yet.
            let late = after(10_150);
            let head = table.snapshot.read().head();
            if is_handle && head.counts_keys() != head.counts_all() {
                assert!(!matches!(attempt(&store, key, 399, late), Ok(RowDecision::Granted)));
            } else {
                assert!(matches!(decide(399, late), Some(RowsDecision::Refused(..))));
            }
            assert_eq!(decide(2, after(9_000)), Some(RowsDecision::Granted(late)));
        }
    }
}

#[test]
fn row_of_former_epoch_is_not_decided_without_lock() {
    let other = || named("other", Policy::Total, 9);
    for (items, next, key) in [
        (vec![slow_bucket().per_key()], vec![interval(9).per_key()], Some(&b"ada"[..])),
        (vec![slow_bucket()], vec![other()], None),
        (vec![slow_bucket(), total(9).per_key()], vec![other(), total(9).per_key()], Some(b"ada")),
    ] {
        let store = store();
        put(&store, "l", items);
        assert_eq!(decide_at(&store, key, START), Some(RowsDecision::Granted(START)));
        put(&store, "l", next);
        let table = store.state.table("l").expect("it was put");
        assert!(table.snapshot.read().is_valid_at(START), "the new rules are published");
        assert_eq!(decide_at(&store, key, START), None);
        if table.snapshot.read().head().items() == 1 {
            // Rows of another shape are not even found.
            assert!(attempt_one(&store, key, START).is_err());
        }
        assert_eq!(handle(&store, "l").try_acquire(b"ada", 1), Ok(Verdict::Granted));
        assert_eq!(decide_at(&store, key, START), Some(RowsDecision::Granted(START)));
    }
}

#[test]
fn row_in_full_is_not_decided_without_lock() {
    let store = store();
    let own = OverrideSpec {
        key: b"own".to_vec(),
        item: "total".to_owned(),
        limit: Capacity::AtMost(50),
        until: None,
    };
    let spec = LimitSpec { overrides: vec![own], ..LimitSpec::named("l") };
    store.put(spec.with(total(5).per_key()), ExpectedVersion::Anything).expect("a valid limit");
    let handle = handle(&store, "l");
    assert_eq!(handle.try_acquire(b"own", 40), Ok(Verdict::Granted));
    assert_eq!(attempt_one(&store, Some(b"own"), START), Err(Setback::Locked));
    assert_eq!(decide_at(&store, Some(b"own"), START), None);
    assert_eq!(
        (handle.try_acquire(b"own", 10), handle.try_acquire(b"own", 1)),
        (Ok(Verdict::Granted), Ok(Verdict::Denied(Wait::Never)))
    );
    // A key with an override that has no row yet is not judged as a blank one.
    let other = MemoryStore::new(Arc::new(ManualClock::at(START)), Memory::default());
    let spec = store.get("l").expect("it was put").spec().clone();
    other.put(spec, ExpectedVersion::Anything).expect("a valid limit");
    let handle = other.handle("l").expect("it was put");
    assert_eq!(handle.try_acquire(b"ada", 1), Ok(Verdict::Granted));
    assert_eq!(handle.try_acquire(b"own", 40), Ok(Verdict::Granted));
}

/// Rules that hold until the end of a calendar window do not hold at its end.
#[test]
fn snapshot_holds_from_first_to_last_tick_of_window() {
    let store = store();
    let minute = Policy::Calendar(Unit::Minute);
    put(&store, "l", [named("total", minute, 5)]);
    let table = store.state.table("l").expect("it was put");
    let minute = 60_000_000_000;
    let end = Timestamp::from_ticks(START.ticks() / minute * minute + minute);
    table.refresh(end);
    let reader = table.snapshot.read();
    let tick = |ticks: i64| Timestamp::from_ticks(end.ticks().saturating_add_signed(ticks));
    let last = i64::try_from(minute).expect("small");
    assert_eq!(
        [-1, 0, last - 1, last].map(|ticks| reader.is_valid_at(tick(ticks))),
        [false, true, true, false]
    );
}

#[test]
fn snapshot_is_not_current_after_edit() {
    let store = store();
    put(&store, "l", [total(5)]);
    let table = store.state.table("l").expect("it was put");
    let reader = table.snapshot.read();
    assert!(reader.is_current());
    put(&store, "l", [total(6)]);
    assert!(!reader.is_current() && table.snapshot.read().is_current());
}

/// Of several rows of a line with the same larger part of the tag, the last one is compared first.
#[test]
fn rows_with_equal_larger_tag_parts_are_told_apart() {
    for items in [vec![total(5).per_key()], vec![interval(5).per_key()]] {
        let store = store();
        put(&store, "l", items);
        let table = store.state.table("l").expect("it was put");
        let tags = [1, 2].map(|high| Tag { low: 1 << 40, high });
        for tag in tags {
            assert!(admit(&table, tag, START));
        }
        let absent = Tag { low: 1 << 40, high: 3 };
        for (tag, count, expected) in [
            (tags[0], 4, true),
            (tags[1], 5, true),
            (tags[0], 2, false),
            (tags[0], 1, true),
            (tags[1], 1, false),
        ] {
            let ask = ResolvedAsk { table: &table, key: None, tag: Some(tag), count };
            let decided = decide_rows(&[ask], Intent::Acquire, START, &mut None);
            assert_eq!(
                matches!(decided, Some(RowsDecision::Granted(_))),
                expected,
                "{count} units of {tag:?}"
            );
            let lines = table.home_lines(tag).expect("there are rows");
            let is_found = |tag| lines.find::<3>(tag).is_some() || lines.find::<2>(tag).is_some();
            assert_eq!((is_found(tag), is_found(absent)), (true, false));
        }
    }
}

#[test]
fn first_of_equal_waits_binds() {
    let items = |first: ItemSpec, second: ItemSpec| {
        [
            ItemSpec { name: Some("first".to_owned()), ..first },
            ItemSpec { name: Some("second".to_owned()), ..second },
            total(1_000),
        ]
    };
    let ten = |limit| ItemSpec::of(Policy::Interval { window: Duration::from_secs(10) }, limit);
    let day = Policy::Interval { window: Duration::from_secs(86_400) };
    for (items, expected) in [
        (items(ten(1), ten(1)), 0),
        (items(ten(1), ItemSpec::of(day, 1)), 1),
        (items(ItemSpec::of(day, 1), ten(1)), 0),
    ] {
        for (keyed, key) in [(true, Some(&b"ada"[..])), (false, None)] {
            let items = items.clone().map(|item| if keyed { item.per_key() } else { item });
            let store = store();
            put(&store, "l", items);
            let handle = handle(&store, "l");
            assert_eq!(handle.try_acquire(b"ada", 1), Ok(Verdict::Granted));
            let Some(RowsDecision::Refused(refusal, _)) = decide_at(&store, key, START) else {
                panic!("it was granted")
            };
            assert_eq!((refusal.denial.binding.item, refusal.denial.first.item), (expected, 0));
            let Ok(RowDecision::Refused(wait, item)) = attempt_one(&store, key, START) else {
                panic!("it was granted")
            };
            assert_eq!((item.item(), wait), (expected, refusal.denial.wait));
        }
    }
}
