//! What is held: leases, what they were charged, and settlements that may be asked for again.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use tidegate_core::{Amount, AskTotals, ChargeRecord, LeaseId, Span, Timestamp};

/// How many settlements are remembered so that a repeated one can be answered.
const MOST_SETTLED: usize = 100_000;

/// For how long.
pub(in crate::store) const SETTLED_MEMORY: Duration = Duration::from_secs(600);

/// The incarnation of limits that are gone; the first one there is has the number 1.
const GONE: u64 = 0;

/// A lease that has not been given back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// When it lapses.
    pub expires_at: Timestamp,
    /// How long it lasts from a renewal on.
    pub ttl: Span,
    /// The rows it holds something of.
    pub holdings: Vec<Holding>,
    /// What each ask of the order was.
    pub asks: Vec<HeldAsk>,
}

/// One ask of a held order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldAsk {
    /// The indices of the holdings of its limit's `all` row, and of its key's row.
    pub holdings: [Option<usize>; 2],
}

/// What a lease holds of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// The limit's id.
    pub limit_id: Box<str>,
    /// Which incarnation of the limit: a deleted one takes its holdings with it.
    pub generation: u64,
    /// The version of the limit it was charged under.
    pub version: u32,
    /// Whose row; `None` for the row of all keys.
    pub key: Option<Box<[u8]>>,
    /// What each item was charged, by name.
    pub charges: Vec<(Box<str>, ChargeRecord)>,
    /// Whether its row knows of it; a row that was dropped with its limit's end does not.
    pub pins: bool,
}

impl Lease {
    /// What the order costs each holding if its asks had these counts.
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

impl Holding {
    /// What was charged is no longer counted, so it cannot be given back.
    pub(in crate::store) fn void(&mut self) {
        self.version = 0;
    }
}

/// All leases of a store.
#[derive(Debug, Default)]
pub(in crate::store) struct Leases {
    open: HashMap<LeaseId, Lease>,
    by_end: BTreeSet<(Timestamp, LeaseId)>,
    settled: HashMap<LeaseId, Timestamp>,
    settled_order: VecDeque<LeaseId>,
}

impl Leases {
    /// Which there are.
    pub(in crate::store) fn ids(&self) -> impl Iterator<Item = LeaseId> {
        self.open.keys().copied()
    }

    /// The settlements that are remembered, and until when.
    pub(in crate::store) fn settled(&self) -> impl Iterator<Item = (LeaseId, Timestamp)> {
        self.settled_order.iter().filter_map(|id| self.settled.get(id).map(|until| (*id, *until)))
    }

    pub(in crate::store) fn len(&self) -> usize {
        self.open.len()
    }

    pub(in crate::store) fn insert(&mut self, id: LeaseId, lease: Lease) {
        self.by_end.insert((lease.expires_at, id));
        self.open.insert(id, lease);
    }

    pub(in crate::store) fn get(&self, id: LeaseId) -> Option<&Lease> {
        self.open.get(&id)
    }

    pub(in crate::store) fn remove(&mut self, id: LeaseId) -> Option<Lease> {
        let lease = self.open.remove(&id)?;
        self.by_end.remove(&(lease.expires_at, id));
        Some(lease)
    }

    /// A lease that has lapsed, taken out.
    pub(in crate::store) fn pop_lapsed(&mut self, now: Timestamp) -> Option<(LeaseId, Lease)> {
        let &(ends, id) = self.by_end.first()?;
        if ends > now {
            return None;
        }
        self.remove(id).map(|lease| (id, lease))
    }

    /// Until when each of these is held.
    pub(in crate::store) fn held_until(&self, ids: &[LeaseId]) -> Vec<Option<Timestamp>> {
        ids.iter().map(|id| self.get(*id).map(|lease| lease.expires_at)).collect()
    }

    /// When the first of them lapses.
    pub(in crate::store) fn next_lapse(&self) -> Option<Timestamp> {
        self.by_end.first().map(|(ends, _)| *ends)
    }

    /// Every holding of every lease, to be changed.
    pub(in crate::store) fn holdings(&mut self) -> impl Iterator<Item = &mut Holding> {
        self.open.values_mut().flat_map(|lease| &mut lease.holdings)
    }

    /// An incarnation of a limit is gone and takes along what was held of it. A lease that held nothing else is gone too.
    pub(in crate::store) fn forget(&mut self, generations: &HashSet<u64>) {
        if generations.is_empty() {
            return;
        }
        let Leases { open, by_end, .. } = self;
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
