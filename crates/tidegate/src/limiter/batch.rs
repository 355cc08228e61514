//! Batches: many orders at once, for doors that read many at once.
//!
//! A batch goes to the store as it is, in one piece. Only while somebody waits is it looked at order by order: who would overtake a
//! waiter only looks, and if there is room, is told that it is not theirs yet.

use std::sync::Arc;

use tidegate_core::{Intent, LeaseId, Limit, Order, Wait};

use super::wait_queues::QueuePosition;
use super::{Limiter, item_at};
use crate::reply::{OrderRefusal, Replies};
use crate::store::{CompactBatch, CompactReplies, Lsn, StoreReply, Unavailable};

/// An order that would overtake somebody who waits.
#[derive(Debug)]
struct Behind {
    index: usize,
    limit: Arc<Limit>,
    item: usize,
}

impl Limiter {
    /// Puts a batch to the store. Nobody who waits at this limiter is overtaken: an order for a row that somebody waits for is denied,
    /// with [`Wait::OnRelease`] if only that is in its way. Leases are not owned by anybody here; they are given back by
    /// their ids. `patience` of an order is not looked at.
    pub fn submit(&self, orders: &[Order<'_>], answers: Replies) -> StoreReply<Replies> {
        let store = &self.inner.store;
        if self.inner.queues.is_quiet() {
            return store.submit(orders, answers);
        }
        let behind: Vec<Behind> =
            orders.iter().enumerate().filter_map(|(index, order)| self.behind(index, order)).collect();
        let mut looking = orders.to_vec();
        for each in &behind {
            looking[each.index].intent = Intent::Peek;
        }
        match store.submit(&looking, answers) {
            StoreReply::Now(answers) => StoreReply::Now(in_turn(answers, behind)),
            StoreReply::Durable(answers, lsn) => StoreReply::Durable(in_turn(answers, behind), lsn),
            StoreReply::Later(later) => {
                StoreReply::Later(Box::pin(
                    async move { later.await.map(|answers| in_turn(answers, behind)) },
                ))
            }
        }
    }

    /// Puts [bids](crate::store::compact) to the store. Only while nobody waits at this limiter: bids that could overtake somebody are not decided.
    pub fn submit_compact(
        &self,
        bids: &CompactBatch<'_>,
        gists: &mut CompactReplies,
    ) -> Result<Option<Lsn>, Unavailable> {
        if self.inner.queues.is_quiet() {
            return self.inner.store.submit_compact(bids, gists);
        }
        gists.clear();
        Ok(None)
    }

    /// A lease was given back, renewed or settled at the store itself: those look again who wait for what it holds.
    pub fn lease_changed(&self, lease: LeaseId) {
        if !self.inner.queues.is_quiet() {
            self.inner.wake_rows(self.inner.detached_leases.get(lease).as_deref());
        }
    }

    fn behind(&self, index: usize, order: &Order<'_>) -> Option<Behind> {
        if order.intent != Intent::Acquire {
            return None;
        }
        let positions = self.inner.positions(order.asks);
        let QueuePosition { ask, kind, .. } = self.inner.queues.contested(&positions, None)?;
        let limit = self.inner.store.get(order.asks.get(ask)?.limit_id)?;
        let item = item_at(&limit, kind);
        Some(Behind { index, limit, item })
    }
}

/// The answers, with everybody behind those who came before.
fn in_turn(mut answers: Replies, behind: Vec<Behind>) -> Replies {
    for Behind { index, limit, item } in behind {
        let first = (Arc::clone(&limit), item);
        answers.deny(index, OrderRefusal { limit, item, wait: Wait::OnRelease, first, lapses_at: None });
    }
    answers
}
