//! The limiter: the API of a [`LimitStore`] for programs.
//!
//! A store decides orders. The limiter adds three things: grants that give their lease back when they are dropped
//! ([`Lease`]), a wait queue ([`Request::within`]), and a fluent request API:
//!
//! ```
//! use tidegate::{Limiter, concurrency};
//!
//! let limiter = Limiter::builder().limit("builds", concurrency(1)).build()?;
//! let builds = limiter.limit("builds")?;
//!
//! let permit = builds.without_key().try_acquire()?;
//! assert!(builds.without_key().try_acquire().is_err(), "one at a time");
//! drop(permit);
//! assert!(builds.without_key().try_acquire().is_ok(), "and then the next");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A request is made by a [`LimitHandle`]. Two more entrances serve protocols, whose requests name limits by id:
//! [`Limiter::request`] for one request that may wait, and [`Limiter::submit`] for batches that do not.
//!
//! Requests that do not wait need no runtime. Waiting, renewing a lease in the background and noticing its loss need
//! tokio's timers, unless another [`HolderClock`] is given.
//!
//! The limiter computes no limits. The store alone decides what is granted, when a lease lapses and whether a release
//! counts. The limiter knows only which leases this process holds and which requests wait.
//!
//! A grant is returned after it is durable. Over a store with a log, [`Request::try_acquire`],
//! [`Limiter::try_release`], [`Lease::renew`] and their like block the thread until the log is synced. The `_async`
//! variants and queued requests do not block. Dropping a lease does not wait: if a crash loses the release, the lease
//! lapses instead. A store without a log never blocks.
//!
//! Over a remote store ([`StoreReply::Later`](crate::store::StoreReply::Later)) the same calls block, or are pending,
//! until the reply arrives. The order is in flight once it is sent. If the caller is dropped first, the store gives
//! back what it granted. Releases in other processes that share the store ([`Reach::Fleet`]) wake no waiter here, so
//! the first waiter of a row asks again every [`FLEET_POLL_INTERVAL`].
//!
//! Waiters of one process are served in order of arrival. There is no order between processes: the store serves the
//! first order that reaches it.

pub mod acquire;
mod batch;
pub mod builder;
mod detached_leases;
pub mod error;
pub mod handle;
pub mod holder_clock;
pub mod lease;
mod lease_operations;
mod overview;
mod pending_reply;
pub mod permit;
mod renewal_deadline;
pub mod request;
mod submit;
mod wait_queues;
mod wake_on_drop;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Ask, LeaseId, Limit, Per, Tick};

use crate::catalog::Change;
use crate::reply::OrderError;
use crate::store::{Actual, Capabilities, LimitStore, Reach, Settlement, Unavailable};
use detached_leases::DetachedLeases;
use wait_queues::{Call, QueuePosition, RowId, RowKind, WaitBounds, WaitQueues};

pub use acquire::{Acquire, FLEET_POLL_INTERVAL};
pub use builder::{BuildError, BuildMistake, LimiterBuilder};
pub use error::{AcquireError, Refused};
pub use handle::LimitHandle;
pub use holder_clock::{HolderClock, HolderInstant, ManualHolderClock, SystemHolderClock};
pub use lease::{Lease, Renewal};
pub use overview::LimitOverview;
pub use permit::Permit;
pub use request::Request;

/// The default for the most requests that wait for one row.
pub const DEFAULT_MAX_WAITING_PER_ROW: usize = 10_000;

/// The default for the most requests that wait at one limiter.
pub const DEFAULT_MAX_WAITING: usize = 100_000;

/// Sends requests to a store, owns the leases, and queues requests that wait. Clones share one limiter.
#[derive(Clone)]
pub struct Limiter {
    inner: Arc<LimiterState>,
}

impl Limiter {
    /// Starts a builder for the limits, the store and the clocks.
    pub fn builder() -> LimiterBuilder {
        LimiterBuilder::new()
    }

    /// Creates a limiter over a store that already has its limits.
    pub fn new(store: Arc<dyn LimitStore>) -> Limiter {
        let bounds = WaitBounds { in_all: DEFAULT_MAX_WAITING, per_row: DEFAULT_MAX_WAITING_PER_ROW };
        Limiter::over(store, Arc::new(SystemHolderClock), bounds)
    }

