//! Tests of full limits: the fill of leaves, eviction for new keys, and refusals without room.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::decide::decide;
use tidegate_core::{
    AskTotals, DecisionRow, Intent, ItemSpec, Limit, LimitSpec, Policy, Row, Tick, Timestamp,
};

use super::engine::{self, ResolvedAsk, RowsDecision, admit};
use super::fingerprint::Secret;
use super::leaf::{Leaf, Reservation};
use super::limit_table::LimitTable;
use super::line::Tag;
use super::memory_budget::Budget;
use super::row_access::{MissingRow, with_row};
use super::shared_rows::SharedLines;
use crate::store::order_path::RowRoom;

const START: Timestamp = Timestamp::from_ticks(1_000_000_000_000);
const WINDOW: Duration = Duration::from_secs(60);
const HALF_A_STORE: usize = 256 << 10;

fn after(time: Duration) -> Timestamp {
    START.plus(Tick::NANOSECOND.span(time))
}

/// Five per key in a minute from the first charge.
fn table(most_keys: Option<u64>) -> LimitTable {
    let item = ItemSpec::of(Policy::Interval { window: WINDOW }, 5).per_key();
    let spec = LimitSpec { max_keys: most_keys, ..LimitSpec::named("crowd").with(item) };
    table_of(spec, HALF_A_STORE)
}

/// A limit with this memory budget.
fn table_of(spec: LimitSpec, bytes: usize) -> LimitTable {
    let limit = Arc::new(Limit::new(spec, Tick::NANOSECOND).expect("valid"));
    let whole = Arc::new(Budget::new(2 * bytes));
    LimitTable::new(&limit, 1, 0, Secret::of([1, 2]), &whole, SharedLines::new().row(1), START)
}

/// A limit whose rows have more items than a line has words, and are never evictable.
fn table_of_full_rows(bytes: usize) -> LimitTable {
    let item = |limit| ItemSpec {
        name: Some(format!("at-most-{limit}")),
        ..ItemSpec::of(Policy::Total, limit).per_key()
    };
    let spec = (1..=6).fold(LimitSpec::named("crowd"), |spec, limit| spec.with(item(10 * limit)));
    table_of(spec, bytes)
}

/// Whether a key found a place for a full row. It is charged.
fn admits_full_row(table: &LimitTable, number: u64) -> bool {
    with_row(table, Some(&number.to_le_bytes()), START, MissingRow::Create, |epoch, seat, row, now| {
        let line = DecisionRow { limit: &epoch.limit, scope: seat, row, totals: AskTotals::of(1) };
        decide(&mut [line], Intent::Acquire, None, now, &mut |_| {})
    })
    .is_some()
}

/// Changes the row of a key.
fn note(table: &LimitTable, number: u64, change: fn(&mut Row)) {
    let key = number.to_le_bytes();
    let noted = with_row(table, Some(&key), START, MissingRow::Ignore, |_, _, row, _| change(row));
    assert!(noted.is_some(), "key {number} has no row");
}

fn tag(table: &LimitTable, number: u64) -> Tag {
    table.printer.print(&number.to_le_bytes())
}

fn ask(table: &LimitTable, tag: Tag) -> ResolvedAsk<'_> {
    ResolvedAsk { table, key: None, tag: Some(tag), count: 1 }
}

/// Whether a new key found a place. It is charged.
fn comes(table: &LimitTable, number: u64, now: Timestamp) -> bool {
    let tag = tag(table, number);
    admit(table, tag, now) && {
        charge(table, number, now);
        true
    }
}

/// Charges a key that has a row.
fn charge(table: &LimitTable, number: u64, now: Timestamp) {
    let asks = [ask(table, tag(table, number))];
    let decision = engine::decide_rows(&asks, Intent::Acquire, now, &mut None);
    assert!(matches!(decision, Some(RowsDecision::Granted(_))), "{decision:?}");
}

/// The refusal of a key without a row.
fn turned_away(table: &LimitTable, number: u64, now: Timestamp) -> RowRoom {
    let tag = tag(table, number);
    let (mut locked, epoch) = table.lock_leaf(tag);
    match locked.reserve(tag, table.context(&epoch, now)) {
        Reservation::NoRoom(room) => room,
        Reservation::Reserved | Reservation::Moved => panic!("there was room"),
    }
}

/// The number of lines that a search for a missing key visits.
fn lines_searched(table: &LimitTable, number: u64) -> usize {
    let tag = tag(table, number);
    let leaf: &Leaf = table.leaf(tag).expect("there are rows");
    leaf.lines_searched(tag)
}

