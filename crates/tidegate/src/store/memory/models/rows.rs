//! Models of the rows of one limit: decisions beside insertion, eviction, growth and splits.

use std::sync::Arc;

use tidegate_core::{Amount, Limit, Timestamp, Verdict};

use super::super::engine::{RowsDecision, admit};
use super::super::leaf::Leaf;
use super::super::limit_table::LimitTable;
use super::super::line::{Shape, Tag};
use super::super::sync::{Ordering, fence};
use super::{
    START, WINDOW, after, ask, attempt, beside, charge, charge_rows, decide, explore, interval, limit_of,
    limit_with, seed, table, tag, total, used,
};

#[test]
fn charges_of_one_key_add_up() {
    let limit = limit_of([total(2).per_key()]);
    explore(2, move || {
        let (table, key) = (table(&limit), tag(0, 1));
        seed(&table, key, 0);
        let other = beside(&table, move |table| charge(table, key, 1) + charge(table, key, 1));
        let own = charge(&table, key, 1);
        let granted = own + other.join().expect("it ends");
        assert!(granted <= 2);
        assert_eq!(used(&table, key), Some(granted));
    });
}

#[test]
fn charges_of_neighbor_keys_add_up() {
    let limit = limit_of([interval(2).per_key()]);
    explore(2, move || {
        let (table, keys) = (table(&limit), [tag(0, 1), tag(0, 2)]);
        keys.iter().for_each(|key| seed(&table, *key, 1));
        let other = beside(&table, move |table| charge_rows(&[ask(table, Some(keys[1]))], START));
        let first = charge(&table, keys[0], 1);
        let second = other.join().expect("it ends");
        assert_eq!(keys.map(|key| used(&table, key)), [Some(1 + first), Some(1 + second)]);
    });
}

#[test]
fn insertion_beside_a_charge_keeps_both_rows() {
    let limit = limit_of([total(2).per_key()]);
    explore(2, move || {
        let (table, key, new) = (table(&limit), tag(0, 1), tag(0, 2));
        seed(&table, key, 1);
        let other = beside(&table, move |table| admit(table, new, START));
        let granted = charge(&table, key, 1);
        assert!(other.join().expect("it ends"));
        assert_eq!((used(&table, key), used(&table, new)), (Some(1 + granted), Some(0)));
    });
}

#[test]
fn two_insertions_of_one_key_make_one_row() {
    let limit = limit_of([total(2).per_key()]);
    explore(1, move || {
        let (table, key) = (table(&limit), tag(0, 1));
        let insert = move |table: &LimitTable| {
            assert!(admit(table, key, START));
            charge(table, key, 1)
        };
        let other = beside(&table, insert);
        let granted = insert(&table) + other.join().expect("it ends");
        assert_eq!(table.budget.rows(), 1);
        assert_eq!(used(&table, key), Some(granted));
    });
}

/// Two keys at most. The row of `key` is blank and must give way to a new key.
fn crowded(limit: &Arc<Limit>, key: Tag) -> Arc<LimitTable> {
    let table = table(limit);
    seed(&table, key, 0);
    seed(&table, tag(0, 2), 1);
    table
}

#[test]
fn eviction_beside_a_charge_drops_a_blank_row_or_none() {
    let limit = limit_with(Some(2), [total(2).per_key()]);
    explore(2, move || {
        let (key, new) = (tag(0, 1), tag(0, 3));
        let table = crowded(&limit, key);
        let other = beside(&table, move |table| admit(table, new, START));
        let granted = charge(&table, key, 1);
        let is_admitted = other.join().expect("it ends");
        assert_eq!(used(&table, key).unwrap_or_default(), granted);
        assert_eq!(used(&table, new), is_admitted.then_some(0));
        assert_eq!(used(&table, tag(0, 2)), Some(1));
    });
}

/// The slot of a key goes to a key that has nothing left.
#[test]
fn refusal_during_an_eviction_is_of_the_own_row() {
    let limit = limit_with(Some(2), [total(2).per_key()]);
    for decides_rows in [false, true] {
        let limit = Arc::clone(&limit);
        explore(1, move || {
            let (key, new) = (tag(0, 1), tag(0, 3));
            let table = crowded(&limit, key);
            let other =
                beside(&table, move |table| if admit(table, new, START) { charge(table, new, 2) } else { 0 });
            if decides_rows {
                let decision = decide(&[ask(&table, Some(key))], START);
                assert!(!matches!(decision, Some(RowsDecision::Refused(..))), "{decision:?}");
            } else {
                let verdict = attempt(&table, key, 1, START);
                assert!(!matches!(verdict, Ok(Verdict::Denied(_))), "{verdict:?}");
            }
            other.join().expect("it ends");
        });
    }
}

/// Drops the row of a key if it is evictable at this instant.
fn evict(table: &LimitTable, key: Tag, now: Timestamp) {
    let (mut locked, epoch) = table.lock_leaf(key);
    locked.evict_if_due(table.context(&epoch, now));
}

const EARLY: Timestamp = after(WINDOW / 2);
const LATE: Timestamp = after(2 * WINDOW);

/// The window of a row is over, the row is dropped and made again. A thread with an early time arrives late.
#[test]
fn row_that_was_dropped_is_not_charged_at_an_earlier_instant() {
    drop_a_row_beside(attempt_early);
}

