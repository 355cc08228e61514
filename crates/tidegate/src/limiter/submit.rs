//! Sends an order to the store and turns the reply into a permit or an error.
//!
//! A local store has decided when it returns, and nothing is copied for it. Over a remote store the order is in flight,
//! and the future keeps what the reply needs: the rows of the order, and the instant before it was sent, from which the
//! lease's deadline is computed.
//!
//! A caller that is dropped while its order is in flight wakes the waiters of the same rows. The store gives back the
//! grant of a dropped caller. A waiter that asks before that happened asks again, as it does for changes by other
//! processes.

use std::sync::Arc;

use tidegate_core::{Ask, Hold, Intent, Limit, Order, Timestamp, Wait};

use super::error::{AcquireError, Refused, RefusedDetails};
use super::holder_clock::HolderInstant;
use super::lease::Lease;
use super::pending_reply::{Decision, SubmitReply};
use super::permit::{Permit, PermitDetails};
use super::wait_queues::{QueuePosition, RowId, RowKind, WaiterId};
use super::wake_on_drop::WakeTarget;
use super::{LimiterState, item_at};
use crate::reply::{Detail, OrderError, OrderReply, Outcome, Replies};
use crate::store::{StoreReply, Unavailable};

/// The context of an order that its reply needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct SentOrder {
    /// The instant before the order was sent.
    pub(super) before: HolderInstant,
    pub(super) hold: Hold,
}

/// Whether an order could overtake a waiter. An order for zero units only looks.
pub(super) fn takes_something(order: &Order<'_>) -> bool {
    order.hold == Hold::Yes || order.asks.iter().any(|ask| ask.count > 0)
}

impl LimiterState {
    /// Sends an order that does not wait, unless it would overtake a waiter.
    pub(super) fn try_acquire(self: &Arc<LimiterState>, order: &Order<'_>, detail: Detail) -> SubmitReply {
        if !self.queues.is_empty() && takes_something(order) {
            let positions = self.positions(order.asks);
            if self.queues.contested(&positions, None).is_some() {
                return self.peek_behind(order, detail, &positions, None);
            }
        }
        self.submit(order, detail)
    }

    /// Sends an order to the store and owns the lease of its grant.
    pub(super) fn submit(self: &Arc<LimiterState>, order: &Order<'_>, detail: Detail) -> SubmitReply {
        let sent = SentOrder { before: self.holder_clock.now(), hold: order.hold };
        // The reply to a repeated order has the original time; a peek beside it reports the current time.
        let orders = [*order, Order { intent: Intent::Peek, request_id: None, ..*order }];
        let orders = if order.request_id.is_some() { &orders[..] } else { &orders[..1] };
        let later = match self.store.submit(orders, Replies::new(detail)) {
            StoreReply::Now(answers) => {
                return StoreReply::Now(self.decision(&answers, sent, || self.rows(order.asks)));
            }
            StoreReply::Durable(answers, lsn) => {
                return StoreReply::Durable(self.decision(&answers, sent, || self.rows(order.asks)), lsn);
            }
            StoreReply::Later(later) => later,
        };
        let rows = self.rows(order.asks);
        let wake = (order.intent == Intent::Acquire)
            .then(|| self.wake_on_drop(WakeTarget::Rows(Some(Arc::from(rows.as_slice())))));
        let inner = Arc::clone(self);
        StoreReply::Later(Box::pin(async move {
            let wake = wake;
            let answers = later.await?;
            let decision = inner.decision(&answers, sent, || rows);
            if let Some(wake) = wake {
                wake.cancel();
            }
            Ok(decision)
        }))
    }

    /// Turns the store's reply to an order into a permit or an error, and owns the lease if there is one.
    fn decision(
        self: &Arc<LimiterState>,
        replies: &Replies,
        sent: SentOrder,
        rows: impl FnOnce() -> Vec<RowId>,
    ) -> Decision {
        let now = replies.iter().last().and_then(|last| last.as_ref().ok()).map(|last| last.at);
        self.decision_at(0, replies, now, sent, rows)
    }

    /// Turns the reply to the order at `index` into a permit or an error, and owns the lease if there is one. `now` is
    /// the store's time if the reply is a repeated one, which has the original time.
    pub(super) fn decision_at(
        self: &Arc<LimiterState>,
        index: usize,
        replies: &Replies,
        now: Option<Timestamp>,
        sent: SentOrder,
        rows: impl FnOnce() -> Vec<RowId>,
    ) -> Decision {
        let reply = replies.get(index).cloned().ok_or_else(no_reply)??;
        let now = now.unwrap_or(reply.at);
        let readings = replies.readings(&reply).to_vec();
        let OrderReply { outcome, at, degraded, shadowed, .. } = reply;
        match outcome {
            Outcome::Granted(grant) => {
                let lease =
                    grant.map(|grant| Lease::granted(self, grant, sent.hold, rows(), sent.before, now));
                Ok(Permit::new(at, lease, PermitDetails { shadowed, is_degraded: degraded, readings }))
            }
            Outcome::Denied(by) => {
                let refused = Refused::by_item(at, by.wait, Arc::clone(&by.limit), by.item);
                let details = RefusedDetails { by: Some(by), is_degraded: degraded, readings };
                Err(AcquireError::Refused(refused.with_details(details)))
            }
        }
    }

    /// Decides an order that is behind a waiter, without charging anything. If it would fit, it is refused with
    /// [`Wait::OnRelease`]: it may fit when the waiters before it are served or leave.
    pub(super) fn peek_behind(
        self: &Arc<LimiterState>,
        order: &Order<'_>,
        detail: Detail,
        positions: &[QueuePosition],
        waiter: Option<WaiterId>,
    ) -> SubmitReply {
        let position = self.queues.contested(positions, waiter).or(positions.first().copied());
        let limit_id = order.asks[position.map_or(0, |position| position.ask)].limit_id;
        let unknown = || OrderError::UnknownLimit { limit_id: limit_id.to_owned() };
        let limit = self.store.get(limit_id).ok_or_else(unknown);
        let kind = position.map_or(RowKind::Key, |position| position.kind);
        let refuse = move |decision: Decision| -> Decision {
            let permit = decision?;
            let limit: Arc<Limit> = limit?;
            let item = item_at(&limit, kind);
            Err(refuse_behind_waiter(permit, limit, item))
        };
        self.submit(&Order { intent: Intent::Peek, ..*order }, detail).map(refuse)
    }

    /// The rows that these asks may have taken something from, each once.
    pub(super) fn rows(&self, asks: &[Ask<'_>]) -> Vec<RowId> {
        let mut rows: Vec<RowId> = asks.iter().flat_map(|ask| self.queues.rows_of(ask)).collect();
        rows.sort_unstable();
        rows.dedup();
        rows
    }
}

/// The refusal of a request that would fit but is behind a waiter. `permit` is that of a peek.
pub(super) fn refuse_behind_waiter(permit: Permit, limit: Arc<Limit>, item: usize) -> AcquireError {
    let refused = Refused::by_item(permit.decided_at(), Wait::OnRelease, limit, item);
    let details = RefusedDetails { readings: permit.into_readings(), ..RefusedDetails::default() };
    AcquireError::Refused(refused.with_details(details))
}

/// The error if a store returned no reply to an order.
fn no_reply() -> AcquireError {
    AcquireError::Unavailable(Unavailable { reason: "the store gave no answer".to_owned() })
}
