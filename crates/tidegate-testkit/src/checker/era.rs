//! An era: the time during which an item stays the same item, though its numbers may change.
//!
//! ```text
//!   edits          ├──┤            ├─┤               ├───┤
//!   definition 5 per 1s│ 9 per 2s   │     removed     │  5 per 1s
//!   eras     ├──────── one ────────┤                     ├───── another ─────
//!   terms    ├─────────┤
//!                  ├───────────────┤         may have been in force, from the start of an edit to the end of the next
//! ```
//!
//! Another policy, time zone or way to charge starts another era. Grants that may have been decided on either side of
//! such an edit belong to no era.

use std::cell::OnceCell;
use std::ops::Range;

use tidegate_core::{Amount, Capacity, Charge, ItemSpec, LimitSpec, Mode, Policy, Tick};

use super::refill::BucketRefill;
use super::{LimitRecord, ObservedOrder, ObservedReset};

/// One era of one item.
pub(super) struct ItemEra<'a> {
    pub(super) tick: Tick,
    pub(super) spec: &'a LimitSpec,
    pub(super) resets: &'a [ObservedReset],
    /// The definitions of the item, in order. Never empty.
    pub(super) terms: Vec<EraTerms<'a>>,
    /// Grants of this era were certainly decided after this instant, if another definition came before.
    after: Option<u64>,
    /// Grants of this era were certainly decided before this instant.
    before: u64,
    /// Refill of a bucket, computed on first use.
    refill: OnceCell<BucketRefill>,
}

/// A definition of an item and when it may have been in force.
#[derive(Debug, Clone, Copy)]
pub(super) struct EraTerms<'a> {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) item: &'a ItemSpec,
}

