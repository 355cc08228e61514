//! Release, renewal and settlement of leases.
//!
//! Callers read the limit map before they lock the lease registry. In the opposite order a reader could wait for a writer
//! of the map that waits for other readers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_core::decide;
use tidegate_core::{AskTotals, DecisionRow, Item, LeaseId, LeaseTerm, Row, Timestamp};

use super::limit_table::LimitTable;
use super::locked_path::note_row;
use super::row_access::{MissingRow, with_row};
use super::{LeaseRegistry, Limits, StoreState};
use crate::reply::OrderError;
use crate::store::journal::{LeaseAction, Notes};
use crate::store::leases::{LeaseHolding, LeaseRecord, SETTLED_MEMORY};
use crate::store::{Actual, Settlement};

/// The number of expired leases that are dropped at a time. Rows recognize expired leases by themselves.
const LAPSES_AT_A_TIME: usize = 64;

impl StoreState {
    /// Drops expired leases, so that their rows may be evicted.
    pub(super) fn drop_lapsed(&self, limits: &Limits, registry: &mut LeaseRegistry, now: Timestamp) {
        for _ in 0..LAPSES_AT_A_TIME {
            let Some((_, lease)) = registry.leases.pop_lapsed(now) else { break };
            for holding in lease.holdings.iter().filter(|holding| holding.pins) {
                self.with_held(limits, holding, now, |row, _| row.remove_hold());
            }
        }
        self.update_next_lapse(registry);
    }

    /// The earliest expiry of a lease.
    pub(super) fn next_lapse(&self) -> Option<Timestamp> {
        let next = Timestamp::from_ticks(self.next_lapse.load(Ordering::Relaxed));
        (next.ticks() != u64::MAX).then_some(next)
    }

    /// Updates the earliest expiry.
    pub(super) fn update_next_lapse(&self, registry: &LeaseRegistry) {
        let next = registry.leases.next_lapse().map_or(u64::MAX, Timestamp::ticks);
        self.next_lapse.store(next, Ordering::Relaxed);
    }

    /// The limit of a holding, if it is still the same one, also in retirement.
    fn holder_of(&self, limits: &Limits, holding: &LeaseHolding) -> Option<Arc<LimitTable>> {
        let own = |table: &Arc<LimitTable>| table.generation == holding.generation;
        let current = limits.get(&holding.limit_id).map(Arc::clone);
        current.filter(own).or_else(|| self.retired(&holding.limit_id).filter(own))
    }

    fn with_held<T>(
        &self,
        limits: &Limits,
        holding: &LeaseHolding,
        now: Timestamp,
        change: impl FnOnce(&mut Row, Timestamp) -> T,
    ) -> Option<T> {
        let table = self.holder_of(limits, holding)?;
        with_row(&table, holding.key.as_deref(), now, MissingRow::Ignore, |_, _, row, now| change(row, now))
    }

    pub(super) fn release(&self, id: LeaseId, notes: Option<&mut Notes>) -> bool {
        let limits = self.limits();
        let mut registry = self.registry();
        // Read here: the thread that had the registry before may have found a lease expired.
        let now = self.latest(self.clock.now());
        self.drop_lapsed(&limits, &mut registry, now);
        let released = self.give_back(&limits, &mut registry, id, now).is_some();
        if let Some(notes) = notes.filter(|_| released) {
            notes.deeds.push(registry.note(LeaseAction::Released { id }));
        }
        self.update_next_lapse(&registry);
        released
    }

    /// Removes a lease and gives its units back.
    fn give_back(
        &self,
        limits: &Limits,
        registry: &mut LeaseRegistry,
        id: LeaseId,
        now: Timestamp,
    ) -> Option<LeaseRecord> {
        let lease = registry.leases.remove(id)?;
        if lease.expires_at <= now {
            // It has expired, but was not dropped yet.
            registry.leases.insert(id, lease);
            return None;
        }
        let tenure = LeaseTerm { lease: id, expires_at: lease.expires_at };
        for holding in &lease.holdings {
            self.with_held(limits, holding, now, |row, now| {
                row.release(&tenure, now);
                if holding.pins {
                    row.remove_hold();
                }
            });
        }
        Some(lease)
    }

    pub(super) fn renew(
        &self,
        id: LeaseId,
        ttl: Option<Duration>,
        notes: Option<&mut Notes>,
    ) -> Option<Timestamp> {
        let limits = self.limits();
        let mut registry = self.registry();
        // Read here: the thread that had the registry before may have found a lease expired.
        let now = self.latest(self.clock.now());
        self.drop_lapsed(&limits, &mut registry, now);
        let mut lease = registry.leases.remove(id)?;
        if lease.expires_at <= now {
            registry.leases.insert(id, lease);
            return None;
        }
        let ttl = ttl.map_or(lease.ttl, |ttl| self.tick.span(ttl));
        let tenure = LeaseTerm { lease: id, expires_at: lease.expires_at };
        let expires_at = now.plus(ttl);
        for holding in &lease.holdings {
            // The lease is live at this time. A row that a look has seen later keeps it, because charges need the registry.
            self.with_held(&limits, holding, now, |row, _| row.renew(&tenure, expires_at, now));
        }
        lease.expires_at = expires_at;
        registry.leases.insert(id, lease);
        if let Some(notes) = notes {
            notes.deeds.push(registry.note(LeaseAction::Renewed { id, expires_at }));
        }
        self.update_next_lapse(&registry);
        Some(expires_at)
    }

