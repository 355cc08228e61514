//! Jobs: what the store is asked to do, owned, on its way to the database and back.
//!
//! A job is done inside somebody's transaction and told when that is committed. If the transaction has to be made again, it is done again.
//! Whoever asked may have gone meanwhile; a lease that nobody was told of is given back, unless its request id may be repeated.

use std::time::{Duration, Instant};

use tidegate::reply::{OrderError, Outcome, Replies};
use tidegate::store::map::excerpt::Excerpt;
use tidegate::store::{Actual, Settlement, Unavailable, Usage};
use tidegate_core::{Amount, Ask, Hold, Intent, LeaseId, LeaseTerm, Order, Timestamp};
use tokio::sync::oneshot;

/// Who is told.
pub(crate) type Tell<T> = oneshot::Sender<Result<T, Unavailable>>;

/// An ask that owns its words.
#[derive(Debug, Clone)]
pub(crate) struct OwnAsk {
    pub(crate) limit_id: Box<str>,
    pub(crate) key: Option<Box<[u8]>>,
    pub(crate) count: Amount,
}

/// An order that owns its words.
#[derive(Debug, Clone)]
pub(crate) struct OwnOrder {
    pub(crate) intent: Intent,
    pub(crate) asks: Vec<OwnAsk>,
    pub(crate) request_id: Option<Box<[u8]>>,
    pub(crate) hold: Hold,
    pub(crate) ttl: Option<Duration>,
    pub(crate) patience: Duration,
}

impl OwnOrder {
    pub(crate) fn of(order: &Order<'_>) -> OwnOrder {
        let own = |ask: &Ask<'_>| OwnAsk {
            limit_id: ask.limit_id.into(),
            key: ask.key.map(Into::into),
            count: ask.count,
        };
        OwnOrder {
            intent: order.intent,
            asks: order.asks.iter().map(own).collect(),
            request_id: order.request_id.map(Into::into),
            hold: order.hold,
            ttl: order.ttl,
            patience: order.max_wait,
        }
    }

    fn decide(&self, excerpt: &mut Excerpt, answers: &mut Replies) {
        let asks: Vec<Ask<'_>> = self
            .asks
            .iter()
            .map(|ask| Ask { limit_id: &ask.limit_id, key: ask.key.as_deref(), count: ask.count })
            .collect();
        let order = Order {
            intent: self.intent,
            asks: &asks,
            request_id: self.request_id.as_deref(),
            hold: self.hold,
            ttl: self.ttl,
            max_wait: self.patience,
        };
        excerpt.decide(&order, answers);
    }
}

/// The true cost of a held order, owned.
#[derive(Debug, Clone)]
pub(crate) enum OwnActual {
    Every(Amount),
    Each(Vec<Amount>),
}

impl OwnActual {
    pub(crate) fn of(actual: Actual<'_>) -> OwnActual {
        match actual {
            Actual::Every(count) => OwnActual::Every(count),
            Actual::Each(counts) => OwnActual::Each(counts.to_vec()),
        }
    }

    fn actual(&self) -> Actual<'_> {
        match self {
            OwnActual::Every(count) => Actual::Every(*count),
            OwnActual::Each(counts) => Actual::Each(counts),
        }
    }
}

/// What is to be done, and what came of it.
pub(crate) enum Task {
    Orders {
        orders: Vec<OwnOrder>,
        answers: Replies,
        tell: Tell<Replies>,
    },
    Release {
        id: LeaseId,
        done: Option<bool>,
        tell: Tell<bool>,
    },
    Renew {
        id: LeaseId,
        ttl: Option<Duration>,
        done: Option<Renewed>,
        tell: Tell<Renewed>,
    },
    Settle {
        id: LeaseId,
        actual: OwnActual,
        done: Option<Settled>,
        tell: Tell<Settled>,
    },
    Reset {
        limit_id: Box<str>,
        key: Box<[u8]>,
        done: Option<Result<(), OrderError>>,
        tell: Tell<Result<(), OrderError>>,
    },
    Usage {
        limit_id: Box<str>,
        key: Option<Box<[u8]>>,
        done: Option<Used>,
        tell: Tell<Used>,
    },
    Holders {
        limit_id: Box<str>,
        key: Option<Box<[u8]>>,
        done: Option<Held>,
        tell: Tell<Held>,
    },
    /// Leases that have lapsed, and rows that are behind: to be looked at, which mends them.
    Tidy {
        leases: Vec<LeaseId>,
        rows: Vec<(i64, Vec<u8>)>,
    },
}