impl<'a> ItemEra<'a> {
    /// Every era of every item.
    pub(super) fn all(record: &'a LimitRecord) -> Vec<ItemEra<'a>> {
        let mut names: Vec<String> = Vec::new();
        let texts: Vec<&LimitSpec> =
            std::iter::once(&record.spec).chain(record.edits.iter().map(|edit| &edit.spec)).collect();
        for name in texts.iter().flat_map(|spec| &spec.items).map(ItemSpec::effective_name) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.iter().flat_map(|name| ItemEra::of(record, &texts, name)).collect()
    }

    /// The eras of the item with this name.
    fn of(record: &'a LimitRecord, texts: &[&'a LimitSpec], name: &str) -> Vec<ItemEra<'a>> {
        let mut eras: Vec<ItemEra<'a>> = Vec::new();
        let mut goes_on = false;
        for (index, &spec) in texts.iter().enumerate() {
            // The edit before definition `index` put it in force, and the next edit replaced it.
            let (from, after) = match index.checked_sub(1).map(|edit| &record.edits[edit]) {
                Some(edit) => (edit.start.ticks(), Some(edit.end.ticks())),
                None => (0, None),
            };
            let (to, before) = match record.edits.get(index) {
                Some(edit) => (edit.end.ticks(), edit.start.ticks()),
                None => (u64::MAX, u64::MAX),
            };
            let written = spec.items.iter().find(|item| item.effective_name() == name);
            let Some(item) = written.filter(|item| counts(spec, item)) else {
                goes_on = false;
                continue;
            };
            let term = EraTerms { from, to, item };
            if let Some(era) = eras.last_mut().filter(|era| goes_on && is_same(era, spec, item)) {
                era.before = before;
                match era.terms.last_mut() {
                    Some(last) if last.item == item => last.to = to,
                    _ => era.terms.push(term),
                }
            } else {
                let (tick, resets) = (record.tick, &*record.resets);
                eras.push(ItemEra {
                    tick,
                    spec,
                    resets,
                    terms: vec![term],
                    after,
                    before,
                    refill: OnceCell::new(),
                });
            }
            goes_on = true;
        }
        eras
    }

    /// The first definition of the item.
    pub(super) fn item(&self) -> &'a ItemSpec {
        self.terms[0].item
    }

    /// The orders that were certainly decided in this era. `entries` must be sorted by their earliest instant.
    pub(super) fn contains<'e>(
        &self,
        entries: &[&'e ObservedOrder],
    ) -> impl Iterator<Item = &'e ObservedOrder> {
        let first = self.after.map_or(0, |after| entries.partition_point(|entry| entry.earliest() <= after));
        let end = entries.partition_point(|entry| entry.earliest() < self.before);
        let decided = entries[first.min(end)..end].iter().copied();
        // A hold is settled only while its item exists.
        let held = move |entry: &ObservedOrder| {
            self.after.zip(entry.forced).is_none_or(|(after, held)| after < held.ticks())
        };
        decided.filter(move |entry| entry.latest() < self.before && held(entry))
    }

    /// The earliest instant at which the item may have been gone.
    pub(super) fn ends(&self) -> u64 {
        self.before
    }

    /// Indices of the terms that may have been in force at some instant from `from` to `to`.
    pub(super) fn in_force(&self, from: u64, to: u64) -> Range<usize> {
        // Edits do not overlap, so both ends of the terms rise.
        let first = self.terms.partition_point(|term| term.to < from);
        let end = self.terms.partition_point(|term| term.from <= to);
        first.min(end)..end
    }

    /// The terms that may have been in force.
    fn touching(&self, from: u64, to: u64) -> &[EraTerms<'a>] {
        &self.terms[self.in_force(from, to)]
    }

    /// Refill of the bucket.
    pub(super) fn refill(&self) -> &BucketRefill {
        self.refill.get_or_init(|| BucketRefill::new(self))
    }

    /// The largest capacity of the terms in force; `None` if unlimited.
    pub(super) fn most(&self, from: u64, to: u64) -> Option<u128> {
        let most = |term: &EraTerms<'_>| match term.item.policy {
            Policy::Bucket { burst, .. } => burst_of(term.item.limit, burst),
            _ => term.item.limit,
        };
        let mut largest = 0;
        for term in self.touching(from, to) {
            let Capacity::AtMost(limit) = most(term) else { return None };
            largest = largest.max(u128::from(limit));
        }
        Some(largest)
    }

    /// The shortest window of the terms in force.
    pub(super) fn shortest_window(&self, from: u64, to: u64) -> u64 {
        self.touching(from, to).iter().map(|term| self.window(term)).min().unwrap_or(0)
    }

    /// The longest window of the era.
    pub(super) fn longest_window(&self) -> u64 {
        self.terms.iter().map(|term| self.window(term)).max().unwrap_or(0)
    }

    fn window(&self, term: &EraTerms<'_>) -> u64 {
        term.item.policy.window().map_or(0, |window| self.tick.span(window).ticks())
    }

    /// Ticks between two units of a bucket, for each term. A bucket with capacity zero keeps draining at its former
    /// rate.
    pub(super) fn steps(&self) -> Vec<u64> {
        let mut before = None;
        let step = |term: &EraTerms<'_>| {
            let limit = match term.item.limit {
                Capacity::AtMost(limit) => limit,
                Capacity::Unlimited => 1,
            };
            let own = self.window(term).div_ceil(limit.max(1)).max(1);
            let step = before.filter(|_| limit == 0).unwrap_or(own);
            before = Some(step);
            step
        };
        self.terms.iter().map(step).collect()
    }
}

/// Whether the item counts everything that is granted.
fn counts(spec: &LimitSpec, item: &ItemSpec) -> bool {
    let forgets = matches!(item.policy, Policy::Bucket { .. }) && item.limit == Capacity::Unlimited;
    spec.mode == Mode::Enforce && !forgets
}

fn is_same(era: &ItemEra<'_>, spec: &LimitSpec, item: &ItemSpec) -> bool {
    let former = era.item();
    let same_law = match (former.policy, item.policy) {
        (Policy::Calendar(unit), Policy::Calendar(other)) => {
            unit == other && era.spec.time_zone == spec.time_zone && era.spec.week_start == spec.week_start
        }
        (one, other) => one.word() == other.word(),
    };
    same_law && former.per == item.per && charge(former) == charge(item)
}

/// How an item charges.
pub(super) fn charge(item: &ItemSpec) -> Charge {
    let by_default = match item.policy {
        Policy::Concurrency { .. } => Charge::Ask,
        _ => Charge::Count,
    };
    item.charge.unwrap_or(by_default)
}

fn burst_of(limit: Capacity, burst: Option<Amount>) -> Capacity {
    match (limit, burst) {
        (Capacity::AtMost(limit), Some(burst)) if limit > 0 => Capacity::AtMost(burst),
        _ => limit,
    }
}
