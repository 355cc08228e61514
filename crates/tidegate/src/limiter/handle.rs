//! A handle on one limit.
//!
//! A handle looks its limit up once. Over a [`MemoryStore`] it decides in the store's own handle, without an order and
//! without a lock in the usual case. It takes that fast path only while no request waits at its limiter: one relaxed
//! load. Limits whose grants carry a lease or a list of shadowed limits take the ordinary path. The store's handle says
//! only when a refused request fits; what else a refusal names is found by a peek.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::{Ask, Limit, Mode, Order, Per, Policy, Verdict, Wait};

use super::Limiter;
use super::error::{AcquireError, Refused};
use super::permit::Permit;
use super::request::Request;
use crate::reply::OrderError;
use crate::store::MemoryStore;
use crate::store::memory::MemoryHandle;

/// A handle on one limit of a [`Limiter`]: resolved once, cheap to clone, for any number of threads.
///
/// It follows every edit of the limit. When the limit is removed, requests are [invalid](AcquireError::Invalid) until a
/// limit of the same id exists again.
///
/// ```
/// use std::time::Duration;
/// use tidegate::{Limiter, sliding};
///
/// let limiter = Limiter::builder().limit("login", sliding(5, Duration::from_secs(15)).per_key()).build()?;
/// let login = limiter.limit("login")?;
/// assert!((0..5).all(|_| login.try_acquire("ada").is_ok()));
/// let refused = login.try_acquire("ada").expect_err("five in 15 seconds");
/// assert_eq!(refused.item(), "key/sliding-15s");
/// assert!(refused.retry_after() <= Some(Duration::from_secs(15)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct LimitHandle {
    shared: Arc<HandleState>,
}

struct HandleState {
    limiter: Limiter,
    limit_id: Box<str>,
    memory: Option<MemoryHandle>,
    /// `2 * edits + 1` if the fast path was right after so many edits, `2 * edits` if it was not.
    fast_path: AtomicU64,
}

impl LimitHandle {
    pub(super) fn new(limiter: &Limiter, limit: &Limit) -> LimitHandle {
        let store: &dyn std::any::Any = limiter.store();
        let memory = store.downcast_ref::<MemoryStore>().and_then(|store| store.handle(limit.id()));
        let state = HandleState {
            limiter: limiter.clone(),
            limit_id: limit.id().into(),
            memory,
            fast_path: AtomicU64::new(u64::MAX),
        };
        LimitHandle { shared: Arc::new(state) }
    }

    /// The id of the limit.
    pub fn limit_id(&self) -> &str {
        &self.shared.limit_id
    }

    /// Takes one unit for a key if it fits now. Limits without `per_key` rules ignore the key. Waiting requests are not
    /// overtaken.
    ///
    /// Over a durable store it blocks until the grant is durable, and over a remote store until the reply is there;
    /// [`Request::try_acquire_async`] does not.
    ///
    /// # Errors
    /// [`AcquireError::Refused`] if it does not fit. Nothing was charged then.
    #[inline]
    pub fn try_acquire(&self, key: impl AsRef<[u8]>) -> Result<Permit, AcquireError> {
        let key = key.as_ref();
        if let Some(memory) = self.fast_path() {
            match memory.try_acquire(key, 1) {
                Ok(Verdict::Granted) => return Ok(Permit::EMPTY),
                Ok(Verdict::Denied(wait)) => return self.refuse(memory, key, wait),
                Err(OrderError::UnknownLimit { .. } | OrderError::NeedsLease) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.try_acquire_by_order(key)
    }

    /// Takes one unit for each key, in the order of the keys, as if each were requested alone. The keys go to the store
    /// in one batch, and over a durable store the whole batch waits for one sync.
    pub fn try_acquire_batch<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Result<Permit, AcquireError>> {
        let asks: Vec<[Ask<'_>; 1]> =
            keys.iter().map(|key| [Ask::one(&self.shared.limit_id, Some(key.as_ref()))]).collect();
        let orders: Vec<Order<'_>> = asks.iter().map(|ask| Order::acquire(ask)).collect();
        self.shared.limiter.inner.try_acquire_batch(&orders)
    }

    /// A request for one unit for this key. It can ask for more: a count, a hold, readings, a place in the queue.
    pub fn of<'a>(&'a self, key: &'a (impl AsRef<[u8]> + ?Sized)) -> Request<'a> {
        Request::one(&self.shared.limiter, Ask::one(&self.shared.limit_id, Some(key.as_ref())))
    }

    /// A request for one unit of a limit that counts all keys together.
    ///
    /// If the limit has a `per_key` rule, the request is [invalid](AcquireError::Invalid).
    ///
    /// ```
    /// use tidegate::{Limiter, concurrency};
    ///
    /// let limiter = Limiter::builder().limit("builds", concurrency(2)).build()?;
    /// let permit = limiter.limit("builds")?.without_key().try_acquire()?;
    /// assert!(permit.lease().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn without_key(&self) -> Request<'_> {
        Request::one(&self.shared.limiter, Ask::one(&self.shared.limit_id, None))
    }

    /// The store's handle, if it decides as the ordinary path does.
    #[inline]
    fn fast_path(&self) -> Option<&MemoryHandle> {
        let state = &*self.shared;
        let memory = state.memory.as_ref()?;
        let inner = &state.limiter.inner;
        if !inner.queues.is_empty() {
            return None;
        }
        let edits = inner.edits.load(Ordering::Relaxed);
        let known = state.fast_path.load(Ordering::Relaxed);
        let usable = if known >> 1 == edits { known & 1 == 1 } else { state.look_at_limit(memory, edits) };
        usable.then_some(memory)
    }

    /// The refusal of the fast path, which knows only the wait.
    ///
    /// Nothing more is known of a limit with one item that counts all keys together. Elsewhere the item, or that there
    /// is no room for another key, is found by a peek. The item, the wait and the time that are returned are those of
    /// the peek: one decision. It is not counted as another refusal.
    #[inline(never)]
    fn refuse(&self, memory: &MemoryHandle, key: &[u8], wait: Wait) -> Result<Permit, AcquireError> {
        let limit = memory.limit();
        if let [item] = limit.items()
            && item.per() == Per::All
        {
            // Read after the decision: `at + retry_after` is still the instant at which the request fits.
            return Err(AcquireError::Refused(Refused::by_item(memory.now(), wait, limit, 0)));
        }
        match self.of(key).peek() {
            Ok(_) => self.try_acquire_by_order(key),
            refused => refused,
        }
    }

    #[inline(never)]
    fn try_acquire_by_order(&self, key: &[u8]) -> Result<Permit, AcquireError> {
        self.of(key).try_acquire()
    }
}

impl HandleState {
    /// Whether the fast path is right for the limit as it is now.
    #[cold]
    fn look_at_limit(&self, memory: &MemoryHandle, edits: u64) -> bool {
        let limit = memory.limit();
        let has_lease = limit.items().iter().any(|item| matches!(item.policy(), Policy::Concurrency { .. }));
        let usable = limit.mode() != Mode::Shadow && !has_lease;
        self.fast_path.store(edits << 1 | u64::from(usable), Ordering::Relaxed);
        usable
    }
}

impl fmt::Debug for LimitHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitHandle").field("limit_id", &self.shared.limit_id).finish_non_exhaustive()
    }
}
