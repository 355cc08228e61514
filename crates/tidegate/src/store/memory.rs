//! The in-memory store: exact under concurrency, bounded in memory, and fast.
//!
//! Each limit has a table of rows. A row is one to five words of a cache line (`line`), found by a fingerprint of the key.
//! Long sliding logs are in blocks of a slab (`sliding_words`), and rows that fit no words are stored in the core's form
//! (`full_rows`). Cache lines form leaves, and leaves form a tree that grows by one leaf at a time (`leaf`).
//!
//! One engine decides (`engine`): it finds rows, judges all of them, locks their lines, charges, and releases. What needs
//! more than words takes the same steps with the lines locked first (`locked_path`). The arithmetic is the core's.
//!
//! Memory is bounded. An evictable row gives its place to the next new key. Other rows are never dropped. A limit without
//! room refuses *new* keys as `degraded`. Existing keys and other limits are not affected.

mod admin_ops;
#[cfg(all(test, not(tidegate_loom)))]
mod capacity_tests;
mod catalog_edits;
mod compact_requests;
mod counters;
mod engine;
mod fingerprint;
mod full_rows;
mod handle;
mod leaf;
mod leaf_header;
mod lease_ops;
mod limit_table;
mod line;
mod locked_path;
mod memory_budget;
#[cfg(all(test, tidegate_loom))]
mod models;
mod orders;
mod packed_item;
pub mod restore;
mod row_access;
mod row_epoch;
mod rule_snapshot;
mod shared_rows;
mod slab;
mod sliding_words;
pub mod snapshot_walk;
mod sync;

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use hashbrown::HashMap;
use tidegate_core::{LeaseId, LeaseTerm, Limit, LimitSpec, Order, Tick, Timestamp};

use crate::catalog::{
    ApplyError, Catalog, Change, Edit, EditOutcome, ExpectedVersion, PutError, RemovalMode, Watcher,
};
use crate::clock::{Clock, StoreClock};
use crate::reply::{OrderError, Replies};
use crate::store::leases::{LeaseRecord, LeaseTable};
use crate::store::order_path::{check_key, check_ttl};
use crate::store::remembered_grants::RequestTable;
use crate::store::{
    Actual, Atomicity, Capabilities, CompactBatch, CompactReplies, LimitStats, Lsn, Reach, Settlement, Store,
    StoreReply, StoreSize, Survival, Unavailable, Usage,
};

use fingerprint::Secret;
use limit_table::LimitTable;
use memory_budget::Budget;
use shared_rows::SharedLines;

pub(crate) use handle::{HandleAsk, HandleDecision, HandleRefusal, RefusingLimit};
pub use handle::{MemoryHandle, MemoryHandleSet};

pub use restore::Restore;

use crate::store::journal::{Journal, LeaseAction, LeaseNote, Notes, Origin};

/// The number of rows that are prefetched before the first is decided.
pub const LOOK_AHEAD: usize = 16;

/// The default memory budget of a store in bytes.
pub const DEFAULT_CAPACITY: usize = 1 << 30;

/// The minimum memory budget of a store in bytes.
pub const LEAST_CAPACITY: usize = 1 << 20;

/// Settings of a memory store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Maximum number of bytes for rows. Values below [`LEAST_CAPACITY`] are raised to it. One limit may use half of them,
    /// or less if it has `max_keys`.
    pub capacity_bytes: usize,
    /// Secret of the store that makes fingerprints and lease ids hard to guess. A fixed one makes runs repeatable.
    pub secret: [u64; 2],
}

impl Default for Memory {
    /// One gibibyte and a random secret.
    fn default() -> Memory {
        use std::hash::{BuildHasher, RandomState};
        let secret = [RandomState::new().hash_one(1), RandomState::new().hash_one(2)];
        Memory { capacity_bytes: DEFAULT_CAPACITY, secret }
    }
}

/// A store of limits and rows in the memory of this process.
#[derive(Clone)]
pub struct MemoryStore {
    state: Arc<StoreState>,
}

impl MemoryStore {
    /// Creates an empty store with this clock.
    pub fn new(clock: impl Clock + 'static, memory: Memory) -> MemoryStore {
        MemoryStore { state: Arc::new(StoreState::new(clock, memory)) }
    }

