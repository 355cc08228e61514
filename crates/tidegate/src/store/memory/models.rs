//! Loom models of the decision engine.
//!
//! Each model runs two threads over the store's code with loom's atomics. Tables are so small that a few rows make a leaf
//! grow or split. Loom runs a model once per order in which the threads can observe each other's writes, up to a maximum
//! number of preemptions. The assertions at the end of a model must hold in every run.
//!
//! Each model says which break of the code it finds. `cargo xtask models` runs the models.

mod control_word;
mod edits;
mod locked;
mod rows;
mod sets;
mod sliding;

use std::sync::Arc;
use std::time::Duration;

use loom::model::Builder;
use loom::thread::JoinHandle;
use tidegate_core::{
    Amount, Intent, ItemSpec, Limit, LimitSpec, Per, Policy, Row, State, Tick, Timestamp, Verdict,
};

use super::engine::{self, Attempt, ResolvedAsk, RowDecision, RowsDecision, Setback};
use super::fingerprint::Secret;
use super::limit_table::{LimitTable, PublishTime};
use super::line::{self, Tag};
use super::memory_budget::Budget;
use super::row_epoch::{EpochCause, shared_words};
use super::shared_rows::SharedLines;
use super::sync::loom_sync;

/// The instant of most decisions. Its second is not zero, so a word that is read by the rules of another epoch is wrong.
const START: Timestamp = at(5_000_000_014);

/// The length of the windows of the models in milliseconds.
const WINDOW: u64 = 1_000;

const fn at(ticks: u64) -> Timestamp {
    Timestamp::from_ticks(ticks)
}

/// So many milliseconds after the start.
const fn after(milliseconds: u64) -> Timestamp {
    at(START.ticks() + milliseconds * 1_000_000)
}

/// Tries every order of a model, with this many preemptions at most.
fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    let model = Arc::new(model);
    builder.check(move || {
        let model = Arc::clone(&model);
        // The first thread of loom has a small stack.
        loom_sync::on_large_stack(move || model()).join().expect("it ends");
    });
}

/// An item that never forgets. It keeps its name and its usage when the policy changes.
fn total(limit: Amount) -> ItemSpec {
    named(ItemSpec::of(Policy::Total, limit))
}

/// An item whose window begins with the first charge. Its state has two words.
fn interval(limit: Amount) -> ItemSpec {
    named(ItemSpec::of(Policy::Interval { window: Duration::from_millis(WINDOW) }, limit))
}

fn named(item: ItemSpec) -> ItemSpec {
    ItemSpec { name: Some("units".into()), ..item }
}

fn limit_of(items: impl IntoIterator<Item = ItemSpec>) -> Arc<Limit> {
    limit_with(None, items)
}

/// A limit with at most this many keys.
fn limit_with(max_keys: Option<u64>, items: impl IntoIterator<Item = ItemSpec>) -> Arc<Limit> {
    let spec = items.into_iter().fold(LimitSpec::named("model"), LimitSpec::with);
    let spec = LimitSpec { max_keys, ..spec };
    Arc::new(Limit::new(spec, Tick::NANOSECOND).expect("the limits of the models are valid"))
}

/// The table of a limit whose row of all keys is in the next place of these lines.
fn table_in(lines: &SharedLines, limit: &Arc<Limit>) -> LimitTable {
    let budget = Arc::new(Budget::new(1 << 20));
    LimitTable::new(limit, 1, 0, Secret::of([1, 2]), &budget, lines.row(shared_words(limit)), START)
}

/// A table without rows of keys.
fn table(limit: &Arc<Limit>) -> Arc<LimitTable> {
    Arc::new(table_in(&SharedLines::new(), limit))
}

/// A key's tag. The side selects the half of a leaf, or the leaf after a split.
const fn tag(side: u64, number: u32) -> Tag {
    Tag { low: side << 63 | number as u64, high: number }
}

/// Creates the row of a key and charges this many units.
fn seed(table: &LimitTable, tag: Tag, count: Amount) {
    assert!(engine::admit(table, tag, START));
    if count > 0 {
        assert_eq!(charge(table, tag, count), count);
    }
}

/// One attempt to decide on the row of a key.
fn attempt(table: &LimitTable, tag: Tag, count: Amount, now: Timestamp) -> Result<Verdict, Setback> {
    let reader = table.snapshot.read();
    let head = reader.head();
    if head.counts_all() {
        return Err(Setback::Locked);
    }
    let lines = table.home_lines(tag).ok_or(Setback::Absent { ask: 0 })?;
    match (Attempt { table, reader, head, count, now }).decide_key(lines, tag)? {
        RowDecision::Granted => Ok(Verdict::Granted),
        RowDecision::Refused(wait, _) => Ok(Verdict::Denied(wait)),
    }
}

/// The units that one attempt charged.
fn charge(table: &LimitTable, tag: Tag, count: Amount) -> Amount {
    if attempt(table, tag, count, START) == Ok(Verdict::Granted) { count } else { 0 }
}

/// One unit of a limit.
fn ask(table: &LimitTable, tag: Option<Tag>) -> ResolvedAsk<'_> {
    ResolvedAsk { table, key: None, tag, count: 1 }
}

/// Decides on rows together.
fn decide(asks: &[ResolvedAsk<'_>], now: Timestamp) -> Option<RowsDecision> {
    engine::decide_rows(asks, Intent::Acquire, now, &mut None)
}

/// The units of each ask that were charged.
fn charge_rows(asks: &[ResolvedAsk<'_>], now: Timestamp) -> Amount {
    Amount::from(matches!(decide(asks, now), Some(RowsDecision::Granted(_))))
}

/// The units in the row of a key. `None` if it has no row.
fn used(table: &LimitTable, tag: Tag) -> Option<Amount> {
    let (locked, epoch) = table.lock_leaf(tag);
    let (place, words) = locked.lock_row(tag)?;
    let row = epoch.copy(Per::Key, &words, &table.rows);
    line::unlock_unchanged(place.line.control(), place.seen);
    Some(units(&row))
}

/// The units in the row of all keys.
fn used_by_all(table: &LimitTable) -> Amount {
    let mut locked = table.all.lock();
    let epoch = table.epoch();
    locked.convert(table, &epoch);
    let (seen, words) = locked.lock_row();
    let row = epoch.copy(Per::All, &words, &table.rows);
    locked.unlock_row(seen, &words);
    units(&row)
}

/// The units in the first item of a row.
fn units(row: &Row) -> Amount {
    match row.states() {
        [State::LifetimeTotal(total), ..] => total.used,
        [State::FixedWindow(count), ..] => count.count,
        [State::SlidingWindow(log), ..] => log.total(),
        _ => 0,
    }
}

/// Begins a new epoch of a limit at this instant.
fn begin_epoch(table: &LimitTable, limit: &Arc<Limit>, cause: EpochCause, at: Timestamp) {
    let draft = table.draft(Arc::clone(limit));
    let _count = table.begin_epoch(draft, cause, PublishTime::Now, || at, |_| {});
}

/// The other thread of a model.
fn beside<T: Send + 'static>(
    table: &Arc<LimitTable>,
    work: impl FnOnce(&LimitTable) -> T + Send + 'static,
) -> JoinHandle<T> {
    let table = Arc::clone(table);
    loom_sync::beside(move || work(&table))
}