    pub(super) fn settle(
        &self,
        id: LeaseId,
        actual: Actual<'_>,
        mut notes: Option<&mut Notes>,
    ) -> Result<Settlement, OrderError> {
        let limits = self.limits();
        let mut registry = self.registry();
        // Read here: the thread that had the registry before may have found a lease expired.
        let now = self.latest(self.clock.now());
        self.drop_lapsed(&limits, &mut registry, now);
        if registry.leases.was_settled(id, now) {
            return Ok(Settlement::Settled);
        }
        let Some(lease) = registry.leases.get(id) else { return Ok(Settlement::Gone) };
        actual.check(lease.asks.len())?;
        let loads = lease.loads(|ask| actual.of(ask));
        let Some(lease) = registry.leases.remove(id).filter(|lease| now < lease.expires_at) else {
            return Ok(Settlement::Gone);
        };
        for (holding, load) in lease.holdings.iter().zip(loads) {
            let tenure = LeaseTerm { lease: id, expires_at: lease.expires_at };
            self.correct(&limits, tenure, holding, load, now, notes.as_deref_mut());
        }
        let until = now.plus(self.tick.span(SETTLED_MEMORY));
        registry.leases.remember_settled(id, until);
        if let Some(notes) = notes {
            notes.deeds.push(registry.note(LeaseAction::Settled { id, until }));
        }
        self.update_next_lapse(&registry);
        Ok(Settlement::Settled)
    }

    /// Gives the units of a holding back, and corrects its charges to the cost of this load.
    fn correct(
        &self,
        limits: &Limits,
        tenure: LeaseTerm,
        holding: &LeaseHolding,
        load: AskTotals,
        now: Timestamp,
        notes: Option<&mut Notes>,
    ) {
        let current = limits.get(&holding.limit_id).filter(|table| table.generation == holding.generation);
        let Some(table) = current else {
            self.with_held(limits, holding, now, |row, now| {
                row.release(&tenure, now);
                if holding.pins {
                    row.remove_hold();
                }
            });
            return;
        };
        let key = holding.key.as_deref();
        with_row(table, key, now, MissingRow::Create, |epoch, seat, row, now| {
            row.release(&tenure, now);
            if holding.pins {
                row.remove_hold();
            }
            let now = row.last_charge_time().max(now);
            let limit = &epoch.limit;
            let mut line = DecisionRow { limit, scope: seat, row, totals: load };
            for (name, charged) in &holding.charges {
                if let Some((index, item)) =
                    limit.item_named(name).filter(|(_, item)| item.per() == seat.per())
                {
                    line.settle(index, charged, holding.version, decide::cost(item, load), now);
                }
            }
            if let Some(notes) = notes {
                let tag = key.map(|key| table.printer.print(key));
                let was_charged =
                    |item: &Item| holding.charges.iter().any(|(name, _)| **name == *item.name());
                note_row(table.generation, tag, (limit, seat, line.row), now, notes, was_charged);
            }
        });
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::sync::Arc;

    use tidegate_core::{Ask, ItemSpec, LimitSpec, Order, Policy};

    use super::*;
    use crate::catalog::{Catalog, ExpectedVersion};
    use crate::clock::ManualClock;
    use crate::reply::{Detail, Outcome, Replies};
    use crate::store::Store;
    use crate::store::memory::{Memory, MemoryStore};

    /// A thread reads the clock and renews a lease. Between the two, another thread has looked at the row at a later instant,
    /// at which the lease would have expired.
    #[test]
    fn renewed_lease_keeps_its_units_after_a_later_look() {
        const START: Timestamp = Timestamp::from_ticks(1_000_000_000_000);
        let ttl = Duration::from_secs(10);
        let clock = Arc::new(ManualClock::at(START));
        let store = MemoryStore::new(Arc::clone(&clock), Memory::default());
        let slot = ItemSpec::of(Policy::Concurrency { ttl }, 1);
        for (id, item, key) in [("all", slot.clone(), None), ("key", slot.per_key(), Some(&b"ada"[..]))] {
            store.put(LimitSpec::named(id).with(item), ExpectedVersion::Absent).expect("a valid limit");
            let asks = [Ask::one(id, key)];
            let acquire = || store.submit(&[Order::acquire(&asks)], Replies::new(Detail::Verdicts)).now();
            let replies = acquire();
            let Some(Ok(reply)) = replies.get(0) else { panic!("{replies:?}") };
            let Outcome::Granted(Some(grant)) = &reply.outcome else { panic!("{reply:?}") };
            let later = grant.expires_at;
            let table = store.state.table(id).expect("it was put");
            let header = match key {
                None => &table.all.header,
                Some(key) => &table.leaf(table.printer.print(key)).expect("a row").header,
            };
            header.raise(later);
            let renewed = store.renew(grant.lease, Some(2 * ttl)).now().expect("a valid time to live");
            assert!(renewed > Some(later), "{id}");
            let replies = acquire();
            let Some(Ok(reply)) = replies.get(0) else { panic!("{replies:?}") };
            assert!(reply.at >= later && !reply.is_granted(), "{id}: {reply:?}");
        }
    }
}
