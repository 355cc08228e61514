//! Putting an order to the store, and taking into possession what it grants.
//!
//! A store that has the states at hand has decided when it returns, and nothing is copied for it. Where somebody else decides, the order is
//! on its way then, and what is needed to understand the answer goes with it: whose rows it is about, and the moment before it was
//! sent, from which its holder reckons.
//!
//! Decided: whoever leaves while an order is on its way calls those who wait for the same rows. The store gives back what was granted to
//! nobody; who looks too early for that looks again, as they do for everything that happens elsewhere.

use std::sync::Arc;

use tidegate_core::{Ask, Hold, Intent, Limit, Order, Wait};

use super::calling::Whom;
use super::decision::{AcquireError, Decision, Denial, Granted};
use super::early::Asked;
use super::lease::Lease;
use super::pulse::HolderInstant;
use super::queues::{Kind, RowId, Spot, Ticket};
use super::{Inner, item_at};
use crate::answer::{Answer, Detail, OrderError, Outcome, Replies};
use crate::store::{StoreReply, Unavailable};

/// What is known of an order beside its answer.
#[derive(Debug, Clone, Copy)]
struct Sent {
    /// The moment before it was.
    before: HolderInstant,
    hold: Hold,
}

/// Whether an order could take something from under the noses of those who wait. One that asks for nothing only looks.
pub(super) fn overtakes(order: &Order<'_>) -> bool {
    order.hold == Hold::Yes || order.asks.iter().any(|ask| ask.count > 0)
}

impl Inner {
    /// Puts an order of somebody who will not wait, unless that would overtake somebody who does.
    pub(super) fn try_acquire(self: &Arc<Inner>, order: &Order<'_>, detail: Detail) -> Asked {
        if !self.queues.is_quiet() && overtakes(order) {
            let spots = self.spots(order.asks);
            if self.queues.contested(&spots, None).is_some() {
                return self.look(order, detail, &spots, None);
            }
        }
        self.submit(order, detail)
    }

    /// Puts an order to the store, and takes into possession what it grants.
    pub(super) fn submit(self: &Arc<Inner>, order: &Order<'_>, detail: Detail) -> Asked {
        let sent = Sent { before: self.pulse.now(), hold: order.hold };
        // A repeated order is answered as it was then; the one beside it tells what time it is.
        let orders = [*order, Order { intent: Intent::Peek, request_id: None, ..*order }];
        let orders = if order.request_id.is_some() { &orders[..] } else { &orders[..1] };
        let later = match self.store.submit(orders, Replies::new(detail)) {
            StoreReply::Now(answers) => {
                return StoreReply::Now(self.taken(&answers, sent, || self.rows(order.asks)));
            }
            StoreReply::Durable(answers, lsn) => {
                return StoreReply::Durable(self.taken(&answers, sent, || self.rows(order.asks)), lsn);
            }
            StoreReply::Later(later) => later,
        };
        let rows = self.rows(order.asks);
        let unheard = (order.intent == Intent::Acquire)
            .then(|| self.calling(Whom::Rows(Some(Arc::from(rows.as_slice())))));
        let inner = Arc::clone(self);
        StoreReply::Later(Box::pin(async move {
            let unheard = unheard;
            let answers = later.await?;
            let taken = inner.taken(&answers, sent, || rows);
            if let Some(unheard) = unheard {
                unheard.keep_still();
            }
            Ok(taken)
        }))
    }

    /// What the store has answered to an order, and a lease if it grants one.
    fn taken(
        self: &Arc<Inner>,
        answers: &Replies,
        sent: Sent,
        rows: impl FnOnce() -> Vec<RowId>,
    ) -> Result<Decision, AcquireError> {
        let answer = answers.get(0).cloned().ok_or_else(speechless)??;
        let now = answers.iter().last().and_then(|last| last.as_ref().ok()).map_or(answer.at, |last| last.at);
        let readings = answers.readings(&answer).to_vec();
        let Answer { outcome, at, degraded, shadowed, .. } = answer;
        Ok(match outcome {
            Outcome::Granted(grant) => {
                let lease =
                    grant.map(|grant| Lease::granted(self, grant, sent.hold, rows(), sent.before, now));
                Decision::Granted(Granted { at, shadowed, degraded, lease, readings })
            }
            Outcome::Denied(denied) => Decision::Denied(Denial {
                at,
                wait: denied.wait,
                degraded,
                limit: Arc::clone(&denied.limit),
                item: denied.item,
                denied: Some(denied),
                tick: self.tick,
                readings,
            }),
        })
    }

    /// What is said to somebody whose turn it is not: what the store says, and if it would grant this, that it may fit when those
    /// before them are served or leave. When that is, nobody knows.
    pub(super) fn look(
        self: &Arc<Inner>,
        order: &Order<'_>,
        detail: Detail,
        spots: &[Spot],
        ticket: Option<Ticket>,
    ) -> Asked {
        let spot = self.queues.contested(spots, ticket).or(spots.first().copied());
        let limit_id = order.asks[spot.map_or(0, |spot| spot.ask)].limit_id;
        let unknown = || OrderError::UnknownLimit { limit_id: limit_id.to_owned() };
        let limit = self.store.get(limit_id).ok_or_else(unknown);
        let (kind, tick) = (spot.map_or(Kind::Key, |spot| spot.kind), self.tick);
        let in_turn = move |decision: Decision| -> Result<Decision, AcquireError> {
            let Decision::Granted(granted) = decision else { return Ok(decision) };
            let limit: Arc<Limit> = limit?;
            Ok(Decision::Denied(Denial {
                at: granted.at,
                wait: Wait::OnRelease,
                degraded: false,
                denied: None,
                item: item_at(&limit, kind),
                limit,
                tick,
                readings: granted.readings,
            }))
        };
        let looked = self.submit(&Order { intent: Intent::Peek, ..*order }, detail);
        looked.map(|decision| decision.and_then(in_turn))
    }

    /// The rows that these asks may have taken something from, each once.
    fn rows(&self, asks: &[Ask<'_>]) -> Vec<RowId> {
        let mut rows: Vec<RowId> = asks.iter().flat_map(|ask| self.queues.rows_of(ask)).collect();
        rows.sort_unstable();
        rows.dedup();
        rows
    }
}

/// What a store that answers nothing to an order is told.
fn speechless() -> AcquireError {
    AcquireError::Unavailable(Unavailable { reason: "the store gave no answer".to_owned() })
}