/// A limit without free memory, and the number of its keys.
fn full_table() -> (LimitTable, u64) {
    let table = table(None);
    let came = (0..40_000).filter(|number| comes(&table, *number, START)).count() as u64;
    assert!(came < 20_000, "there was room for {came}");
    (table, came)
}

/// Leaves that cannot grow keep some places free, so that a search for a missing key visits few lines.
#[test]
fn leaf_without_memory_does_not_overfill() {
    let (table, came) = full_table();
    assert_eq!(came, table.budget.rows());
    let bytes_a_row = HALF_A_STORE as u64 / came;
    assert!((32..48).contains(&bytes_a_row), "{came} rows, {bytes_a_row} bytes for each");
    let steps: usize = (50_000..51_000).map(|number| lines_searched(&table, number)).sum();
    assert!(steps < 12_000, "{steps} lines for a thousand keys");
}

/// An evictable row within reach gives up its place, and no other memory is used.
#[test]
fn fresh_row_is_evicted_for_new_key() {
    let (table, came) = full_table();
    let taken = table.budget.taken();
    let now = after(WINDOW);
    let later = (100_000..100_000 + came).filter(|number| comes(&table, *number, now)).count() as u64;
    assert!(later >= came * 9 / 10, "{later} of {came}");
    assert_eq!(table.budget.taken(), taken);
}

/// A key above `max_keys` finds no place until the tick in which other rows are fresh. Then they give their places up.
#[test]
fn max_keys_bounds_rows_until_they_are_fresh() {
    let table = table(Some(10));
    for round in 0..5 {
        let (now, first) = (after(round * WINDOW), u64::from(round) * 100);
        let came = (first..first + 20).filter(|number| comes(&table, *number, now)).count();
        assert_eq!((came, table.budget.rows()), (10, 10), "in round {round}");
        let last_tick = Timestamp::from_ticks(after((round + 1) * WINDOW).ticks() - 1);
        assert!(!comes(&table, first + 50, last_tick), "in round {round}");
    }
}

/// Rows that become fresh one tick later stay.
#[test]
fn rows_that_are_not_fresh_survive_eviction() {
    let (table, tick) = (table(Some(10)), Duration::from_nanos(1));
    for number in 0..10 {
        assert!(comes(&table, number, if number < 5 { START } else { after(tick) }));
    }
    let came = (100..120).filter(|number| comes(&table, *number, after(WINDOW))).count();
    assert_eq!(came, 5);
    let came = (200..220).filter(|number| comes(&table, *number, after(WINDOW + tick))).count();
    assert_eq!(came, 5);
}

/// A refused key learns when a row is evictable, also if rows were charged since the last search.
#[test]
fn refusal_without_room_reports_true_wait() {
    const KEYS: u64 = 3_000;
    for most_keys in [Some(KEYS), None] {
        let table = table(most_keys);
        let keys = (0..30_000).filter(|number| comes(&table, *number, START)).collect::<Vec<_>>();
        assert!(keys.len() as u64 >= KEYS);
        for round in 1..=3 {
            // All windows are over, and all keys are charged again.
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

/// Full rows are paid for from the budget of their limit.
#[test]
fn overflow_rows_are_charged_to_memory_budget() {
    for parts in 8..16 {
        let bytes = parts * HALF_A_STORE / 2;
        let table = table_of_full_rows(bytes);
        let came = (0..30_000).filter(|number| admits_full_row(&table, *number)).count();
        assert!((1_000..15_000).contains(&came), "{came} rows in {bytes} bytes");
        let taken = table.budget.taken();
        assert!(taken <= bytes * 11 / 10, "{taken} of {bytes} bytes, for {came} rows");
    }
}

/// While a row has open holds, a refused key waits for a release, and no longer.
#[test]
fn refusal_without_room_names_source_of_room() {
    let table = table_of_full_rows(HALF_A_STORE);
    let keys: Vec<u64> = (0..5_000).filter(|number| admits_full_row(&table, *number)).collect();
    let new = 10_000;
    assert_eq!(turned_away(&table, new, START), RowRoom::None);
    let mut holders: Vec<u64> = keys.iter().step_by(7).copied().take(50).collect();
    for number in &holders {
        note(&table, *number, Row::add_hold);
    }
    while !holders.is_empty() {
        assert_eq!(
            turned_away(&table, new, START),
            RowRoom::NoneUntilRelease,
            "{} rows are held",
            holders.len()
        );
        // From both ends: the rows that came last are not found first.
        let index = if holders.len().is_multiple_of(2) { 0 } else { holders.len() - 1 };
        note(&table, holders.remove(index), Row::remove_hold);
    }
    assert_eq!(turned_away(&table, new, START), RowRoom::None);
}
