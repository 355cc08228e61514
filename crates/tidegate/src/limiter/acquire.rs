//! The future of a request that may wait.
//!
//! A waiter sends its order when it is polled: on arrival, when a lease comes back, when its wait is over, when its limit
//! is edited, and once more when its time is up. It never sends an order while an earlier waiter stands before it at one
//! of the same rows; it peeks instead.
//!
//! Over a remote store the first order is in flight before the waiter joins the queues. Its queue position is drawn when
//! the order is sent, so waiters stand in the order of their arrival and not of their replies.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tidegate_core::{Amount, Ask, Hold, Intent, Item, Order, Per, Timestamp, Wait};

use super::LimiterState;
use super::error::{AcquireError, Refused};
use super::holder_clock::{HolderInstant, Sleep};
use super::pending_reply::{Decision, SubmitReply, UndurableDecision};
use super::submit::takes_something;
use super::wait_queues::{Call, QueuePosition, QueueStanding, RowKind, Turn, WaiterId};
use crate::reply::Detail;
use crate::store::{Later, Lsn, Reach, StoreReply};

/// How often the first waiter of a row asks again for what other processes may have given back.
pub const FLEET_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The reply to a request that may wait. The future owns everything it needs.
///
/// It is cancel-safe. A dropped waiter was not charged, or gives back the lease that it was granted; waiters behind it
/// move up. A waiter that is neither polled nor dropped keeps its position, and the waiters behind it wait.
///
/// Over a durable store a grant is returned after the sync, even if that is later than the deadline. A waiter dropped
/// before the sync gives back its lease, unless the request has a request id and can be repeated. Charges without a lease
/// stay. Over a remote store the store gives back the lease of a waiter that was dropped while its order was in flight.
///
/// # Panics
/// If it has to wait outside of a tokio runtime with timers (as
/// [`SystemHolderClock`](super::SystemHolderClock) does), or is polled after it returned.
#[must_use = "a future does nothing unless it is awaited"]
pub struct Acquire {
    inner: Arc<LimiterState>,
    order: OwnedOrder,
    deadline: HolderInstant,
    stage: Stage,
    positions: Vec<QueuePosition>,
    timer: Option<Sleep>,
    in_flight: Option<OrderInFlight>,
    undurable: Option<Box<UndurableDecision>>,
}

/// Where the request stands.
#[derive(Debug, Clone, Copy)]
enum Stage {
    New,
    /// The first order is in flight; the id is the position if the waiter has to join.
    FirstOrder(WaiterId),
    Waiting(WaiterId),
    Done,
}

/// An order that a remote store is deciding.
struct OrderInFlight {
    reply: Later<Decision>,
    /// The standing of the waiter when the order was sent.
    standing: QueueStanding,
}

/// A decision, and the position in the log that must be durable before it is returned.
struct EarlyDecision {
    decision: Decision,
    durable: Option<Lsn>,
}

/// An ask that owns its limit id and key.
type OwnedAsk = (Box<str>, Option<Box<[u8]>>, Amount);

/// An order that owns its parts.
struct OwnedOrder {
    asks: Vec<OwnedAsk>,
    request_id: Option<Box<[u8]>>,
    hold: Hold,
    ttl: Option<Duration>,
    max_wait: Duration,
    detail: Detail,
}

impl OwnedOrder {
    fn copy_of(order: &Order<'_>, detail: Detail) -> OwnedOrder {
        let own = |ask: &Ask<'_>| (ask.limit_id.into(), ask.key.map(Into::into), ask.count);
        OwnedOrder {
            asks: order.asks.iter().map(own).collect(),
            request_id: order.request_id.map(Into::into),
            hold: order.hold,
            ttl: order.ttl,
            max_wait: order.max_wait,
            detail,
        }
    }

    fn as_order<'a>(&'a self, asks: &'a [Ask<'a>]) -> Order<'a> {
        Order {
            intent: Intent::Acquire,
            asks,
            request_id: self.request_id.as_deref(),
            hold: self.hold,
            ttl: self.ttl,
            max_wait: self.max_wait,
        }
    }

    fn asks(&self) -> Vec<Ask<'_>> {
        self.asks
            .iter()
            .map(|(limit_id, key, count)| Ask { limit_id, key: key.as_deref(), count: *count })
            .collect()
    }
}

impl Acquire {
    pub(super) fn new(inner: Arc<LimiterState>, order: &Order<'_>, detail: Detail) -> Acquire {
        let deadline = inner.holder_clock.now().plus(order.max_wait);
        Acquire {
            inner,
            order: OwnedOrder::copy_of(order, detail),
            deadline,
            stage: Stage::New,
            positions: Vec::new(),
            timer: None,
            in_flight: None,
            undurable: None,
        }
    }

    /// Ends the wait: the next poll returns the current decision. A decision that waits for a sync, and an order in
    /// flight, are still waited for.
    pub fn stop_waiting(&mut self) {
        self.deadline = self.inner.holder_clock.now().min(self.deadline);
        self.timer = Some(Box::pin(std::future::ready(())));
    }

