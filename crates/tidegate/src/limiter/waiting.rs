//! Waiting in line.
//!
//! A waiter sleeps until something could have changed for it: it was called because somebody gave something back or left
//! the queue before it, or the instant has come that the store promised, or its patience is over. It never looks
//! before that, and it looks itself: the order is put to the store inside a poll of the waiter's own future, so that a grant
//! and its answer are one step, and a waiter that is dropped was never charged. Over a store with a log there is a step between: the
//! waiter has left the line, holds its answer, and is told when that is durable.
//!
//! What it waits for depends on the denial:
//!
//! | wait        | wakes                                                                              |
//! |-------------|------------------------------------------------------------------------------------|
//! | `Until(t)`  | at `t`; not worth waiting for after its patience, unless a hold may be settled before |
//! | `OnRelease` | when somebody gives something back, or the next lease in the way lapses            |
//! | `Never`     | does not wait                                                                      |
//!
//! and always when its limit is edited or reset. Promised instants are the store's; how long it is until then is reckoned
//! from the instant of its answer, so the waiter needs no clock of the store's. If other processes share the store, they give back without
//! calling anybody here: whoever is first in line looks again every [`FLEET_LOOK`], unless it waits for an instant that nobody can bring
//! nearer.
//!
//! Where somebody else decides, an order is away between two polls. The waiter keeps its place meanwhile; if it is called it looks again
//! after the answer, and if its patience ends the answer is the last. Whoever asks for the first time stands in no line yet, so that
//! others can be served while nobody knows whether it has to wait; if it has, it stands where it would have stood.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tidegate_core::{Amount, Ask, Hold, Intent, Item, Order, Per, Timestamp, Wait};

use super::Inner;
use super::asking::overtakes;
use super::decision::{AcquireError, Decision, Denial};
use super::early::{Asked, Early, Untold};
use super::pulse::{HolderInstant, Sleep};
use super::queues::{Call, Kind, Spot, Standing, Ticket, Turn};
use crate::answer::Detail;
use crate::store::{Later, Reach, StoreReply};

/// How often whoever is first in line looks again for what other processes may have given back.
pub const FLEET_LOOK: Duration = Duration::from_millis(100);

/// The answer to a question that may wait: a future that owns all it needs.
///
/// It is cancel-safe: the order is put to the store inside a poll that then returns the answer, so that a dropped
/// waiter was either never charged or has handed its grant over. Whoever stood behind it moves up. A waiter that is
/// neither polled nor dropped keeps its place, and those behind it wait.
///
/// If the store has a log, a grant is told when it is durable, however long after the patience that is. A waiter that is dropped meanwhile
/// gives back the lease it was granted, unless it has a request id and may be repeated; what else was charged stays so. If somebody else
/// decides, the same is true of a waiter that is dropped while its order is away, and it is the store that gives the lease back.
///
/// # Panics
/// If it has to wait outside of a tokio runtime with timers (as [`SystemHolderClock`](super::SystemHolderClock) does), or is polled after it was answered.
#[must_use = "nobody waits in a line they do not stand in: await it"]
pub struct Acquire {
    inner: Arc<Inner>,
    wish: Wish,
    /// When patience is over.
    deadline: HolderInstant,
    stage: Stage,
    spots: Vec<Spot>,
    timer: Option<Sleep>,
    /// What was put to the store and is not answered yet.
    away: Option<Away>,
    /// What was decided and is not durable yet.
    untold: Option<Box<Untold>>,
}

/// How far it is.
#[derive(Debug, Clone, Copy)]
enum Stage {
    New,
    /// The first order is away; the ticket is its place if it has to join.
    Asking(Ticket),
    Waiting(Ticket),
    Done,
}

/// An order that somebody else decides.
struct Away {
    reply: Later<Result<Decision, AcquireError>>,
    /// How it stood when it asked.
    standing: Standing,
}

/// An ask that owns its words: which limit, for which key, how much.
type OwnAsk = (Box<str>, Option<Box<[u8]>>, Amount);

/// An order that owns its words.
struct Wish {
    asks: Vec<OwnAsk>,
    request_id: Option<Box<[u8]>>,
    hold: Hold,
    ttl: Option<Duration>,
    patience: Duration,
    detail: Detail,
}

impl Wish {
    fn of(order: &Order<'_>, detail: Detail) -> Wish {
        let own = |ask: &Ask<'_>| (ask.limit_id.into(), ask.key.map(Into::into), ask.count);
        Wish {
            asks: order.asks.iter().map(own).collect(),
            request_id: order.request_id.map(Into::into),
            hold: order.hold,
            ttl: order.ttl,
            patience: order.max_wait,
            detail,
        }
    }

