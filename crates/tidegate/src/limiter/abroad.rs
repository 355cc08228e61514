//! Leases that left the process as an id: which rows they hold something of.
//!
//! A server hands ids to its clients and is later told to release them. It should then call those who wait for what came
//! back, and not everybody. What is remembered is bounded and says nothing about the lease itself: for an id that is not
//! known here everybody is called, which is right and only slower.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use tidegate_core::LeaseId;

use super::queues::RowId;

/// The most ids that are remembered. The oldest are forgotten first.
const MOST_ABROAD: usize = 100_000;

/// Leases that left as an id.
#[derive(Debug, Default)]
pub(super) struct Abroad {
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    rows: HashMap<LeaseId, Arc<[RowId]>>,
    /// Every id that was added and perhaps taken out since.
    oldest_first: VecDeque<LeaseId>,
}

impl Abroad {
    /// A lease leaves.
    pub(super) fn add(&self, lease: LeaseId, rows: &Arc<[RowId]>) {
        let mut list = self.lock();
        if list.oldest_first.len() >= MOST_ABROAD
            && let Some(oldest) = list.oldest_first.pop_front()
        {
            list.rows.remove(&oldest);
        }
        list.oldest_first.push_back(lease);
        list.rows.insert(lease, Arc::clone(rows));
    }

    /// The rows of a lease that is spoken of.
    pub(super) fn get(&self, lease: LeaseId) -> Option<Arc<[RowId]>> {
        self.lock().rows.get(&lease).map(Arc::clone)
    }

    /// The rows of a lease that is over, or back.
    pub(super) fn remove(&self, lease: LeaseId) -> Option<Arc<[RowId]>> {
        self.lock().rows.remove(&lease)
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::queues::{Bounds, Kind, Queues};

    #[test]
    fn the_oldest_are_forgotten_first() {
        let queues = Queues::new(Bounds { in_all: 1, per_row: 1 });
        let rows: Arc<[RowId]> = Arc::new([queues.row("l", Kind::All, None)]);
        let abroad = Abroad::default();
        let ids = || (0..=MOST_ABROAD as u128).map(LeaseId);
        ids().for_each(|id| abroad.add(id, &rows));
        assert_eq!(ids().filter(|id| abroad.get(*id).is_none()).collect::<Vec<_>>(), [LeaseId(0)]);
        assert!(abroad.remove(LeaseId(7)).is_some() && abroad.remove(LeaseId(7)).is_none());
    }
}
