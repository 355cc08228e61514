//! Stores: where rows live and orders are decided.
//!
//! All stores implement the same contract, and one behavior suite runs against all of them. A store with its rows at
//! hand decides at once. Only the reply may have to wait, until the decision is durable or until another machine has
//! decided. [`StoreReply`] says which.
//!
//! A store owns its clock. Its time never goes back: an order is decided at the latest instant that the store has seen.
//!
//! An asynchronous trait for everything was rejected: a local decision takes less time than a task switch.

pub mod codec;
pub mod compact;
mod durable_wait;
mod leases;
pub mod map;
pub mod memory;
mod order_path;
mod remembered_grants;
mod usage;

use std::any::Any;
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate_core::{Amount, LeaseId, LeaseTerm, Order, Tick, Timestamp};

use crate::catalog::Catalog;
use crate::reply::{OrderError, Replies};

pub use crate::journal;
pub use crate::store_reply::{Later, Lsn, StoreReply, Unavailable};
pub use compact::{CompactBatch, CompactReplies, CompactReply, CompactRequest};
pub(crate) use durable_wait::block_on;
pub use durable_wait::{durable, wait_durable};
pub use map::MapStore;
pub use memory::{Memory, MemoryStore};

impl<T> StoreReply<T> {
    /// The decision, complete or not, for callers that wait for the log themselves. For a pending reply this blocks the
    /// thread.
    ///
    /// # Panics
    /// If the other machine cannot answer.
    pub fn decided(self) -> T {
        match self {
            StoreReply::Now(reply) | StoreReply::Durable(reply, _) => reply,
            StoreReply::Later(later) => match block_on(later) {
                Ok(reply) => reply,
                Err(why) => panic!("{why}"),
            },
        }
    }

    /// The complete reply. Blocks the thread until then. Not for tasks: the reply may come from the blocked thread.
    pub fn wait<S: Store + ?Sized>(self, store: &S) -> Result<T, Unavailable> {
        match self {
            StoreReply::Now(reply) => Ok(reply),
            StoreReply::Durable(reply, lsn) => wait_durable(store, lsn).map(|()| reply),
            StoreReply::Later(later) => block_on(later),
        }
    }

    /// The complete reply, without blocking.
    pub async fn wait_async<S: Store + ?Sized>(self, store: &S) -> Result<T, Unavailable> {
        match self {
            StoreReply::Now(reply) => Ok(reply),
            StoreReply::Durable(reply, lsn) => durable(store, lsn).await.map(|()| reply),
            StoreReply::Later(later) => later.await,
        }
    }

    /// Maps the value as soon as it is known, complete or not. For a pending reply the function runs when the reply
    /// arrives, and never if the future is dropped.
    pub fn map<U>(self, make: impl FnOnce(T) -> U + Send + 'static) -> StoreReply<U>
    where
        T: 'static,
    {
        match self {
            StoreReply::Now(reply) => StoreReply::Now(make(reply)),
            StoreReply::Durable(reply, lsn) => StoreReply::Durable(make(reply), lsn),
            StoreReply::Later(later) => StoreReply::Later(Box::pin(async move { later.await.map(make) })),
        }
    }

    /// The reply of a store that is always complete at once.
    ///
    /// # Panics
    /// If the reply is not complete. See [`Capabilities`].
    pub fn now(self) -> T {
        match self {
            StoreReply::Now(reply) => reply,
            StoreReply::Durable(..) | StoreReply::Later(_) => {
                panic!("the reply of this store is not complete yet")
            }
        }
    }
}

/// What a store promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// What survives a crash.
    pub survival: Survival,
    /// Which processes share the rows.
    pub reach: Reach,
    /// Which rows one order can be atomic over.
    pub atomicity: Atomicity,
    /// Resolution of time.
    pub tick: Tick,
}

/// What survives a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survival {
    /// Nothing.
    Volatile,
    /// Everything in a complete reply.
    Durable,
}

/// Which processes share the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Only this process.
    Process,
    /// Any number of processes.
    Fleet,
}

/// Which rows one order can be atomic over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atomicity {
    /// Any rows.
    AllRows,
    /// The rows of one limit.
    OneLimit,
}

/// Decides orders on the rows it keeps.
pub trait Store: Send + Sync {
    /// What this store promises.
    fn capabilities(&self) -> Capabilities;

