//! Models of the rows of one limit: lookup, charge, move and eviction.

use std::sync::Arc;

use tidegate_core::{Intent, Limit, Verdict};

use super::super::cache_line::Tag;
use super::super::insert::admit;
use super::super::leaf::Means;
use super::super::limit_table::Tenant;
use super::super::lockfree::{self, Plea, Quick};
use super::super::row_epoch::Because;
use super::{
    START, at, beside, charged, decide, explore, interval_per_key, seed, table, tag, total_per_key, used,
};

/// What is granted is counted, and no more is granted than there is.
#[test]
fn charges_of_one_row_add_up() {
    let limit = total_per_key(2);
    explore(3, move || {
        let (table, key) = (table(&limit), tag(0, 1));
        seed(&table, key, 0);
        let other = beside(&table, move |table| charged(table, key, 1) + charged(table, key, 1));
        let own = charged(&table, key, 1);
        let granted = own + other.join().expect("it ends");
        assert!(granted <= 2);
        assert_eq!(used(&table, key), Some(granted));
    });
}

/// A key is not refused for what another key has spent, wherever the rows are moved. Threads are interrupted once: twice is more than half an hour of
/// orders, and what a line shows to somebody in the midst of a change is tried with three in `lines.rs`.
#[test]
fn nobody_is_refused_for_another() {
    let limit = total_per_key(2);
    explore(1, move || {
        let (table, key, full) = (table(&limit), tag(0, 1), tag(0, 2));
        seed(&table, tag(1, 3), 1);
        seed(&table, key, 1);
        seed(&table, full, 2);
        // With two lines the first row goes to the second, and the others move up: the full one into our place.
        let mover = beside(&table, |table| admit(table, tag(0, 4), START));
        let verdict = decide(&table, key, 1, START);
        assert!(matches!(verdict, None | Some(Verdict::Granted)), "{verdict:?}");
        assert!(mover.join().expect("it ends"));
        assert_eq!(used(&table, key), Some(if verdict.is_some() { 2 } else { 1 }));
        assert_eq!(used(&table, full), Some(2));
    });
}

/// A row that gives its place to another key was not charged, and one that is charged stays.
#[test]
fn a_fresh_row_is_forgotten_or_charged() {
    let limit = total_per_key(2);
    explore(2, move || {
        let (table, key, new) = (table(&limit), tag(0, 1), tag(0, 2));
        seed(&table, tag(0, 3), 1);
        seed(&table, tag(0, 4), 1);
        seed(&table, key, 0);
        let other = beside(&table, move |table| admit(table, new, START));
        let granted = charged(&table, key, 1);
        assert!(other.join().expect("it ends"));
        assert_eq!(used(&table, new), Some(0));
        match used(&table, key) {
            Some(count) => assert_eq!(count, granted),
            None => assert_eq!(granted, 0),
        }
    });
}

/// A new key beside a row that is decided on.
#[test]
fn a_new_row_leaves_its_neighbours_alone() {
    let limit = total_per_key(2);
    explore(2, move || {
        let (table, key, new) = (table(&limit), tag(0, 1), tag(0, 2));
        seed(&table, key, 1);
        let other = beside(&table, move |table| admit(table, new, START));
        let granted = charged(&table, key, 1);
        assert!(other.join().expect("it ends"));
        assert_eq!(granted, 1, "nothing was in the way");
        assert_eq!((used(&table, key), used(&table, new)), (Some(2), Some(0)));
    });
}

/// Two threads come with the same new key: there is one row, and it counts for both.
#[test]
fn a_new_key_has_one_row() {
    let limit = total_per_key(2);
    explore(2, move || {
        let (table, key) = (table(&limit), tag(0, 1));
        let come = move |table: &Tenant| {
            assert!(admit(table, key, START));
            charged(table, key, 1)
        };
        let other = beside(&table, come);
        let granted = come(&table) + other.join().expect("it ends");
        assert_eq!(table.budget.rows(), 1);
        assert_eq!(used(&table, key), Some(granted));
    });
}

/// A leaf gets more lines while somebody decides on one of its rows.
#[test]
fn growth_loses_no_charge() {
    while_a_row_is_added_to(3);
}

/// A leaf hands its rows to the next level while somebody decides on one of them.
#[test]
fn a_split_loses_no_charge() {
    while_a_row_is_added_to(5);
}

