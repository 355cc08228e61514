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
use super::queues::{Call, RowId};
use crate::answer::OrderError;
use crate::store::{Actual, Later, Settlement, StoreReply};

/// Who is to be called.
#[derive(Debug)]
pub(super) enum Whom {
    /// Those who wait for these rows, or all if nobody knows which.
    Rows(Option<Arc<[RowId]>>),
    /// Those who wait for this limit.
    Limit(Box<str>),
}

/// Calls somebody when it is dropped: when an answer is in, or when nobody waits for it any more.
pub(super) struct Calling {
    inner: Arc<Inner>,
    whom: Option<Whom>,
}

impl Calling {
    /// There is nothing to call for.
    pub(super) fn keep_still(mut self) {
        self.whom = None;
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        match self.whom.take() {
            None => {}
            Some(Whom::Rows(rows)) => self.inner.stir(rows.as_deref()),
            Some(Whom::Limit(id)) => self.inner.queues.stir_limit(&id, Call::Look),
        }
    }
}

impl fmt::Debug for Calling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calling").field("whom", &self.whom).finish_non_exhaustive()
    }
}

impl Inner {
    /// Calls these in the end.
    pub(super) fn calling(self: &Arc<Inner>, whom: Whom) -> Calling {
        Calling { inner: Arc::clone(self), whom: Some(whom) }
    }

    /// The same answer, and these are called in the end.
    pub(super) fn then_call<T: 'static>(self: &Arc<Inner>, later: Later<T>, whom: Whom) -> Later<T> {
        let calling = self.calling(whom);
        Box::pin(async move {
            let reply = later.await;
            drop(calling);
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
                StoreReply::Later(self.then_call(later, Whom::Rows(self.abroad.get(lease))))
            }
            spoken => {
                if let (true, StoreReply::Now(Ok(_)) | StoreReply::Durable(Ok(_), _)) =
                    (ttl.is_some(), &spoken)
                {
                    self.stir(self.abroad.get(lease).as_deref());
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
                StoreReply::Later(self.then_call(later, Whom::Limit(limit_id.into())))
            }
            (StoreReply::Later(later), Some(_)) => {
                StoreReply::Later(self.then_call(later, Whom::Rows(Some(rows().collect()))))
            }
            (spoken @ (StoreReply::Now(Err(_)) | StoreReply::Durable(Err(_), _)), _) => spoken,
            (spoken, None) => {
                self.queues.stir_limit(limit_id, Call::Look);
                spoken
            }
            (spoken, Some(_)) => {
                self.queues.stir(rows());
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
                    self.stir(self.abroad.remove(lease).as_deref());
                }
                return spoken;
            }
        };
        let calling = self.calling(Whom::Rows(self.abroad.get(lease)));
        let inner = Arc::clone(self);
        StoreReply::Later(Box::pin(async move {
            // Whoever is not heard may be asked again, and it is known then whom to call.
            let reply = later.await?;
            if is_over(&reply) {
                inner.abroad.remove(lease);
            }
            drop(calling);
            Ok(reply)
        }))
    }
}
