//! Replies that cannot be returned yet: a decision whose log record is not durable, or an order that a remote store is
//! deciding.
//!
//! A store with a log decides at once, and the decision is returned after the sync. The caller waits for it: a thread
//! blocks, a task is pending. If the caller is dropped before the sync or the log fails, the lease of the grant is
//! released. Over a remote store, the store itself releases what it granted to a dropped caller.
//!
//! A charge without a lease stays in that case: too little is admitted, never too much. An order with a request id
//! keeps its lease until it lapses, because a repeated order returns that same lease.

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

/// A reply that is not available yet.
pub(super) enum PendingReply {
    /// The log record is not durable yet.
    Log(Box<UndurableDecision>),
    /// A remote store has not decided yet.
    Elsewhere(Later<Decision>),
}

impl PendingReply {
    /// Splits a reply into a decision that can be returned now and a pending one. `may_be_repeated`: the order had a
    /// request id.
    pub(super) fn of(reply: SubmitReply, may_be_repeated: bool) -> Result<Decision, PendingReply> {
        match reply {
            StoreReply::Now(decision) => Ok(decision),
            StoreReply::Durable(decision, lsn) if is_decided(&decision) => {
                Err(PendingReply::Log(UndurableDecision::new(decision, lsn, may_be_repeated)))
            }
            StoreReply::Durable(error, _) => Ok(error),
            StoreReply::Later(later) => Err(PendingReply::Elsewhere(later)),
        }
    }

    /// Blocks the thread until the reply is available.
    pub(super) fn wait(self, store: &dyn LimitStore) -> Decision {
        match self {
            PendingReply::Log(mut undurable) => {
                wait_durable(store, undurable.lsn)?;
                undurable.take()
            }
            PendingReply::Elsewhere(later) => block_on(later)?,
        }
    }

    /// Waits without blocking the thread.
    pub(super) async fn wait_async(self, store: &Arc<dyn LimitStore>) -> Decision {
        match self {
            PendingReply::Log(mut undurable) => {
                std::future::poll_fn(|context| undurable.poll(store, context)).await
            }
            PendingReply::Elsewhere(later) => later.await?,
        }
    }
}

/// A decision that waits for the sync. It is boxed, so that decided requests need no space for it.
#[derive(Debug)]
pub(super) struct UndurableDecision {
    decision: Option<Decision>,
    lsn: Lsn,
    may_be_repeated: bool,
}

impl UndurableDecision {
    /// Keeps a decision until the log is durable up to `lsn`. `may_be_repeated`: the order had a request id.
    #[expect(
        clippy::unnecessary_box_returns,
        reason = "every caller stores it in a box, to keep futures small"
    )]
    pub(super) fn new(decision: Decision, lsn: Lsn, may_be_repeated: bool) -> Box<UndurableDecision> {
        Box::new(UndurableDecision { decision: Some(decision), lsn, may_be_repeated })
    }

    /// Returns the decision, once, when it is durable.
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