#[test]
fn row_that_was_dropped_is_not_charged_by_an_earlier_order() {
    drop_a_row_beside(order_early);
}

fn drop_a_row_beside(decide: fn(&LimitTable, Tag)) {
    let limit = limit_of([interval(1).per_key()]);
    explore(1, move || {
        let (table, key) = (table(&limit), tag(0, 1));
        seed(&table, key, 1);
        let other = beside(&table, move |table| {
            evict(table, key, LATE);
            assert!(admit(table, key, LATE));
        });
        decide(&table, key);
        other.join().expect("it ends");
    });
}

/// The same after a split: the thread has found the row's line before, through the leaf that was split.
#[test]
fn row_that_was_dropped_after_a_split_is_not_charged_at_an_earlier_instant() {
    drop_a_row_after_a_split_beside(attempt_early);
}

#[test]
fn row_that_was_dropped_after_a_split_is_not_charged_by_an_earlier_order() {
    drop_a_row_after_a_split_beside(order_early);
}

fn drop_a_row_after_a_split_beside(decide: fn(&LimitTable, Tag)) {
    let limit = limit_of([interval(1).per_key()]);
    explore(1, move || {
        let (table, key) = (table(&limit), tag(1, 1));
        seed(&table, key, 1);
        seed(&table, tag(0, 2), 1);
        seed(&table, tag(0, 3), 1);
        let other = beside(&table, move |table| {
            assert!(admit(table, tag(1, 4), START));
            assert!(table.root().is_some_and(Leaf::is_branch));
            evict(table, key, LATE);
            assert!(admit(table, key, LATE));
        });
        decide(&table, key);
        other.join().expect("it ends");
    });
}

fn attempt_early(table: &LimitTable, key: Tag) {
    assert_ne!(attempt(table, key, 1, EARLY), Ok(Verdict::Granted), "the window was not over");
}

fn order_early(table: &LimitTable, key: Tag) {
    if let Some(RowsDecision::Granted(at)) = decide(&[ask(table, Some(key))], EARLY) {
        assert!(at >= LATE, "the window was not over");
    }
}

/// A leaf of two rows to a line grows at its third row.
#[test]
fn growth_loses_no_charge() {
    charge_while_a_row_is_added_to(2);
}

/// It splits at its fourth row.
#[test]
fn split_loses_no_charge() {
    charge_while_a_row_is_added_to(3);
}

fn side(number: u32) -> u64 {
    u64::from(number) % 2
}

fn charge_while_a_row_is_added_to(rows: u32) {
    let limit = limit_of([interval(4).per_key()]);
    explore(2, move || {
        let (table, key, new) = (table(&limit), tag(1, 1), tag(0, 9));
        seed(&table, key, 1);
        (1..rows).for_each(|number| seed(&table, tag(side(number), number + 1), 2));
        let other = beside(&table, move |table| admit(table, new, START));
        let granted: Amount = charge(&table, key, 1);
        assert!(other.join().expect("it ends"));
        assert_eq!(used(&table, key), Some(1 + granted));
        assert_eq!(used(&table, new), Some(0));
        for number in 1..rows {
            assert_eq!(used(&table, tag(side(number), number + 1)), Some(2));
        }
    });
}

#[test]
fn present_row_is_not_lacking_while_rows_move() {
    for rows in [2, 3] {
        let limit = limit_of([interval(4).per_key()]);
        explore(1, move || {
            let (table, key) = (table(&limit), tag(1, 1));
            seed(&table, key, 1);
            (1..rows).for_each(|number| seed(&table, tag(side(number), number + 1), 2));
            let other = beside(&table, |table| admit(table, tag(0, 9), START));
            assert!(!table.leaf(key).expect("it has rows").lacks(Shape::Pair, key));
            assert!(other.join().expect("it ends"));
        });
    }
}

/// A search that follows the marks finds a row that is in a later line.
#[test]
fn row_in_a_later_line_is_found_by_a_search() {
    let limit = limit_with(Some(4), [total(2).per_key()]);
    explore(2, move || {
        let (table, key) = (table(&limit), tag(0, 9));
        (1..4).for_each(|number| seed(&table, tag(0, number), 1));
        // A second line, whose row gives way.
        seed(&table, tag(1, 4), 0);
        let other = beside(&table, move |table| admit(table, key, START));
        let leaf = table.leaf(key).expect("it has rows");
        let later = leaf.line(1).expect("it has two lines");
        if later.find_slot(Shape::Narrow, key).is_some() {
            fence(Ordering::Acquire);
            assert!(leaf.find(Shape::Narrow, key).is_some());
        }
        assert!(other.join().expect("it ends"));
        assert_eq!(used(&table, key), Some(0));
    });
}

/// Both threads bring the same new key. Its row is made with its first charge.
#[test]
fn two_first_charges_of_one_key_both_count() {
    let limit = limit_of([total(2).per_key()]);
    explore(1, move || {
        let (table, key) = (table(&limit), tag(0, 1));
        let other = beside(&table, move |table| charge_rows(&[ask(table, Some(key))], START));
        let granted = charge_rows(&[ask(&table, Some(key))], START) + other.join().expect("it ends");
        assert_eq!(table.budget.rows(), 1);
        assert_eq!(used(&table, key), Some(granted));
    });
}
