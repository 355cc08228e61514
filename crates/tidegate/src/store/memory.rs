//! The memory store: exact under threads, bounded, and fast.
//!
//! Every limit owns its rows. Most rows are one word in a cache line of three (`line`), found by a fingerprint of the key; the rest
//! are kept at full width beside them (`shelf`). Lines are in leaves, leaves in a tree that grows a leaf at a time (`leaf`).
//!
//! An order over rows that are one word each is decided without a lock (`quick`); everything else with the locks of what it is
//! about, taken in one order by everybody (`sitting`). Both ask the core; no arithmetic of limits is done here.
//!
//! What takes memory has a bound. A row that is fresh gives its place to the next new key; a row that is not is never forgotten.
//! When a limit may take no more, its *new* keys are refused, `degraded`, and nobody else notices.

mod admin_ops;
mod cache_line;
#[cfg(all(test, not(tidegate_loom)))]
mod capacity_tests;
mod catalog_edits;
mod cell;
mod compact_requests;
mod counters;
mod fingerprint;
mod handle;
mod insert;
mod leaf;
mod leaf_header;
mod lease_ops;
mod limit_table;
mod locked_path;
mod lockfree;
mod memory_budget;
#[cfg(all(test, tidegate_loom))]
mod models;
mod order_path;
mod overflow;
pub mod restore;
mod row_epoch;
mod rule_snapshot;
mod shared_rows;
mod single_ask;
mod sliding_path;
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
use crate::store::requests::RequestTable;
use crate::store::{
    Actual, Atomicity, Capabilities, CompactBatch, CompactReplies, LimitStats, Lsn, Reach, Settlement, Store,
    StoreReply, StoreSize, Survival, Unavailable, Usage,
};

use fingerprint::Secret;
use limit_table::Tenant;
use memory_budget::Budget;
use shared_rows::Gallery;

pub use handle::{MemoryHandle, MemoryHandleSet};

pub use restore::Restore;

use crate::store::journal::{Journal, LeaseAction, LeaseNote, Notes, Origin};

/// How many rows are brought near before the first of them is decided on.
pub const LOOK_AHEAD: usize = 16;

/// How much memory a store takes unless it is told otherwise.
pub const DEFAULT_CAPACITY: usize = 1 << 30;

/// The least memory a store can work with.
pub const LEAST_CAPACITY: usize = 1 << 20;

/// How a memory store is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// The most bytes its rows may take, and no fewer than [`LEAST_CAPACITY`]: less is taken for that. One limit may take half of them, unless its `max_keys` says less.
    pub capacity_bytes: usize,
    /// Makes fingerprints and lease ids hard to guess. It belongs to the store; a fixed one makes runs repeatable.
    pub secret: [u64; 2],
}

impl Default for Memory {
    /// A gibibyte, and a secret that nobody knows.
    fn default() -> Memory {
        use std::hash::{BuildHasher, RandomState};
        let secret = [RandomState::new().hash_one(1), RandomState::new().hash_one(2)];
        Memory { capacity_bytes: DEFAULT_CAPACITY, secret }
    }
}

/// Limits and rows in this process's memory.
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

impl MemoryStore {
    /// An empty store that keeps this clock's time.
    pub fn new(clock: impl Clock + 'static, memory: Memory) -> MemoryStore {
        MemoryStore { shared: Arc::new(Shared::new(clock, memory)) }
    }

    /// About how many bytes all rows take.
    pub fn bytes(&self) -> usize {
        self.shared.budget.taken()
    }

    /// How many leases are open.
    pub fn leases(&self) -> usize {
        let now = self.shared.now();
        let limits = self.shared.limits();
        let mut desk = self.shared.desk();
        self.shared.let_lapse(&limits, &mut desk, now);
        desk.leases.len()
    }

    /// The same as [`Store::release`], noting what was done for whoever keeps a log.
    pub fn release_noting(&self, lease: LeaseId, notes: &mut Notes) -> bool {
        self.shared.release(lease, Some(notes))
    }

    /// The same as [`Store::renew`], noting what was done.
    pub fn renew_noting(
        &self,
        lease: LeaseId,
        ttl: Option<Duration>,
        notes: &mut Notes,
    ) -> Result<Option<Timestamp>, OrderError> {
        check_ttl(ttl).map(|()| self.shared.renew(lease, ttl, Some(notes)))
    }

    /// The same as [`Store::settle`], noting what was done.
    pub fn settle_noting(
        &self,
        lease: LeaseId,
        actual: Actual<'_>,
        notes: &mut Notes,
    ) -> Result<Settlement, OrderError> {
        self.shared.settle(lease, actual, Some(notes))
    }

