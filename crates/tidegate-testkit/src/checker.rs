//! The history checker: many asked at once; was more granted than the definition allows?
//!
//! Whoever asked knows only when it asked and when it heard. The decision fell somewhere between:
//!
//! ```text
//!   A  start ├──────── decided somewhere in here ────────┤ end
//!   B              ├────────────────┤
//!   window   ├──────────────────────────────────────────────┤   A and B are both inside, wherever they were decided
//! ```
//!
//! A grant is *certainly* inside an interval if the whole of its own is. The checker adds up only what is certain, so a
//! [`LimitViolation`] is a proof: no choice of decision times explains it. The other way round it is exact only if the store
//! reports when it decided ([`ObservedOrder::at`]); [`ProofLevel`] says which of the two was shown.
//!
//! Operators are seen the same way. An edit took effect somewhere between its start and its end, so that around it two
//! texts may have been in force, and the kinder one is believed. A reset splits what it touches: before it and after it
//! the whole capacity may have been spent.
//!
//! Decided: it looks at enforced limits only, and leaves keys with exceptions alone. Every bound is found by sorting and
//! one pass with a tree of sums, so that records of many thousand entries are checked in the time it takes to make them.

mod era;
mod laws;
mod refill;
mod rows;
mod sums;

use std::collections::BTreeMap;
use std::fmt;

use tidegate_core::{Amount, ItemSpec, LimitSpec, Per, Policy, Tick, Timestamp};

use era::ItemEra;
use laws::ItemBound;
use rows::GrantedRows;

/// One order as its asker saw it, as far as it is about one row of one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedOrder {
    /// When it was asked.
    pub start: Timestamp,
    /// When the answer was heard.
    pub end: Timestamp,
    /// When the store says it decided.
    pub at: Option<Timestamp>,
    /// For whom.
    pub key: Option<Vec<u8>>,
    /// For how much, repeated asks added up.
    pub count: Amount,
    /// In how many asks that were for something.
    pub asks: Amount,
    /// Whether it was granted.
    pub granted: bool,
    /// Nobody judged it, because a hold was settled for more than it held, past the limit if it must be; and the earliest
    /// instant at which that hold was granted. It counts like a grant for those who come after.
    pub forced: Option<Timestamp>,
    /// The earliest instant at which held units may have come back: when their release was asked for, or their lease
    /// lapsed. `None` is one time to live after the earliest grant.
    pub returned: Option<Timestamp>,
    /// How much of the count was given back by settling it, and the earliest instant of that. Of an `interval` something
    /// must be left: nobody can tell any more which window it had opened.
    pub refunded: Option<(Timestamp, Amount)>,
}

impl ObservedOrder {
    /// A grant of `count` that the store says it decided `at`.
    pub fn granted_at(at: Timestamp, key: Option<&[u8]>, count: Amount) -> ObservedOrder {
        ObservedOrder::granted_within(at, at, key, count)
    }

    /// A grant of `count`, decided at some instant from `start` to `end`.
    pub fn granted_within(
        start: Timestamp,
        end: Timestamp,
        key: Option<&[u8]>,
        count: Amount,
    ) -> ObservedOrder {
        let key = key.map(<[u8]>::to_vec);
        let asks = count.min(1);
        let (at, forced, returned, refunded) = (None, None, None, None);
        ObservedOrder { start, end, at, key, count, asks, granted: true, forced, returned, refunded }
    }

    fn earliest(&self) -> u64 {
        self.at.unwrap_or(self.start).ticks()
    }

    fn is_forced(&self) -> bool {
        self.forced.is_some()
    }

    fn latest(&self) -> u64 {
        self.at.unwrap_or(self.end).ticks()
    }
}

/// A change of the limit's text, as the operator saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedEdit {
    /// When it was asked for.
    pub start: Timestamp,
    /// When it was heard to be in force.
    pub end: Timestamp,
    /// The text since then.
    pub spec: LimitSpec,
}

/// A reset, as the operator saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedReset {
    /// When it was asked for.
    pub start: Timestamp,
    /// When it was heard to be done.
    pub end: Timestamp,
    /// Whose counts, or everybody's.
    pub key: Option<Vec<u8>>,
}

