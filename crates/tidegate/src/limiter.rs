//! The limiter: a store with manners.
//!
//! A store decides and forgets who asked. Programs want three things more: answers that own what they hold and give it
//! back when they are dropped ([`Lease`]), a place to wait in line ([`Request::within`]), and a way to
//! ask that reads aloud:
//!
//! ```
//! use tidegate::Limiter;
//! use tidegate::catalog::ExpectedVersion;
//! use tidegate::model::{ItemSpec, LimitSpec, Policy};
//!
//! let limiter = Limiter::in_memory();
//! let slots = ItemSpec::of(Policy::Concurrency { ttl: std::time::Duration::from_secs(60) }, 1);
//! limiter.store().put(LimitSpec::named("builds").with(slots), ExpectedVersion::Absent)?;
//!
//! let permit = limiter.ask_all("builds").try_acquire()?;
//! assert!(limiter.ask_all("builds").try_acquire().is_err(), "one at a time");
//! drop(permit);
//! assert!(limiter.ask_all("builds").try_acquire().is_ok(), "and then the next");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Asking at once needs no runtime. Waiting, keeping a lease alive and being told of its loss need tokio's timers, unless
//! another [`HolderClock`] is given.
//!
//! Decided: a limiter adds no arithmetic. What is granted, when a lease lapses, whether a release counts: the store's
//! answer decides, always. The limiter only knows who holds something in this process and who waits for it.
//!
//! Decided: nobody is told what is not durable. Over a store with a log, calls like [`Request::try_acquire`], [`Limiter::try_release`] and
//! [`Lease::renew`] block their thread until the log is written, which takes as long as the disk takes; their siblings that end in
//! `_async`, and everything that waits in line, are futures that block nobody. A lease that is dropped is given back without waiting: if
//! that is lost in a crash, it lapses instead. A store without a log never makes anybody wait.
//!
//! Decided: where somebody else decides ([`StoreReply::Later`](crate::store::StoreReply::Later)), the same calls block until they have, and the same
//! futures wait for them. An order is on its way from the moment it is put. Whoever leaves before the answer is there is not told, and
//! the store gives back what they were granted. If such a store is shared with other processes ([`Reach::Fleet`]), those release without
//! wake_on_drop anybody here, and whoever is first in line looks again every [`FLEET_POLL_INTERVAL`].
//!
//! Refused: an order among processes. Who waits here is served in the order in which they came here; of two who wait in two processes the
//! store serves the one who asks it first.

pub mod acquire;
mod batch;
pub mod builder;
mod detached_leases;
pub mod error;
pub mod handle;
pub mod holder_clock;
pub mod lease;
mod overview;
mod pending_reply;
pub mod permit;
mod renewal_deadline;
pub mod request;
mod submit;
mod wait_queues;
mod wakeup;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidegate_core::{Ask, LeaseId, Limit, Per, Tick};

use crate::catalog::Change;
use crate::clock::SystemClock;
use crate::reply::OrderError;
use crate::store::{Actual, Capabilities, LimitStore, Memory, MemoryStore, Reach, Settlement, Unavailable};
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

/// The most who may wait for one row, unless said otherwise.
pub const DEFAULT_MAX_WAITING_PER_ROW: usize = 10_000;

/// The most who may wait at one limiter, unless said otherwise.
pub const DEFAULT_MAX_WAITING: usize = 100_000;

/// Asks a store, keeps what is held, and lets askers wait in line. Copies are the same limiter.
#[derive(Clone)]
pub struct Limiter {
    inner: Arc<Inner>,
}

impl Limiter {
    /// Starts a limiter: its limits, its store, its clocks.
    pub fn builder() -> LimiterBuilder {
        LimiterBuilder::new()
    }

    /// A limiter over a new [`MemoryStore`] without limits.
    pub fn in_memory() -> Limiter {
        Limiter::new(Arc::new(MemoryStore::new(SystemClock::new(), Memory::default())))
    }

