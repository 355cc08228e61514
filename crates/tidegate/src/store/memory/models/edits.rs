//! Models of decisions beside edits, resets and refreshes of a limit.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Amount, Capacity, Intent, ItemSpec, Policy, Timestamp, Unit, Verdict, Wait};

use super::super::engine::{self, ObservedItem};
use super::super::limit_table::LimitTable;
use super::super::line::Tag;
use super::super::row_epoch::EpochCause;
use super::{
    START, after, ask, at, attempt, begin_epoch, beside, charge, charge_rows, decide, explore, limit_of,
    seed, table, tag, total, used, used_by_all,
};

/// A limit of this size or more counts in two words.
const LONG: Amount = 1 << 31;

/// A line of two rows of two words looks as if this tag were in the second of three rows of one word.
const AMBIGUOUS: Tag = Tag { low: 1, high: 0 };

/// Converts the leaf of a key to the present epoch.
fn convert(table: &LimitTable, key: Tag) {
    drop(table.lock_leaf(key));
}

#[test]
fn snapshot_that_is_current_is_of_one_epoch() {
    let [old, new] =
        [3, 7].map(|limit| limit_of([total(limit), ItemSpec::of(Policy::Total, limit + 1).per_key()]));
    explore(2, move || {
        let table = table(&old);
        let new = Arc::clone(&new);
        let other = beside(&table, move |table| begin_epoch(table, &new, EpochCause::Put, START));
        let reader = table.snapshot.read();
        let is_valid = reader.is_valid_at(START);
        let seen = (reader.epoch(), [0, 1].map(|item| reader.item(item).capacity()));
        if reader.is_current() && is_valid {
            let of = |epoch, limit| (epoch, [limit, limit + 1].map(Capacity::AtMost));
            assert!(seen == of(1, 3) || seen == of(2, 7), "{seen:?}");
        }
        other.join().expect("it ends");
    });
}

/// Rows of one word become rows of two words.
#[test]
fn edit_to_wider_rows_loses_no_charge() {
    edit_shape_beside([4, LONG], charge);
}

/// Rows of two words become rows of one word.
#[test]
fn edit_to_narrower_rows_loses_no_charge() {
    edit_shape_beside([LONG, 4], charge);
}

#[test]
fn edit_to_wider_rows_beside_an_order_loses_no_charge() {
    edit_shape_beside([4, LONG], |table, key, _| charge_rows(&[ask(table, Some(key))], START));
}

fn edit_shape_beside(limits: [Amount; 2], decide: fn(&LimitTable, Tag, Amount) -> Amount) {
    let [old, new] = limits.map(|limit| limit_of([total(limit).per_key()]));
    explore(1, move || {
        let (table, key, new) = (table(&old), AMBIGUOUS, Arc::clone(&new));
        seed(&table, key, 1);
        let other = beside(&table, move |table| {
            begin_epoch(table, &new, EpochCause::Put, START);
            convert(table, key);
            charge(table, key, 1)
        });
        let granted = decide(&table, key, 1) + other.join().expect("it ends");
        assert_eq!(used(&table, key), Some(1 + granted));
    });
}

/// The row of all keys is converted.
#[test]
fn edit_of_the_row_of_all_keys_loses_no_charge() {
    let [old, new] = [2, 4].map(|limit| limit_of([total(limit)]));
    explore(1, move || {
        let (table, new) = (table(&old), Arc::clone(&new));
        let other = beside(&table, move |table| {
            begin_epoch(table, &new, EpochCause::Put, START);
            table.all.lock().convert(table, &table.epoch());
            charge_rows(&[ask(table, None)], START)
        });
        let granted = charge_rows(&[ask(&table, None)], START);
        let granted = granted + other.join().expect("it ends");
        assert_eq!(used_by_all(&table), granted);
    });
}

/// The words of a bucket would be a large count. Both rules grant.
#[test]
fn refusal_during_an_edit_is_by_one_rule() {
    let bucket = Policy::Bucket { window: Duration::from_secs(4), burst: None };
    let bucket = ItemSpec { name: Some("units".into()), ..ItemSpec::of(bucket, 4) };
    let (old, new) = (limit_of([total(4).per_key()]), limit_of([bucket.per_key()]));
    for decides_rows in [false, true] {
        let (old, new) = (Arc::clone(&old), Arc::clone(&new));
        explore(1, move || {
            let (table, key, new) = (table(&old), tag(0, 1), Arc::clone(&new));
            seed(&table, key, 1);
            let other = beside(&table, move |table| {
                begin_epoch(table, &new, EpochCause::Put, START);
                convert(table, key);
                charge(table, key, 1)
            });
            if decides_rows {
                let decision = decide(&[ask(&table, Some(key))], START);
                assert!(!matches!(decision, Some(engine::RowsDecision::Refused(..))), "{decision:?}");
            } else {
                let verdict = attempt(&table, key, 1, START);
                assert!(!matches!(verdict, Ok(Verdict::Denied(_))), "{verdict:?}");
            }
            other.join().expect("it ends");
        });
    }
}

