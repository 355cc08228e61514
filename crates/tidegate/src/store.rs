//! Stores: where states live and orders are decided.
//!
//! Every store answers the same contract, and one behaviour suite runs against all of them. A store that has the
//! states at hand decides at once; what may have to wait is only the *reply*, until the decision is durable, or until
//! another machine has made it. [`StoreReply`] says which.
//!
//! A store owns its clock. Its time never goes back: an order is decided at the latest instant the store has seen.
//!
//! Refused: an asynchronous trait for everything. A local decision takes less time than a task switch.

pub mod bid;
mod durable_wait;
pub mod journal;
mod leases;
pub mod map;
pub mod memory;
mod order_path;
mod requests;
mod usage;
pub mod written;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate_core::{Amount, LeaseId, LeaseTerm, Order, Tick, Timestamp};

use crate::catalog::Catalog;
use crate::reply::{OrderError, Replies};

pub use bid::{CompactBatch, CompactReplies, CompactReply, CompactRequest};
pub(crate) use durable_wait::block_on;
pub use durable_wait::{durable, wait_durable};
pub use map::MapStore;
pub use memory::{Memory, MemoryStore};

/// A place in a store's log. Replies that wait for it may be spoken once everything up to it is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

/// A future that outlives the call it came from. See [`StoreReply::Later`] for what whoever makes one promises.
pub type Later<T> = Pin<Box<dyn Future<Output = Result<T, Unavailable>> + Send>>;

/// A reply, and when it may be spoken.
pub enum StoreReply<T> {
    /// At once.
    Now(T),
    /// When the store's log is durable up to here.
    Durable(T, Lsn),
    /// When somebody else has decided.
    ///
    /// The work begins when the store is called, not when this is first polled, and it goes on whether or not anybody waits: who drops this
    /// has only stopped waiting. A lease that was granted to somebody who is not there to be told belongs to nobody, and the store gives it
    /// back itself, unless the order has a request id: whoever repeats it is told of the same lease. What was charged without a
    /// lease stays charged. [`Unavailable`] means that nobody knows whether it was done.
    ///
    /// Two calls that are on their way at once may take effect in either order.
    Later(Later<T>),
}

impl<T> StoreReply<T> {
    /// What was decided, whether it may be spoken of already or not: for those who see to that themselves. Where somebody else decides,
    /// this blocks its thread until they have.
    ///
    /// # Panics
    /// If that somebody cannot answer.
    pub fn decided(self) -> T {
        match self {
            StoreReply::Now(reply) | StoreReply::Durable(reply, _) => reply,
            StoreReply::Later(later) => match block_on(later) {
                Ok(reply) => reply,
                Err(why) => panic!("{why}"),
            },
        }
    }

    /// The reply when it may be spoken; until then this blocks its thread. Not for tasks: the reply may come from the very thread that is
    /// blocked.
    pub fn wait<S: Store + ?Sized>(self, store: &S) -> Result<T, Unavailable> {
        match self {
            StoreReply::Now(reply) => Ok(reply),
            StoreReply::Durable(reply, lsn) => wait_durable(store, lsn).map(|()| reply),
            StoreReply::Later(later) => block_on(later),
        }
    }

    /// The same, blocking nobody.
    pub async fn wait_async<S: Store + ?Sized>(self, store: &S) -> Result<T, Unavailable> {
        match self {
            StoreReply::Now(reply) => Ok(reply),
            StoreReply::Durable(reply, lsn) => durable(store, lsn).await.map(|()| reply),
            StoreReply::Later(later) => later.await,
        }
    }

    /// This made of the reply, as soon as it is known and whether it may be spoken of or not. If somebody else decides, that is when they are
    /// heard; if nobody waits for them, it never is.
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

    /// The reply of a store that speaks at once.
    ///
    /// # Panics
    /// If the store does not; ask its [`Capabilities`] first.
    pub fn now(self) -> T {
        match self {
            StoreReply::Now(reply) => reply,
            StoreReply::Durable(..) | StoreReply::Later(_) => panic!("this store does not speak at once"),
        }
    }
}

