//! Operations by lease id: release, settle, renew. A reset wakes waiters in the same way.
//!
//! A local store has applied the operation when it returns, so waiters are woken at once; their own grants are returned
//! when both are durable. Over a remote store, waiters are woken when the reply arrives. If the caller is dropped
//! before, they are woken at that moment, because the store still applies the operation and the reply reaches no task.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Ask, LeaseId};

use super::LimiterState;
use super::lease::Renewal;
use super::wait_queues::Call;
use super::wake_on_drop::WakeTarget;
use crate::reply::OrderError;
use crate::store::{Actual, Settlement, StoreReply};

impl LimiterState {
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