    /// The approximate number of bytes of all rows.
    pub fn bytes(&self) -> usize {
        self.state.budget.taken()
    }

    /// The number of open leases.
    pub fn leases(&self) -> usize {
        let now = self.state.now();
        let limits = self.state.limits();
        let mut registry = self.state.registry();
        self.state.drop_lapsed(&limits, &mut registry, now);
        registry.leases.len()
    }

    /// The number of decisions so far that took the locked path.
    ///
    /// Most decisions read and write the words of their rows. The locked path is several times slower. It decides on keys
    /// with overrides, on leases and holds, on requests with request ids, on limits in shadow mode, and once after an edit or
    /// at the end of a calendar window.
    pub fn locked_decisions(&self) -> u64 {
        self.state.locked_decisions.load(Ordering::Relaxed)
    }

    /// Like [`Store::release`], and adds the change to `notes` for a log.
    pub fn release_noting(&self, lease: LeaseId, notes: &mut Notes) -> bool {
        self.state.release(lease, Some(notes))
    }

    /// Like [`Store::renew`], and adds the change to `notes`.
    pub fn renew_noting(
        &self,
        lease: LeaseId,
        ttl: Option<Duration>,
        notes: &mut Notes,
    ) -> Result<Option<Timestamp>, OrderError> {
        check_ttl(ttl).map(|()| self.state.renew(lease, ttl, Some(notes)))
    }

    /// Like [`Store::settle`], and adds the change to `notes`.
    pub fn settle_noting(
        &self,
        lease: LeaseId,
        actual: Actual<'_>,
        notes: &mut Notes,
    ) -> Result<Settlement, OrderError> {
        self.state.settle(lease, actual, Some(notes))
    }

    /// A handle on one limit for frequent decisions. `None` if the limit is unknown.
    pub fn handle(&self, limit_id: &str) -> Option<MemoryHandle> {
        Some(MemoryHandle::new(Arc::clone(&self.state), self.state.table(limit_id)?))
    }

