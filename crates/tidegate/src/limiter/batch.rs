//! Batches of orders: of handles, and of protocols that read several requests at once.
//!
//! A batch goes to the store in one piece. Only while requests wait is each order checked: an order that would overtake
//! a waiter becomes a peek, and if it would fit, it is refused.

use std::borrow::Cow;
use std::sync::Arc;

use tidegate_core::{Intent, LeaseId, Limit, Order, Wait};

use super::pending_reply::{Decision, is_decided};
use super::permit::Permit;
use super::submit::{SentOrder, refuse_behind_waiter, takes_something};
use super::wait_queues::QueuePosition;
use super::wake_on_drop::WakeTarget;
use super::{Limiter, LimiterState, item_at};
use crate::reply::{Detail, OrderRefusal, Replies};
use crate::store::{CompactBatch, CompactReplies, Lsn, StoreReply, Unavailable, block_on, wait_durable};

/// An order that is behind a waiter.
#[derive(Debug)]
struct OrderBehindWaiter {
    index: usize,
    limit: Arc<Limit>,
    item: usize,
}

impl Limiter {
    /// Sends a batch to the store. Waiting requests are not overtaken: an order for a row with waiters is refused, with
    /// [`Wait::OnRelease`] if nothing else is in its way. The limiter does not own the leases of a batch: they are
    /// released by id. The `max_wait` of the orders is ignored.
    pub fn submit(&self, orders: &[Order<'_>], answers: Replies) -> StoreReply<Replies> {
        let store = &self.inner.store;
        if self.inner.queues.is_empty() {
            return store.submit(orders, answers);
        }
        let (orders, behind) = self.inner.peek_if_behind(orders);
        match store.submit(&orders, answers) {
            StoreReply::Now(answers) => StoreReply::Now(refuse_behind(answers, behind)),
            StoreReply::Durable(answers, lsn) => StoreReply::Durable(refuse_behind(answers, behind), lsn),
            StoreReply::Later(later) => StoreReply::Later(Box::pin(async move {
                later.await.map(|answers| refuse_behind(answers, behind))
            })),
        }
    }

    /// Sends [compact requests](crate::store::compact) to the store. While requests wait, nothing is decided: `replies`
    /// is empty then.
    pub fn submit_compact(
        &self,
        requests: &CompactBatch<'_>,
        replies: &mut CompactReplies,
    ) -> Result<Option<Lsn>, Unavailable> {
        if self.inner.queues.is_empty() {
            return self.inner.store.submit_compact(requests, replies);
        }
        replies.clear();
        Ok(None)
    }

    /// Wakes waiters after a lease was released, renewed or settled directly at the store.
    pub fn lease_changed(&self, lease: LeaseId) {
        if !self.inner.queues.is_empty() {
            self.inner.wake_rows(self.inner.detached_leases.get(lease).as_deref());
        }
    }
}

impl LimiterState {
    /// Sends orders that do not wait, and owns the leases of their grants. Blocks until the replies are complete.
    pub(super) fn try_acquire_batch(self: &Arc<LimiterState>, orders: &[Order<'_>]) -> Vec<Decision> {
        let before = self.holder_clock.now();
        let (checked, behind) = if self.queues.is_empty() {
            (Cow::Borrowed(orders), Vec::new())
        } else {
            self.peek_if_behind(orders)
        };
        let (replies, durable) = match self.store.submit(&checked, Replies::new(Detail::Verdicts)) {
            StoreReply::Now(replies) => (replies, None),
            StoreReply::Durable(replies, lsn) => (replies, Some(lsn)),
            StoreReply::Later(later) => {
                let rows = orders.iter().flat_map(|order| self.rows(order.asks)).collect();
                let wake = self.wake_on_drop(WakeTarget::Rows(Some(rows)));
                match block_on(later) {
                    Ok(replies) => {
                        wake.cancel();
                        (replies, None)
                    }
                    Err(unavailable) => {
                        return orders.iter().map(|_| Err(unavailable.clone().into())).collect();
                    }
                }
            }
        };
        let decide = |(index, order): (usize, &Order<'_>)| {
            let sent = SentOrder { before, hold: order.hold };
            self.decision_at(index, &replies, None, sent, || self.rows(order.asks))
        };
        let mut decisions: Vec<Decision> = orders.iter().enumerate().map(decide).collect();
        for OrderBehindWaiter { index, limit, item } in behind {
            let decision = &mut decisions[index];
            if let Ok(permit) = decision {
                let peeked = std::mem::replace(permit, Permit::EMPTY);
                *decision = Err(refuse_behind_waiter(peeked, limit, item));
            }
        }
        if let Some(Err(unavailable)) = durable.map(|lsn| wait_durable(&*self.store, lsn)) {
            // The leases of permits that are dropped here are given back.
            for decision in decisions.iter_mut().filter(|decision| is_decided(decision)) {
                *decision = Err(unavailable.clone().into());
            }
        }
        decisions
    }

    /// The same orders, except that those behind a waiter only peek, and a list of those.
    fn peek_if_behind<'o, 'a>(
        &self,
        orders: &'o [Order<'a>],
    ) -> (Cow<'o, [Order<'a>]>, Vec<OrderBehindWaiter>) {
        let find = |(index, order)| self.find_waiter_ahead(index, order);
        let behind: Vec<OrderBehindWaiter> = orders.iter().enumerate().filter_map(find).collect();
        let mut checked = Cow::Borrowed(orders);
        for order in &behind {
            checked.to_mut()[order.index].intent = Intent::Peek;
        }
        (checked, behind)
    }

    fn find_waiter_ahead(&self, index: usize, order: &Order<'_>) -> Option<OrderBehindWaiter> {
        if order.intent != Intent::Acquire || !takes_something(order) {
            return None;
        }
        let positions = self.positions(order.asks);
        let QueuePosition { ask, kind, .. } = self.queues.contested(&positions, None)?;
        let limit = self.store.get(order.asks.get(ask)?.limit_id)?;
        let item = item_at(&limit, kind);
        Some(OrderBehindWaiter { index, limit, item })
    }
}

/// Refuses the orders that are behind waiters.
fn refuse_behind(mut answers: Replies, behind: Vec<OrderBehindWaiter>) -> Replies {
    for OrderBehindWaiter { index, limit, item } in behind {
        let first = (Arc::clone(&limit), item);
        answers.deny(index, OrderRefusal { limit, item, wait: Wait::OnRelease, first, lapses_at: None });
    }
    answers
}
