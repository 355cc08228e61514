//! Leases, what they were charged, and settlements that may be repeated.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use tidegate_core::{Amount, AskTotals, ChargeRecord, LeaseId, Span, Timestamp};

/// Number of settlements that are remembered for repeated calls.
const MOST_SETTLED: usize = 100_000;

/// How long a settlement is remembered.
pub(in crate::store) const SETTLED_MEMORY: Duration = Duration::from_secs(600);

/// Generation of limits that are gone. The first limit has generation 1.
const GONE: u64 = 0;

/// A lease that was not released.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRecord {
    /// When it lapses.
    pub expires_at: Timestamp,
    /// Time to live after a renewal.
    pub ttl: Span,
    /// The rows that it holds.
    pub holdings: Vec<LeaseHolding>,
    /// The asks of its order.
    pub asks: Vec<HeldAsk>,
}

/// One ask of a held order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldAsk {
    /// Indices of the holdings of its limit's `all` row and of its key's row.
    pub holdings: [Option<usize>; 2],
}

/// What a lease holds of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseHolding {
    /// Id of the limit.
    pub limit_id: Box<str>,
    /// Generation of the limit. A deleted generation takes its holdings along.
    pub generation: u64,
    /// Version of the limit at the charge.
    pub version: u32,
    /// The key; `None` for the `all` row.
    pub key: Option<Box<[u8]>>,
    /// The charge of each item, by name.
    pub charges: Vec<(Box<str>, ChargeRecord)>,
    /// Whether its row counts this lease. A row that was dropped when its limit ended does not.
    pub pins: bool,
}

impl LeaseRecord {
    /// Cost of each holding if the asks had these counts.
    pub(in crate::store) fn loads(&self, count_of: impl Fn(usize) -> Amount) -> Vec<AskTotals> {
        let mut loads = vec![AskTotals::default(); self.holdings.len()];
        for (index, ask) in self.asks.iter().enumerate() {
            let load = AskTotals::of(count_of(index));
            for holding in ask.holdings.into_iter().flatten() {
                loads[holding] = loads[holding].plus(load);
            }
        }
        loads
    }
}

impl LeaseHolding {
    /// Marks the charge as no longer counted, so that it is not refunded.
    pub(in crate::store) fn void(&mut self) {
        self.version = 0;
    }
}

/// All leases of a store.
#[derive(Debug, Default)]
pub(in crate::store) struct LeaseTable {
    open: HashMap<LeaseId, LeaseRecord>,
    by_end: BTreeSet<(Timestamp, LeaseId)>,
    settled: HashMap<LeaseId, Timestamp>,
    settled_order: VecDeque<LeaseId>,
}

impl LeaseTable {
    /// Ids of all leases.
    pub(in crate::store) fn ids(&self) -> impl Iterator<Item = LeaseId> {
        self.open.keys().copied()
    }

    /// Remembered settlements, and until when each is remembered.
    pub(in crate::store) fn settled(&self) -> impl Iterator<Item = (LeaseId, Timestamp)> {
        self.settled_order.iter().filter_map(|id| self.settled.get(id).map(|until| (*id, *until)))
    }

    pub(in crate::store) fn len(&self) -> usize {
        self.open.len()
    }

    pub(in crate::store) fn insert(&mut self, id: LeaseId, lease: LeaseRecord) {
        self.by_end.insert((lease.expires_at, id));
        self.open.insert(id, lease);
    }

    pub(in crate::store) fn get(&self, id: LeaseId) -> Option<&LeaseRecord> {
        self.open.get(&id)
    }

    pub(in crate::store) fn remove(&mut self, id: LeaseId) -> Option<LeaseRecord> {
        let lease = self.open.remove(&id)?;
        self.by_end.remove(&(lease.expires_at, id));
        Some(lease)
    }

    /// Removes and returns a lease that has lapsed.
    pub(in crate::store) fn pop_lapsed(&mut self, now: Timestamp) -> Option<(LeaseId, LeaseRecord)> {
        let &(ends, id) = self.by_end.first()?;
        if ends > now {
            return None;
        }
        self.remove(id).map(|lease| (id, lease))
    }

    /// Expiry of each of these leases.
    pub(in crate::store) fn held_until(&self, ids: &[LeaseId]) -> Vec<Option<Timestamp>> {
        ids.iter().map(|id| self.get(*id).map(|lease| lease.expires_at)).collect()
    }

    /// When the first lease lapses.
    pub(in crate::store) fn next_lapse(&self) -> Option<Timestamp> {
        self.by_end.first().map(|(ends, _)| *ends)
    }

    /// Every holding of every lease.
    pub(in crate::store) fn holdings(&mut self) -> impl Iterator<Item = &mut LeaseHolding> {
        self.open.values_mut().flat_map(|lease| &mut lease.holdings)
    }

    /// Drops the holdings of these generations. A lease without other holdings is dropped too.
    pub(in crate::store) fn forget(&mut self, generations: &HashSet<u64>) {
        if generations.is_empty() {
            return;
        }
        let LeaseTable { open, by_end, .. } = self;
        open.retain(|id, lease| {
            let mut concerned = false;
            for holding in
                lease.holdings.iter_mut().filter(|holding| generations.contains(&holding.generation))
            {
                holding.generation = GONE;
                concerned = true;
            }
            let stays = !concerned || lease.holdings.iter().any(|holding| holding.generation != GONE);
            if !stays {
                by_end.remove(&(lease.expires_at, *id));
            }
            stays
        });
    }

    pub(in crate::store) fn remember_settled(&mut self, id: LeaseId, until: Timestamp) {
        if self.settled_order.len() >= MOST_SETTLED
            && let Some(oldest) = self.settled_order.pop_front()
        {
            self.settled.remove(&oldest);
        }
        self.settled_order.push_back(id);
        self.settled.insert(id, until);
    }

    pub(in crate::store) fn was_settled(&self, id: LeaseId, now: Timestamp) -> bool {
        self.settled.get(&id).is_some_and(|&until| now < until)
    }
}
