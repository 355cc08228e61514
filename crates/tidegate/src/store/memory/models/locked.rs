//! Models of the locked path beside the engine.

use std::sync::Arc;

use tidegate_core::{Amount, Ask, Order, Per};

use super::super::engine::admit;
use super::super::limit_table::LimitTable;
use super::super::locked_path::{LockedOrder, LockedResult};
use super::super::row_access::{MissingRow, with_row};
use super::super::row_epoch::EpochCause;
use super::super::{Memory, MemoryStore, StoreState};
use super::{
    START, Tag, ask, begin_epoch, beside, charge, charge_rows, explore, limit_of, seed, table, tag, total,
    used, used_by_all,
};
use crate::clock::ManualClock;
use crate::reply::{Detail, Replies};

const KEY: &[u8] = b"key";

/// A store that has the time, but no limits.
fn store() -> Arc<StoreState> {
    MemoryStore::new(ManualClock::at(START), Memory { capacity_bytes: 1 << 20, secret: [1, 2] }).state
}

/// The units that one attempt on the locked path charged.
fn charge_locked(store: &StoreState, table: &LimitTable, key: Option<Tag>) -> Amount {
    let asks = [Ask::one("model", None)];
    let mut replies = Replies::new(Detail::Verdicts);
    let mut order = LockedOrder::new();
    order.enter_all(&[ask(table, key)]);
    let result = order.decide(store, &Order::acquire(&asks), START, None, &mut replies);
    Amount::from(matches!(result, LockedResult::Decided(reply) if reply.is_granted()))
}

#[test]
fn locked_order_beside_a_charge_of_its_row_both_count() {
    let limit = limit_of([total(3).per_key()]);
    explore(2, move || {
        let (store, table, key) = (store(), table(&limit), tag(0, 1));
        seed(&table, key, 0);
        let other = beside(&table, move |table| charge_locked(&store, table, Some(key)));
        let granted = charge(&table, key, 1) + other.join().expect("it ends");
        assert_eq!(used(&table, key), Some(granted));
    });
}

#[test]
fn locked_order_beside_a_charge_of_the_row_of_all_keys_both_count() {
    let limit = limit_of([total(3)]);
    explore(2, move || {
        let (store, table) = (store(), table(&limit));
        let other = beside(&table, move |table| charge_locked(&store, table, None));
        let granted = charge_rows(&[ask(&table, None)], START) + other.join().expect("it ends");
        assert_eq!(used_by_all(&table), granted);
    });
}

/// Both threads bring the same new key.
#[test]
fn locked_order_of_a_new_key_beside_its_insertion_makes_one_row() {
    let limit = limit_of([total(3).per_key()]);
    explore(1, move || {
        let (store, table, key) = (store(), table(&limit), tag(0, 1));
        let other = beside(&table, move |table| charge_locked(&store, table, Some(key)));
        assert!(admit(&table, key, START));
        let granted = charge(&table, key, 1) + other.join().expect("it ends");
        assert_eq!(table.budget.rows(), u64::from(used(&table, key).is_some()));
        assert_eq!(used(&table, key).unwrap_or_default(), granted);
    });
}

#[test]
fn locked_order_during_an_edit_of_the_shape_of_rows_loses_no_charge() {
    let [old, new] = [4, 1 << 31].map(|limit| limit_of([total(limit).per_key()]));
    explore(1, move || {
        let (store, table, key, new) = (store(), table(&old), tag(0, 1), Arc::clone(&new));
        seed(&table, key, 1);
        let other = beside(&table, move |table| {
            begin_epoch(table, &new, EpochCause::Put, START);
            drop(table.lock_leaf(key));
            charge(table, key, 1)
        });
        let granted = charge_locked(&store, &table, Some(key)) + other.join().expect("it ends");
        assert_eq!(used(&table, key), Some(1 + granted));
    });
}

#[test]
fn reset_of_one_row_beside_a_charge_drops_what_was_charged_before() {
    let limit = limit_of([total(4).per_key()]);
    explore(2, move || {
        let table = table(&limit);
        let key = table.printer.print(KEY);
        seed(&table, key, 2);
        let other = beside(&table, move |table| {
            let reset = with_row(table, Some(KEY), START, MissingRow::Ignore, |epoch, _, row, _| {
                row.reset(&epoch.limit, Per::Key);
            });
            assert!(reset.is_some());
        });
        let granted = charge(&table, key, 1);
        other.join().expect("it ends");
        assert!(used(&table, key).unwrap_or_default() <= granted);
    });
}
