//! A handle on one limit.
//!
//! A handle looks its limit up once. Over a [`MemoryStore`] it decides with the store's engine, without an order and
//! without a lock in the usual case. It takes that fast path only while no request waits at its limiter: one relaxed
//! load. What the engine cannot decide from the words of a row takes the ordinary path: limits whose grants carry a lease or
//! a list of shadowed limits, keys with overrides, keys without room.

use std::fmt;
use std::sync::Arc;

use tidegate_core::{Ask, Limit, Order};

use super::Limiter;
use super::error::{AcquireError, Refused};
use super::permit::Permit;
use super::request::Request;
use crate::store::MemoryStore;
use crate::store::memory::{HandleDecision, MemoryHandle};

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
}

impl LimitHandle {
    pub(super) fn new(limiter: &Limiter, limit: &Limit) -> LimitHandle {
        let store: &dyn std::any::Any = limiter.store();
        let memory = store.downcast_ref::<MemoryStore>().and_then(|store| store.handle(limit.id()));
        let state = HandleState { limiter: limiter.clone(), limit_id: limit.id().into(), memory };
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
            match memory.decide(key, 1) {
                Some(HandleDecision::Granted) => return Ok(Permit::EMPTY),
                Some(HandleDecision::Refused(refusal)) => {
                    return Err(AcquireError::Refused(Refused::by_handle(memory, refusal)));
                }
                None => {}
            }
        }
        self.try_acquire_by_order(key)
    }

    /// Takes one unit for each key, in the order of the keys, as if each were requested alone. The keys go to the store
    /// in one batch, and over a durable store the whole batch waits for one sync.
    pub fn try_acquire_batch<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Result<Permit, AcquireError>> {
        let Some(memory) = self.fast_path() else { return self.try_acquire_batch_by_order(keys) };
        let mut results = Vec::with_capacity(keys.len());
        memory.decide_batch(keys, |index, decision| {
            results.push(match decision {
                Some(HandleDecision::Granted) => Ok(Permit::EMPTY),
                Some(HandleDecision::Refused(refusal)) => {
                    Err(AcquireError::Refused(Refused::by_handle(memory, refusal)))
                }
                None => self.try_acquire_by_order(keys[index].as_ref()),
            });
        });
        results
    }

    fn try_acquire_batch_by_order<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Result<Permit, AcquireError>> {
        let asks: Vec<[Ask<'_>; 1]> =
            keys.iter().map(|key| [Ask::one(&self.shared.limit_id, Some(key.as_ref()))]).collect();
        let orders: Vec<Order<'_>> = asks.iter().map(|ask| Order::acquire(ask)).collect();
        self.shared.limiter.inner.try_acquire_batch(&orders)
    }

    /// A request for one unit for this key. It can ask for more: a count, a hold, readings, a place in the queue.
    pub fn of<'a>(&'a self, key: &'a (impl AsRef<[u8]> + ?Sized)) -> Request<'a> {
        Request::one(&self.shared.limiter, self, Some(key.as_ref()))
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
        Request::one(&self.shared.limiter, self, None)
    }

    /// The store's handle, while no request waits at the limiter.
    #[inline]
    pub(super) fn fast_path(&self) -> Option<&MemoryHandle> {
        let state = &*self.shared;
        state.memory.as_ref().filter(|_| state.limiter.inner.queues.is_empty())
    }

    /// Whether the handle is one of this limiter.
    pub(super) fn is_of(&self, limiter: &Limiter) -> bool {
        Arc::ptr_eq(&self.shared.limiter.inner, &limiter.inner)
    }

    #[inline(never)]
    fn try_acquire_by_order(&self, key: &[u8]) -> Result<Permit, AcquireError> {
        self.of(key).try_acquire()
    }
}

impl fmt::Debug for LimitHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitHandle").field("limit_id", &self.shared.limit_id).finish_non_exhaustive()
    }
}
