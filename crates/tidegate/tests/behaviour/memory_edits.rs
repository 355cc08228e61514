//! Edits of a limit that change where the items of a row are stored, while other threads decide.
//!
//! The clock stands still. So every reply has the time of the start, and every granted unit is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::Duration;

use tidegate::catalog::{Catalog, ExpectedVersion};
use tidegate::clock::ManualClock;
use tidegate::model::{Amount, Ask, ItemSpec, LimitSpec, Order, Policy, Precision, Timestamp};
use tidegate::reply::{Detail, ItemReading, Replies};
use tidegate::store::{Memory, MemoryStore, Store};
use tidegate_testkit::test_scale::scaled;

const START: Timestamp = Timestamp::from_ticks(1_790_000_000_000_000_000);
const CENTURY: Duration = Duration::from_secs(36_525 * 86_400);
const THREADS: u64 = 6;
const KEYS: u64 = 5;
/// The turns of a thread after which the next edit may happen.
const TURNS_PER_EDIT: u64 = 100;

fn named(name: &str, policy: Policy, limit: Amount) -> ItemSpec {
    ItemSpec { name: Some(name.to_owned()), ..ItemSpec::of(policy, limit) }
}

/// An item whose count fits no word beside a second.
fn long_total() -> ItemSpec {
    named("total", Policy::Total, 1 << 40)
}

/// An item whose words are far in the future after a few charges.
fn slow_bucket() -> ItemSpec {
    named("bucket", Policy::Bucket { window: CENTURY, burst: None }, 1_000_000_000)
}

fn short_sliding() -> ItemSpec {
    let window = Duration::from_secs(1);
    named("sliding", Policy::Sliding { window, precision: Precision::Bucketed }, 1_000_000_000)
}

fn interval() -> ItemSpec {
    named("interval", Policy::Interval { window: CENTURY }, 1_000_000_000)
}

fn limit_of(items: &[ItemSpec], is_per_key: bool) -> LimitSpec {
    items.iter().fold(LimitSpec::named("l"), |spec, item| {
        spec.with(if is_per_key { item.clone().per_key() } else { item.clone() })
    })
}

/// Ends all threads, also after a panic.
struct EndOnDrop<'a> {
    ends: &'a AtomicBool,
    editor: &'a Thread,
}

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.editor.unpark();
    }
}

/// Decides in some threads while the limit changes between these items. All have the item `total`.
fn decide_during_edits(items: &[&[ItemSpec]], is_per_key: bool) {
    let clock = Arc::new(ManualClock::at(START));
    let store = MemoryStore::new(clock, Memory { secret: [7, 8], ..Memory::default() });
    let put = |items| {
        store.put(limit_of(items, is_per_key), ExpectedVersion::Anything).expect("a valid limit");
    };
    put(items[0]);
    let granted: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let ends = AtomicBool::new(false);
    let editor = std::thread::current();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (store, granted, ends, editor) = (&store, &granted, &ends, &editor);
            scope.spawn(move || {
                let _end = EndOnDrop { ends, editor };
                let detail = if thread % 2 == 0 { Detail::Verdicts } else { Detail::Readings };
                for turn in thread.. {
                    let number = turn % KEYS;
                    let key = number.to_le_bytes();
                    let asks = [Ask::one("l", Some(&key))];
                    let replies = store.submit(&[Order::acquire(&asks)], Replies::new(detail)).now();
                    let reply = replies.get(0).expect("one reply").as_ref().expect("a valid order");
                    assert_eq!(reply.at, START);
                    for ItemReading { limit, item, reading } in replies.readings(reply) {
                        assert_eq!(reading.capacity, limit.items()[*item].rule().capacity);
                    }
                    let place = if is_per_key { number } else { 0 };
                    let units = u64::from(reply.is_granted());
                    granted[usize::try_from(place).expect("few")].fetch_add(units, Ordering::Relaxed);
                    if turn % TURNS_PER_EDIT == 0 {
                        editor.unpark();
                    }
                    if ends.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        let _end = EndOnDrop { ends: &ends, editor: &editor };
        for edit in 1..scaled(800) {
            if ends.load(Ordering::Relaxed) {
                break;
            }
            put(items[edit % items.len()]);
            // Most decisions are made without an edit.
            std::thread::park();
        }
    });
    for (number, granted) in granted.iter().enumerate().take(if is_per_key { 5 } else { 1 }) {
        let key = (number as u64).to_le_bytes();
        let usage = store.usage("l", is_per_key.then_some(&key[..])).now().expect("it was put");
        let total = usage.items.iter().find(|item| &*item.item == "total").expect("each version has it");
        assert_eq!(total.current_count, granted.load(Ordering::Relaxed), "of key {number}");
    }
}

#[test]
fn edit_that_reorders_shared_row_loses_no_charge() {
    decide_during_edits(&[&[long_total(), slow_bucket()], &[slow_bucket(), long_total()]], false);
}

#[test]
fn edit_that_reorders_rows_of_keys_loses_no_charge() {
    decide_during_edits(&[&[long_total(), slow_bucket()], &[slow_bucket(), long_total()]], true);
}

#[test]
fn edit_that_widens_rows_of_keys_loses_no_charge() {
    let wide = [slow_bucket(), interval(), long_total()];
    decide_during_edits(&[&[long_total()], &wide, &[long_total(), slow_bucket()]], true);
}

#[test]
fn edit_of_sliding_items_loses_no_charge() {
    let one = [short_sliding(), long_total()];
    decide_during_edits(&[&one, &[long_total(), short_sliding()], &[long_total(), slow_bucket()]], true);
    decide_during_edits(&[&one, &[long_total(), short_sliding()], &[long_total(), slow_bucket()]], false);
}
