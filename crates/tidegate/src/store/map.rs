//! The map store: rows in a hash map behind one lock.
//!
//! It decides one order at a time, exactly as the core does, and keeps exactly what the core needs. It is the reference
//! for every other store.

mod admin_ops;
mod key_table;
mod lease_ops;
mod map_limit;
mod order_path;
pub mod working_set;

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

use map_limit::MapLimit;

use super::leases::LeaseTable;
use super::order_path::{check_key, check_ttl};
use super::remembered_grants::RequestTable;

/// Number of orders of a batch whose rows are touched before the first is decided.
pub const LOOK_AHEAD: usize = 16;

/// Rows in a map, decided one order at a time.
pub struct MapStore {
    clock: Box<dyn Clock>,
    state: Mutex<MapState>,
    watchers: RwLock<Vec<Watcher>>,
}

impl MapStore {
    /// An empty store with this clock. The secret makes lease ids hard to guess. A fixed one makes runs repeatable.
    pub fn new(clock: impl Clock + 'static, secret: u64) -> MapStore {
        let state = MapState { tick: clock.tick(), secret, ..MapState::default() };
        MapStore { clock: Box::new(clock), state: Mutex::new(state), watchers: RwLock::default() }
    }

    /// Number of key rows of a limit that are not evictable now.
    pub fn live_keys(&self, limit_id: &str) -> usize {
        let state = self.advance();
        state.limits.get(limit_id).map_or(0, |entry| entry.live_keys(state.latest))
    }

    /// Number of rows, including evictable ones.
    pub fn rows(&self) -> usize {
        self.lock().limits.values().map(|entry| entry.table.len()).sum()
    }

    /// Number of open leases.
    pub fn leases(&self) -> usize {
        self.advance().leases.len()
    }

    /// Touches the rows of upcoming asks, about [`LOOK_AHEAD`] of them. Rows of many keys are far apart in memory.
    /// Touching them first lets the processor fetch them in parallel. Batches do this on their own; it is for callers
    /// that submit orders one by one.
    pub fn look_ahead<'a>(&self, asks: impl IntoIterator<Item = Ask<'a>>) {
        self.lock().look_ahead(asks);
    }

    fn lock(&self) -> MutexGuard<'_, MapState> {
        // A panic inside the lock is a bug, but it must not stop the limiter.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state at the current instant.
    fn advance(&self) -> MutexGuard<'_, MapState> {
        let now = self.clock.now();
        let mut state = self.lock();
        state.advance(now);
        state
    }

    fn notify_watchers(&self, change: &Change) {
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
        let mut state = self.advance();
        for group in orders.chunks(LOOK_AHEAD) {
            if group.len() > 1 {
                state.look_ahead(group.iter().flat_map(|order| order.asks).copied());
            }
            for order in group {
                let answer = state.decide(order, &mut buffer);
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
        self.lock().limits.get(id).map(|entry| Arc::clone(&entry.limit))
    }

    fn list(&self) -> Vec<Arc<Limit>> {
        let mut all: Vec<_> = self.lock().limits.values().map(|entry| Arc::clone(&entry.limit)).collect();
        all.sort_by(|a, b| a.id().cmp(b.id()));
        all
    }

    fn put(&self, spec: LimitSpec, expect: ExpectedVersion) -> Result<Arc<Limit>, PutError> {
        let limit = self.advance().put(spec, expect)?;
        self.notify_watchers(&Change::Put(Arc::clone(&limit)));
        Ok(limit)
    }

    fn remove(&self, id: &str, mode: RemovalMode) -> bool {
        let removed = self.advance().remove(id, mode);
        if let Some(limit) = &removed {
            self.notify_watchers(&Change::Removed(Arc::clone(limit)));
        }
        removed.is_some()
    }

    fn apply(&self, edits: Vec<Edit>) -> Result<Vec<EditOutcome>, ApplyError> {
        let applied = self.advance().apply(edits)?;
        applied.iter().filter_map(EditOutcome::change).for_each(|change| self.notify_watchers(&change));
        Ok(applied)
    }

    /// This store does not keep the origin of a limit.
    fn edit(&self, edits: Vec<Edit>, _origin: Origin) -> StoreReply<Result<Vec<EditOutcome>, ApplyError>> {
        StoreReply::Now(self.apply(edits))
    }

    fn watch(&self, watcher: Watcher) {
        self.watchers.write().unwrap_or_else(PoisonError::into_inner).push(watcher);
    }
}

/// Everything behind the lock.
struct MapState {
    tick: Tick,
    secret: u64,
    /// The latest instant seen. Time does not go back before it.
    latest: Timestamp,
    limits: HashMap<Box<str>, MapLimit>,
    /// Limits that vanished from a file, with the instant at which they are forgotten.
    retired: HashMap<Box<str>, (Timestamp, MapLimit)>,
    /// Number of limits ever added.
    generations: u64,
    /// The highest fence ever given. A limit that is deleted and added again continues from here.
    highest_fence: u64,
    /// Number of leases ever granted.
    granted_leases: u64,
    leases: LeaseTable,
    /// When the first lease outside of this working set lapses.
    next_lapse: Option<Timestamp>,
    requests: RequestTable,
}

impl Default for MapState {
    fn default() -> MapState {
        MapState {
            tick: Tick::NANOSECOND,
            secret: 0,
            latest: Timestamp::EPOCH,
            limits: HashMap::new(),
            retired: HashMap::new(),
            generations: 0,
            highest_fence: 0,
            granted_leases: 0,
            leases: LeaseTable::default(),
            next_lapse: None,
            requests: RequestTable::default(),
        }
    }
}

impl MapState {
    fn advance(&mut self, now: Timestamp) {
        self.latest = self.latest.max(now);
        while let Some((_, lease)) = self.leases.pop_lapsed(self.latest) {
            for holding in lease.holdings.iter().filter(|holding| holding.pins) {
                self.with_row(holding, Row::remove_hold);
            }
        }
    }
}