/// The rules are read item by item, and may be those of two epochs.
#[test]
fn edit_from_each_key_to_all_keys_ends_no_decision() {
    let limits = [limit_of([total(4).per_key()]), limit_of([total(4)])];
    for turn in [0, 1] {
        let [old, new] = [turn, 1 - turn].map(|index: usize| Arc::clone(&limits[index]));
        explore(1, move || {
            let (table, key, new) = (table(&old), tag(0, 1), Arc::clone(&new));
            let other = beside(&table, move |table| begin_epoch(table, &new, EpochCause::Put, START));
            charge_rows(&[ask(&table, Some(key))], START);
            other.join().expect("it ends");
        });
    }
}

#[test]
fn readings_during_an_edit_are_by_one_rule() {
    let [old, new] = [4, 7].map(|limit| limit_of([total(limit)]));
    for intent in [Intent::Acquire, Intent::Peek] {
        let (old, new) = (Arc::clone(&old), Arc::clone(&new));
        explore(1, move || {
            let (table, new) = (table(&old), Arc::clone(&new));
            let other = beside(&table, move |table| begin_epoch(table, &new, EpochCause::Put, START));
            let mut seen = Vec::new();
            let mut observer =
                |item: &ObservedItem<'_>| seen.push((item.epoch, item.item, item.reading.capacity));
            let asks = [ask(&table, None)];
            let decision = engine::decide_rows(&asks, intent, START, &mut Some(&mut observer));
            if decision.is_some() {
                assert_eq!(seen, [(1, 0, Capacity::AtMost(4))]);
            }
            other.join().expect("it ends");
        });
    }
}

#[test]
fn reset_beside_a_charge_drops_what_was_charged_before() {
    let limit = limit_of([total(4).per_key()]);
    explore(1, move || {
        let (table, key, same) = (table(&limit), tag(0, 1), Arc::clone(&limit));
        seed(&table, key, 2);
        let other = beside(&table, move |table| {
            begin_epoch(table, &same, EpochCause::Reset, START);
            convert(table, key);
            charge(table, key, 1)
        });
        let granted = charge(&table, key, 1);
        let later = other.join().expect("it ends");
        let used = used(&table, key).unwrap_or_default();
        assert!((later..=later + granted).contains(&used), "{used}");
    });
}

#[test]
fn refusal_during_a_refresh_waits_for_the_end_of_its_window() {
    const SECOND: u64 = 1_000_000_000;
    let limit = limit_of([ItemSpec::of(Policy::Calendar(Unit::Second), 1).per_key()]);
    for decides_rows in [false, true] {
        let limit = Arc::clone(&limit);
        explore(1, move || {
            let (table, key) = (table(&limit), tag(0, 1));
            seed(&table, key, 1);
            let later = after(1_000);
            let other = beside(&table, move |table| {
                table.refresh(later);
                attempt(table, key, 1, later)
            });
            let now = at(START.ticks() + 1);
            let wait = if decides_rows {
                match decide(&[ask(&table, Some(key))], now) {
                    Some(engine::RowsDecision::Refused(refusal, at)) => Some((refusal.denial.wait, at)),
                    Some(engine::RowsDecision::Granted(at)) => {
                        assert!(at >= later);
                        None
                    }
                    None => None,
                }
            } else {
                match attempt(&table, key, 1, now) {
                    Ok(Verdict::Denied(wait)) => Some((wait, now)),
                    Ok(Verdict::Granted) => panic!("the window was not over"),
                    Err(_) => None,
                }
            };
            if let Some((wait, at)) = wait {
                let end = Timestamp::from_ticks((at.ticks() / SECOND + 1) * SECOND);
                assert_eq!(wait, Wait::Until(end), "at {at:?}");
            }
            assert_ne!(other.join().expect("it ends"), Ok(Verdict::Denied(Wait::Never)));
        });
    }
}

/// The row of a new key is made with its first charge.
#[test]
fn first_charge_during_an_edit_of_the_shape_of_rows_counts() {
    let [old, new] = [4, LONG].map(|limit| limit_of([total(limit).per_key()]));
    explore(1, move || {
        let (table, key, new) = (table(&old), AMBIGUOUS, Arc::clone(&new));
        let other = beside(&table, move |table| {
            begin_epoch(table, &new, EpochCause::Put, START);
            charge_rows(&[ask(table, Some(key))], START)
        });
        let granted = charge_rows(&[ask(&table, Some(key))], START) + other.join().expect("it ends");
        assert_eq!(used(&table, key).unwrap_or_default(), granted);
    });
}