    /// A handle on 1 to 32 limits that are decided together. `None` if a limit is unknown or the number is out of range.
    pub fn handle_set(&self, limit_ids: &[&str]) -> Option<MemoryHandleSet> {
        let tables: Option<Vec<_>> = limit_ids.iter().map(|id| self.state.table(id)).collect();
        MemoryHandleSet::new(Arc::clone(&self.state), tables?)
    }
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

impl Store for MemoryStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            survival: Survival::Volatile,
            reach: Reach::Process,
            atomicity: Atomicity::AllRows,
            tick: self.state.tick,
        }
    }

    fn submit(&self, orders: &[Order<'_>], mut buffer: Replies) -> StoreReply<Replies> {
        buffer.clear();
        self.state.submit(orders, &mut buffer);
        StoreReply::Now(buffer)
    }

    fn submit_compact(
        &self,
        batch: &CompactBatch<'_>,
        replies: &mut CompactReplies,
    ) -> Result<Option<Lsn>, Unavailable> {
        replies.clear();
        self.state.submit_compact(batch, replies);
        Ok(None)
    }

    fn release(&self, lease: LeaseId) -> StoreReply<bool> {
        StoreReply::Now(self.state.release(lease, None))
    }

    fn renew(
        &self,
        lease: LeaseId,
        ttl: Option<Duration>,
    ) -> StoreReply<Result<Option<Timestamp>, OrderError>> {
        StoreReply::Now(check_ttl(ttl).map(|()| self.state.renew(lease, ttl, None)))
    }

    fn settle(&self, lease: LeaseId, actual: Actual<'_>) -> StoreReply<Result<Settlement, OrderError>> {
        StoreReply::Now(self.state.settle(lease, actual, None))
    }

    fn reset(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<(), OrderError>> {
        StoreReply::Now(check_key(key).and_then(|()| self.state.reset(limit_id, key)))
    }

    fn usage(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Usage, OrderError>> {
        StoreReply::Now(check_key(key).and_then(|()| self.state.usage(limit_id, key)))
    }

    fn holders(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Vec<LeaseTerm>, OrderError>> {
        StoreReply::Now(check_key(key).and_then(|()| self.state.holders(limit_id, key)))
    }

    fn held_until(&self, leases: &[LeaseId]) -> StoreReply<Vec<Option<Timestamp>>> {
        StoreReply::Now(self.state.held_until(leases))
    }

    /// Does not block decisions.
    fn observe(&self, limit_id: &str) -> Option<LimitStats> {
        let table = self.state.table(limit_id)?;
        let sum = table.counts.sum();
        Some(LimitStats {
            granted: sum.granted,
            refused: sum.items.iter().map(|item| item.refused).sum(),
            shadowed: sum.shadowed,
            items: sum.items,
            rows: Some(table.budget.rows()),
            bytes: Some(table.bytes()),
        })
    }

    fn size(&self) -> Option<StoreSize> {
        Some(StoreSize { bytes: self.bytes(), budget_bytes: self.state.budget.most(), leases: self.leases() })
    }
}

impl Catalog for MemoryStore {
    fn get(&self, id: &str) -> Option<Arc<Limit>> {
        self.state.table(id).map(|table| table.limit())
    }

    fn list(&self) -> Vec<Arc<Limit>> {
        let mut all: Vec<_> = self.state.limits().values().map(|table| table.limit()).collect();
        all.sort_by(|a, b| a.id().cmp(b.id()));
        all
    }

    fn put(&self, spec: LimitSpec, expect: ExpectedVersion) -> Result<Arc<Limit>, PutError> {
        let _one_at_a_time = self.state.changing();
        let edited = self.state.put(spec, expect)?;
        let limit = edited.limit().map(Arc::clone).ok_or(PutError::Unknown)?;
        self.state.tell(&Change::Put(Arc::clone(&limit)));
        Ok(limit)
    }

    fn remove(&self, id: &str, mode: RemovalMode) -> bool {
        let _one_at_a_time = self.state.changing();
        let removed = self.state.remove(id, mode);
        if let Some(limit) = &removed {
            self.state.tell(&Change::Removed(Arc::clone(limit)));
        }
        removed.is_some()
    }

    fn apply(&self, edits: Vec<Edit>) -> Result<Vec<EditOutcome>, ApplyError> {
        let _one_at_a_time = self.state.changing();
        let applied = self.state.apply(edits, Origin::Applied)?;
        applied.iter().filter_map(EditOutcome::change).for_each(|change| self.state.tell(&change));
        Ok(applied)
    }

    fn edit(&self, mut edits: Vec<Edit>, origin: Origin) -> StoreReply<Result<Vec<EditOutcome>, ApplyError>> {
        let _one_at_a_time = self.state.changing();
        let edited = match edits.pop() {
            // A single put does not block decisions.
            Some(only) if origin == Origin::Put && edits.is_empty() => {
                self.state.edit(only).map(|edited| vec![edited])
            }
            last => {
                edits.extend(last);
                self.state.apply(edits, origin)
            }
        };
        let changes = edited.iter().flatten().filter_map(EditOutcome::change);
        changes.for_each(|change| self.state.tell(&change));
        StoreReply::Now(edited)
    }

    fn applied(&self) -> Vec<String> {
        let limits = self.state.limits();
        let applied = limits.values().filter(|table| table.origin() == Origin::Applied);
        applied.map(|table| table.id.to_string()).collect()
    }

    fn watch(&self, watcher: Watcher) {
        self.state.watchers.write().unwrap_or_else(PoisonError::into_inner).push(watcher);
    }
}

type Limits = HashMap<Box<str>, Arc<LimitTable>>;
type Retired = HashMap<Box<str>, (Timestamp, Arc<LimitTable>)>;

/// State that all handles of a store share.
pub(super) struct StoreState {
    clock: StoreClock,
    may_go_back: bool,
    tick: Tick,
    secret: Secret,
    lease_secret: u64,
    /// The latest instant of a decision on the locked path, or of any decision if the clock may go back.
    seen: AtomicU64,
    limits: RwLock<Limits>,
    /// Limits that were removed from a file, with the instant at which their state is dropped.
    retired: Mutex<Retired>,
    /// Held during a change of a limit or of the set of limits.
    change: Mutex<()>,
    registry: Mutex<LeaseRegistry>,
    /// The earliest expiry of a lease, or the maximum.
    next_lapse: AtomicU64,
    /// The number of limits ever added.
    generations: AtomicU64,
    /// The highest fence ever issued. A limit that is deleted and added again continues from it.
    highest_fence: AtomicU64,
    budget: Arc<Budget>,
    shared_lines: SharedLines,
    watchers: RwLock<Vec<Watcher>>,
    /// Receives changes before they take effect, if there is a log.
    journal: OnceLock<Arc<dyn Journal>>,
    /// The number of decisions on the locked path.
    locked_decisions: AtomicU64,
}

/// Leases and request ids. Orders without either do not lock it.
#[derive(Default)]
pub(super) struct LeaseRegistry {
    leases: LeaseTable,
    requests: RequestTable,
    /// The number of leases ever granted.
    granted_leases: u64,
    /// The number of recorded lease actions.
    deeds: u64,
}

impl LeaseRegistry {
    /// Assigns the next serial number to a lease action.
    fn note(&mut self, what: LeaseAction) -> LeaseNote {
        self.deeds += 1;
        LeaseNote { serial: self.deeds, what }
    }

    fn insert(&mut self, id: LeaseId, lease: LeaseRecord) {
        self.leases.insert(id, lease);
    }
}

impl StoreState {
    fn new(clock: impl Clock + 'static, memory: Memory) -> StoreState {
        let clock = StoreClock::of(clock);
        StoreState {
            tick: clock.clock().tick(),
            may_go_back: clock.clock().may_go_back(),
            clock,
            secret: Secret::of(memory.secret),
            lease_secret: memory.secret[0].rotate_left(32) ^ memory.secret[1],
            seen: AtomicU64::new(0),
            limits: RwLock::default(),
            retired: Mutex::default(),
            change: Mutex::default(),
            registry: Mutex::default(),
            next_lapse: AtomicU64::new(u64::MAX),
            generations: AtomicU64::new(0),
            highest_fence: AtomicU64::new(0),
            budget: Arc::new(Budget::new(memory.capacity_bytes.max(LEAST_CAPACITY))),
            shared_lines: SharedLines::new(),
            watchers: RwLock::default(),
            journal: OnceLock::new(),
            locked_decisions: AtomicU64::new(0),
        }
    }

    /// The current instant. A clock that may go back is held at its latest instant.
    #[inline]
    fn now(&self) -> Timestamp {
        match &self.clock {
            StoreClock::System(clock) if let Some(now) = clock.try_now() => now,
            _ => self.now_otherwise(),
        }
    }

    #[inline(never)]
    fn now_otherwise(&self) -> Timestamp {
        let now = self.clock.now();
        if self.may_go_back { self.latest(now) } else { now }
    }

    /// The later of this instant and the latest seen one.
    fn latest(&self, now: Timestamp) -> Timestamp {
        let mut seen = self.seen.load(Ordering::Relaxed);
        // All threads share this word, so it is written only if it changes.
        if seen < now.ticks() {
            seen = self.seen.fetch_max(now.ticks(), Ordering::Relaxed).max(now.ticks());
        }
        Timestamp::from_ticks(seen)
    }

    fn has_seen(&self, now: Timestamp) {
        let _seen = self.latest(now);
    }

    fn limits(&self) -> std::sync::RwLockReadGuard<'_, Limits> {
        self.limits.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn table(&self, id: &str) -> Option<Arc<LimitTable>> {
        self.limits().get(id).map(Arc::clone)
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        self.change.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn registry(&self) -> MutexGuard<'_, LeaseRegistry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_fence(&self, table: &LimitTable) -> u64 {
        let fence = table.fence.fetch_add(1, Ordering::Relaxed) + 1;
        self.highest_fence.fetch_max(fence, Ordering::Relaxed);
        fence
    }

    fn tell(&self, change: &Change) {
        for watcher in self.watchers.read().unwrap_or_else(PoisonError::into_inner).iter() {
            watcher(change);
        }
    }
}
