//! The plain store: a map of rows behind one lock. Right before fast.
//!
//! It decides exactly as the core says, remembers exactly what the core needs, and is the store that every other one is
//! compared with. One order at a time, so that nothing has to be argued about concurrency.

mod admin_ops;
pub mod excerpt;
mod key_table;
mod lease_ops;
mod map_limit;
mod order_path;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use hashbrown::HashMap;
use tidegate_core::{Ask, LeaseId, LeaseTerm, Limit, LimitSpec, Order, Row, Tick, Timestamp};

use crate::catalog::{
    ApplyError, Catalog, Change, Edit, EditOutcome, ExpectedVersion, Origin, PutError, RemovalMode, Watcher,
};
use crate::clock::Clock;
use crate::reply::{OrderError, Replies};
use crate::store::{Actual, Atomicity, Capabilities, Reach, Settlement, Store, StoreReply, Survival, Usage};

use map_limit::Tenant;

use super::leases::Leases;
use super::order_path::{check_key, check_ttl};
use super::requests::Requests;

/// How many orders of a batch are looked up before the first of them is decided.
pub const LOOK_AHEAD: usize = 16;

/// Rows in a map, decided one order at a time.
pub struct MapStore {
    clock: Box<dyn Clock>,
    inner: Mutex<Inner>,
    watchers: RwLock<Vec<Watcher>>,
}

impl MapStore {
    /// An empty store that keeps this clock's time. The secret makes lease ids hard to guess; a fixed one makes runs
    /// repeatable.
    pub fn new(clock: impl Clock + 'static, secret: u64) -> MapStore {
        let inner = Inner { tick: clock.tick(), secret, ..Inner::default() };
        MapStore { clock: Box::new(clock), inner: Mutex::new(inner), watchers: RwLock::default() }
    }

    /// How many rows a limit has at this instant that are not fresh, its `all` row not among them.
    pub fn live_keys(&self, limit_id: &str) -> usize {
        let inner = self.advance();
        inner.limits.get(limit_id).map_or(0, |tenant| tenant.live_keys(inner.latest))
    }

    /// How many rows the store holds, fresh ones that were not noticed yet included.
    pub fn rows(&self) -> usize {
        self.lock().limits.values().map(|tenant| tenant.table.len()).sum()
    }

    /// How many leases are open.
    pub fn leases(&self) -> usize {
        self.advance().leases.len()
    }

    /// Looks at the rows of asks to come, about [`LOOK_AHEAD`] of them. Rows of many keys are far apart in memory; looked
    /// at one after the other the processor fetches them side by side, where deciding would wait for each in turn.
    /// Batches do this by themselves; it is for those who must submit their orders one by one.
    pub fn look_ahead<'a>(&self, asks: impl IntoIterator<Item = Ask<'a>>) {
        self.lock().look_ahead(asks);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic inside the lock is a defect of ours; it must not make the limiter the outage.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store at the present instant.
    fn advance(&self) -> MutexGuard<'_, Inner> {
        let now = self.clock.now();
        let mut inner = self.lock();
        inner.advance(now);
        inner
    }

    fn tell(&self, change: &Change) {
        for watcher in self.watchers.read().unwrap_or_else(PoisonError::into_inner).iter() {
            watcher(change);
        }
    }
}

impl std::fmt::Debug for MapStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MapStore").field("rows", &self.rows()).finish_non_exhaustive()
    }
}

