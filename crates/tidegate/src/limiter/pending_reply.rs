//! What a store has decided and nobody may be told yet, or what somebody else has not decided yet.
//!
//! Stores with a log decide at once and speak when the decision is durable. Whoever asked waits for that: a thread where it stands, a
//! task without blocking anybody. Between the two moments the answer belongs to nobody, and the asker may leave. Where somebody
//! else decides there is nothing to belong to anybody until they have, and what is theirs to give back if the asker leaves is the
//! store's to see to.
//!
//! Decided: whoever leaves meanwhile, or is told that the log has failed, gives back the lease of the grant they were not told of. What was
//! charged without a lease stays charged: too little is admitted, never too much. An order with a request id keeps its lease until it
//! lapses: whoever repeats it will be told of that lease, and must not be told of one that is gone.

use std::sync::Arc;
use std::task::{Context, Poll};

use super::error::AcquireError;
use super::lease::Lease;
use super::permit::Permit;
use crate::store::{Later, LimitStore, Lsn, StoreReply, Unavailable, block_on, wait_durable};

/// The outcome of a request.
pub(super) type Decision = Result<Permit, AcquireError>;

/// The reply of a store to an order.
pub(super) type SubmitReply = StoreReply<Decision>;

/// Whether the store granted or refused, rather than reported an error.
pub(super) fn is_decided(decision: &Decision) -> bool {
    matches!(decision, Ok(_) | Err(AcquireError::Refused(_)))
}

/// What is told later.
pub(super) enum PendingReply {
    /// When the log is durable.
    Log(Box<UndurableDecision>),
    /// When somebody else has decided.
    Elsewhere(Later<Decision>),
}

impl PendingReply {
    /// What may be told at once, or what has to be waited for; whether the order had a request id.
    pub(super) fn of(asked: SubmitReply, may_be_repeated: bool) -> Result<Decision, PendingReply> {
        match asked {
            StoreReply::Now(decided) => Ok(decided),
            StoreReply::Durable(decision, lsn) if is_decided(&decision) => {
                Err(PendingReply::Log(UndurableDecision::new(decision, lsn, may_be_repeated)))
            }
            StoreReply::Durable(error, _) => Ok(error),
            StoreReply::Later(later) => Err(PendingReply::Elsewhere(later)),
        }
    }

    /// Waits where it stands.
    pub(super) fn wait(self, store: &dyn LimitStore) -> Decision {
        match self {
            PendingReply::Log(mut untold) => {
                wait_durable(store, untold.lsn)?;
                untold.take()
            }
            PendingReply::Elsewhere(later) => block_on(later)?,
        }
    }

    /// Waits, and blocks nobody.
    pub(super) async fn wait_async(self, store: &Arc<dyn LimitStore>) -> Decision {
        match self {
            PendingReply::Log(mut untold) => {
                std::future::poll_fn(|context| untold.poll(store, context)).await
            }
            PendingReply::Elsewhere(later) => later.await?,
        }
    }
}

/// A decision of which nobody has been told, and which waits for the log. It is kept apart, so that only who waits needs room for it.
#[derive(Debug)]
pub(super) struct UndurableDecision {
    decision: Option<Decision>,
    lsn: Lsn,
    may_be_repeated: bool,
}

impl UndurableDecision {
    /// This decision, until the log is durable up to there; whether the order had a request id.
    pub(super) fn new(decision: Decision, lsn: Lsn, may_be_repeated: bool) -> Box<UndurableDecision> {
        Box::new(UndurableDecision { decision: Some(decision), lsn, may_be_repeated })
    }

    /// The decision as soon as it may be told, once.
    pub(super) fn poll(&mut self, store: &Arc<dyn LimitStore>, context: &mut Context<'_>) -> Poll<Decision> {
        store.poll_durable(self.lsn, context).map(|durable| {
            durable?;
            self.take()
        })
    }

    fn take(&mut self) -> Decision {
        let gone = || Unavailable { reason: "an answer is given once".to_owned() };
        self.decision.take().ok_or_else(gone)?
    }
}

impl Drop for UndurableDecision {
    fn drop(&mut self) {
        if let (true, Some(Ok(permit))) = (self.may_be_repeated, self.decision.take()) {
            permit.into_lease().map(Lease::into_id);
        }
    }
}
