//! Jobs: owned requests to the store, with their results.
//!
//! A job runs inside a transaction, and its reply is sent after the commit. If the transaction is retried, the job runs again. If
//! the caller is gone by then, its new leases are released, unless a request id allows the caller to ask again.

use std::time::{Duration, Instant};

use tidegate::reply::{OrderError, Outcome, Replies};
use tidegate::store::map::working_set::WorkingSet;
use tidegate::store::{Actual, Settlement, Unavailable, Usage};
use tidegate_core::{Amount, Ask, Hold, Intent, LeaseId, LeaseTerm, Order, Timestamp};
use tokio::sync::oneshot;

/// The channel for a reply.
pub(crate) type ReplySender<T> = oneshot::Sender<Result<T, Unavailable>>;

/// An ask that owns its strings.
#[derive(Debug, Clone)]
pub(crate) struct QueuedAsk {
    pub(crate) limit_id: Box<str>,
    pub(crate) key: Option<Box<[u8]>>,
    pub(crate) count: Amount,
}

/// An order that owns its strings.
#[derive(Debug, Clone)]
pub(crate) struct QueuedOrder {
    pub(crate) intent: Intent,
    pub(crate) asks: Vec<QueuedAsk>,
    pub(crate) request_id: Option<Box<[u8]>>,
    pub(crate) hold: Hold,
    pub(crate) ttl: Option<Duration>,
    pub(crate) max_wait: Duration,
}

impl QueuedOrder {
    pub(crate) fn of(order: &Order<'_>) -> QueuedOrder {
        let own = |ask: &Ask<'_>| QueuedAsk {
            limit_id: ask.limit_id.into(),
            key: ask.key.map(Into::into),
            count: ask.count,
        };
        QueuedOrder {
            intent: order.intent,
            asks: order.asks.iter().map(own).collect(),
            request_id: order.request_id.map(Into::into),
            hold: order.hold,
            ttl: order.ttl,
            max_wait: order.max_wait,
        }
    }

    fn decide(&self, working_set: &mut WorkingSet, answers: &mut Replies) {
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
            max_wait: self.max_wait,
        };
        working_set.decide(&order, answers);
    }
}

/// The true cost of a held order, owned.
#[derive(Debug, Clone)]
pub(crate) enum QueuedActual {
    Every(Amount),
    Each(Vec<Amount>),
}

impl QueuedActual {
    pub(crate) fn of(actual: Actual<'_>) -> QueuedActual {
        match actual {
            Actual::Every(count) => QueuedActual::Every(count),
            Actual::Each(counts) => QueuedActual::Each(counts.to_vec()),
        }
    }

    fn actual(&self) -> Actual<'_> {
        match self {
            QueuedActual::Every(count) => Actual::Every(*count),
            QueuedActual::Each(counts) => Actual::Each(counts),
        }
    }
}

/// A task and its result.
pub(crate) enum JobTask {
    Orders {
        orders: Vec<QueuedOrder>,
        answers: Replies,
        sender: ReplySender<Replies>,
    },
    Release {
        id: LeaseId,
        done: Option<bool>,
        sender: ReplySender<bool>,
    },
    Renew {
        id: LeaseId,
        ttl: Option<Duration>,
        done: Option<RenewResult>,
        sender: ReplySender<RenewResult>,
    },
    Settle {
        id: LeaseId,
        actual: QueuedActual,
        done: Option<SettleResult>,
        sender: ReplySender<SettleResult>,
    },
    Reset {
        limit_id: Box<str>,
        key: Box<[u8]>,
        done: Option<Result<(), OrderError>>,
        sender: ReplySender<Result<(), OrderError>>,
    },
    Usage {
        limit_id: Box<str>,
        key: Option<Box<[u8]>>,
        done: Option<UsageResult>,
        sender: ReplySender<UsageResult>,
    },
    Holders {
        limit_id: Box<str>,
        key: Option<Box<[u8]>>,
        done: Option<HoldersResult>,
        sender: ReplySender<HoldersResult>,
    },
    /// Expired leases to remove, and rows of earlier editions to upgrade. Loading them suffices.
    CleanUp {
        leases: Vec<LeaseId>,
        rows: Vec<(i64, Vec<u8>)>,
    },
}

type RenewResult = Result<Option<Timestamp>, OrderError>;
type SettleResult = Result<Settlement, OrderError>;
type UsageResult = Result<Usage, OrderError>;
type HoldersResult = Result<Vec<LeaseTerm>, OrderError>;

