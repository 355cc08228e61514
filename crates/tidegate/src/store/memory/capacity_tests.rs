//! Tests of full limits: the fill of leaves, eviction for new keys, and refusals without room.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::decide::decide;
use tidegate_core::{
    AskTotals, DecisionRow, Intent, ItemSpec, Limit, LimitSpec, Policy, Row, Tick, Timestamp,
};

use super::cache_line::{Look, Tag};
use super::fingerprint::Secret;
use super::insert::{Missing, begin, with_row};
use super::leaf::{Leaf, Means, Reserved};
use super::limit_table::LimitTable;
use super::lockfree::{self, Plea, Quick};
use super::memory_budget::Budget;
use super::shared_rows::SharedLines;
use crate::store::order_path::RowRoom;

const START: Timestamp = Timestamp::from_ticks(1_000_000_000_000);
const WINDOW: Duration = Duration::from_secs(60);
const HALF_A_STORE: usize = 256 << 10;

fn after(time: Duration) -> Timestamp {
    START.plus(Tick::NANOSECOND.span(time))
}

/// So many in a minute from the first hit, for each key.
fn table(most_keys: Option<u64>) -> LimitTable {
    let item = ItemSpec::of(Policy::Interval { window: WINDOW }, 5).per_key();
    let spec = LimitSpec { max_keys: most_keys, ..LimitSpec::named("crowd").with(item) };
    tenant_of(spec, HALF_A_STORE)
}

/// A limit that may take so many bytes.
fn tenant_of(spec: LimitSpec, bytes: usize) -> LimitTable {
    let limit = Arc::new(Limit::new(spec, Tick::NANOSECOND).expect("it makes sense"));
    let whole = Arc::new(Budget::new(2 * bytes));
    LimitTable::new(&limit, 1, 0, Secret::of([1, 2]), &whole, SharedLines::new().place(), START)
}

/// Two items for each key, neither of which becomes fresh: no row fits a cell.
fn wide_tenant(bytes: usize) -> LimitTable {
    let item = |limit| ItemSpec {
        name: Some(format!("at-most-{limit}")),
        ..ItemSpec::of(Policy::Total, limit).per_key()
    };
    tenant_of(LimitSpec::named("crowd").with(item(5)).with(item(50)), bytes)
}

/// Whether a key found a place for a row at full width. It is charged.
fn comes_wide(table: &LimitTable, number: u64) -> bool {
    with_row(table, Some(&number.to_le_bytes()), START, MissingRow::Create, |epoch, seat, row, now| {
        let line = DecisionRow { limit: &epoch.limit, scope: seat, row, totals: AskTotals::of(1) };
        decide(&mut [line], Intent::Acquire, None, now, &mut |_| {})
    })
    .is_some()
}

/// Notes in a key's row what somebody does there.
fn note(table: &LimitTable, number: u64, change: fn(&mut Row)) {
    let key = number.to_le_bytes();
    let noted = with_row(table, Some(&key), START, MissingRow::Ignore, |_, _, row, _| change(row));
    assert!(noted.is_some(), "key {number} has no row");
}

fn tag(table: &LimitTable, number: u64) -> Tag {
    table.printer.print(&number.to_le_bytes())
}

fn plea(table: &LimitTable, tag: Tag) -> Plea<'_> {
    Plea { table, key: None, tag: Some(tag), count: 1 }
}

/// Whether a new key found a place.
fn comes(table: &LimitTable, number: u64, now: Timestamp) -> bool {
    let tag = tag(table, number);
    begin(&plea(table, tag), tag, now).is_some()
}

/// Charges a key that is there.
fn charge(table: &LimitTable, number: u64, now: Timestamp) {
    let quick = lockfree::decide(&[plea(table, tag(table, number))], Intent::Acquire, now, &mut None);
    assert!(matches!(quick, Quick::Granted(_)), "{quick:?}");
}

/// What a key without a row is told.
fn turned_away(table: &LimitTable, number: u64, now: Timestamp) -> RowRoom {
    let (tag, epoch) = (tag(table, number), table.epoch());
    let means = Means { epoch: &epoch, budget: &table.budget, now };
    match table.leaf_or_new(tag).own().reserve(tag, means) {
        Reserved::Crowded(room) => room,
        Reserved::Here | Reserved::Below => panic!("there was room"),
    }
}

/// How many lines are looked at in vain for a key that is not there.
fn walk(table: &LimitTable, number: u64) -> usize {
    let tag = tag(table, number);
    let leaf: &Leaf = table.leaf(tag).expect("there are rows");
    1 + leaf.within_reach(tag).take_while(|line| matches!(line.look_closely(tag), Look::Passed)).count()
}

