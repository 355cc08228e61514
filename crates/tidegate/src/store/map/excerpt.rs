//! An excerpt: the part of a store that some orders are about, taken from where it is kept, decided on here, and given back changed.
//!
//! ```text
//!   tables of a database ──rows, leases, request ids──▶ Excerpt ──decide──▶ answers
//!            ▲                                             │
//!            └──────────────── what is different ──────────┘
//! ```
//!
//! Decided: a store that keeps its states on another machine does not decide by itself; it brings what an order needs, and the plain store
//! does the rest. So it answers as the plain store does, to the last tick, and has no arithmetic of its own. Whoever makes an excerpt holds the
//! locks of everything in it until what changed is written down.
//!
//! What is not in an excerpt is not there, with one exception: how many rows a bounded limit has beside those that were brought, and when
//! one of them becomes fresh ([`Elsewhere`]).

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{LeaseId, LeaseTerm, Limit, Order, Row, Tick, Timestamp};

use super::map_limit::Tenant;
use super::{Inner, check_key, check_ttl};
use crate::reply::{OrderError, Replies};
use crate::store::leases::Lease;
use crate::store::requests::Remembered;
use crate::store::{Actual, Settlement, Usage};

pub use super::key_table::Elsewhere;

/// A part of a store, to be decided on.
pub struct Excerpt {
    inner: Inner,
}

/// How a limit stands in the store that it was taken from.
#[derive(Debug, Clone, Copy)]
pub struct Standing {
    /// Which incarnation of its id it is.
    pub generation: u64,
    /// The latest fence it gave.
    pub fence: u64,
    /// Until when it may come back, if it vanished from a file.
    pub retired_until: Option<Timestamp>,
    /// Its rows that are not here.
    pub elsewhere: Elsewhere,
}

impl Excerpt {
    /// An empty one. Leases that are granted here are called by the secret and by numbers after this one, so the two together must be
    /// nobody else's.
    pub fn new(tick: Tick, secret: u64, number: u64) -> Excerpt {
        Excerpt { inner: Inner { tick, secret, granted_leases: number, ..Inner::default() } }
    }

    /// Brings a limit. Its rows come after it.
    pub fn limit(&mut self, limit: Arc<Limit>, standing: Standing) {
        let id: Box<str> = limit.id().into();
        let mut tenant = Tenant::new(limit, standing.generation, standing.fence);
        tenant.table.beside(standing.elsewhere);
        match standing.retired_until {
            None => {
                self.inner.limits.insert(id, tenant);
            }
            Some(until) => {
                self.inner.retired.insert(id, (until, tenant));
            }
        }
    }

    /// Brings a row of a limit that is here: a key's, or the one of all keys.
    pub fn row(&mut self, limit_id: &str, key: Option<&[u8]>, row: Row) {
        let now = self.inner.latest;
        let Some(tenant) = self.inner.tenant_mut(limit_id) else { return };
        match key {
            None => tenant.all = row,
            Some(key) => {
                let limit = Arc::clone(&tenant.limit);
                tenant.table.bring(&limit, key, row, now);
            }
        }
    }

    /// Brings a lease.
    pub fn lease(&mut self, id: LeaseId, lease: Lease) {
        self.inner.leases.insert(id, lease);
    }

    /// Of the leases that are not here, the first to lapse does so at this instant.
    pub fn next_lapse(&mut self, at: Option<Timestamp>) {
        self.inner.next_lapse = at;
    }

    /// Brings a settlement that is remembered until then.
    pub fn settled(&mut self, id: LeaseId, until: Timestamp) {
        self.inner.leases.remember_settled(id, until);
    }

    /// Brings a grant that is remembered.
    pub fn request(&mut self, id: &[u8], grant: Remembered) {
        self.inner.requests.remember(id, grant);
    }

    /// It is this instant, or later if a later one was seen. Leases that have lapsed go.
    pub fn advance(&mut self, now: Timestamp) {
        self.inner.advance(now);
    }

    /// The instant it is.
    pub fn now(&self) -> Timestamp {
        self.inner.latest
    }

    /// Decides an order, behind those that are answered.
    pub fn decide(&mut self, order: &Order<'_>, answers: &mut Replies) {
        let answer = self.inner.decide(order, answers);
        answers.push(answer);
    }

    /// Gives a lease back.
    pub fn release(&mut self, id: LeaseId) -> bool {
        self.inner.release(id).is_some()
    }

    /// Moves a lease's end.
    pub fn renew(&mut self, id: LeaseId, ttl: Option<Duration>) -> Result<Option<Timestamp>, OrderError> {
        check_ttl(ttl).map(|()| self.inner.renew(id, ttl))
    }

    /// Settles a held charge, and gives its lease back.
    pub fn settle(&mut self, id: LeaseId, actual: Actual<'_>) -> Result<Settlement, OrderError> {
        self.inner.settle(id, actual)
    }

    /// Zeroes what is counted for a key.
    pub fn reset(&mut self, limit_id: &str, key: &[u8]) -> Result<(), OrderError> {
        check_key(Some(key)).and_then(|()| self.inner.reset(limit_id, Some(key)))
    }

    /// What is counted.
    pub fn usage(&mut self, limit_id: &str, key: Option<&[u8]>) -> Result<Usage, OrderError> {
        check_key(key).and_then(|()| self.inner.usage(limit_id, key))
    }

    /// Who holds something.
    pub fn holders(&mut self, limit_id: &str, key: Option<&[u8]>) -> Result<Vec<LeaseTerm>, OrderError> {
        check_key(key).and_then(|()| self.inner.holders(limit_id, key))
    }

    /// A row as it is by now; `None` if there is none, or if it was dropped because it is fresh.
    pub fn row_of(&mut self, limit_id: &str, key: Option<&[u8]>) -> Option<&Row> {
        self.inner.tenant_mut(limit_id)?.row(key).map(|row| &*row)
    }

    /// The latest fence that a limit gave.
    pub fn fence_of(&mut self, limit_id: &str) -> Option<u64> {
        self.inner.tenant_mut(limit_id).map(|tenant| tenant.fence)
    }

    /// The leases that there are by now.
    pub fn leases(&self) -> impl Iterator<Item = (LeaseId, &Lease)> {
        self.inner.leases.ids().filter_map(|id| Some((id, self.inner.leases.get(id)?)))
    }

    /// A lease that was brought or granted and is still there.
    pub fn lease_of(&self, id: LeaseId) -> Option<&Lease> {
        self.inner.leases.get(id)
    }

    /// The settlements that are remembered by now.
    pub fn settlements(&self) -> impl Iterator<Item = (LeaseId, Timestamp)> {
        self.inner.leases.settled()
    }

    /// The grants that are remembered by now.
    pub fn requests(&self) -> impl Iterator<Item = (&[u8], &Remembered)> {
        self.inner.requests.iter()
    }
}

impl Inner {
    fn tenant_mut(&mut self, limit_id: &str) -> Option<&mut Tenant> {
        match self.limits.get_mut(limit_id) {
            Some(tenant) => Some(tenant),
            None => self.retired.get_mut(limit_id).map(|(_, tenant)| tenant),
        }
    }
}

impl std::fmt::Debug for Excerpt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Excerpt").field("now", &self.inner.latest).finish_non_exhaustive()
    }
}
