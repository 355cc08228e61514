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

use super::decision::{AcquireError, Decision};
use super::lease::Lease;
use crate::store::{Later, LimitStore, Lsn, StoreReply, Unavailable, block_on, wait_durable};

/// What a store says to an order.
pub(super) type Asked = StoreReply<Result<Decision, AcquireError>>;

/// A decision, and what must be durable before anybody is told.
#[derive(Debug)]
pub(super) struct Early {
    pub(super) reply: Decision,
    pub(super) durable: Option<Lsn>,
}

/// What is told later.
pub(super) enum Owed {
    /// When the log is durable.
    Log(Box<Untold>),
    /// When somebody else has decided.
    Elsewhere(Later<Result<Decision, AcquireError>>),
}

impl Owed {
    /// What may be told at once, or what has to be waited for; whether the order had a request id.
    pub(super) fn of(asked: Asked, may_be_repeated: bool) -> Result<Result<Decision, AcquireError>, Owed> {
        match asked {
            StoreReply::Now(decided) => Ok(decided),
            StoreReply::Durable(Ok(decision), lsn) => {
                Err(Owed::Log(Untold::new(decision, lsn, may_be_repeated)))
            }
            StoreReply::Durable(rejected, _) => Ok(rejected),
            StoreReply::Later(later) => Err(Owed::Elsewhere(later)),
        }
    }

    /// Waits where it stands.
    pub(super) fn wait(self, store: &dyn LimitStore) -> Result<Decision, AcquireError> {
        match self {
            Owed::Log(mut untold) => {
                wait_durable(store, untold.lsn)?;
                untold.take()
            }
            Owed::Elsewhere(later) => block_on(later)?,
        }
    }

    /// Waits, and blocks nobody.
    pub(super) async fn told(self, store: &Arc<dyn LimitStore>) -> Result<Decision, AcquireError> {
        match self {
            Owed::Log(mut untold) => std::future::poll_fn(|context| untold.poll(store, context)).await,
            Owed::Elsewhere(later) => later.await?,
        }
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
        store: &Arc<dyn LimitStore>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Decision, AcquireError>> {
        store.poll_durable(self.lsn, context).map(|durable| {
            durable?;
            self.take()
        })
    }

    fn take(&mut self) -> Result<Decision, AcquireError> {
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