impl Store for MapStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            survival: Survival::Volatile,
            reach: Reach::Process,
            atomicity: Atomicity::AllRows,
            tick: self.clock.tick(),
        }
    }

    fn submit(&self, orders: &[Order<'_>], mut buffer: Replies) -> StoreReply<Replies> {
        buffer.clear();
        let mut inner = self.advance();
        for group in orders.chunks(LOOK_AHEAD) {
            if group.len() > 1 {
                inner.look_ahead(group.iter().flat_map(|order| order.asks).copied());
            }
            for order in group {
                let answer = inner.decide(order, &mut buffer);
                buffer.push(answer);
            }
        }
        StoreReply::Now(buffer)
    }

    fn release(&self, lease: LeaseId) -> StoreReply<bool> {
        StoreReply::Now(self.advance().release(lease).is_some())
    }

    fn renew(
        &self,
        lease: LeaseId,
        ttl: Option<Duration>,
    ) -> StoreReply<Result<Option<Timestamp>, OrderError>> {
        StoreReply::Now(check_ttl(ttl).map(|()| self.advance().renew(lease, ttl)))
    }

    fn settle(&self, lease: LeaseId, actual: Actual<'_>) -> StoreReply<Result<Settlement, OrderError>> {
        StoreReply::Now(self.advance().settle(lease, actual))
    }

    fn reset(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<(), OrderError>> {
        StoreReply::Now(check_key(key).and_then(|()| self.advance().reset(limit_id, key)))
    }

    fn usage(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Usage, OrderError>> {
        StoreReply::Now(check_key(key).and_then(|()| self.advance().usage(limit_id, key)))
    }

    fn holders(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Vec<LeaseTerm>, OrderError>> {
        StoreReply::Now(check_key(key).and_then(|()| self.advance().holders(limit_id, key)))
    }

    fn held_until(&self, leases: &[LeaseId]) -> StoreReply<Vec<Option<Timestamp>>> {
        StoreReply::Now(self.advance().leases.held_until(leases))
    }
}

impl Catalog for MapStore {
    fn get(&self, id: &str) -> Option<Arc<Limit>> {
        self.lock().limits.get(id).map(|tenant| Arc::clone(&tenant.limit))
    }

    fn list(&self) -> Vec<Arc<Limit>> {
        let mut all: Vec<_> = self.lock().limits.values().map(|tenant| Arc::clone(&tenant.limit)).collect();
        all.sort_by(|a, b| a.id().cmp(b.id()));
        all
    }

    fn put(&self, spec: LimitSpec, expect: ExpectedVersion) -> Result<Arc<Limit>, PutError> {
        let limit = self.advance().put(spec, expect)?;
        self.tell(&Change::Put(Arc::clone(&limit)));
        Ok(limit)
    }

    fn remove(&self, id: &str, parting: RemovalMode) -> bool {
        let removed = self.advance().remove(id, parting);
        if let Some(limit) = &removed {
            self.tell(&Change::Removed(Arc::clone(limit)));
        }
        removed.is_some()
    }

    fn apply(&self, edits: Vec<Edit>) -> Result<Vec<EditOutcome>, ApplyError> {
        let applied = self.advance().apply(edits)?;
        applied.iter().filter_map(EditOutcome::change).for_each(|change| self.tell(&change));
        Ok(applied)
    }

    /// This store does not remember whose a limit is.
    fn edit(&self, edits: Vec<Edit>, _origin: Origin) -> StoreReply<Result<Vec<EditOutcome>, ApplyError>> {
        StoreReply::Now(self.apply(edits))
    }

    fn watch(&self, watcher: Watcher) {
        self.watchers.write().unwrap_or_else(PoisonError::into_inner).push(watcher);
    }
}

/// Everything behind the lock.
struct Inner {
    tick: Tick,
    secret: u64,
    /// The latest instant seen; time does not go back before it.
    latest: Timestamp,
    limits: HashMap<Box<str>, Tenant>,
    /// Limits that vanished from a file, with the instant their state is forgotten.
    retired: HashMap<Box<str>, (Timestamp, Tenant)>,
    /// How many limits were ever added.
    generations: u64,
    /// The highest fence ever given; a limit that is deleted and added again goes on from here.
    highest_fence: u64,
    /// How many leases were ever granted.
    granted_leases: u64,
    leases: Leases,
    /// When the first lease lapses that is not among them, because this is an excerpt.
    next_lapse: Option<Timestamp>,
    requests: Requests,
}

impl Default for Inner {
    fn default() -> Inner {
        Inner {
            tick: Tick::NANOSECOND,
            secret: 0,
            latest: Timestamp::EPOCH,
            limits: HashMap::new(),
            retired: HashMap::new(),
            generations: 0,
            highest_fence: 0,
            granted_leases: 0,
            leases: Leases::default(),
            next_lapse: None,
            requests: Requests::default(),
        }
    }
}

impl Inner {
    fn advance(&mut self, now: Timestamp) {
        self.latest = self.latest.max(now);
        while let Some((_, lease)) = self.leases.pop_lapsed(self.latest) {
            for holding in lease.holdings.iter().filter(|holding| holding.pins) {
                self.with_row(holding, Row::remove_hold);
            }
        }
    }
}
