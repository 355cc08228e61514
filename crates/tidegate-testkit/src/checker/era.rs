//! An era: the time in which an item was the same item, though its numbers may have changed.
//!
//! ```text
//!   edits          ├──┤            ├─┤               ├───┤
//!   text      5 per 1s │ 9 per 2s   │     removed     │  5 per 1s
//!   eras     ├──────── one ────────┤                     ├───── another ─────
//!   terms    ├─────────┤
//!                  ├───────────────┤         may have been in force, from the start of an edit to the end of the next
//! ```
//!
//! What an item remembers goes with it, and so does what it means: another policy, another zone or another way to charge
//! begins another era. Grants that may have been decided on either side of such an edit are left out of both.

use std::cell::OnceCell;
use std::ops::Range;

use tidegate_core::{Amount, Capacity, Charge, ItemSpec, LimitSpec, Mode, Policy, Tick};

use super::refill::BucketRefill;
use super::{LimitRecord, ObservedOrder, ObservedReset};

/// One item while it was the same.
pub(super) struct ItemEra<'a> {
    pub(super) tick: Tick,
    pub(super) spec: &'a LimitSpec,
    pub(super) resets: &'a [ObservedReset],
    /// What it said, one text after the other; never empty.
    pub(super) terms: Vec<EraTerms<'a>>,
    /// Grants belong to it that were certainly decided after this instant, if there was anything before it.
    after: Option<u64>,
    /// And before this one.
    before: u64,
    /// How a bucket fills, once somebody has asked.
    refill: OnceCell<BucketRefill>,
}

/// What an item said, and from when to when that may have been in force.
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

    /// The eras of one item, by its name.
    fn of(record: &'a LimitRecord, texts: &[&'a LimitSpec], name: &str) -> Vec<ItemEra<'a>> {
        let mut eras: Vec<ItemEra<'a>> = Vec::new();
        let mut goes_on = false;
        for (index, &spec) in texts.iter().enumerate() {
            // Text `index` was put in force by the edit before it, and out of force by the next.
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

    /// The item, as it was at first.
    pub(super) fn item(&self) -> &'a ItemSpec {
        self.terms[0].item
    }

    /// The orders that were certainly decided in this era, of those that are given by their earliest instant.
    pub(super) fn contains<'e>(
        &self,
        entries: &[&'e ObservedOrder],
    ) -> impl Iterator<Item = &'e ObservedOrder> {
        let first = self.after.map_or(0, |after| entries.partition_point(|entry| entry.earliest() <= after));
        let end = entries.partition_point(|entry| entry.earliest() < self.before);
        let decided = entries[first.min(end)..end].iter().copied();
        // What was held of an item is settled only while it is the same.
        let held = move |entry: &ObservedOrder| {
            self.after.zip(entry.forced).is_none_or(|(after, held)| after < held.ticks())
        };
        decided.filter(move |entry| entry.latest() < self.before && held(entry))
    }

    /// The earliest instant at which the item may have been gone.
    pub(super) fn ends(&self) -> u64 {
        self.before
    }

    /// Which terms may have been in force at some instant from `from` to `to`.
    pub(super) fn in_force(&self, from: u64, to: u64) -> Range<usize> {
        // Edits come one after the other, so both ends of the terms rise.
        let first = self.terms.partition_point(|term| term.to < from);
        let end = self.terms.partition_point(|term| term.from <= to);
        first.min(end)..end
    }

    /// The same, as they read.
    fn touching(&self, from: u64, to: u64) -> &[EraTerms<'a>] {
        &self.terms[self.in_force(from, to)]
    }

    /// How a bucket fills.
    pub(super) fn refill(&self) -> &BucketRefill {
        self.refill.get_or_init(|| BucketRefill::new(self))
    }

    /// The most that any of them allowed at once; `None` if there was no end to it.
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

    /// The shortest window that any of them had.
    pub(super) fn shortest_window(&self, from: u64, to: u64) -> u64 {
        self.touching(from, to).iter().map(|term| self.window(term)).min().unwrap_or(0)
    }

    /// The longest window that the item ever had.
    pub(super) fn longest_window(&self) -> u64 {
        self.terms.iter().map(|term| self.window(term)).max().unwrap_or(0)
    }

    fn window(&self, term: &EraTerms<'_>) -> u64 {
        term.item.policy.window().map_or(0, |window| self.tick.span(window).ticks())
    }

    /// The ticks between two units of a bucket, term by term. One that refuses everything goes on draining as before.
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

/// Whether an item of this text counts everything that is granted.
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

/// What an ask costs an item.
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