impl<T> fmt::Debug for StoreReply<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StoreReply::Now(_) => "Now",
            StoreReply::Durable(..) => "Durable",
            StoreReply::Later(_) => "Later",
        })
    }
}

/// The store could not answer; each limit's `on_outage` says what that means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable {
    /// What happened, for the log.
    pub reason: String,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store cannot answer: {}", self.reason)
    }
}

impl std::error::Error for Unavailable {}

/// What a store promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// What survives a crash.
    pub survival: Survival,
    /// Who else decides on the same states.
    pub reach: Reach,
    /// Which rows one order can be atomic over.
    pub atomicity: Atomicity,
    /// How finely it keeps time.
    pub tick: Tick,
}

/// What survives a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survival {
    /// Nothing.
    Volatile,
    /// Everything that was spoken.
    Durable,
}

/// Who else decides on the same states.
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
    /// Any.
    AllRows,
    /// Those of one limit.
    OneLimit,
}

/// Decides orders on the states it keeps.
pub trait Store: Send + Sync {
    /// What this store promises.
    fn capabilities(&self) -> Capabilities;

    /// Decides a batch of independent orders, one after the other, at one reading of the clock. A row that another thread brought
    /// to a later instant meanwhile carries the rest of the batch along to it; time never goes back. The buffer is cleared, filled
    /// and given back. A store does not wait: an order's patience is for whoever queues orders in front of it. Where somebody else
    /// decides, the orders are on their way when this returns, and leases that nobody is told of are the store's to give back:
    /// [`StoreReply::Later`].
    fn submit(&self, orders: &[Order<'_>], buffer: Replies) -> StoreReply<Replies>;

    /// Decides [bids](bid) as orders of a batch are decided, as far as that can be said in short: the buffer is cleared and filled with what
    /// is told about the first of them. Those behind were not decided, and nothing was done about them. What is told may be spoken of when the
    /// log is durable up to the place that is given; an error means that nobody knows what was decided. A store that has nothing
    /// to say in short decides none.
    fn bid(&self, _bids: &CompactBatch<'_>, gists: &mut CompactReplies) -> Result<Option<Lsn>, Unavailable> {
        gists.clear();
        Ok(None)
    }

    /// Gives a lease back. `false` if it is gone: released before, lapsed, deleted with its limits, never granted.
    fn release(&self, lease: LeaseId) -> StoreReply<bool>;

    /// Moves a lease's end to `ttl` from now (its own time to live if none is given). `None` if it is gone.
    fn renew(
        &self,
        lease: LeaseId,
        ttl: Option<Duration>,
    ) -> StoreReply<Result<Option<Timestamp>, OrderError>>;

    /// Corrects a held charge to its true cost, then releases it. Settling again changes nothing and says the same. A list that has not
    /// one cost for each ask is rejected, and changes nothing.
    fn settle(&self, lease: LeaseId, actual: Actual<'_>) -> StoreReply<Result<Settlement, OrderError>>;

    /// Zeroes counts: those of one key, or everything of the limit. Leases go on.
    fn reset(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<(), OrderError>>;

    /// What is counted for the limit as a whole, or for one key.
    fn usage(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Usage, OrderError>>;

    /// Who holds something of the limit as a whole, or of one key's row: leases that have not lapsed, first to lapse first. Only `concurrency`
    /// items know.
    fn holders(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Vec<LeaseTerm>, OrderError>>;

    /// Until when each of these leases is held, in their order; `None` for those that are gone.
    fn held_until(&self, leases: &[LeaseId]) -> StoreReply<Vec<Option<Timestamp>>>;

    /// Whether everything up to this place in the log is durable, so that replies that wait for it may be spoken; if not yet, the task is
    /// woken when it is. An error means that it never will be. Stores without a log have nothing to wait for.
    fn poll_durable(&self, _lsn: Lsn, _context: &mut Context<'_>) -> Poll<Result<(), Unavailable>> {
        Poll::Ready(Ok(()))
    }

    /// The end of the log: whatever was changed before this call, limits included, is durable when everything up to here is. `None` if
    /// the store has no log.
    fn tip(&self) -> Option<Lsn> {
        None
    }

    /// Why the store's log cannot be written any more, if it cannot: from then on nothing that changes something is answered. `None` as
    /// long as all is well, and for stores without a log.
    fn trouble(&self) -> Option<Unavailable> {
        None
    }

    /// What happened at a limit so far. `None` if nobody knows the limit, or if the store does not count such things.
    fn observe(&self, _limit_id: &str) -> Option<LimitStats> {
        None
    }

    /// What all limits together take, and how many leases are open. `None` if the store does not count such things.
    fn extent(&self) -> Option<StoreSize> {
        None
    }

    /// How long the store's log is; `None` if it has none of its own.
    fn log_extent(&self) -> Option<LogSize> {
        None
    }
}

/// A store that also knows its limits: all that a limiter needs.
pub trait LimitStore: Store + Catalog {}

impl<S: Store + Catalog + ?Sized> LimitStore for S {}

/// The true cost of a held order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Actual<'a> {
    /// The same for every ask.
    Every(Amount),
    /// One for each ask, in their order: as many as there are asks.
    Each(&'a [Amount]),
}

impl Actual<'_> {
    /// The true cost of this ask, of one that there is.
    pub fn of(self, ask: usize) -> Amount {
        match self {
            Actual::Every(count) => count,
            Actual::Each(counts) => counts.get(ask).copied().unwrap_or_default(),
        }
    }

    /// Whether it says something about each of so many asks, and about nothing else.
    pub fn check(self, asks: usize) -> Result<(), OrderError> {
        match self {
            Actual::Each(counts) if counts.len() != asks => {
                Err(OrderError::CostsOutOfRange { costs: counts.len(), asks })
            }
            Actual::Every(_) | Actual::Each(_) => Ok(()),
        }
    }
}

/// What became of a settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// The charge is its true cost now.
    Settled,
    /// The lease is gone, and its charge stands as it was.
    Gone,
}

/// What happened at one limit since it was added, and what it takes. Counts that are read while others decide may each be from a
/// slightly different moment; none is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitStats {
    /// Orders in which everything was granted.
    pub granted: u64,
    /// Orders that an item of this limit refused, and for longest.
    pub refused: u64,
    /// Orders that it would have refused, if it did not only watch.
    pub shadowed: u64,
    /// The refusals by item.
    pub items: Vec<ItemCount>,
    /// Rows of keys, fresh ones that were not noticed included, where the store has them at hand.
    pub rows: Option<u64>,
    /// About how many bytes the limit takes, where the store has its rows at hand.
    pub bytes: Option<usize>,
}

/// What all limits of a store take together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreSize {
    /// About how many bytes all rows take.
    pub bytes: usize,
    /// The most bytes they may take.
    pub budget_bytes: usize,
    /// How many leases are open.
    pub leases: usize,
}

/// How long a store's log is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogSize {
    /// How many bytes of it a start would read, beside the newest snapshot.
    pub bytes: u64,
    /// In how many files.
    pub segments: u64,
}

/// How often an item refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemCount {
    /// The item's name. One that an edit removed keeps its count.
    pub item: String,
    /// Orders that it refused, and for longest.
    pub refused: u64,
}

/// Document 004's `CurrentData`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// The lifetime total, if a `total` item counts it.
    pub count: Option<Amount>,
    /// Every item of this row.
    pub items: Vec<ItemUsage>,
}

/// Document 004's `PolicyStatus`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemUsage {
    /// The item's name.
    pub item: String,
    /// Its policy, as written in a limits file.
    pub policy: &'static str,
    /// How much is in use.
    pub current_count: Amount,
    /// When the count was last updated, where the law keeps it.
    pub last_time: Option<Timestamp>,
}
