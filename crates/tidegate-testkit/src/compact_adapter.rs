//! A store adapter that uses compact requests wherever possible: each order that fits one is submitted as one, and its
//! reply is turned back into that of an order.
//!
//! Tests of a store that run over this adapter cover its compact path too. What the store does not decide as a compact
//! request is submitted as an order.

use std::sync::Arc;
use std::time::Duration;

use tidegate::catalog::{ApplyError, Origin, PutError, Watcher};
use tidegate::catalog::{Catalog, Edit, EditOutcome, ExpectedVersion, RemovalMode};
use tidegate::model::{Ask, Hold, Intent, LeaseId, LeaseTerm, Limit, LimitSpec, Order, Timestamp, Verdict};
use tidegate::reply::{Detail, ItemReading, OrderError, OrderRefusal, OrderReply, Outcome, Replies};
use tidegate::store::compact::MOST_LIMITS;
use tidegate::store::{
    Actual, Capabilities, CompactBatch, CompactReplies, CompactRequest, LimitStats, Lsn, Settlement,
    Unavailable, Usage,
};
use tidegate::store::{LimitStore, Store, StoreReply};

/// The adapter.
pub struct CompactAdapter {
    inner: Arc<dyn LimitStore>,
}

impl CompactAdapter {
    /// Puts a store behind the adapter.
    pub fn new(inner: impl LimitStore + 'static) -> CompactAdapter {
        CompactAdapter { inner: Arc::new(inner) }
    }

    /// Submits the longest prefix of the orders that consists of compact requests. Returns how many were decided and
    /// the log position that makes them durable.
    fn submit_compact_prefix(
        &self,
        orders: &[Order<'_>],
        answers: &mut Replies,
    ) -> Result<(usize, Option<Lsn>), Unavailable> {
        let mut limit_ids: Vec<&str> = Vec::new();
        let mut requests = Vec::new();
        for ask in orders.iter().map_while(|order| compact_ask(order)) {
            let known = limit_ids.iter().position(|id| *id == ask.limit_id);
            if known.is_none() && limit_ids.len() == MOST_LIMITS {
                break;
            }
            let limit = known.unwrap_or_else(|| {
                limit_ids.push(ask.limit_id);
                limit_ids.len() - 1
            });
            requests.extend(ask.key.map(|key| CompactRequest { limit, key, count: ask.count }));
        }
        let mut replies = CompactReplies::default();
        let until = self
            .inner
            .submit_compact(&CompactBatch { limit_ids: &limit_ids, list: &requests }, &mut replies)?;
        for reply in replies.list() {
            let (limit, item) = (Arc::clone(replies.text(reply)), reply.item);
            let outcome = match reply.verdict {
                Verdict::Granted => Outcome::Granted(None),
                Verdict::Denied(wait) => {
                    let first = (Arc::clone(&limit), item);
                    Outcome::Denied(OrderRefusal {
                        limit: Arc::clone(&limit),
                        item,
                        wait,
                        first,
                        lapses_at: None,
                    })
                }
            };
            let start = answers.mark();
            if answers.detail() == Detail::Readings {
                answers.read(ItemReading { limit, item, reading: reply.reading });
            }
            let readings = start..answers.mark();
            answers.push(Ok(OrderReply {
                outcome,
                at: reply.at,
                degraded: false,
                shadowed: Vec::new(),
                readings,
            }));
        }
        Ok((replies.list().len(), until))
    }

    /// Submits one order as it is.
    fn submit_one(&self, order: &Order<'_>, answers: &mut Replies) -> StoreReply<()> {
        let detail = answers.detail();
        let (one, until) = match self.inner.submit(std::slice::from_ref(order), Replies::new(detail)) {
            StoreReply::Now(one) => (one, None),
            StoreReply::Durable(one, lsn) => (one, Some(lsn)),
            StoreReply::Later(later) => {
                return StoreReply::Later(Box::pin(async move { later.await.map(|_| ()) }));
            }
        };
        for answer in one.iter() {
            let start = answers.mark();
            let answer = answer.clone().map(|answer| {
                one.readings(&answer).iter().for_each(|reading| answers.read(reading.clone()));
                OrderReply { readings: start..answers.mark(), ..answer }
            });
            answers.push(answer);
        }
        until.map_or(StoreReply::Now(()), |lsn| StoreReply::Durable((), lsn))
    }
}

/// The ask of an order that can be a compact request.
fn compact_ask<'a>(order: &Order<'a>) -> Option<Ask<'a>> {
    let plain = order.intent == Intent::Acquire
        && order.hold == Hold::No
        && order.request_id.is_none()
        && order.ttl.is_none()
        && order.max_wait.is_zero();
    match order.asks {
        [ask] if plain && ask.key.is_some() => Some(*ask),
        _ => None,
    }
}

