//! Models of sliding logs, whose entries are in blocks of a slab.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::spec::Precision;
use tidegate_core::{Amount, Charge, ItemSpec, Policy, Verdict, Wait};

use super::super::engine::{ResolvedAsk, RowsDecision, admit};
use super::super::limit_table::LimitTable;
use super::super::line::Tag;
use super::super::row_epoch::EpochCause;
use super::{
    START, WINDOW, after, ask, at, attempt, begin_epoch, beside, charge_rows, decide, explore, limit_of,
    named, seed, table, tag, used,
};

fn sliding(limit: Amount) -> ItemSpec {
    let window = Duration::from_millis(WINDOW);
    named(ItemSpec::of(Policy::Sliding { window, precision: Precision::Exact }, limit)).per_key()
}

/// The units that one attempt charged half a window after the start.
fn charge_later(table: &LimitTable, key: Tag) -> Amount {
    Amount::from(attempt(table, key, 1, after(WINDOW / 2)) == Ok(Verdict::Granted))
}

/// The log moves from the row into a block.
#[test]
fn charges_of_one_log_add_up() {
    let limit = limit_of([sliding(3)]);
    explore(2, move || {
        let (table, key) = (table(&limit), tag(0, 1));
        seed(&table, key, 1);
        let other = beside(&table, move |table| charge_later(table, key));
        let granted = charge_later(&table, key) + other.join().expect("it ends");
        assert_eq!(used(&table, key), Some(1 + granted));
    });
}

/// The last unit is charged while a judgement reads the block.
#[test]
fn refusal_during_a_charge_of_a_log_is_of_one_state() {
    let limit = limit_of([sliding(3)]);
    explore(2, move || {
        let (table, key) = (table(&limit), tag(0, 1));
        seed(&table, key, 2);
        let other = beside(&table, move |table| charge_later(table, key));
        let verdict = attempt(&table, key, 1, after(WINDOW / 2));
        let others = other.join().expect("it ends");
        if let Ok(Verdict::Denied(wait)) = verdict {
            assert_eq!(others, 1);
            assert_eq!(wait, Wait::Until(at(after(WINDOW).ticks() + 1)));
        }
        assert_eq!(used(&table, key), Some(2 + others + Amount::from(verdict == Ok(Verdict::Granted))));
    });
}

/// The log of a key expires. Its block goes to a key that uses it up at a later instant. `now` is the time of the decision
/// on the first key: before that instant, or at it.
#[test]
fn judgement_of_a_block_that_changes_its_log_counts_for_nothing() {
    let (late, latest) = (after(2 * WINDOW), after(2 * WINDOW + 100));
    let limit = limit_of([sliding(3)]);
    for (now, bound) in [(at(START.ticks() + 1), late), (latest, latest)] {
        let limit = Arc::clone(&limit);
        explore(1, move || {
            let (table, key, next) = (table(&limit), tag(0, 1), tag(0, 2));
            seed(&table, key, 2);
            let other = beside(&table, move |table| {
                let (mut locked, epoch) = table.lock_leaf(key);
                locked.evict_if_due(table.context(&epoch, late));
                drop(locked);
                assert!(admit(table, next, late));
                let all = ResolvedAsk { count: 3, ..ask(table, Some(next)) };
                assert_eq!(charge_rows(&[all], latest), 1);
            });
            match decide(&[ask(&table, Some(key))], now) {
                Some(RowsDecision::Granted(at)) => assert!(at <= bound, "{at:?}"),
                Some(refused) => panic!("{refused:?}"),
                None => {}
            }
            other.join().expect("it ends");
        });
    }
}

/// The edit changes the cost of an order.
#[test]
fn charge_of_a_log_during_an_edit_is_by_the_rule_of_its_judgement() {
    let [old, new] = [Charge::Count, Charge::Ask]
        .map(|charge| limit_of([ItemSpec { charge: Some(charge), ..sliding(9) }]));
    explore(1, move || {
        let (table, key, new) = (table(&old), tag(0, 1), Arc::clone(&new));
        seed(&table, key, 2);
        let other = beside(&table, move |table| begin_epoch(table, &new, EpochCause::Put, START));
        let granted = charge_rows(&[ResolvedAsk { count: 2, ..ask(&table, Some(key)) }], START);
        other.join().expect("it ends");
        assert_eq!(used(&table, key), Some(2 + 2 * granted));
    });
}
