//! Loom models of the row table.
//!
//! Each model runs a few threads over the store's code with loom's atomics. Tables are so small that a few rows make a
//! leaf grow or split. Loom runs a model once per order in which the threads can observe each other's writes, up to a
//! maximum number of preemptions. The assertions at the end of a model must hold in every run.
//!
//! `cargo xtask models` runs the models.

mod cache_lines;
mod rows;
mod sets;
mod sliding;

use std::sync::Arc;
use std::time::Duration;

use loom::model::Builder;
use loom::thread::JoinHandle;
use tidegate_core::{Amount, ItemSpec, Limit, LimitSpec, Policy, Tick, Timestamp, Verdict};

use super::cache_line::{PAYLOAD, Tag, WIDE};
use super::fingerprint::Secret;
use super::insert::admit;
use super::limit_table::Tenant;
use super::lockfree::{self, Single};
use super::memory_budget::Budget;
use super::rule_snapshot::Brief;
use super::shared_rows::{Gallery, Place};
use super::sync::loom_sync;

/// When everything begins. Half of it is odd, so a cell that is read with another shape than it was written with says something else.
const START: Timestamp = at(1_000_014);

/// No limit of the models ends before.
const LAST: Timestamp = at(u64::MAX);

const fn at(ticks: u64) -> Timestamp {
    Timestamp::from_ticks(ticks)
}

/// Tries every order of a model, with threads interrupted so many times at most.
fn explore(interruptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(interruptions);
    builder.max_branches = 100_000;
    builder.check(model);
}

/// So much for each key, ever.
fn total_per_key(limit: Amount) -> Arc<Limit> {
    limit_of(ItemSpec::of(Policy::Total, limit).per_key())
}

/// So much for each key in a window of so many milliseconds from its first hit.
fn interval_per_key(limit: Amount, milliseconds: u64) -> Arc<Limit> {
    limit_of(ItemSpec::of(Policy::Interval { window: Duration::from_millis(milliseconds) }, limit).per_key())
}

fn limit_of(item: ItemSpec) -> Arc<Limit> {
    let spec = LimitSpec::named("model").with(item);
    Arc::new(Limit::new(spec, Tick::NANOSECOND).expect("the models' limits make sense"))
}

/// A limit without a row.
fn tenant_at(limit: &Arc<Limit>, place: Place) -> Tenant {
    let whole = Arc::new(Budget::new(1 << 20));
    Tenant::new(limit, 1, 0, Secret::of([1, 2]), &whole, place, START)
}

/// The same, for several threads.
fn table(limit: &Arc<Limit>) -> Arc<Tenant> {
    Arc::new(tenant_at(limit, Gallery::new().place()))
}

/// A key's tag: the side says which half of a leaf, or which leaf after a split, it belongs to.
const fn tag(side: u64, number: u32) -> Tag {
    Tag { low: side << 63 | number as u64, high: number }
}

/// The brief as it is.
fn brief(tenant: &Tenant) -> Brief {
    tenant.board.read().expect("the models' limits can be had in short")
}

/// Gives a key a row and spends so much of it.
fn seed(tenant: &Tenant, tag: Tag, count: Amount) {
    assert!(admit(tenant, tag, START));
    if count > 0 {
        assert_eq!(decide(tenant, tag, count, START), Some(Verdict::Granted));
    }
}

/// Decides on a key's row without a lock; `None` if that cannot be.
fn decide(tenant: &Tenant, tag: Tag, count: Amount, now: Timestamp) -> Option<Verdict> {
    lockfree::decide_near(&Single { tenant, count }, tag, tenant.near(tag), now, &mut ())
}

/// The same, and how much was charged.
fn charged(tenant: &Tenant, tag: Tag, count: Amount) -> Amount {
    if decide(tenant, tag, count, START) == Some(Verdict::Granted) { count } else { 0 }
}

/// How much of a key is spent, once nobody is busy; `None` if it has no row.
fn used(tenant: &Tenant, tag: Tag) -> Option<Amount> {
    let leaf = tenant.leaf(tag)?;
    let _alone = leaf.own();
    let cell = leaf.find(tag)?.word;
    assert_eq!(cell & WIDE, 0, "the models' rows are small");
    Some(brief(tenant).first.reading(cell & PAYLOAD, LAST, START).used)
}

/// The other thread of a model, with a hand on the table.
fn beside<T: 'static>(tenant: &Arc<Tenant>, work: impl FnOnce(&Tenant) -> T + 'static) -> JoinHandle<T> {
    let tenant = Arc::clone(tenant);
    loom_sync::beside(move || work(&tenant))
}
