//! Concurrency: a unit is in use until its holder gives it back, or its lease lapses.
//!
//! ```text
//!   limit 2, ttl 60s     A ├────────────── released
//!                        B   ├────────────────────────────────────┤ lapsed at 60s, nobody had to notice
//!                        C        x  x    ├───────
//! ```
//!
//! The state is the set of holders, never a bare counter: only an entry can be removed exactly once. Entries
//! are kept in the order in which they lapse, so that those that have lapsed are a prefix.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::amount::{Amount, Capacity};
use crate::law::Receipt;
use crate::lease::{LeaseId, LeaseTerm};
use crate::time::{Span, Timestamp};
use crate::verdict::{Verdict, Wait};

/// How long a lease lasts if its asker does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Concurrency {
    /// The time to live of a lease.
    pub ttl: Span,
}

/// Who holds how much, until when.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeaseHolders {
    /// What all entries hold together, lapsed ones included.
    held: Amount,
    entries: BTreeMap<(Timestamp, LeaseId), Amount>,
}

impl LeaseHolders {
    /// The entries, first to lapse first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (LeaseTerm, Amount)> {
        self.entries.iter().map(|(&(expires_at, lease), &amount)| (LeaseTerm { lease, expires_at }, amount))
    }

    /// When the last of the entries lapses.
    pub fn last_expiry(&self) -> Option<Timestamp> {
        self.entries.last_key_value().map(|((expires_at, _), _)| *expires_at)
    }

    /// When the first of the entries that have not lapsed at `now` will.
    pub fn next_expiry(&self, now: Timestamp) -> Option<Timestamp> {
        let later = (Bound::Excluded((now, LeaseId(u128::MAX))), Bound::Unbounded);
        self.entries.range(later).next().map(|((expires_at, _), _)| *expires_at)
    }

    /// Adds units to a lease's entry.
    pub(crate) fn insert(&mut self, tenure: LeaseTerm, amount: Amount) {
        let entry = self.entries.entry((tenure.expires_at, tenure.lease)).or_default();
        let added = amount.min(Amount::MAX - self.held);
        *entry += added;
        self.held += added;
    }

    /// Removes a lease's entry; `None` if there is none.
    pub(crate) fn remove(&mut self, tenure: &LeaseTerm) -> Option<Amount> {
        let amount = self.entries.remove(&(tenure.expires_at, tenure.lease))?;
        self.held -= amount;
        Some(amount)
    }

    /// Drops the entries that have lapsed.
    fn drop_expired(&mut self, now: Timestamp) {
        while let Some(first) = self.entries.first_entry() {
            if first.key().0 > now {
                break;
            }
            self.held -= first.remove();
        }
    }
}

/// How many units are held at `now`.
pub fn used(holders: &LeaseHolders, now: Timestamp) -> Amount {
    let lapsed: Amount =
        holders.entries.iter().take_while(|((expires_at, _), _)| *expires_at <= now).map(|(_, n)| n).sum();
    holders.held - lapsed
}

/// Whether `cost` more fits; if not, a release helps.
pub fn check(capacity: Capacity, holders: &LeaseHolders, cost: Amount, now: Timestamp) -> Verdict {
    if capacity.admits(used(holders, now), cost) {
        Verdict::Granted
    } else if capacity.can_ever_hold(cost) {
        Verdict::Denied(Wait::OnRelease)
    } else {
        Verdict::Denied(Wait::Never)
    }
}

/// Enters `cost` units under a lease.
pub fn charge(
    holders: &mut LeaseHolders,
    cost: Amount,
    tenure: Option<&LeaseTerm>,
    now: Timestamp,
) -> Receipt {
    holders.drop_expired(now);
    debug_assert!(tenure.is_some(), "what is held is held under a lease");
    if let Some(tenure) = tenure {
        holders.insert(*tenure, cost);
    }
    Receipt::Plain
}