/// What was recorded about one limit.
#[derive(Debug, Clone)]
pub struct LimitRecord {
    /// The limit, as it was at first.
    pub spec: LimitSpec,
    /// How finely time was kept.
    pub tick: Tick,
    /// Every order.
    pub entries: Vec<ObservedOrder>,
    /// Every edit, one after the other.
    pub edits: Vec<ObservedEdit>,
    /// Every reset, one after the other.
    pub resets: Vec<ObservedReset>,
}

impl LimitRecord {
    /// The record of a limit that no operator touched.
    pub fn new(spec: LimitSpec, tick: Tick, entries: Vec<ObservedOrder>) -> LimitRecord {
        LimitRecord { spec, tick, entries, edits: Vec::new(), resets: Vec::new() }
    }
}

/// What was shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProofLevel {
    /// Nothing that was seen contradicts it.
    Unrefuted,
    /// No interval admitted more than the definition allows: every decision time is known, and no operator made two
    /// explanations possible. Held units are taken to be back as soon as their release was asked for.
    Exact,
}

/// More was granted than can be explained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitViolation {
    /// The item.
    pub item: String,
    /// Whose, if it counts keys alone.
    pub key: Option<Vec<u8>>,
    /// The first instant of the interval.
    pub from: Timestamp,
    /// The last instant of it.
    pub to: Timestamp,
    /// What was certainly admitted in it.
    pub admitted: u128,
    /// What the definition allows there.
    pub allowed: u128,
}

impl fmt::Display for LimitViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = self.key.as_ref().map(|key| format!(" of {}", String::from_utf8_lossy(key)));
        write!(
            f,
            "{}{}: {} admitted in [{}, {}], {} allowed",
            self.item,
            whose.unwrap_or_default(),
            self.admitted,
            self.from.ticks(),
            self.to.ticks(),
            self.allowed
        )
    }
}

impl std::error::Error for LimitViolation {}

/// Whether a record can be explained.
pub fn check_record(record: &LimitRecord) -> Result<ProofLevel, LimitViolation> {
    let mut grants: Vec<&ObservedOrder> = record.entries.iter().filter(|entry| entry.granted).collect();
    grants.sort_by_key(|entry| entry.earliest());
    let rows = GrantedRows::of(&grants);
    for era in ItemEra::all(record) {
        for (key, grants) in groups(record, &era, &grants) {
            if let Some(excess) = ItemBound::new(&era, &rows, key.as_deref(), grants).exceeded() {
                let (from, to) = (Timestamp::from_ticks(excess.from), Timestamp::from_ticks(excess.to));
                let (admitted, allowed) = (excess.admitted, excess.allowed);
                return Err(LimitViolation {
                    item: era.item().effective_name(),
                    key,
                    from,
                    to,
                    admitted,
                    allowed,
                });
            }
        }
    }
    let mut judged = record.entries.iter().filter(|entry| entry.granted && !entry.is_forced());
    let timed = judged.all(|entry| entry.earliest() == entry.latest());
    // What nobody judged may have opened a window, and nobody knows when.
    let hangs = |item: &ItemSpec| matches!(item.policy, Policy::Interval { .. });
    let adrift = record.spec.items.iter().any(hangs) && record.entries.iter().any(ObservedOrder::is_forced);
    let exact = timed && !adrift && record.edits.is_empty() && record.resets.is_empty();
    Ok(if exact { ProofLevel::Exact } else { ProofLevel::Unrefuted })
}

/// The grants that an item certainly counted together while it was the same item.
fn groups<'a>(
    record: &LimitRecord,
    era: &ItemEra<'_>,
    grants: &[&'a ObservedOrder],
) -> BTreeMap<Option<Vec<u8>>, Vec<&'a ObservedOrder>> {
    let mut groups: BTreeMap<Option<Vec<u8>>, Vec<&ObservedOrder>> = BTreeMap::new();
    for entry in era.contains(grants) {
        let key = if era.item().per == Per::Key { entry.key.clone() } else { None };
        groups.entry(key).or_default().push(entry);
    }
    let name = era.item().effective_name();
    let texts = std::iter::once(&record.spec).chain(record.edits.iter().map(|edit| &edit.spec));
    for exception in texts.flat_map(|spec| &spec.overrides).filter(|other| other.item == name) {
        groups.remove(&Some(exception.key.clone()));
    }
    groups
}

#[cfg(test)]
mod tests;