    /// A limiter over a store that has its limits.
    pub fn new(store: Arc<dyn LimitStore>) -> Limiter {
        let bounds = WaitBounds { in_all: DEFAULT_MAX_WAITING, per_row: DEFAULT_MAX_WAITING_PER_ROW };
        Limiter::over(store, Arc::new(SystemHolderClock), bounds)
    }

    fn over(store: Arc<dyn LimitStore>, holder_clock: Arc<dyn HolderClock>, bounds: WaitBounds) -> Limiter {
        let Capabilities { tick, reach, .. } = store.capabilities();
        let inner = Arc::new(Inner {
            store,
            holder_clock,
            tick,
            reach,
            queues: WaitQueues::new(bounds),
            detached_leases: DetachedLeases::default(),
            edits: AtomicU64::new(0),
        });
        // The store outlives its limiters and must not keep them.
        let waiting = Arc::downgrade(&inner);
        inner.store.watch(Box::new(move |change| {
            let (Change::Put(limit) | Change::Removed(limit)) = change;
            if let Some(inner) = waiting.upgrade() {
                inner.edits.fetch_add(1, Ordering::Relaxed);
                inner.queues.wake_limit(limit.id(), Call::LimitEdited);
            }
        }));
        Limiter { inner }
    }

    /// A handle on a limit, which decides faster than a request by id.
    ///
    /// # Errors
    /// [`OrderError::UnknownLimit`] if no limit has this id.
    pub fn limit(&self, limit_id: &str) -> Result<LimitHandle, OrderError> {
        let unknown = || OrderError::UnknownLimit { limit_id: limit_id.to_owned() };
        let limit = self.inner.store.get(limit_id).ok_or_else(unknown)?;
        Ok(LimitHandle::new(self, &limit))
    }

    /// All of these requests or none, decided as one. They keep their counts; a hold, readings, a time to live or a
    /// request id of any of them apply to the whole. All of them must come from this limiter.
    pub fn all<'a>(&'a self, requests: impl IntoIterator<Item = Request<'a>>) -> Request<'a> {
        Request::all(self, requests)
    }

    /// The store that decides. What is given back or reset there directly, and not through the limiter, does not wake
    /// those who wait here; edits of limits do.
    pub fn store(&self) -> &dyn LimitStore {
        &*self.inner.store
    }

    /// The holders' own sense of time.
    pub(crate) fn holder_clock(&self) -> &dyn HolderClock {
        &*self.inner.holder_clock
    }