    fn order<'a>(&'a self, asks: &'a [Ask<'a>]) -> Order<'a> {
        Order {
            intent: Intent::Acquire,
            asks,
            request_id: self.request_id.as_deref(),
            hold: self.hold,
            ttl: self.ttl,
            max_wait: self.patience,
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
    pub(super) fn new(inner: Arc<Inner>, order: &Order<'_>, detail: Detail) -> Acquire {
        let deadline = inner.pulse.now().plus(order.max_wait);
        Acquire {
            inner,
            wish: Wish::of(order, detail),
            deadline,
            stage: Stage::New,
            spots: Vec::new(),
            timer: None,
            away: None,
            untold: None,
        }
    }

    /// Patience is over: it is answered as things stand when it is polled next. What was decided already still waits for the log, and what is
    /// away is waited for.
    pub fn hurry(&mut self) {
        self.deadline = self.inner.pulse.now().min(self.deadline);
        self.timer = Some(Box::pin(std::future::ready(())));
    }

    /// Asks for the first time, and joins the queues if that did not help but waiting may.
    fn arrive(&mut self, context: &mut Context<'_>) -> Poll<Result<Early, AcquireError>> {
        let asks = self.wish.asks();
        let order = self.wish.order(&asks);
        let ended = self.is_over();
        self.spots = self.inner.spots(&asks);
        let queues = &self.inner.queues;
        let asked =
            if !queues.is_quiet() && overtakes(&order) && queues.contested(&self.spots, None).is_some() {
                self.inner.look(&order, self.wish.detail, &self.spots, None)
            } else {
                self.inner.submit(&order, self.wish.detail)
            };
        match early(asked) {
            Ok(early) => self.join(None, early?, ended, context),
            Err(reply) => {
                let ticket = queues.draw();
                self.stage = Stage::Asking(ticket);
                self.away = Some(Away { reply, standing: Standing::First });
                self.listen(ticket, context)
            }
        }
    }

    /// Listens for the answer to the first order, which somebody else decides. They have not joined: others may be served meanwhile.
    fn listen(&mut self, ticket: Ticket, context: &mut Context<'_>) -> Poll<Result<Early, AcquireError>> {
        let (early, _) = ready!(self.hear(context))?;
        self.spots = self.inner.spots(&self.wish.asks());
        let ended = self.is_over();
        self.join(Some(ticket), early, ended, context)
    }

    /// Joins the queues, if the answer to the first order is that waiting may help.
    fn join(
        &mut self,
        ticket: Option<Ticket>,
        early: Early,
        ended: bool,
        context: &mut Context<'_>,
    ) -> Poll<Result<Early, AcquireError>> {
        let Decision::Denied(denial) = &early.reply else { return Poll::Ready(Ok(early)) };
        if ended || self.next_look(denial).is_none() {
            return Poll::Ready(Ok(early));
        }
        let limits = self.wish.asks.iter().map(|(limit_id, ..)| limit_id.clone()).collect();
        let Some(ticket) = self.inner.queues.join(ticket, self.spots.clone(), limits) else {
            return Poll::Ready(Ok(early));
        };
        self.stage = Stage::Waiting(ticket);
        // What was given back between the answer and the queue has called nobody: look again.
        self.attend(ticket, context)
    }

    /// Looks up, and asks if it was called.
    fn attend(&mut self, ticket: Ticket, context: &mut Context<'_>) -> Poll<Result<Early, AcquireError>> {
        let rings = self.timer.as_mut().is_some_and(|timer| timer.as_mut().poll(context).is_ready());
        let timer = rings.then_some(Call::Look);
        let Turn { call, mut standing } = self.inner.queues.attend(ticket, timer, context.waker());
        let Some(call) = call else { return Poll::Pending };
        let ended = self.is_over();
        let asks = self.wish.asks();
        if call == Call::EditOutcome {
            self.spots = self.inner.spots(&asks);
            standing = self.inner.queues.move_to(ticket, self.spots.clone());
        }
        let order = self.wish.order(&asks);
        let asked = match standing {
            Standing::First => self.inner.submit(&order, self.wish.detail),
            Standing::Behind if ended || call == Call::EditOutcome => {
                self.inner.look(&order, self.wish.detail, &self.spots, Some(ticket))
            }
            // Whoever stands before us calls us when they leave.
            Standing::Behind => return self.sleep_until(self.deadline, context),
        };
        match early(asked) {
            Ok(early) => self.weigh(ticket, early?, standing, ended, context),
            Err(reply) => {
                self.away = Some(Away { reply, standing });
                self.attend_away(ticket, context)
            }
        }
    }

    /// Listens for the answer to an order that somebody else decides, in its place in the line.
    fn attend_away(
        &mut self,
        ticket: Ticket,
        context: &mut Context<'_>,
    ) -> Poll<Result<Early, AcquireError>> {
        let (early, standing) = ready!(self.hear(context))?;
        let ended = self.is_over();
        let weighed = self.weigh(ticket, early, standing, ended, context);
        // A call that came while the order was away may be about what it was too early for.
        if weighed.is_pending() && self.inner.queues.is_called(ticket, context.waker()) {
            context.waker().wake_by_ref();
        }
        weighed
    }

    /// What an order was answered that is away.
    fn hear(&mut self, context: &mut Context<'_>) -> Poll<Result<(Early, Standing), AcquireError>> {
        let Some(Away { reply, standing }) = &mut self.away else { return Poll::Pending };
        let (decided, standing) = (ready!(reply.as_mut().poll(context)), *standing);
        self.away = None;
        Poll::Ready(Ok((Early { reply: decided??, durable: None }, standing)))
    }

    /// Whether this is its answer; if not, it sleeps.
    fn weigh(
        &mut self,
        ticket: Ticket,
        early: Early,
        standing: Standing,
        ended: bool,
        context: &mut Context<'_>,
    ) -> Poll<Result<Early, AcquireError>> {
        let Decision::Denied(denial) = &early.reply else { return Poll::Ready(Ok(early)) };
        let next = self.next_look(denial).filter(|_| !ended);
        let Some(next) = next else { return Poll::Ready(Ok(early)) };
        if standing == Standing::Behind {
            return self.sleep_until(self.deadline, context);
        }
        self.inner.queues.held_up(ticket, held_up_by(denial));
        self.sleep_until(next, context)
    }

    /// Whether its patience is.
    fn is_over(&self) -> bool {
        self.deadline <= self.inner.pulse.now()
    }

    /// When to look again if nobody calls; `None` if waiting is of no use.
    fn next_look(&self, denial: &Denial) -> Option<HolderInstant> {
        // After the answer, so that it is never too early.
        let now = self.inner.pulse.now();
        let due = |at: Timestamp| now.plus(self.inner.tick.duration(at.since(denial.at)));
        let lapses_at = denial.denied.as_ref().and_then(|denied| denied.lapses_at);
        let next = match denial.wait {
            Wait::Never => None,
            Wait::OnRelease => Some(lapses_at.map_or(self.deadline, |at| due(at).min(self.deadline))),
            Wait::Until(until) if due(until) <= self.deadline => Some(due(until)),
            Wait::Until(_) => self.settled_until(now).map(|until| until.min(self.deadline)),
        };
        next.map(
            |next| if self.may_come_unheard(denial, now) { next.min(now.plus(FLEET_LOOK)) } else { next },
        )
    }

    /// Until when a hold that was opened here can be settled, which could help.
    fn settled_until(&self, now: HolderInstant) -> Option<HolderInstant> {
        self.inner.queues.settled_until(&self.spots, now)
    }

    /// Whether another process may bring nearer what is waited for. Of holds that are settled elsewhere only those are known that were
    /// opened here.
    fn may_come_unheard(&self, denial: &Denial, now: HolderInstant) -> bool {
        self.inner.reach == Reach::Fleet
            && (denial.wait == Wait::OnRelease || self.settled_until(now).is_some())
    }

    fn sleep_until<T>(&mut self, until: HolderInstant, context: &mut Context<'_>) -> Poll<T> {
        let timer = self.timer.insert(self.inner.pulse.sleep_until(until));
        if timer.as_mut().poll(context).is_ready() {
            // The instant has come already; ask again, but not without letting others run.
            self.timer = Some(Box::pin(std::future::ready(())));
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }

    fn leave(&mut self) {
        // Whoever is called now finds what comes back of it, if the store is quick.
        self.away = None;
        if let Stage::Waiting(ticket) = std::mem::replace(&mut self.stage, Stage::Done) {
            self.timer = None;
            self.inner.queues.leave(ticket);
        }
    }
}

/// What the store has decided, or what somebody else will.
fn early(asked: Asked) -> Result<Result<Early, AcquireError>, Later<Result<Decision, AcquireError>>> {
    match asked {
        StoreReply::Now(decided) => Ok(decided.map(|reply| Early { reply, durable: None })),
        StoreReply::Durable(decided, lsn) => Ok(decided.map(|reply| Early { reply, durable: Some(lsn) })),
        StoreReply::Later(later) => Err(later),
    }
}

/// What kind of row a denial is about.
fn held_up_by(denial: &Denial) -> Kind {
    match denial.limit().items().get(denial.item).map(Item::per) {
        _ if denial.degraded => Kind::Room,
        Some(Per::Key) => Kind::Key,
        _ => Kind::All,
    }
}

impl Future for Acquire {
    type Output = Result<Decision, AcquireError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.untold.is_none() {
            let early = match this.stage {
                Stage::New => ready!(this.arrive(context)),
                Stage::Asking(ticket) => ready!(this.listen(ticket, context)),
                Stage::Waiting(ticket) if this.away.is_some() => ready!(this.attend_away(ticket, context)),
                Stage::Waiting(ticket) => ready!(this.attend(ticket, context)),
                Stage::Done => panic!("an answer is given once"),
            };
            // Whoever stood behind need not wait for the log as well.
            this.leave();
            this.stage = Stage::Done;
            let Early { reply, durable } = early?;
            match durable {
                None => return Poll::Ready(Ok(reply)),
                Some(lsn) => this.untold = Some(Untold::new(reply, lsn, this.wish.request_id.is_some())),
            }
        }
        let Some(untold) = &mut this.untold else { return Poll::Pending };
        let told = ready!(untold.poll(&this.inner.store, context));
        this.untold = None;
        Poll::Ready(told)
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        self.leave();
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").finish_non_exhaustive()
    }
}
