//! A working set: the part of a store that some orders need. It is loaded from elsewhere, decided on here, and written
//! back.
//!
//! ```text
//!   tables of a database ──rows, leases, request ids──▶ WorkingSet ──decide──▶ replies
//!            ▲                                             │
//!            └──────────────── changes ────────────────────┘
//! ```
//!
//! A store with its rows on another machine loads what an order needs and lets the map store decide. So it answers
//! exactly as the map store does and has no arithmetic of its own. The caller holds the locks of everything in the
//! working set until the changes are written.
//!
//! Everything outside of the working set counts as absent, with one exception: [`UnloadedRows`] gives the number of
//! other rows of a bounded limit and when one of them becomes evictable.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{LeaseId, LeaseTerm, Limit, Order, Row, Tick, Timestamp};

use super::map_limit::MapLimit;
use super::{MapState, check_key, check_ttl};
use crate::reply::{OrderError, Replies};
use crate::store::leases::LeaseRecord;
use crate::store::remembered_grants::RememberedGrant;
use crate::store::{Actual, Settlement, Usage};

pub use super::key_table::UnloadedRows;

/// A part of a store.
pub struct WorkingSet {
    state: MapState,
}

/// State of a limit in the store that it was loaded from.
#[derive(Debug, Clone, Copy)]
pub struct LoadedLimit {
    /// Generation of the limit.
    pub generation: u64,
    /// The latest fence that it gave.
    pub fence: u64,
    /// End of its retirement, if it vanished from a file.
    pub retired_until: Option<Timestamp>,
    /// Its rows outside of the working set.
    pub elsewhere: UnloadedRows,
}

impl WorkingSet {
    /// An empty working set. Lease ids are made from the secret and from numbers after `number`, so no other working
    /// set may use the same pair.
    pub fn new(tick: Tick, secret: u64, number: u64) -> WorkingSet {
        WorkingSet { state: MapState { tick, secret, granted_leases: number, ..MapState::default() } }
    }

    /// Adds a limit. Its rows follow.
    pub fn limit(&mut self, limit: Arc<Limit>, loaded: LoadedLimit) {
        let id: Box<str> = limit.id().into();
        let mut entry = MapLimit::new(limit, loaded.generation, loaded.fence);
        entry.table.set_unloaded(loaded.elsewhere);
        match loaded.retired_until {
            None => {
                self.state.limits.insert(id, entry);
            }
            Some(until) => {
                self.state.retired.insert(id, (until, entry));
            }
        }
    }

    /// Adds a row of a limit: a key's row, or the `all` row.
    pub fn row(&mut self, limit_id: &str, key: Option<&[u8]>, row: Row) {
        let now = self.state.latest;
        let Some(entry) = self.state.limit_mut(limit_id) else { return };
        match key {
            None => entry.all = row,
            Some(key) => {
                let limit = Arc::clone(&entry.limit);
                entry.table.insert_unchecked(&limit, key, row, now);
            }
        }
    }

    /// Adds a lease.
    pub fn lease(&mut self, id: LeaseId, lease: LeaseRecord) {
        self.state.leases.insert(id, lease);
    }

    /// Sets when the first lease outside of the working set lapses.
    pub fn next_lapse(&mut self, at: Option<Timestamp>) {
        self.state.next_lapse = at;
    }

    /// Adds a remembered settlement.
    pub fn settled(&mut self, id: LeaseId, until: Timestamp) {
        self.state.leases.remember_settled(id, until);
    }

    /// Adds a remembered grant.
    pub fn request(&mut self, id: &[u8], grant: RememberedGrant) {
        self.state.requests.remember(id, grant);
    }

    /// Advances time. Leases that have lapsed are dropped.
    pub fn advance(&mut self, now: Timestamp) {
        self.state.advance(now);
    }

    /// The current instant.
    pub fn now(&self) -> Timestamp {
        self.state.latest
    }

    /// Decides an order and appends its reply.
    pub fn decide(&mut self, order: &Order<'_>, answers: &mut Replies) {
        let answer = self.state.decide(order, answers);
        answers.push(answer);
    }

    /// Releases a lease.
    pub fn release(&mut self, id: LeaseId) -> bool {
        self.state.release(id).is_some()
    }

    /// Moves the expiry of a lease.
    pub fn renew(&mut self, id: LeaseId, ttl: Option<Duration>) -> Result<Option<Timestamp>, OrderError> {
        check_ttl(ttl).map(|()| self.state.renew(id, ttl))
    }

    /// Settles a held charge and releases its lease.
    pub fn settle(&mut self, id: LeaseId, actual: Actual<'_>) -> Result<Settlement, OrderError> {
        self.state.settle(id, actual)
    }

    /// Zeroes the counts of a key.
    pub fn reset(&mut self, limit_id: &str, key: &[u8]) -> Result<(), OrderError> {
        check_key(Some(key)).and_then(|()| self.state.reset(limit_id, Some(key)))
    }

    /// Current usage.
    pub fn usage(&mut self, limit_id: &str, key: Option<&[u8]>) -> Result<Usage, OrderError> {
        check_key(key).and_then(|()| self.state.usage(limit_id, key))
    }

    /// Live leases that hold units.
    pub fn holders(&mut self, limit_id: &str, key: Option<&[u8]>) -> Result<Vec<LeaseTerm>, OrderError> {
        check_key(key).and_then(|()| self.state.holders(limit_id, key))
    }

    /// The current row; `None` if there is none, or if it was dropped as evictable.
    pub fn row_of(&mut self, limit_id: &str, key: Option<&[u8]>) -> Option<&Row> {
        self.state.limit_mut(limit_id)?.row(key).map(|row| &*row)
    }

    /// The latest fence of a limit.
    pub fn fence_of(&mut self, limit_id: &str) -> Option<u64> {
        self.state.limit_mut(limit_id).map(|entry| entry.fence)
    }

    /// All current leases.
    pub fn leases(&self) -> impl Iterator<Item = (LeaseId, &LeaseRecord)> {
        self.state.leases.ids().filter_map(|id| Some((id, self.state.leases.get(id)?)))
    }

    /// A lease that was added or granted and still exists.
    pub fn lease_of(&self, id: LeaseId) -> Option<&LeaseRecord> {
        self.state.leases.get(id)
    }

    /// Remembered settlements.
    pub fn settlements(&self) -> impl Iterator<Item = (LeaseId, Timestamp)> {
        self.state.leases.settled()
    }

    /// Remembered grants.
    pub fn requests(&self) -> impl Iterator<Item = (&[u8], &RememberedGrant)> {
        self.state.requests.iter()
    }
}

impl MapState {
    fn limit_mut(&mut self, limit_id: &str) -> Option<&mut MapLimit> {
        match self.limits.get_mut(limit_id) {
            Some(entry) => Some(entry),
            None => self.retired.get_mut(limit_id).map(|(_, entry)| entry),
        }
    }
}

impl std::fmt::Debug for WorkingSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkingSet").field("now", &self.state.latest).finish_non_exhaustive()
    }
}