    /// One unit of this limit for this key.
    pub fn ask<'a>(&'a self, limit_id: &'a str, key: &'a (impl AsRef<[u8]> + ?Sized)) -> Request<'a> {
        Request::one(self, Ask::one(limit_id, Some(key.as_ref())))
    }

    /// One unit of this limit, which counts all keys together.
    pub fn ask_all<'a>(&'a self, limit_id: &'a str) -> Request<'a> {
        Request::one(self, Ask::one(limit_id, None))
    }

    /// All of these or nothing.
    pub fn asks<'a>(&'a self, asks: &'a [Ask<'a>]) -> Request<'a> {
        Request::many(self, asks)
    }

    /// Gives a lease back by its id. `false` if it is gone, or if the store cannot answer.
    pub fn release(&self, lease: LeaseId) -> bool {
        self.try_release(lease).unwrap_or(false)
    }

    /// The same, for those who must know whether the store has answered.
    pub fn try_release(&self, lease: LeaseId) -> Result<bool, Unavailable> {
        self.inner.release(lease).wait(self.store())
    }

    /// The same, blocking nobody.
    pub async fn release_async(&self, lease: LeaseId) -> Result<bool, Unavailable> {
        self.inner.release(lease).wait_async(self.store()).await
    }

    /// Corrects a held charge to its true cost, then releases it, by the id of its lease.
    pub fn settle(&self, lease: LeaseId, actual: Actual<'_>) -> Result<Settlement, AcquireError> {
        Ok(self.inner.settle(lease, actual).wait(self.store())??)
    }

    /// The same, blocking nobody.
    pub async fn settle_async(&self, lease: LeaseId, actual: Actual<'_>) -> Result<Settlement, AcquireError> {
        Ok(self.inner.settle(lease, actual).wait_async(self.store()).await??)
    }

    /// Moves a lease's end to `ttl` from now (its own time to live if none is given), by its id.
    pub fn renew(&self, lease: LeaseId, ttl: Option<Duration>) -> Result<Renewal, AcquireError> {
        Ok(self.inner.renew(lease, ttl).wait(self.store())??)
    }

    /// The same, blocking nobody.
    pub async fn renew_async(&self, lease: LeaseId, ttl: Option<Duration>) -> Result<Renewal, AcquireError> {
        Ok(self.inner.renew(lease, ttl).wait_async(self.store()).await??)
    }

    /// Takes over a lease that somebody handed over as an id, by renewing it. `None` if it is gone. Its fences are not
    /// known here.
    pub fn adopt(&self, lease: LeaseId, ttl: Duration) -> Result<Option<Lease>, AcquireError> {
        let before = self.inner.holder_clock.now();
        let renewed = self.inner.store.renew(lease, Some(ttl)).wait(self.store())??;
        Ok(Lease::adopted(&self.inner, lease, ttl, before, renewed))
    }

    /// The same, blocking nobody.
    pub async fn adopt_async(&self, lease: LeaseId, ttl: Duration) -> Result<Option<Lease>, AcquireError> {
        let before = self.inner.holder_clock.now();
        let renewed = self.inner.store.renew(lease, Some(ttl)).wait_async(self.store()).await??;
        Ok(Lease::adopted(&self.inner, lease, ttl, before, renewed))
    }

    /// Zeroes counts: those of one key, or everything of the limit. Leases go on, and those who wait look again.
    pub fn reset(&self, limit_id: &str, key: Option<&[u8]>) -> Result<(), AcquireError> {
        Ok(self.inner.reset(limit_id, key).wait(self.store())??)
    }

    /// The same, blocking nobody.
    pub async fn reset_async(&self, limit_id: &str, key: Option<&[u8]>) -> Result<(), AcquireError> {
        Ok(self.inner.reset(limit_id, key).wait_async(self.store()).await??)
    }

    /// How many wait at this moment.
    pub fn waiting_in_all(&self) -> usize {
        self.inner.queues.len()
    }

    /// How many wait at this moment for this limit.
    pub fn waiting(&self, limit_id: &str) -> usize {
        self.inner.queues.len_of(limit_id)
    }

    /// What happened at a limit so far, and who waits for it. `None` if nobody knows the limit, or if the store does not
    /// count: the memory store does, the plain one does not. Nobody who decides waits for whoever looks.
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

/// What copies of a limiter share.
struct Inner {
    store: Arc<dyn LimitStore>,
    holder_clock: Arc<dyn HolderClock>,
    tick: Tick,
    reach: Reach,
    queues: WaitQueues,
    detached_leases: DetachedLeases,
    /// How often a limit changed. Handles look at their limit again when it did.
    edits: AtomicU64,
}

impl Inner {
    fn clone_of(limiter: &Limiter) -> Arc<Inner> {
        Arc::clone(&limiter.inner)
    }

    /// Where somebody with these asks stands.
    fn positions(&self, asks: &[Ask<'_>]) -> Vec<QueuePosition> {
        let mut positions = Vec::new();
        for (index, ask) in asks.iter().enumerate() {
            if let Some(limit) = self.store.get(ask.limit_id) {
                self.queues.positions(index, ask, &limit, &mut positions);
            }
        }
        positions
    }

    /// Something was given back at these rows, or nobody knows where.
    fn wake_rows(&self, rows: Option<&[RowId]>) {
        match rows {
            Some(rows) => self.queues.wake_rows(rows.iter().copied()),
            None => self.queues.wake_all(),
        }
    }
}

/// The item of a limit that is told to somebody who stands behind others at a row of this kind: the first that counts there.
fn item_at(limit: &Limit, kind: RowKind) -> usize {
    let per = if kind == RowKind::All { Per::All } else { Per::Key };
    limit.items().iter().position(|item| item.per() == per).unwrap_or_default()
}