    fn over(store: Arc<dyn LimitStore>, holder_clock: Arc<dyn HolderClock>, bounds: WaitBounds) -> Limiter {
        let Capabilities { tick, reach, .. } = store.capabilities();
        let inner = Arc::new(LimiterState {
            store,
            holder_clock,
            tick,
            reach,
            queues: WaitQueues::new(bounds),
            detached_leases: DetachedLeases::default(),
        });
        // The store outlives its limiters: a strong reference would leak them.
        let waiting = Arc::downgrade(&inner);
        inner.store.watch(Box::new(move |change| {
            let (Change::Put(limit) | Change::Removed(limit)) = change;
            if let Some(inner) = waiting.upgrade() {
                inner.queues.wake_limit(limit.id(), Call::LimitEdited);
            }
        }));
        Limiter { inner }
    }

    /// Returns a handle on a limit. Handles make all requests of a program.
    ///
    /// # Errors
    /// [`OrderError::UnknownLimit`] if no limit has this id.
    pub fn limit(&self, limit_id: &str) -> Result<LimitHandle, OrderError> {
        let unknown = || OrderError::UnknownLimit { limit_id: limit_id.to_owned() };
        let limit = self.inner.store.get(limit_id).ok_or_else(unknown)?;
        Ok(LimitHandle::new(self, &limit))
    }

    /// Combines requests into one that is granted whole or not at all. Each keeps its count. A hold, readings, a time
    /// to live or a request id of any of them applies to all. All requests must come from this limiter.
    pub fn all<'a>(&'a self, requests: impl IntoIterator<Item = Request<'a>>) -> Request<'a> {
        Request::all(self, requests)
    }

    /// The store that decides. Releases and resets made directly at the store do not wake waiters of this limiter;
    /// edits of limits do.
    pub fn store(&self) -> &dyn LimitStore {
        &*self.inner.store
    }

    /// The clock that lease deadlines and waits use.
    pub(crate) fn holder_clock(&self) -> &dyn HolderClock {
        &*self.inner.holder_clock
    }

