//! Concurrency: a unit is in use until its lease is released or expires.
//!
//! ```text
//!   limit 2, ttl 60s     A ├────────────── released
//!                        B   ├────────────────────────────────────┤ expired at 60s, without any cleanup
//!                        C        x  x    ├───────
//! ```
//!
//! The state is a set of leases instead of a counter, because an entry can be removed only once. A counter would free a
//! unit twice on a double release. Entries are sorted by expiry, so expired entries form a prefix.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::amount::{Amount, Capacity};
use crate::law::Receipt;
use crate::lease::{LeaseId, LeaseTerm};
use crate::time::{Span, Timestamp};
use crate::verdict::{Verdict, Wait};

/// The concurrency law.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Concurrency {
    /// The default TTL of a lease.
    pub ttl: Span,
}

/// The leases that hold units.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeaseHolders {
    /// The units of all entries, including expired ones.
    held: Amount,
    entries: BTreeMap<(Timestamp, LeaseId), Amount>,
}

impl LeaseHolders {
    /// The entries, in order of expiry.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (LeaseTerm, Amount)> {
        self.entries.iter().map(|(&(expires_at, lease), &amount)| (LeaseTerm { lease, expires_at }, amount))
    }

    /// The latest expiry.
    pub fn last_expiry(&self) -> Option<Timestamp> {
        self.entries.last_key_value().map(|((expires_at, _), _)| *expires_at)
    }

    /// The earliest expiry after `now`.
    pub fn next_expiry(&self, now: Timestamp) -> Option<Timestamp> {
        let later = (Bound::Excluded((now, LeaseId(u128::MAX))), Bound::Unbounded);
        self.entries.range(later).next().map(|((expires_at, _), _)| *expires_at)
    }

    /// Adds units to the entry of a lease.
    pub(crate) fn insert(&mut self, term: LeaseTerm, amount: Amount) {
        let entry = self.entries.entry((term.expires_at, term.lease)).or_default();
        let added = amount.min(Amount::MAX - self.held);
        *entry += added;
        self.held += added;
    }

    /// Removes the entry of a lease and returns its units.
    pub(crate) fn remove(&mut self, term: &LeaseTerm) -> Option<Amount> {
        let amount = self.entries.remove(&(term.expires_at, term.lease))?;
        self.held -= amount;
        Some(amount)
    }

    /// Removes expired entries.
    fn drop_expired(&mut self, now: Timestamp) {
        while let Some(first) = self.entries.first_entry() {
            if first.key().0 > now {
                break;
            }
            self.held -= first.remove();
        }
    }
}

/// The units held at `now`.
pub fn used(holders: &LeaseHolders, now: Timestamp) -> Amount {
    let lapsed: Amount =
        holders.entries.iter().take_while(|((expires_at, _), _)| *expires_at <= now).map(|(_, n)| n).sum();
    holders.held - lapsed
}

/// Whether `cost` more units fit. If they do not, the wait is for a release.
pub fn check(capacity: Capacity, holders: &LeaseHolders, cost: Amount, now: Timestamp) -> Verdict {
    if capacity.admits(used(holders, now), cost) {
        Verdict::Granted
    } else if capacity.can_ever_hold(cost) {
        Verdict::Denied(Wait::OnRelease)
    } else {
        Verdict::Denied(Wait::Never)
    }
}

/// Adds `cost` units to a lease.
pub fn charge(holders: &mut LeaseHolders, cost: Amount, term: Option<&LeaseTerm>, now: Timestamp) -> Receipt {
    holders.drop_expired(now);
    debug_assert!(term.is_some(), "a concurrency charge has a lease");
    if let Some(term) = term {
        holders.insert(*term, cost);
    }
    Receipt::Plain
}