    /// Sends the first order, and joins the queues if it was refused but waiting may help.
    fn start(&mut self, context: &mut Context<'_>) -> Poll<EarlyDecision> {
        let asks = self.order.asks();
        let order = self.order.as_order(&asks);
        let is_over = self.is_over();
        self.positions = self.inner.positions(&asks);
        let queues = &self.inner.queues;
        let is_behind = !queues.is_empty()
            && takes_something(&order)
            && queues.contested(&self.positions, None).is_some();
        let reply = if is_behind {
            self.inner.peek_behind(&order, self.order.detail, &self.positions, None)
        } else {
            self.inner.submit(&order, self.order.detail)
        };
        match early_decision(reply) {
            Ok(early) => self.join_if_refused(None, early, is_over, context),
            Err(reply) => {
                let waiter = queues.next_id();
                self.stage = Stage::FirstOrder(waiter);
                self.in_flight = Some(OrderInFlight { reply, standing: QueueStanding::First });
                self.poll_first_order(waiter, context)
            }
        }
    }

    /// Polls the first order over a remote store. The waiter has not joined the queues: later requests may be served
    /// meanwhile.
    fn poll_first_order(&mut self, waiter: WaiterId, context: &mut Context<'_>) -> Poll<EarlyDecision> {
        let (early, _) = ready!(self.poll_in_flight(context));
        self.positions = self.inner.positions(&self.order.asks());
        let is_over = self.is_over();
        self.join_if_refused(Some(waiter), early, is_over, context)
    }

    /// Joins the queues if the first order was refused and waiting may help.
    fn join_if_refused(
        &mut self,
        waiter: Option<WaiterId>,
        early: EarlyDecision,
        is_over: bool,
        context: &mut Context<'_>,
    ) -> Poll<EarlyDecision> {
        let Err(AcquireError::Refused(refused)) = &early.decision else { return Poll::Ready(early) };
        if is_over || self.next_attempt(refused).is_none() {
            return Poll::Ready(early);
        }
        let limits = self.order.asks.iter().map(|(limit_id, ..)| limit_id.clone()).collect();
        let Some(waiter) = self.inner.queues.join(waiter, self.positions.clone(), limits) else {
            return Poll::Ready(early);
        };
        self.stage = Stage::Waiting(waiter);
        // A lease that came back between the refusal and the join woke no waiter: ask again.
        self.poll_waiting(waiter, context)
    }

    /// Sends the order again if the waiter was called.
    fn poll_waiting(&mut self, waiter: WaiterId, context: &mut Context<'_>) -> Poll<EarlyDecision> {
        let rings = self.timer.as_mut().is_some_and(|timer| timer.as_mut().poll(context).is_ready());
        let timer = rings.then_some(Call::Ask);
        let Turn { call, mut standing } = self.inner.queues.take_turn(waiter, timer, context.waker());
        let Some(call) = call else { return Poll::Pending };
        let is_over = self.is_over();
        let asks = self.order.asks();
        if call == Call::LimitEdited {
            self.positions = self.inner.positions(&asks);
            standing = self.inner.queues.move_to(waiter, self.positions.clone());
        }
        let order = self.order.as_order(&asks);
        let reply = match standing {
            QueueStanding::First => self.inner.submit(&order, self.order.detail),
            QueueStanding::Behind if is_over || call == Call::LimitEdited => {
                self.inner.peek_behind(&order, self.order.detail, &self.positions, Some(waiter))
            }
            // The waiter before this one calls it when it leaves.
            QueueStanding::Behind => return self.sleep_until(self.deadline, context),
        };
        match early_decision(reply) {
            Ok(early) => self.sleep_if_refused(waiter, early, standing, is_over, context),
            Err(reply) => {
                self.in_flight = Some(OrderInFlight { reply, standing });
                self.poll_waiting_in_flight(waiter, context)
            }
        }
    }

    /// Polls an order that a remote store is deciding, while the waiter keeps its position.
    fn poll_waiting_in_flight(&mut self, waiter: WaiterId, context: &mut Context<'_>) -> Poll<EarlyDecision> {
        let (early, standing) = ready!(self.poll_in_flight(context));
        let is_over = self.is_over();
        let polled = self.sleep_if_refused(waiter, early, standing, is_over, context);
        // A call that came while the order was in flight may be about something the order was too early for.
        if polled.is_pending() && self.inner.queues.is_called(waiter, context.waker()) {
            context.waker().wake_by_ref();
        }
        polled
    }

    /// The reply to the order in flight.
    fn poll_in_flight(&mut self, context: &mut Context<'_>) -> Poll<(EarlyDecision, QueueStanding)> {
        let Some(OrderInFlight { reply, standing }) = &mut self.in_flight else { return Poll::Pending };
        let (reply, standing) = (ready!(reply.as_mut().poll(context)), *standing);
        self.in_flight = None;
        let decision = reply.unwrap_or_else(|unavailable| Err(unavailable.into()));
        Poll::Ready((EarlyDecision { decision, durable: None }, standing))
    }