    /// A request for asks that name their limits by id. It is meant for protocols, which parse the ids of a request:
    /// programs use [handles](Limiter::limit). An unknown id makes the decision [invalid](AcquireError::Invalid).
    ///
    /// Batches that do not wait go to [`Limiter::submit`].
    pub fn request<'a>(&'a self, asks: &'a [Ask<'a>]) -> Request<'a> {
        Request::many(self, asks)
    }

    /// Releases a lease by its id. Returns `false` if the lease is gone or the store cannot answer.
    pub fn release(&self, lease: LeaseId) -> bool {
        self.try_release(lease).unwrap_or(false)
    }

    /// Same as [`Limiter::release`], but reports a store that cannot answer.
    pub fn try_release(&self, lease: LeaseId) -> Result<bool, Unavailable> {
        self.inner.release(lease).wait(self.store())
    }

    /// Same as [`Limiter::try_release`], without blocking the thread.
    pub async fn release_async(&self, lease: LeaseId) -> Result<bool, Unavailable> {
        self.inner.release(lease).wait_async(self.store()).await
    }

    /// Corrects the charge of a hold to its true cost and releases its lease, by the id of the lease.
    pub fn settle(&self, lease: LeaseId, actual: Actual<'_>) -> Result<Settlement, AcquireError> {
        Ok(self.inner.settle(lease, actual).wait(self.store())??)
    }

    /// Same as [`Limiter::settle`], without blocking the thread.
    pub async fn settle_async(&self, lease: LeaseId, actual: Actual<'_>) -> Result<Settlement, AcquireError> {
        Ok(self.inner.settle(lease, actual).wait_async(self.store()).await??)
    }

    /// Moves the end of a lease to `ttl` from now, by its id. Without `ttl` the lease keeps its own time to live.
    pub fn renew(&self, lease: LeaseId, ttl: Option<Duration>) -> Result<Renewal, AcquireError> {
        Ok(self.inner.renew(lease, ttl).wait(self.store())??)
    }

    /// Same as [`Limiter::renew`], without blocking the thread.
    pub async fn renew_async(&self, lease: LeaseId, ttl: Option<Duration>) -> Result<Renewal, AcquireError> {
        Ok(self.inner.renew(lease, ttl).wait_async(self.store()).await??)
    }

    /// Takes over a lease by its id and renews it. Returns `None` if the lease is gone. Its fences are not known here.
    pub fn adopt(&self, lease: LeaseId, ttl: Duration) -> Result<Option<Lease>, AcquireError> {
        let before = self.inner.holder_clock.now();
        let renewed = self.inner.store.renew(lease, Some(ttl)).wait(self.store())??;
        Ok(Lease::adopted(&self.inner, lease, ttl, before, renewed))
    }

    /// Same as [`Limiter::adopt`], without blocking the thread.
    pub async fn adopt_async(&self, lease: LeaseId, ttl: Duration) -> Result<Option<Lease>, AcquireError> {
        let before = self.inner.holder_clock.now();
        let renewed = self.inner.store.renew(lease, Some(ttl)).wait_async(self.store()).await??;
        Ok(Lease::adopted(&self.inner, lease, ttl, before, renewed))
    }

    /// Resets the counts of one key, or of the whole limit. Leases stay, and waiters ask again.
    pub fn reset(&self, limit_id: &str, key: Option<&[u8]>) -> Result<(), AcquireError> {
        Ok(self.inner.reset(limit_id, key).wait(self.store())??)
    }

    /// Same as [`Limiter::reset`], without blocking the thread.
    pub async fn reset_async(&self, limit_id: &str, key: Option<&[u8]>) -> Result<(), AcquireError> {
        Ok(self.inner.reset(limit_id, key).wait_async(self.store()).await??)
    }

    /// The number of waiting requests.
    pub fn waiting_in_all(&self) -> usize {
        self.inner.queues.len()
    }

    /// The number of requests that wait for this limit.
    pub fn waiting(&self, limit_id: &str) -> usize {
        self.inner.queues.len_of(limit_id)
    }

    /// The statistics of a limit and its number of waiters. Returns `None` if the limit does not exist or the store
    /// keeps no statistics. The memory store keeps them, the reference store does not. Does not block decisions.
    pub fn observe(&self, limit_id: &str) -> Option<LimitOverview> {
        let observed = self.inner.store.observe(limit_id)?;
        Some(LimitOverview::new(observed, self.waiting(limit_id)))
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("waiting", &self.waiting_in_all()).finish_non_exhaustive()
    }
}

/// The state that clones of a limiter share.
struct LimiterState {
    store: Arc<dyn LimitStore>,
    holder_clock: Arc<dyn HolderClock>,
    tick: Tick,
    reach: Reach,
    queues: WaitQueues,
    detached_leases: DetachedLeases,
}

impl LimiterState {
    fn clone_of(limiter: &Limiter) -> Arc<LimiterState> {
        Arc::clone(&limiter.inner)
    }

    /// The queue positions of a request with these asks.
    fn positions(&self, asks: &[Ask<'_>]) -> Vec<QueuePosition> {
        let mut positions = Vec::new();
        for (index, ask) in asks.iter().enumerate() {
            if let Some(limit) = self.store.get(ask.limit_id) {
                self.queues.positions(index, ask, &limit, &mut positions);
            }
        }
        positions
    }

    /// Wakes the first waiters of these rows, or of all rows if the rows are not known.
    fn wake_rows(&self, rows: Option<&[RowId]>) {
        match rows {
            Some(rows) => self.queues.wake_rows(rows.iter().copied()),
            None => self.queues.wake_all(),
        }
    }
}

/// The item that a refusal names if a request is behind other waiters of such a row: the first item that counts there.
fn item_at(limit: &Limit, kind: RowKind) -> usize {
    let per = if kind == RowKind::All { Per::All } else { Per::Key };
    limit.items().iter().position(|item| item.per() == per).unwrap_or_default()
}
