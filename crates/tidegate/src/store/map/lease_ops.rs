//! Release, renewal and settlement of leases.

use std::time::Duration;

use tidegate_core::{LeaseId, LeaseTerm, Row, Timestamp};

use super::MapState;
use crate::reply::OrderError;
use crate::store::leases::{LeaseHolding, LeaseRecord, SETTLED_MEMORY};
use crate::store::{Actual, Settlement};

impl MapState {
    /// Changes the row of a holding if its limit still has the same generation.
    pub(super) fn with_row<T>(
        &mut self,
        holding: &LeaseHolding,
        change: impl FnOnce(&mut Row) -> T,
    ) -> Option<T> {
        let id = &*holding.limit_id;
        let entry = match self.limits.get_mut(id) {
            Some(entry) if entry.generation == holding.generation => entry,
            _ => match self.retired.get_mut(id) {
                Some((_, entry)) if entry.generation == holding.generation => entry,
                _ => return None,
            },
        };
        entry.table.forget_full_until();
        entry.row(holding.key.as_deref()).map(change)
    }

    /// Removes a lease and returns its held units.
    pub(super) fn release(&mut self, id: LeaseId) -> Option<LeaseRecord> {
        let lease = self.leases.remove(id)?;
        let lease_term = LeaseTerm { lease: id, expires_at: lease.expires_at };
        let now = self.latest;
        for holding in &lease.holdings {
            self.with_row(holding, |row| {
                row.release(&lease_term, now);
                if holding.pins {
                    row.remove_hold();
                }
            });
        }
        Some(lease)
    }

    pub(super) fn renew(&mut self, id: LeaseId, ttl: Option<Duration>) -> Option<Timestamp> {
        let mut lease = self.leases.remove(id)?;
        let ttl = ttl.map_or(lease.ttl, |ttl| self.tick.span(ttl));
        let lease_term = LeaseTerm { lease: id, expires_at: lease.expires_at };
        let now = self.latest;
        lease.expires_at = now.plus(ttl);
        for holding in &lease.holdings {
            self.with_row(holding, |row| row.renew(&lease_term, lease.expires_at, now));
        }
        let expires_at = lease.expires_at;
        self.leases.insert(id, lease);
        Some(expires_at)
    }

    pub(super) fn settle(&mut self, id: LeaseId, actual: Actual<'_>) -> Result<Settlement, OrderError> {
        if self.leases.was_settled(id, self.latest) {
            return Ok(Settlement::Settled);
        }
        let Some(lease) = self.leases.get(id) else { return Ok(Settlement::Gone) };
        actual.check(lease.asks.len())?;
        let loads = lease.loads(|ask| actual.of(ask));
        let Some(lease) = self.release(id) else { return Ok(Settlement::Gone) };
        let now = self.latest;
        for (holding, load) in lease.holdings.iter().zip(loads) {
            let Some(entry) = self.limits.get_mut(&*holding.limit_id) else { continue };
            if entry.generation == holding.generation {
                entry.settle(holding, load, now);
            }
        }
        self.leases.remember_settled(id, now.plus(self.tick.span(SETTLED_MEMORY)));
        Ok(Settlement::Settled)
    }
}