impl Store for CompactAdapter {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn submit(&self, orders: &[Order<'_>], mut answers: Replies) -> StoreReply<Replies> {
        answers.clear();
        let mut until = None;
        let mut rest = orders;
        while !rest.is_empty() {
            match self.submit_compact_prefix(rest, &mut answers) {
                Ok((decided, lsn)) => {
                    until = until.max(lsn);
                    rest = &rest[decided..];
                }
                Err(why) => return StoreReply::Later(Box::pin(std::future::ready(Err(why)))),
            }
            let Some((first, others)) = rest.split_first() else { break };
            match self.submit_one(first, &mut answers) {
                StoreReply::Now(()) => {}
                StoreReply::Durable((), lsn) => until = until.max(Some(lsn)),
                StoreReply::Later(later) => {
                    return StoreReply::Later(Box::pin(
                        async move { later.await.map(|()| Replies::default()) },
                    ));
                }
            }
            rest = others;
        }
        match until {
            None => StoreReply::Now(answers),
            Some(lsn) => StoreReply::Durable(answers, lsn),
        }
    }

    fn release(&self, lease: LeaseId) -> StoreReply<bool> {
        self.inner.release(lease)
    }

    fn renew(
        &self,
        lease: LeaseId,
        ttl: Option<Duration>,
    ) -> StoreReply<Result<Option<Timestamp>, OrderError>> {
        self.inner.renew(lease, ttl)
    }

    fn settle(&self, lease: LeaseId, actual: Actual<'_>) -> StoreReply<Result<Settlement, OrderError>> {
        self.inner.settle(lease, actual)
    }

    fn reset(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<(), OrderError>> {
        self.inner.reset(limit_id, key)
    }

    fn usage(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Usage, OrderError>> {
        self.inner.usage(limit_id, key)
    }

    fn holders(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Vec<LeaseTerm>, OrderError>> {
        self.inner.holders(limit_id, key)
    }

    fn held_until(&self, leases: &[LeaseId]) -> StoreReply<Vec<Option<Timestamp>>> {
        self.inner.held_until(leases)
    }

    fn observe(&self, limit_id: &str) -> Option<LimitStats> {
        self.inner.observe(limit_id)
    }
}

impl Catalog for CompactAdapter {
    fn get(&self, id: &str) -> Option<Arc<Limit>> {
        self.inner.get(id)
    }

    fn list(&self) -> Vec<Arc<Limit>> {
        self.inner.list()
    }

    fn put(&self, spec: LimitSpec, expect: ExpectedVersion) -> Result<Arc<Limit>, PutError> {
        self.inner.put(spec, expect)
    }

    fn remove(&self, id: &str, parting: RemovalMode) -> bool {
        self.inner.remove(id, parting)
    }

    fn apply(&self, edits: Vec<Edit>) -> Result<Vec<EditOutcome>, ApplyError> {
        self.inner.apply(edits)
    }

    fn edit(&self, edits: Vec<Edit>, origin: Origin) -> StoreReply<Result<Vec<EditOutcome>, ApplyError>> {
        self.inner.edit(edits, origin)
    }

    fn watch(&self, watcher: Watcher) {
        self.inner.watch(watcher);
    }
}