/// A queued task.
pub(crate) struct Job {
    pub(crate) task: JobTask,
    pub(crate) since: Instant,
    /// Hashes of the rows that the job will lock, as far as they are known. Jobs that share a row run together or one after the
    /// other.
    pub(crate) row_hashes: Vec<u64>,
    /// Whether the job only reads, so that it needs no locks.
    pub(crate) is_read_only: bool,
}

impl Job {
    /// The leases that the job concerns.
    pub(crate) fn leases(&self) -> &[LeaseId] {
        match &self.task {
            JobTask::Release { id, .. } | JobTask::Renew { id, .. } | JobTask::Settle { id, .. } => {
                std::slice::from_ref(id)
            }
            JobTask::CleanUp { leases, .. } => leases,
            _ => &[],
        }
    }

    /// Runs the task on the loaded working set.
    pub(crate) fn run(&mut self, working_set: &mut WorkingSet) {
        match &mut self.task {
            JobTask::Orders { orders, answers, .. } => {
                answers.clear();
                for order in orders.iter() {
                    order.decide(working_set, answers);
                }
            }
            JobTask::Release { id, done, .. } => *done = Some(working_set.release(*id)),
            JobTask::Renew { id, ttl, done, .. } => *done = Some(working_set.renew(*id, *ttl)),
            JobTask::Settle { id, actual, done, .. } => {
                *done = Some(working_set.settle(*id, actual.actual()));
            }
            JobTask::Reset { limit_id, key, done, .. } => *done = Some(working_set.reset(limit_id, key)),
            JobTask::Usage { limit_id, key, done, .. } => {
                *done = Some(working_set.usage(limit_id, key.as_deref()));
            }
            JobTask::Holders { limit_id, key, done, .. } => {
                *done = Some(working_set.holders(limit_id, key.as_deref()));
            }
            JobTask::CleanUp { .. } => {}
        }
    }

    /// Sends the reply. Returns the leases that were granted to a caller that is gone.
    pub(crate) fn send_reply(self) -> Vec<LeaseId> {
        match self.task {
            JobTask::Orders { orders, answers, sender } => {
                if let Err(Ok(answers)) = sender.send(Ok(answers)) {
                    return undelivered_leases(&orders, &answers);
                }
            }
            JobTask::Release { done, sender, .. } => send_result(sender, done),
            JobTask::Renew { done, sender, .. } => send_result(sender, done),
            JobTask::Settle { done, sender, .. } => send_result(sender, done),
            JobTask::Reset { done, sender, .. } => send_result(sender, done),
            JobTask::Usage { done, sender, .. } => send_result(sender, done),
            JobTask::Holders { done, sender, .. } => send_result(sender, done),
            JobTask::CleanUp { .. } => {}
        }
        Vec::new()
    }

    /// Sends an error.
    pub(crate) fn fail(self, why: &Unavailable) {
        fn send_error<T>(sender: ReplySender<T>, why: &Unavailable) {
            let _receiver_dropped = sender.send(Err(why.clone()));
        }
        match self.task {
            JobTask::Orders { sender, .. } => send_error(sender, why),
            JobTask::Release { sender, .. } => send_error(sender, why),
            JobTask::Renew { sender, .. } => send_error(sender, why),
            JobTask::Settle { sender, .. } => send_error(sender, why),
            JobTask::Reset { sender, .. } => send_error(sender, why),
            JobTask::Usage { sender, .. } => send_error(sender, why),
            JobTask::Holders { sender, .. } => send_error(sender, why),
            JobTask::CleanUp { .. } => {}
        }
    }
}

fn send_result<T>(sender: ReplySender<T>, done: Option<T>) {
    let silent = || Unavailable { reason: "the store gave no answer".to_owned() };
    let _receiver_dropped = sender.send(done.ok_or_else(silent));
}

/// The leases of grants whose caller is gone and cannot repeat the request.
fn undelivered_leases(orders: &[QueuedOrder], answers: &Replies) -> Vec<LeaseId> {
    let lease =
        |(order, answer): (&QueuedOrder, &Result<tidegate::reply::OrderReply, OrderError>)| match answer {
            Ok(answer) if order.request_id.is_none() => match &answer.outcome {
                Outcome::Granted(Some(grant)) => Some(grant.lease),
                _ => None,
            },
            _ => None,
        };
    orders.iter().zip(answers.iter()).filter_map(lease).collect()
}
