//! What a store has decided and nobody may be told yet.
//!
//! Stores with a log decide at once and speak when the decision is durable. Whoever asked waits for that: a thread where it stands, a
//! task without blocking anybody. Between the two moments the answer belongs to nobody, and the asker may leave.
//!
//! Decided: whoever leaves meanwhile, or is told that the log has failed, gives back the lease of the grant they were not told of. What was
//! charged without a lease stays charged: too little is admitted, never too much. An order with a request id keeps its lease until it
//! lapses: whoever repeats it will be told of that lease, and must not be told of one that is gone.

use std::sync::Arc;
use std::task::{Context, Poll};

use tidegate_core::Order;

use super::decision::{AskError, Decision};
use super::lease::Lease;
use crate::store::{FullStore, Lsn, Spoken, Unavailable, durable, wait_durable};

/// A reply, and what must be durable before anybody is told.
#[derive(Debug)]
pub(super) struct Early<T> {
    pub(super) reply: T,
    pub(super) durable: Option<Lsn>,
}

impl<T> Early<T> {
    /// The reply of a store that decides by itself.
    pub(super) fn of(spoken: Spoken<T>) -> Result<Early<T>, Unavailable> {
        match spoken {
            Spoken::Now(reply) => Ok(Early { reply, durable: None }),
            Spoken::Durable(reply, lsn) => Ok(Early { reply, durable: Some(lsn) }),
            Spoken::Later(_) => Err(Unavailable { reason: "this store does not speak at once".to_owned() }),
        }
    }

    /// Waits where it stands until the reply may be told.
    pub(super) fn wait(self, store: &dyn FullStore) -> Result<T, Unavailable> {
        if let Some(lsn) = self.durable {
            wait_durable(store, lsn)?;
        }
        Ok(self.reply)
    }

    /// Waits until the reply may be told, and blocks nobody.
    pub(super) async fn told(self, store: &dyn FullStore) -> Result<T, Unavailable> {
        if let Some(lsn) = self.durable {
            durable(store, lsn).await?;
        }
        Ok(self.reply)
    }
}

impl Early<Decision> {
    /// Waits where it stands until the asker may be told.
    pub(super) fn decided(self, order: &Order<'_>, store: &dyn FullStore) -> Result<Decision, AskError> {
        let Some(lsn) = self.durable else { return Ok(self.reply) };
        let mut untold = Untold::new(self.reply, lsn, order.request_id.is_some());
        wait_durable(store, lsn)?;
        untold.take()
    }
}

/// A decision of which nobody has been told, and which waits for the log. It is kept apart, so that only who waits needs room for it.
#[derive(Debug)]
pub(super) struct Untold {
    decision: Option<Decision>,
    lsn: Lsn,
    may_be_repeated: bool,
}

impl Untold {
    /// This decision, until the log is durable up to there; whether the order had a request id.
    pub(super) fn new(decision: Decision, lsn: Lsn, may_be_repeated: bool) -> Box<Untold> {
        Box::new(Untold { decision: Some(decision), lsn, may_be_repeated })
    }

    /// The decision as soon as it may be told, once.
    pub(super) fn poll(
        &mut self,
        store: &Arc<dyn FullStore>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Decision, AskError>> {
        store.poll_durable(self.lsn, context).map(|durable| {
            durable?;
            self.take()
        })
    }

    /// The same, awaited.
    pub(super) async fn told(
        mut self: Box<Untold>,
        store: &Arc<dyn FullStore>,
    ) -> Result<Decision, AskError> {
        std::future::poll_fn(|context| self.poll(store, context)).await
    }

    fn take(&mut self) -> Result<Decision, AskError> {
        let gone = || Unavailable { reason: "an answer is given once".to_owned() };
        Ok(self.decision.take().ok_or_else(gone)?)
    }
}

impl Drop for Untold {
    fn drop(&mut self) {
        if let (true, Some(Decision::Granted(granted))) = (self.may_be_repeated, self.decision.take()) {
            granted.into_lease().map(Lease::into_id);
        }
    }
}
