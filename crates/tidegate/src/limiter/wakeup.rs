//! Operations by lease id, and the waiters that they wake.
//!
//! A local store has applied the operation when it returns, so waiters are woken at once; their own grants are returned
//! when both are durable. Over a remote store, waiters are woken when the reply arrives. If the caller is dropped
//! before, they are woken at that moment, because the store still applies the operation and the reply reaches no task.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Ask, LeaseId};

use super::LimiterState;
use super::lease::Renewal;
use super::wait_queues::{Call, RowId};
use crate::reply::OrderError;
use crate::store::{Actual, Later, Settlement, StoreReply};

/// The waiters to wake.
#[derive(Debug)]
pub(super) enum WakeTarget {
    /// The waiters of these rows, or all waiters if the rows are not known.
    Rows(Option<Arc<[RowId]>>),
    /// The waiters of this limit.
    Limit(Box<str>),
}

/// Wakes waiters when it is dropped: when a reply arrived, or when its caller was dropped.
pub(super) struct WakeOnDrop {
    inner: Arc<LimiterState>,
    target: Option<WakeTarget>,
}

impl WakeOnDrop {
    /// Drops the guard without waking waiters.
    pub(super) fn cancel(mut self) {
        self.target = None;
    }
}

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        match self.target.take() {
            None => {}
            Some(WakeTarget::Rows(rows)) => self.inner.wake_rows(rows.as_deref()),
            Some(WakeTarget::Limit(id)) => self.inner.queues.wake_limit(&id, Call::Ask),
        }
    }
}

impl fmt::Debug for WakeOnDrop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WakeOnDrop").field("target", &self.target).finish_non_exhaustive()
    }
}

impl LimiterState {
    /// A guard that wakes these waiters when it is dropped.
    pub(super) fn wake_on_drop(self: &Arc<LimiterState>, target: WakeTarget) -> WakeOnDrop {
        WakeOnDrop { inner: Arc::clone(self), target: Some(target) }
    }

    /// The same reply; these waiters are woken when it arrives or is dropped.
    pub(super) fn then_wake<T: 'static>(
        self: &Arc<LimiterState>,
        later: Later<T>,
        target: WakeTarget,
    ) -> Later<T> {
        let wake_on_drop = self.wake_on_drop(target);
        Box::pin(async move {
            let reply = later.await;
            drop(wake_on_drop);
            reply
        })
    }

    /// Releases a lease by its id.
    pub(super) fn release(self: &Arc<LimiterState>, lease: LeaseId) -> StoreReply<bool> {
        self.after(lease, self.store.release(lease), |_| true)
    }

    /// Settles a lease by its id.
    pub(super) fn settle(
        self: &Arc<LimiterState>,
        lease: LeaseId,
        actual: Actual<'_>,
    ) -> StoreReply<Result<Settlement, OrderError>> {
        self.after(lease, self.store.settle(lease, actual), Result::is_ok)
    }

    /// Renews a lease by its id.
    pub(super) fn renew(
        self: &Arc<LimiterState>,
        lease: LeaseId,
        ttl: Option<Duration>,
    ) -> StoreReply<Result<Renewal, OrderError>> {
        let renewed = match self.store.renew(lease, ttl) {
            // The lease may lapse sooner than its waiters expect.
            StoreReply::Later(later) if ttl.is_some() => {
                StoreReply::Later(self.then_wake(later, WakeTarget::Rows(self.detached_leases.get(lease))))
            }
            reply => {
                if let (true, StoreReply::Now(Ok(_)) | StoreReply::Durable(Ok(_), _)) =
                    (ttl.is_some(), &reply)
                {
                    self.wake_rows(self.detached_leases.get(lease).as_deref());
                }
                reply
            }
        };
        renewed.map(|renewed| renewed.map(|until| until.map_or(Renewal::Gone, Renewal::Until)))
    }

    /// Resets counts.
    pub(super) fn reset(
        self: &Arc<LimiterState>,
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
            (reply @ (StoreReply::Now(Err(_)) | StoreReply::Durable(Err(_), _)), _) => reply,
            (reply, None) => {
                self.queues.wake_limit(limit_id, Call::Ask);
                reply
            }
            (reply, Some(_)) => {
                self.queues.wake_rows(rows());
                reply
            }
        }
    }

    /// The same reply. If it means that a detached lease is over, wakes the waiters of its rows.
    fn after<T: Send + 'static>(
        self: &Arc<LimiterState>,
        lease: LeaseId,
        reply: StoreReply<T>,
        is_over: fn(&T) -> bool,
    ) -> StoreReply<T> {
        let later = match reply {
            StoreReply::Later(later) => later,
            reply => {
                if let StoreReply::Now(reply) | StoreReply::Durable(reply, _) = &reply
                    && is_over(reply)
                {
                    self.wake_rows(self.detached_leases.remove(lease).as_deref());
                }
                return reply;
            }
        };
        let wake_on_drop = self.wake_on_drop(WakeTarget::Rows(self.detached_leases.get(lease)));
        let inner = Arc::clone(self);
        StoreReply::Later(Box::pin(async move {
            // After an error the caller may retry, which needs the rows again.
            let reply = later.await?;
            if is_over(&reply) {
                inner.detached_leases.remove(lease);
            }
            drop(wake_on_drop);
            Ok(reply)
        }))
    }
}