type Renewed = Result<Option<Timestamp>, OrderError>;
type Settled = Result<Settlement, OrderError>;
type Used = Result<Usage, OrderError>;
type Held = Result<Vec<LeaseTerm>, OrderError>;

/// A task that waits, since when, and what it touches.
pub(crate) struct Job {
    pub(crate) task: Task,
    pub(crate) since: Instant,
    /// The rows it will lock, as far as that is known, as hashes: jobs that share one go together or one after the other.
    pub(crate) touches: Vec<u64>,
    /// Whether it only looks, so that nothing needs to be locked.
    pub(crate) only_looks: bool,
}

impl Job {
    /// The leases it is about.
    pub(crate) fn leases(&self) -> &[LeaseId] {
        match &self.task {
            Task::Release { id, .. } | Task::Renew { id, .. } | Task::Settle { id, .. } => {
                std::slice::from_ref(id)
            }
            Task::Tidy { leases, .. } => leases,
            _ => &[],
        }
    }

    /// Does it, among what was brought for it.
    pub(crate) fn perform(&mut self, excerpt: &mut Excerpt) {
        match &mut self.task {
            Task::Orders { orders, answers, .. } => {
                answers.clear();
                for order in orders.iter() {
                    order.decide(excerpt, answers);
                }
            }
            Task::Release { id, done, .. } => *done = Some(excerpt.release(*id)),
            Task::Renew { id, ttl, done, .. } => *done = Some(excerpt.renew(*id, *ttl)),
            Task::Settle { id, actual, done, .. } => *done = Some(excerpt.settle(*id, actual.actual())),
            Task::Reset { limit_id, key, done, .. } => *done = Some(excerpt.reset(limit_id, key)),
            Task::Usage { limit_id, key, done, .. } => *done = Some(excerpt.usage(limit_id, key.as_deref())),
            Task::Holders { limit_id, key, done, .. } => {
                *done = Some(excerpt.holders(limit_id, key.as_deref()));
            }
            Task::Tidy { .. } => {}
        }
    }

    /// Tells what came of it; which leases nobody was told of.
    pub(crate) fn tell(self) -> Vec<LeaseId> {
        match self.task {
            Task::Orders { orders, answers, tell } => {
                if let Err(Ok(answers)) = tell.send(Ok(answers)) {
                    return unheard(&orders, &answers);
                }
            }
            Task::Release { done, tell, .. } => say(tell, done),
            Task::Renew { done, tell, .. } => say(tell, done),
            Task::Settle { done, tell, .. } => say(tell, done),
            Task::Reset { done, tell, .. } => say(tell, done),
            Task::Usage { done, tell, .. } => say(tell, done),
            Task::Holders { done, tell, .. } => say(tell, done),
            Task::Tidy { .. } => {}
        }
        Vec::new()
    }

    /// Tells that it cannot be done.
    pub(crate) fn fail(self, why: &Unavailable) {
        fn no<T>(tell: Tell<T>, why: &Unavailable) {
            let _nobody_waits = tell.send(Err(why.clone()));
        }
        match self.task {
            Task::Orders { tell, .. } => no(tell, why),
            Task::Release { tell, .. } => no(tell, why),
            Task::Renew { tell, .. } => no(tell, why),
            Task::Settle { tell, .. } => no(tell, why),
            Task::Reset { tell, .. } => no(tell, why),
            Task::Usage { tell, .. } => no(tell, why),
            Task::Holders { tell, .. } => no(tell, why),
            Task::Tidy { .. } => {}
        }
    }
}

fn say<T>(tell: Tell<T>, done: Option<T>) {
    let silent = || Unavailable { reason: "the store gave no answer".to_owned() };
    let _nobody_waits = tell.send(done.ok_or_else(silent));
}

/// The leases of grants whose askers have gone and will not come again.
fn unheard(orders: &[OwnOrder], answers: &Replies) -> Vec<LeaseId> {
    let lease = |(order, answer): (&OwnOrder, &Result<tidegate::reply::OrderReply, OrderError>)| match answer
    {
        Ok(answer) if order.request_id.is_none() => match &answer.outcome {
            Outcome::Granted(Some(grant)) => Some(grant.lease),
            _ => None,
        },
        _ => None,
    };
    orders.iter().zip(answers.iter()).filter_map(lease).collect()
}