/// A limit that has taken all it may, and how many keys it has.
fn crowded() -> (LimitTable, u64) {
    let table = table(None);
    let came = (0..40_000).filter(|number| comes(&table, *number, START)).count() as u64;
    assert!(came < 20_000, "there was room for {came}");
    (table, came)
}

/// Leaves that cannot grow keep some of their places free, so that nobody walks far for a row that is not there, however many were
/// turned away.
#[test]
fn leaf_without_memory_does_not_overfill() {
    let (table, came) = crowded();
    assert_eq!(came, table.budget.rows());
    let bytes_a_row = HALF_A_STORE as u64 / came;
    assert!((22..32).contains(&bytes_a_row), "{came} rows, {bytes_a_row} bytes for each");
    let steps: usize = (50_000..51_000).map(|number| walk(&table, number)).sum();
    assert!(steps < 12_000, "{steps} lines for a thousand keys");
}

/// A fresh row within reach gives its place, and nothing else is taken for it.
#[test]
fn fresh_row_is_evicted_for_new_key() {
    let (table, came) = crowded();
    let taken = table.budget.taken();
    let now = after(WINDOW);
    let later = (100_000..100_000 + came).filter(|number| comes(&table, *number, now)).count() as u64;
    assert!(later >= came * 9 / 10, "{later} of {came}");
    assert_eq!(table.budget.taken(), taken);
}

/// Whoever is turned away is told when a row will be fresh, also where rows were charged since anybody last looked.
#[test]
fn refusal_without_room_reports_true_wait() {
    const KEYS: u64 = 3_000;
    for most_keys in [Some(KEYS), None] {
        let table = table(most_keys);
        let keys = (0..30_000).filter(|number| comes(&table, *number, START)).collect::<Vec<_>>();
        assert!(keys.len() as u64 >= KEYS);
        for round in 1..=3 {
            // Everybody's window is over, and everybody comes again.
            let again = after(round * WINDOW);
            for number in &keys {
                charge(&table, *number, again);
            }
            let (now, fresh_at) =
                (after(round * WINDOW + Duration::from_secs(1)), after((round + 1) * WINDOW));
            for number in 50_000..50_020 {
                assert_eq!(turned_away(&table, number, now), RowRoom::NoneUntil(fresh_at), "key {number}");
            }
        }
    }
}

/// What does not fit into cells takes most of what its limit may take, and is paid for too.
#[test]
fn overflow_rows_are_charged_to_memory_budget() {
    for parts in 8..16 {
        let bytes = parts * HALF_A_STORE / 2;
        let table = wide_tenant(bytes);
        let came = (0..30_000).filter(|number| comes_wide(&table, *number)).count();
        assert!((1_000..15_000).contains(&came), "{came} rows in {bytes} bytes");
        let taken = table.budget.taken();
        assert!(taken <= bytes * 11 / 10, "{taken} of {bytes} bytes, for {came} rows");
    }
}

/// To move a row that does not fit a cell takes long: a leaf hands them to the next level before there are many.
#[test]
fn few_overflow_rows_are_migrated_at_once() {
    let table = wide_tenant(16 * HALF_A_STORE);
    let came = (0..5_000).filter(|number| comes_wide(&table, *number)).count();
    let mut leaves = Vec::new();
    table.each_leaf(&mut |leaf| leaves.push(leaf.own().inner.shelf.rows()));
    assert_eq!((came, leaves.iter().sum::<usize>()), (5_000, 5_000));
    assert!(leaves.iter().all(|rows| *rows < 1_500), "{leaves:?}");
}

/// As long as anybody holds something there, whoever is turned away is told to wait for them, and no longer.
#[test]
fn refusal_without_room_names_source_of_room() {
    let table = wide_tenant(HALF_A_STORE);
    let keys: Vec<u64> = (0..5_000).filter(|number| comes_wide(&table, *number)).collect();
    let new = 10_000;
    assert_eq!(turned_away(&table, new, START), RowRoom::None);
    let leaf = table.leaf_or_new(tag(&table, new));
    let beside = |number: &&u64| std::ptr::eq(table.leaf_or_new(tag(&table, **number)), leaf);
    let mut holders: Vec<u64> = keys.iter().filter(beside).step_by(7).copied().collect();
    assert!(holders.len() > 10, "{} in one leaf", holders.len());
    for number in &holders {
        note(&table, *number, Row::add_hold);
    }
    while !holders.is_empty() {
        assert_eq!(
            turned_away(&table, new, START),
            RowRoom::NoneUntilRelease,
            "{} hold something",
            holders.len()
        );
        // From both ends: those that came last are not those that are found first.
        let index = if holders.len().is_multiple_of(2) { 0 } else { holders.len() - 1 };
        note(&table, holders.remove(index), Row::remove_hold);
    }
    assert_eq!(turned_away(&table, new, START), RowRoom::None);
}
