//! The rows of leases that left the process as an id.
//!
//! A server hands lease ids to its clients and later releases them by id. The rows kept here tell which waiters to
//! wake. The memory is bounded: for an id that is not known, all waiters are woken, which is correct and only slower.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use tidegate_core::LeaseId;

use super::wait_queues::RowId;

/// The most ids that are kept. The oldest are dropped first.
const MAX_DETACHED: usize = 100_000;

/// The rows of detached leases, by lease id.
#[derive(Debug, Default)]
pub(super) struct DetachedLeases {
    list: Mutex<DetachedList>,
}

#[derive(Debug, Default)]
struct DetachedList {
    rows: HashMap<LeaseId, Arc<[RowId]>>,
    /// Every id that was added, including ids that were removed since.
    oldest_first: VecDeque<LeaseId>,
}

impl DetachedLeases {
    /// Adds a lease that becomes an id.
    pub(super) fn add(&self, lease: LeaseId, rows: &Arc<[RowId]>) {
        let mut list = self.lock();
        if list.oldest_first.len() >= MAX_DETACHED
            && let Some(oldest) = list.oldest_first.pop_front()
        {
            list.rows.remove(&oldest);
        }
        list.oldest_first.push_back(lease);
        list.rows.insert(lease, Arc::clone(rows));
    }

    /// The rows of a lease.
    pub(super) fn get(&self, lease: LeaseId) -> Option<Arc<[RowId]>> {
        self.lock().rows.get(&lease).map(Arc::clone)
    }

    /// Removes a lease that is over or was adopted, and returns its rows.
    pub(super) fn remove(&self, lease: LeaseId) -> Option<Arc<[RowId]>> {
        self.lock().rows.remove(&lease)
    }

    fn lock(&self) -> MutexGuard<'_, DetachedList> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::wait_queues::{RowKind, WaitBounds, WaitQueues};

    #[test]
    fn oldest_detached_lease_is_dropped_first() {
        let queues = WaitQueues::new(WaitBounds { in_all: 1, per_row: 1 });
        let rows: Arc<[RowId]> = Arc::new([queues.row("l", RowKind::All, None)]);
        let detached_leases = DetachedLeases::default();
        let ids = || (0..=MAX_DETACHED as u128).map(LeaseId);
        ids().for_each(|id| detached_leases.add(id, &rows));
        assert_eq!(ids().filter(|id| detached_leases.get(*id).is_none()).collect::<Vec<_>>(), [LeaseId(0)]);
        assert!(detached_leases.remove(LeaseId(7)).is_some() && detached_leases.remove(LeaseId(7)).is_none());
    }
}
