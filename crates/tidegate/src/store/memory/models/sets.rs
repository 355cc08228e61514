//! Models of orders over several rows: all rows are charged, or none.

use std::sync::Arc;

use tidegate_core::{Amount, ItemSpec, Limit, Policy};

use super::super::engine::RowsDecision;
use super::super::limit_table::LimitTable;
use super::super::shared_rows::SharedLines;
use super::super::sync::loom_sync::beside;
use super::{
    START, ask, charge_rows, decide, explore, limit_of, seed, table, table_in, tag, total, used, used_by_all,
};

/// Two limits, whose rows of all keys share a line or do not.
fn tables(limits: [&Arc<Limit>; 2], share_line: bool) -> [Arc<LimitTable>; 2] {
    let lines = [SharedLines::new(), SharedLines::new()];
    let second = &lines[usize::from(!share_line)];
    [(&lines[0], limits[0]), (second, limits[1])].map(|(lines, limit)| Arc::new(table_in(lines, limit)))
}

/// Charges both limits, in this order.
fn charge_both(tables: &[Arc<LimitTable>; 2], order: [usize; 2]) -> Amount {
    charge_rows(&order.map(|index| ask(&tables[index], None)), START)
}

fn used_of_both(tables: &[Arc<LimitTable>; 2]) -> (Amount, Amount) {
    (used_by_all(&tables[0]), used_by_all(&tables[1]))
}

#[test]
fn charges_of_rows_that_share_a_line_add_up() {
    let limit = limit_of([total(2)]);
    explore(2, move || {
        let both = tables([&limit; 2], true);
        let shared = both.clone();
        let other = beside(move || charge_rows(&[ask(&shared[1], None)], START));
        let first = charge_rows(&[ask(&both[0], None)], START);
        let second = other.join().expect("it ends");
        assert_eq!(used_of_both(&both), (first, second));
    });
}

/// Two orders over the same rows, written in opposite order.
#[test]
fn set_of_rows_is_charged_whole_or_not_at_all() {
    let [few, many] = [1, 2].map(|limit| limit_of([total(limit)]));
    for share_line in [false, true] {
        let (few, many) = (Arc::clone(&few), Arc::clone(&many));
        explore(2, move || {
            let both = tables([&few, &many], share_line);
            let shared = both.clone();
            let other = beside(move || charge_both(&shared, [1, 0]));
            let granted = charge_both(&both, [0, 1]) + other.join().expect("it ends");
            assert!(granted <= 1);
            assert_eq!(used_of_both(&both), (granted, granted));
        });
    }
}

/// Another thread charges the row that the set locks last, or first.
#[test]
fn set_of_rows_beside_a_charge_of_one_is_charged_whole_or_not_at_all() {
    let limit = limit_of([total(3)]);
    for single in [0, 1] {
        let limit = Arc::clone(&limit);
        explore(2, move || {
            let both = tables([&limit; 2], false);
            let shared = both.clone();
            let other = beside(move || charge_rows(&[ask(&shared[single], None)], START));
            let granted = charge_both(&both, [0, 1]);
            let others = other.join().expect("it ends");
            let mut expected = [granted; 2];
            expected[single] += others;
            assert_eq!(used_of_both(&both), expected.into());
        });
    }
}

/// A row of a key and a row of all keys.
#[test]
fn row_of_a_key_and_row_of_all_keys_are_charged_together() {
    let limit = limit_of([total(1), ItemSpec::of(Policy::Total, 2).per_key()]);
    explore(2, move || {
        let (table, key) = (table(&limit), tag(0, 1));
        seed_blank(&table, key);
        let shared = Arc::clone(&table);
        let other = beside(move || charge_rows(&[ask(&shared, Some(key))], START));
        let granted = charge_rows(&[ask(&table, Some(key))], START) + other.join().expect("it ends");
        assert!(granted <= 1);
        assert_eq!((used_by_all(&table), used(&table, key)), (granted, Some(granted)));
    });
}

fn seed_blank(table: &LimitTable, key: super::Tag) {
    seed(table, key, 0);
}

/// A set charges the last unit of two rows. A refused order over both names the first of them.
#[test]
fn refused_order_sees_all_of_a_set_or_nothing() {
    let limit = limit_of([total(1)]);
    for order in [[0, 1], [1, 0]] {
        let limit = Arc::clone(&limit);
        explore(2, move || {
            let both = tables([&limit; 2], false);
            let shared = both.clone();
            let other = beside(move || charge_both(&shared, [0, 1]));
            let decision = decide(&order.map(|index| ask(&both[index], None)), START);
            if let Some(RowsDecision::Refused(refusal, _)) = decision {
                assert_eq!(refusal.denial.first.row, 0);
            }
            other.join().expect("it ends");
        });
    }
}