    /// A handle on one limit, for those who decide on it often.
    pub fn handle(&self, limit_id: &str) -> Option<MemoryHandle> {
        Some(MemoryHandle::new(Arc::clone(&self.shared), self.shared.tenant(limit_id)?))
    }

    /// A handle on several limits that are decided together, of one to 32 of them; `None` if one of them is unknown, or there are none or more.
    pub fn handle_set(&self, limit_ids: &[&str]) -> Option<MemoryHandleSet> {
        let tenants: Option<Vec<_>> = limit_ids.iter().map(|id| self.shared.tenant(id)).collect();
        MemoryHandleSet::new(Arc::clone(&self.shared), tenants?)
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
            tick: self.shared.tick,
        }
    }

    fn submit(&self, orders: &[Order<'_>], mut buffer: Replies) -> StoreReply<Replies> {
        buffer.clear();
        self.shared.submit(orders, &mut buffer);
        StoreReply::Now(buffer)
    }

    fn submit_compact(
        &self,
        bids: &CompactBatch<'_>,
        gists: &mut CompactReplies,
    ) -> Result<Option<Lsn>, Unavailable> {
        gists.clear();
        self.shared.submit_compact(bids, gists);
        Ok(None)
    }

    fn release(&self, lease: LeaseId) -> StoreReply<bool> {
        StoreReply::Now(self.shared.release(lease, None))
    }

    fn renew(
        &self,
        lease: LeaseId,
        ttl: Option<Duration>,
    ) -> StoreReply<Result<Option<Timestamp>, OrderError>> {
        StoreReply::Now(check_ttl(ttl).map(|()| self.shared.renew(lease, ttl, None)))
    }

    fn settle(&self, lease: LeaseId, actual: Actual<'_>) -> StoreReply<Result<Settlement, OrderError>> {
        StoreReply::Now(self.shared.settle(lease, actual, None))
    }

    fn reset(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<(), OrderError>> {
        StoreReply::Now(check_key(key).and_then(|()| self.shared.reset(limit_id, key)))
    }

    fn usage(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Usage, OrderError>> {
        StoreReply::Now(check_key(key).and_then(|()| self.shared.usage(limit_id, key)))
    }

    fn holders(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Vec<LeaseTerm>, OrderError>> {
        StoreReply::Now(check_key(key).and_then(|()| self.shared.holders(limit_id, key)))
    }

    fn held_until(&self, leases: &[LeaseId]) -> StoreReply<Vec<Option<Timestamp>>> {
        StoreReply::Now(self.shared.held_until(leases))
    }

    /// Nobody waits for whoever asks this.
    fn observe(&self, limit_id: &str) -> Option<LimitStats> {
        let tenant = self.shared.tenant(limit_id)?;
        let sum = tenant.counts.sum();
        Some(LimitStats {
            granted: sum.granted,
            refused: sum.items.iter().map(|item| item.refused).sum(),
            shadowed: sum.shadowed,
            items: sum.items,
            rows: Some(tenant.budget.rows()),
            bytes: Some(tenant.bytes()),
        })
    }

    fn extent(&self) -> Option<StoreSize> {
        Some(StoreSize {
            bytes: self.bytes(),
            budget_bytes: self.shared.budget.most(),
            leases: self.leases(),
        })
    }
}

impl Catalog for MemoryStore {
    fn get(&self, id: &str) -> Option<Arc<Limit>> {
        self.shared.tenant(id).map(|tenant| tenant.limit())
    }

    fn list(&self) -> Vec<Arc<Limit>> {
        let mut all: Vec<_> = self.shared.limits().values().map(|tenant| tenant.limit()).collect();
        all.sort_by(|a, b| a.id().cmp(b.id()));
        all
    }

    fn put(&self, spec: LimitSpec, expect: ExpectedVersion) -> Result<Arc<Limit>, PutError> {
        let _one_at_a_time = self.shared.changing();
        let edited = self.shared.put(spec, expect)?;
        let limit = edited.limit().map(Arc::clone).ok_or(PutError::Unknown)?;
        self.shared.tell(&Change::Put(Arc::clone(&limit)));
        Ok(limit)
    }

    fn remove(&self, id: &str, parting: RemovalMode) -> bool {
        let _one_at_a_time = self.shared.changing();
        let removed = self.shared.remove(id, parting);
        if let Some(limit) = &removed {
            self.shared.tell(&Change::Removed(Arc::clone(limit)));
        }
        removed.is_some()
    }

    fn apply(&self, edits: Vec<Edit>) -> Result<Vec<EditOutcome>, ApplyError> {
        let _one_at_a_time = self.shared.changing();
        let applied = self.shared.apply(edits, Origin::Applied)?;
        applied.iter().filter_map(EditOutcome::change).for_each(|change| self.shared.tell(&change));
        Ok(applied)
    }

    fn edit(&self, mut edits: Vec<Edit>, origin: Origin) -> StoreReply<Result<Vec<EditOutcome>, ApplyError>> {
        let _one_at_a_time = self.shared.changing();
        let edited = match edits.pop() {
            // Nobody who decides has to wait for one.
            Some(only) if origin == Origin::Put && edits.is_empty() => {
                self.shared.edit(only).map(|edited| vec![edited])
            }
            last => {
                edits.extend(last);
                self.shared.apply(edits, origin)
            }
        };
        let changes = edited.iter().flatten().filter_map(EditOutcome::change);
        changes.for_each(|change| self.shared.tell(&change));
        StoreReply::Now(edited)
    }

    fn applied(&self) -> Vec<String> {
        let limits = self.shared.limits();
        let applied = limits.values().filter(|tenant| tenant.origin() == Origin::Applied);
        applied.map(|tenant| tenant.id.to_string()).collect()
    }

    fn watch(&self, watcher: Watcher) {
        self.shared.watchers.write().unwrap_or_else(PoisonError::into_inner).push(watcher);
    }
}

type Limits = HashMap<Box<str>, Arc<Tenant>>;
type Retired = HashMap<Box<str>, (Timestamp, Arc<Tenant>)>;

/// What all handles of a store share.
pub(super) struct Shared {
    clock: StoreClock,
    may_go_back: bool,
    tick: Tick,
    secret: Secret,
    lease_secret: u64,
    /// The latest instant at which something was decided the thorough way, or at all if the clock may go back.
    seen: AtomicU64,
    limits: RwLock<Limits>,
    /// Limits that vanished from a file, with the instant their state is forgotten.
    retired: Mutex<Retired>,
    /// Held while the set of limits or one of them changes.
    change: Mutex<()>,
    desk: Mutex<Desk>,
    /// When the first lease lapses, or the end of time.
    next_lapse: AtomicU64,
    /// How many limits were ever added.
    generations: AtomicU64,
    /// The highest fence ever given; a limit that is deleted and added again goes on from here.
    highest_fence: AtomicU64,
    budget: Arc<Budget>,
    gallery: Gallery,
    watchers: RwLock<Vec<Watcher>>,
    /// Is told of changes before they take effect, if somebody keeps a log.
    journal: OnceLock<Arc<dyn Journal>>,
}

/// LeaseTable and request ids. Orders that have neither never come here.
#[derive(Default)]
pub(super) struct Desk {
    leases: LeaseTable,
    requests: RequestTable,
    /// How many leases were ever granted.
    granted_leases: u64,
    /// How many deeds were noted.
    deeds: u64,
}

impl Desk {
    /// The next deed.
    fn deed(&mut self, what: LeaseAction) -> LeaseNote {
        self.deeds += 1;
        LeaseNote { serial: self.deeds, what }
    }

    fn insert(&mut self, id: LeaseId, lease: LeaseRecord) {
        self.leases.insert(id, lease);
    }
}

impl Shared {
    fn new(clock: impl Clock + 'static, memory: Memory) -> Shared {
        let clock = StoreClock::of(clock);
        Shared {
            tick: clock.clock().tick(),
            may_go_back: clock.clock().may_go_back(),
            clock,
            secret: Secret::of(memory.secret),
            lease_secret: memory.secret[0].rotate_left(32) ^ memory.secret[1],
            seen: AtomicU64::new(0),
            limits: RwLock::default(),
            retired: Mutex::default(),
            change: Mutex::default(),
            desk: Mutex::default(),
            next_lapse: AtomicU64::new(u64::MAX),
            generations: AtomicU64::new(0),
            highest_fence: AtomicU64::new(0),
            budget: Arc::new(Budget::new(memory.capacity_bytes.max(LEAST_CAPACITY))),
            gallery: Gallery::new(),
            watchers: RwLock::default(),
            journal: OnceLock::new(),
        }
    }

    /// The instant it is. A clock that may go back is held at the latest instant it showed.
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

    /// The later of this instant and the latest that was seen.
    fn latest(&self, now: Timestamp) -> Timestamp {
        let mut seen = self.seen.load(Ordering::Relaxed);
        // Everybody shares this word: it is written only by who has something to say.
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

    fn tenant(&self, id: &str) -> Option<Arc<Tenant>> {
        self.limits().get(id).map(Arc::clone)
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        self.change.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_fence(&self, tenant: &Tenant) -> u64 {
        let fence = tenant.fence.fetch_add(1, Ordering::Relaxed) + 1;
        self.highest_fence.fetch_max(fence, Ordering::Relaxed);
        fence
    }

    fn tell(&self, change: &Change) {
        for watcher in self.watchers.read().unwrap_or_else(PoisonError::into_inner).iter() {
            watcher(change);
        }
    }
}