    /// Sleeps until the next attempt if the order was refused and waiting may help; else this is the result.
    fn sleep_if_refused(
        &mut self,
        waiter: WaiterId,
        early: EarlyDecision,
        standing: QueueStanding,
        is_over: bool,
        context: &mut Context<'_>,
    ) -> Poll<EarlyDecision> {
        let Err(AcquireError::Refused(refused)) = &early.decision else { return Poll::Ready(early) };
        let next = self.next_attempt(refused).filter(|_| !is_over);
        let Some(next) = next else { return Poll::Ready(early) };
        if standing == QueueStanding::Behind {
            return self.sleep_until(self.deadline, context);
        }
        self.inner.queues.set_blocked_by(waiter, blocked_by(refused));
        self.sleep_until(next, context)
    }

    /// Whether the deadline has passed.
    fn is_over(&self) -> bool {
        self.deadline <= self.inner.holder_clock.now()
    }

    /// When to send the order again without a call; `None` if waiting cannot help.
    fn next_attempt(&self, refused: &Refused) -> Option<HolderInstant> {
        // Read after the reply, so that the attempt is never too early.
        let now = self.inner.holder_clock.now();
        let due = |at: Timestamp| now.plus(self.inner.tick.duration(at.since(refused.at())));
        let lapses_at = refused.by().and_then(|by| by.lapses_at);
        let next = match refused.wait() {
            Wait::Never => None,
            Wait::OnRelease => Some(lapses_at.map_or(self.deadline, |at| due(at).min(self.deadline))),
            Wait::Until(until) if due(until) <= self.deadline => Some(due(until)),
            Wait::Until(_) => self.settleable_until(now).map(|until| until.min(self.deadline)),
        };
        next.map(|next| {
            let polls = self.may_change_elsewhere(refused, now);
            if polls { next.min(now.plus(FLEET_POLL_INTERVAL)) } else { next }
        })
    }

    /// Until when a hold opened in this process can be settled, which could make room earlier.
    fn settleable_until(&self, now: HolderInstant) -> Option<HolderInstant> {
        self.inner.queues.settleable_until(&self.positions, now)
    }

    /// Whether another process may make room earlier than the refusal says. Of the holds that are settled elsewhere, only
    /// those opened in this process are known.
    fn may_change_elsewhere(&self, refused: &Refused, now: HolderInstant) -> bool {
        self.inner.reach == Reach::Fleet
            && (refused.wait() == Wait::OnRelease || self.settleable_until(now).is_some())
    }

    fn sleep_until<T>(&mut self, until: HolderInstant, context: &mut Context<'_>) -> Poll<T> {
        let timer = self.timer.insert(self.inner.holder_clock.sleep_until(until));
        if timer.as_mut().poll(context).is_ready() {
            // The instant has come already. Ask again, but let other tasks run first.
            self.timer = Some(Box::pin(std::future::ready(())));
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }

    fn leave(&mut self) {
        // Drop the order in flight first: a fast store has then given back its lease before the next waiter asks.
        self.in_flight = None;
        if let Stage::Waiting(waiter) = std::mem::replace(&mut self.stage, Stage::Done) {
            self.timer = None;
            self.inner.queues.leave(waiter);
        }
    }
}

/// The decision of a local store, or the future of a remote one.
fn early_decision(reply: SubmitReply) -> Result<EarlyDecision, Later<Decision>> {
    match reply {
        StoreReply::Now(decision) => Ok(EarlyDecision { decision, durable: None }),
        StoreReply::Durable(decision, lsn) => Ok(EarlyDecision { decision, durable: Some(lsn) }),
        StoreReply::Later(later) => Err(later),
    }
}

/// The kind of row that a refusal is about.
fn blocked_by(refused: &Refused) -> RowKind {
    match refused.limit().items().get(refused.item_index()).map(Item::per) {
        _ if refused.is_degraded() => RowKind::Capacity,
        Some(Per::Key) => RowKind::Key,
        _ => RowKind::All,
    }
}

impl Future for Acquire {
    type Output = Decision;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.undurable.is_none() {
            let early = match this.stage {
                Stage::New => ready!(this.start(context)),
                Stage::FirstOrder(waiter) => ready!(this.poll_first_order(waiter, context)),
                Stage::Waiting(waiter) if this.in_flight.is_some() => {
                    ready!(this.poll_waiting_in_flight(waiter, context))
                }
                Stage::Waiting(waiter) => ready!(this.poll_waiting(waiter, context)),
                Stage::Done => panic!("polled after it returned"),
            };
            // The waiters behind this one need not wait for its sync.
            this.leave();
            this.stage = Stage::Done;
            match (early.decision, early.durable) {
                (decision @ (Ok(_) | Err(AcquireError::Refused(_))), Some(lsn)) => {
                    let has_request_id = this.order.request_id.is_some();
                    this.undurable = Some(UndurableDecision::new(decision, lsn, has_request_id));
                }
                (decision, _) => return Poll::Ready(decision),
            }
        }
        let Some(undurable) = &mut this.undurable else { return Poll::Pending };
        let decision = ready!(undurable.poll(&this.inner.store, context));
        this.undurable = None;
        Poll::Ready(decision)
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        self.leave();
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").field("stage", &self.stage).finish_non_exhaustive()
    }
}
