//! What is held: leases, what they were charged, and settlements that may be asked for again.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use hashbrown::HashMap;
use tidegate_core::{Amount, Charged, LeaseId, Load, Span, Timestamp};

/// How many settlements are remembered so that a repeated one can be answered.
const MOST_SETTLED: usize = 100_000;

/// For how long.
pub(super) const SETTLED_MEMORY: Duration = Duration::from_secs(600);

/// The incarnation of limits that are gone; the first one there is has the number 1.
const GONE: u64 = 0;

/// A lease that has not been given back.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) expires_at: Timestamp,
    pub(super) ttl: Span,
    /// The rows it holds something of.
    pub(super) holdings: Vec<Holding>,
    /// What each ask of the order was, as (index into `holdings` of its limit's `all` row, of its key's row, count).
    pub(super) asks: Vec<HeldAsk>,
}

/// One ask of a held order.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeldAsk {
    pub(super) holdings: [Option<usize>; 2],
    pub(super) count: Amount,
}

/// What a lease holds of one row.
#[derive(Debug)]
pub(super) struct Holding {
    pub(super) limit_id: Box<str>,
    /// Which incarnation of the limit: a deleted one takes its holdings with it.
    pub(super) generation: u64,
    /// The version of the limit it was charged under.
    pub(super) version: u32,
    pub(super) key: Option<Box<[u8]>>,
    /// What each item was charged, by name.
    pub(super) charges: Vec<(Box<str>, Charged)>,
    /// Whether its row knows of it; a row that was dropped with its limit's end does not.
    pub(super) pins: bool,
}

impl Lease {
    /// What the order costs each holding if its asks had these counts.
    pub(super) fn loads(&self, count_of: impl Fn(usize, Amount) -> Amount) -> Vec<Load> {
        let mut loads = vec![Load::default(); self.holdings.len()];
        for (index, ask) in self.asks.iter().enumerate() {
            let load = Load::of(count_of(index, ask.count));
            for holding in ask.holdings.into_iter().flatten() {
                loads[holding] = loads[holding].plus(load);
            }
        }
        loads
    }
}

impl Holding {
    /// What was charged is no longer counted, so it cannot be given back.
    pub(super) fn void(&mut self) {
        self.version = 0;
    }
}

/// All leases of a store.
#[derive(Debug, Default)]
pub(super) struct Leases {
    open: HashMap<LeaseId, Lease>,
    by_end: BTreeSet<(Timestamp, LeaseId)>,
    settled: HashMap<LeaseId, Timestamp>,
    settled_order: VecDeque<LeaseId>,
}

impl Leases {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn insert(&mut self, id: LeaseId, lease: Lease) {
        self.by_end.insert((lease.expires_at, id));
        self.open.insert(id, lease);
    }

    pub(super) fn get(&self, id: LeaseId) -> Option<&Lease> {
        self.open.get(&id)
    }

    pub(super) fn remove(&mut self, id: LeaseId) -> Option<Lease> {
        let lease = self.open.remove(&id)?;
        self.by_end.remove(&(lease.expires_at, id));
        Some(lease)
    }

    /// A lease that has lapsed, taken out.
    pub(super) fn pop_lapsed(&mut self, now: Timestamp) -> Option<(LeaseId, Lease)> {
        let &(ends, id) = self.by_end.first()?;
        if ends > now {
            return None;
        }
        self.remove(id).map(|lease| (id, lease))
    }

    /// Every holding of every lease, to be changed.
    pub(super) fn holdings(&mut self) -> impl Iterator<Item = &mut Holding> {
        self.open.values_mut().flat_map(|lease| &mut lease.holdings)
    }

    /// An incarnation of a limit is gone and takes along what was held of it. A lease that held nothing else is gone too.
    pub(super) fn forget(&mut self, generation: u64) {
        let Leases { open, by_end, .. } = self;
        open.retain(|id, lease| {
            let mut concerned = false;
            for holding in lease.holdings.iter_mut().filter(|holding| holding.generation == generation) {
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

    pub(super) fn remember_settled(&mut self, id: LeaseId, until: Timestamp) {
        if self.settled_order.len() >= MOST_SETTLED
            && let Some(oldest) = self.settled_order.pop_front()
        {
            self.settled.remove(&oldest);
        }
        self.settled_order.push_back(id);
        self.settled.insert(id, until);
    }

    pub(super) fn was_settled(&self, id: LeaseId, now: Timestamp) -> bool {
        self.settled.get(&id).is_some_and(|&until| now < until)
    }
}
