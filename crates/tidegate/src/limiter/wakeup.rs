//! What comes back by the id of a lease, and who is called then.
//!
//! A store that decides by itself has given back what it gives back when it returns, and those who wait look at once: whoever is granted it
//! is told when both are durable. Where somebody else decides they are called when the answer is in. If nobody waits for the answer,
//! they are called as soon as that is so: the store does what it was told, but nobody here will hear when.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Ask, LeaseId};

use super::Inner;
use super::lease::Renewal;
use super::wait_queues::{Call, RowId};
use crate::reply::OrderError;
use crate::store::{Actual, Later, Settlement, StoreReply};

/// Who is to be called.
#[derive(Debug)]
pub(super) enum WakeTarget {
    /// Those who wait for these rows, or all if nobody knows which.
    Rows(Option<Arc<[RowId]>>),
    /// Those who wait for this limit.
    Limit(Box<str>),
}

/// Calls somebody when it is dropped: when an answer is in, or when nobody waits for it any more.
pub(super) struct WakeOnDrop {
    inner: Arc<Inner>,
    whom: Option<WakeTarget>,
}

impl WakeOnDrop {
    /// There is nothing to call for.
    pub(super) fn cancel(mut self) {
        self.whom = None;
    }
}

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        match self.whom.take() {
            None => {}
            Some(WakeTarget::Rows(rows)) => self.inner.wake_rows(rows.as_deref()),
            Some(WakeTarget::Limit(id)) => self.inner.queues.wake_limit(&id, Call::Ask),
        }
    }
}

impl fmt::Debug for WakeOnDrop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WakeOnDrop").field("whom", &self.whom).finish_non_exhaustive()
    }
}

impl Inner {
    /// Calls these in the end.
    pub(super) fn wake_on_drop(self: &Arc<Inner>, whom: WakeTarget) -> WakeOnDrop {
        WakeOnDrop { inner: Arc::clone(self), whom: Some(whom) }
    }

    /// The same answer, and these are called in the end.
    pub(super) fn then_wake<T: 'static>(self: &Arc<Inner>, later: Later<T>, whom: WakeTarget) -> Later<T> {
        let wake_on_drop = self.wake_on_drop(whom);
        Box::pin(async move {
            let reply = later.await;
            drop(wake_on_drop);
            reply
        })
    }

    /// Gives a lease back by its id.
    pub(super) fn release(self: &Arc<Inner>, lease: LeaseId) -> StoreReply<bool> {
        self.after(lease, self.store.release(lease), |_| true)
    }

    /// Settles a lease by its id.
    pub(super) fn settle(
        self: &Arc<Inner>,
        lease: LeaseId,
        actual: Actual<'_>,
    ) -> StoreReply<Result<Settlement, OrderError>> {
        self.after(lease, self.store.settle(lease, actual), Result::is_ok)
    }

    /// Renews a lease that is known by its id only.
    pub(super) fn renew(
        self: &Arc<Inner>,
        lease: LeaseId,
        ttl: Option<Duration>,
    ) -> StoreReply<Result<Renewal, OrderError>> {
        let renewed = match self.store.renew(lease, ttl) {
            // Perhaps it lapses sooner now than those believe who wait for it.
            StoreReply::Later(later) if ttl.is_some() => {
                StoreReply::Later(self.then_wake(later, WakeTarget::Rows(self.detached_leases.get(lease))))
            }
            spoken => {
                if let (true, StoreReply::Now(Ok(_)) | StoreReply::Durable(Ok(_), _)) =
                    (ttl.is_some(), &spoken)
                {
                    self.wake_rows(self.detached_leases.get(lease).as_deref());
                }
                spoken
            }
        };
        renewed.map(|renewed| renewed.map(|until| until.map_or(Renewal::Gone, Renewal::Until)))
    }

    /// Zeroes counts.
    pub(super) fn reset(
        self: &Arc<Inner>,
        limit_id: &str,
        key: Option<&[u8]>,
    ) -> StoreReply<Result<(), OrderError>> {
        let ask = Ask::one(limit_id, key);
        let rows = || self.queues.rows_of(&ask);
        match (self.store.reset(limit_id, key), key) {
            (StoreReply::Later(later), None) => {
                StoreReply::Later(self.then_wake(later, WakeTarget::Limit(limit_id.into())))
            }
            (StoreReply::Later(later), Some(_)) => {
                StoreReply::Later(self.then_wake(later, WakeTarget::Rows(Some(rows().collect()))))
            }
            (spoken @ (StoreReply::Now(Err(_)) | StoreReply::Durable(Err(_), _)), _) => spoken,
            (spoken, None) => {
                self.queues.wake_limit(limit_id, Call::Ask);
                spoken
            }
            (spoken, Some(_)) => {
                self.queues.wake_rows(rows());
                spoken
            }
        }
    }

    /// The same reply about a lease that left as an id; if it says so, the lease is over, and those are called who wait for what it held.
    fn after<T: Send + 'static>(
        self: &Arc<Inner>,
        lease: LeaseId,
        spoken: StoreReply<T>,
        is_over: fn(&T) -> bool,
    ) -> StoreReply<T> {
        let later = match spoken {
            StoreReply::Later(later) => later,
            spoken => {
                if let StoreReply::Now(reply) | StoreReply::Durable(reply, _) = &spoken
                    && is_over(reply)
                {
                    self.wake_rows(self.detached_leases.remove(lease).as_deref());
                }
                return spoken;
            }
        };
        let wake_on_drop = self.wake_on_drop(WakeTarget::Rows(self.detached_leases.get(lease)));
        let inner = Arc::clone(self);
        StoreReply::Later(Box::pin(async move {
            // Whoever is not heard may be asked again, and it is known then whom to call.
            let reply = later.await?;
            if is_over(&reply) {
                inner.detached_leases.remove(lease);
            }
            drop(wake_on_drop);
            Ok(reply)
        }))
    }
}
