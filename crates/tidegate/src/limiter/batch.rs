//! Batches of orders, for protocols that read several requests at once.
//!
//! A batch goes to the store in one piece. Only while requests wait is each order checked: an order that would overtake
//! a waiter becomes a peek, and if it would fit, it is refused.

use std::sync::Arc;

use tidegate_core::{Intent, LeaseId, Limit, Order, Wait};

use super::wait_queues::QueuePosition;
use super::{Limiter, item_at};
use crate::reply::{OrderRefusal, Replies};
use crate::store::{CompactBatch, CompactReplies, Lsn, StoreReply, Unavailable};

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
        let behind: Vec<OrderBehindWaiter> = orders
            .iter()
            .enumerate()
            .filter_map(|(index, order)| self.find_waiter_ahead(index, order))
            .collect();
        let mut checked = orders.to_vec();
        for order in &behind {
            checked[order.index].intent = Intent::Peek;
        }
        match store.submit(&checked, answers) {
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

    fn find_waiter_ahead(&self, index: usize, order: &Order<'_>) -> Option<OrderBehindWaiter> {
        if order.intent != Intent::Acquire {
            return None;
        }
        let positions = self.inner.positions(order.asks);
        let QueuePosition { ask, kind, .. } = self.inner.queues.contested(&positions, None)?;
        let limit = self.inner.store.get(order.asks.get(ask)?.limit_id)?;
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
