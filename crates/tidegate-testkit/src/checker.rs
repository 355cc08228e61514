//! The history checker: did concurrent orders get more than the definition allows?
//!
//! A client knows only when it called the store and when the call returned. The decision fell between the two:
//!
//! ```text
//!   A  start ├──────── decided somewhere in here ────────┤ end
//!   B              ├────────────────┤
//!   window   ├──────────────────────────────────────────────┤   A and B are both inside, wherever they were decided
//! ```
//!
//! A grant is certainly inside an interval if its whole call is. The checker adds up only certain grants, so a
//! [`LimitViolation`] is a proof: no choice of decision times explains it. The converse is exact only if the store
//! reports its decision times ([`ObservedOrder::at`]). [`ProofLevel`] says which of the two was shown.
//!
//! Edits and resets take effect between their start and their end. Around an edit the more generous definition counts.
//! Around a reset the whole capacity may have been spent on both sides.
//!
//! Only enforcing limits are checked, and keys with overrides are skipped. Each bound takes one sort and one pass with
//! a tree of sums, so many thousand orders are checked in about the time it takes to make them.

mod era;
mod grant_sum_tree;
mod laws;
mod refill;
mod row_grants;

use std::collections::BTreeMap;
use std::fmt;

use tidegate_core::{Amount, ItemSpec, LimitSpec, Per, Policy, Tick, Timestamp};

use era::ItemEra;
use laws::ItemBound;
use row_grants::GrantsByRow;

/// One order as its client saw it, restricted to one row of one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedOrder {
    /// When the call started.
    pub start: Timestamp,
    /// When the call returned.
    pub end: Timestamp,
    /// The decision time that the store reports.
    pub at: Option<Timestamp>,
    /// The key.
    pub key: Option<Vec<u8>>,
    /// The count, with repeated asks added up.
    pub count: Amount,
    /// Number of asks with a count above zero.
    pub asks: Amount,
    /// Whether it was granted.
    pub granted: bool,
    /// Set for a charge without a check: a hold that was settled for more than it held. The value is the earliest
    /// instant at which the hold was granted. The charge counts for later orders.
    pub forced: Option<Timestamp>,
    /// The earliest instant at which held units may be back: the call of release, or the expiry of the lease. `None` is
    /// one time to live after the earliest grant.
    pub returned: Option<Timestamp>,
    /// Units refunded by settlement, and the earliest instant of that. An `interval` item must keep some units:
    /// otherwise its window cannot be found again.
    pub refunded: Option<(Timestamp, Amount)>,
}

impl ObservedOrder {
    /// A grant of `count` at a reported decision time.
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

/// An edit as the operator saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedEdit {
    /// When the call started.
    pub start: Timestamp,
    /// When the call returned.
    pub end: Timestamp,
    /// The new definition.
    pub spec: LimitSpec,
}

/// A reset as the operator saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedReset {
    /// When the call started.
    pub start: Timestamp,
    /// When the call returned.
    pub end: Timestamp,
    /// The key; `None` for all.
    pub key: Option<Vec<u8>>,
}

/// The record of one limit.
#[derive(Debug, Clone)]
pub struct LimitRecord {
    /// The initial definition.
    pub spec: LimitSpec,
    /// Resolution of time.
    pub tick: Tick,
    /// All orders.
    pub entries: Vec<ObservedOrder>,
    /// All edits, in order.
    pub edits: Vec<ObservedEdit>,
    /// All resets, in order.
    pub resets: Vec<ObservedReset>,
}

impl LimitRecord {
    /// A record without edits and resets.
    pub fn new(spec: LimitSpec, tick: Tick, entries: Vec<ObservedOrder>) -> LimitRecord {
        LimitRecord { spec, tick, entries, edits: Vec::new(), resets: Vec::new() }
    }
}

/// What was shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProofLevel {
    /// Nothing contradicts the definition.
    Unrefuted,
    /// No interval admitted more than the definition allows. Every decision time is known, and no edit or reset allows
    /// two explanations. Held units count as back from the call of release.
    Exact,
}

/// More was granted than can be explained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitViolation {
    /// Name of the item.
    pub item: String,
    /// The key, for an item that counts per key.
    pub key: Option<Vec<u8>>,
    /// First instant of the interval.
    pub from: Timestamp,
    /// Last instant of the interval.
    pub to: Timestamp,
    /// Units that were certainly admitted.
    pub admitted: u128,
    /// Units that the definition allows.
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

/// Checks whether a record can be explained.
pub fn check_record(record: &LimitRecord) -> Result<ProofLevel, LimitViolation> {
    let mut grants: Vec<&ObservedOrder> = record.entries.iter().filter(|entry| entry.granted).collect();
    grants.sort_by_key(|entry| entry.earliest());
    let rows = GrantsByRow::of(&grants);
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
    // A charge without a check may have opened a window at an unknown instant.
    let is_interval = |item: &ItemSpec| matches!(item.policy, Policy::Interval { .. });
    let has_unknown_window =
        record.spec.items.iter().any(is_interval) && record.entries.iter().any(ObservedOrder::is_forced);
    let exact = timed && !has_unknown_window && record.edits.is_empty() && record.resets.is_empty();
    Ok(if exact { ProofLevel::Exact } else { ProofLevel::Unrefuted })
}

/// The grants that an item certainly counted together during an era.
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
