//! Leases, what they were charged, and settlements that may be repeated.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use tidegate_core::{LeaseId, Timestamp};

pub(in crate::store) use crate::journal::{HeldAsk, LeaseHolding, LeaseRecord};

/// Number of settlements that are remembered for repeated calls.
const MOST_SETTLED: usize = 100_000;

/// How long a settlement is remembered.
pub(in crate::store) const SETTLED_MEMORY: Duration = Duration::from_secs(600);

/// Generation of limits that are gone. The first limit has generation 1.
const GONE: u64 = 0;

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