    /// Decides a batch of independent orders, one after the other, at one reading of the clock. If another thread has
    /// moved a row to a later instant, the rest of the batch follows it; time never goes back.
    ///
    /// The buffer is cleared, filled, and returned. The store does not wait: the wait of an order is for the queue in
    /// front of the store. If another machine decides, the orders are in flight when this returns; see
    /// [`StoreReply::Later`] for leases whose caller is gone.
    fn submit(&self, orders: &[Order<'_>], buffer: Replies) -> StoreReply<Replies>;

    /// Decides [compact requests](compact) like the orders of a batch. The buffer is cleared and filled with the
    /// replies to the first of them. The store did nothing for the rest.
    ///
    /// The replies are complete when the log is durable up to the returned position. An error means that the outcome is
    /// unknown. A store without this path decides none.
    fn submit_compact(
        &self,
        _bids: &CompactBatch<'_>,
        gists: &mut CompactReplies,
    ) -> Result<Option<Lsn>, Unavailable> {
        gists.clear();
        Ok(None)
    }

    /// Releases a lease. Returns `false` if it is gone: released, lapsed, deleted with its limits, or never granted.
    fn release(&self, lease: LeaseId) -> StoreReply<bool>;

    /// Moves the expiry of a lease to `ttl` from now, or to its own time to live from now. Returns `None` if the lease
    /// is gone.
    fn renew(
        &self,
        lease: LeaseId,
        ttl: Option<Duration>,
    ) -> StoreReply<Result<Option<Timestamp>, OrderError>>;

    /// Corrects a held charge to its true cost and releases the lease. A repeated settlement changes nothing and
    /// returns the same. A list without exactly one cost per ask is rejected and changes nothing.
    fn settle(&self, lease: LeaseId, actual: Actual<'_>) -> StoreReply<Result<Settlement, OrderError>>;

    /// Zeroes the counts of one key, or of the whole limit. Leases stay.
    fn reset(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<(), OrderError>>;

    /// Current usage of the limit as a whole, or of one key.
    fn usage(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Usage, OrderError>>;

    /// Live leases that hold units of the limit as a whole, or of one key's row, first to lapse first. Only
    /// `concurrency` items have them.
    fn holders(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Vec<LeaseTerm>, OrderError>>;

    /// Expiry of each of these leases, in order; `None` for those that are gone.
    fn held_until(&self, leases: &[LeaseId]) -> StoreReply<Vec<Option<Timestamp>>>;

    /// Polls whether everything up to this log position is durable. If not, the task is woken when it is. An error
    /// means that it never will be. Stores without a log are always ready.
    fn poll_durable(&self, _lsn: Lsn, _context: &mut Context<'_>) -> Poll<Result<(), Unavailable>> {
        Poll::Ready(Ok(()))
    }

    /// End of the log. Everything that changed before this call, limits included, is durable when the log is durable up
    /// to here. `None` if the store has no log.
    fn log_end(&self) -> Option<Lsn> {
        None
    }

    /// Why the store cannot answer now: its log cannot be written, or its database is not reachable. `None` while it
    /// answers.
    fn outage(&self) -> Option<Unavailable> {
        None
    }

    /// Statistics of a limit. `None` if the limit is unknown or the store keeps no statistics.
    fn observe(&self, _limit_id: &str) -> Option<LimitStats> {
        None
    }

    /// Memory of all limits together, and number of open leases. `None` if the store does not count them.
    fn size(&self) -> Option<StoreSize> {
        None
    }

    /// Length of the store's log; `None` if it has none.
    fn log_size(&self) -> Option<LogSize> {
        None
    }
}

/// A store that also keeps limit definitions: what a limiter needs.
pub trait LimitStore: Store + Catalog + Any {}

impl<S: Store + Catalog + Any> LimitStore for S {}

/// The true cost of a held order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Actual<'a> {
    /// The same cost for every ask.
    Every(Amount),
    /// One cost per ask, in order.
    Each(&'a [Amount]),
}

impl Actual<'_> {
    /// The true cost of the ask at this index.
    pub fn of(self, ask: usize) -> Amount {
        match self {
            Actual::Every(count) => count,
            Actual::Each(counts) => counts.get(ask).copied().unwrap_or_default(),
        }
    }

    /// Checks that there is one cost per ask.
    pub fn check(self, asks: usize) -> Result<(), OrderError> {
        match self {
            Actual::Each(counts) if counts.len() != asks => {
                Err(OrderError::CostsOutOfRange { costs: counts.len(), asks })
            }
            Actual::Every(_) | Actual::Each(_) => Ok(()),
        }
    }
}

/// Result of a settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settlement {
    /// The charge equals its true cost.
    Settled,
    /// The lease is gone, and its charge stays as it was.
    Gone,
}

/// Statistics of one limit since it was added. Counters are read while other threads decide, so they may be from
/// slightly different moments; no event is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitStats {
    /// Orders that were granted.
    pub granted: u64,
    /// Orders that this limit refused as the binding one.
    pub refused: u64,
    /// Orders that it would have refused if it were not in shadow mode.
    pub shadowed: u64,
    /// Refusals by item.
    pub items: Vec<ItemCount>,
    /// Number of key rows, including evictable ones. `None` if the rows are elsewhere.
    pub rows: Option<u64>,
    /// Approximate memory of the limit in bytes. `None` if the rows are elsewhere.
    pub bytes: Option<usize>,
}

/// Memory of all limits of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreSize {
    /// Approximate bytes of all rows.
    pub bytes: usize,
    /// Memory budget in bytes.
    pub budget_bytes: usize,
    /// Number of open leases.
    pub leases: usize,
}

/// Length of a store's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogSize {
    /// Bytes that a start would read after the newest snapshot.
    pub bytes: u64,
    /// Number of segment files.
    pub segments: u64,
}

/// Refusals of one item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemCount {
    /// Name of the item. An item that an edit removed keeps its count.
    pub item: String,
    /// Orders that it refused as the binding item.
    pub refused: u64,
}

/// Current counts of a row: the `CurrentData` of the HTTP API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// The lifetime total, if a `total` item counts it.
    pub count: Option<Amount>,
    /// Every item of the row.
    pub items: Vec<ItemUsage>,
}

/// State of one item: the `PolicyStatus` of the HTTP API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemUsage {
    /// Name of the item.
    pub item: String,
    /// Its policy, as written in a limits file.
    pub policy: &'static str,
    /// Units in use.
    pub current_count: Amount,
    /// When the count was last updated, if the policy stores that.
    pub last_time: Option<Timestamp>,
}