fn while_a_row_is_added_to(rows: u32) {
    let limit = total_per_key(4);
    explore(2, move || {
        let (table, key, new) = (table(&limit), tag(1, 1), tag(0, 9));
        seed(&table, key, 1);
        (1..rows).for_each(|number| seed(&table, tag(u64::from(number) % 2, number + 1), 2));
        let other = beside(&table, move |table| admit(table, new, START));
        let granted = charged(&table, key, 1);
        assert!(other.join().expect("it ends"));
        assert_eq!(used(&table, key), Some(1 + granted));
        assert_eq!(used(&table, new), Some(0));
        for number in 1..rows {
            assert_eq!(used(&table, tag(u64::from(number) % 2, number + 1)), Some(2));
        }
    });
}

/// Somebody who comes late with an early time does not profit from what was forgotten since.
#[test]
fn what_was_forgotten_is_not_spent_again() {
    const WINDOW: u64 = 1_000_000;
    let limit = interval_per_key(1, 1);
    let (early, late) = (at(START.ticks() + WINDOW / 2), at(START.ticks() + 2 * WINDOW));
    explore(2, move || {
        let (table, key) = (table(&limit), tag(0, 1));
        seed(&table, key, 1);
        let other = beside(&table, move |table| {
            // The row is fresh by now, gives way, and is made again.
            let edition = table.edition();
            let means = Means { edition: &edition, budget: &table.budget, now: late };
            table.leaf(key).expect("there is a row").own().drop_fresh_if_due(means);
            assert!(admit(table, key, late));
        });
        let plea = Plea { tenant: &table, key: None, tag: Some(key), count: 1 };
        let quick = lockfree::decide(&[plea], Intent::Acquire, early, &mut None);
        other.join().expect("it ends");
        if let Quick::Granted(at) = quick {
            assert!(at >= late, "the window was not over");
        }
    });
}

/// A limit is edited while somebody decides by the rules as they were. A blank row says the same under both, but what is charged to it
/// is written otherwise.
#[test]
fn an_edit_loses_no_charge() {
    let (limit, next) = edited();
    explore(2, move || {
        let (table, key) = (table(&limit), tag(0, 1));
        seed(&table, key, 0);
        let next = Arc::clone(&next);
        let editor = beside(&table, move |table| edit(table, next, key));
        let granted = charged(&table, key, 1);
        assert!(editor.join().expect("it ends"));
        assert_eq!(used(&table, key), Some(granted));
    });
}

/// A limit, and its next version, whose counts take more bits.
fn edited() -> (Arc<Limit>, Arc<Limit>) {
    let (limit, next) = (total_per_key(4), total_per_key(4000));
    let next = limit.next_version(next.spec().clone()).expect("it makes sense");
    (limit, Arc::new(next))
}

/// Edits a limit. Rows follow when somebody comes to them, so comes to one.
fn edit(table: &Tenant, next: Arc<Limit>, key: Tag) -> bool {
    table.publish(next, Because::Put, || START);
    admit(table, key, START)
}

/// A row is not read by the rules of another edition: what is used of it is the same in both, and there is more.
#[test]
fn an_edit_refuses_nobody() {
    let (limit, next) = edited();
    explore(1, move || {
        let (table, key) = (table(&limit), tag(0, 1));
        seed(&table, key, 2);
        let next = Arc::clone(&next);
        let editor = beside(&table, move |table| edit(table, next, key));
        let verdict = decide(&table, key, 1, START);
        assert!(matches!(verdict, None | Some(Verdict::Granted)), "{verdict:?}");
        assert!(editor.join().expect("it ends"));
        assert_eq!(used(&table, key), Some(if verdict.is_some() { 3 } else { 2 }));
    });
}

/// A row that is there is not said to be missing, while a leaf grows or splits.
#[test]
fn no_row_is_missed() {
    for rows in [3, 5] {
        let limit = total_per_key(4);
        explore(2, move || {
            let (table, key) = (table(&limit), tag(1, 1));
            seed(&table, key, 1);
            (1..rows).for_each(|number| seed(&table, tag(u64::from(number) % 2, number + 1), 2));
            let other = beside(&table, |table| admit(table, tag(0, 9), START));
            assert!(!table.leaf(key).expect("it has rows").lacks(key));
            assert!(other.join().expect("it ends"));
        });
    }
}
