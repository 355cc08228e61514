//! Traces: what a log keeps of a state.
//!
//! A log need not know a state to the tick. It is enough that what it remembers is never *less* than what was used: then what is
//! recovered from it can refuse too much, and never sell too much. A trace is the part of a state that says how much; it may be
//! written higher than it was, and any number of traces of one row can be merged in any order, with none of them counted twice.
//!
//! ```text
//!   windows, total     count, in the window that ends at `until`      the later window, the higher count in the same
//!   buckets            the arrival time, and the credits given        the later of each
//!   sliding            what was spent at one mark of the ruler        the higher at each mark
//! ```
//!
//! What leases hold has no trace: leases are written down one by one.

use crate::amount::Amount;
use crate::law::{
    FixedWindow, Law, Rule, SlidingWindow, State, fixed_window, lifetime_total, sliding_window, token_bucket,
};
use crate::limit::Limit;
use crate::row::Row;
use crate::spec::Per;
use crate::time::{Span, Timestamp};

/// The end of a window that never ends.
pub const NO_END: Timestamp = Timestamp::from_ticks(u64::MAX);

/// How much is remembered of one item of a row, or of a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageRecord {
    /// This much was spent in a window, or ever.
    Count {
        /// How much.
        count: Amount,
        /// The first charge of an interval, the latest of everything else.
        last_time: Timestamp,
        /// The first instant after the window; [`NO_END`] for `total`.
        until: Timestamp,
    },
    /// A bucket is full again at this instant.
    Bucket {
        /// The theoretical arrival time.
        tat: Timestamp,
        /// The step it was reckoned with.
        step: Span,
        /// All credits ever given.
        credits: Span,
    },
    /// This much was spent at one mark of a sliding window.
    Sliding {
        /// The mark.
        at: Timestamp,
        /// How much.
        count: Amount,
        /// When something was last spent.
        last_time: Timestamp,
    },
}

impl UsageRecord {
    /// The trace of the latest charge: merged with what was written down before, it is all that the state remembers. `None` if nothing
    /// was charged, or if only leases say what is used.
    pub fn latest(rule: &Rule, state: &State) -> Option<UsageRecord> {
        match (&rule.law, state) {
            (_, State::LifetimeTotal(tally)) if tally.used > 0 => {
                Some(UsageRecord::Count { count: tally.used, last_time: tally.last_time, until: NO_END })
            }
            (Law::FixedWindow(law), State::FixedWindow(count)) if count.count > 0 => {
                Some(UsageRecord::Count {
                    count: count.count,
                    last_time: count.last_time,
                    until: law.end(count),
                })
            }
            (_, State::TokenBucket(arrival)) if *arrival != blank_arrival(rule) => Some(of_arrival(arrival)),
            (_, State::SlidingWindow(runs)) => runs.latest().map(|run| of_run(runs, run)),
            _ => None,
        }
    }

    /// All that a state remembers.
    pub fn for_each(rule: &Rule, state: &State, mut tell: impl FnMut(UsageRecord)) {
        match state {
            State::SlidingWindow(runs) => runs.iter().for_each(|run| tell(of_run(runs, run))),
            state => UsageRecord::latest(rule, state).into_iter().for_each(tell),
        }
    }

    /// The least state that this is a trace of; `None` if it is of another law.
    fn state(self, law: &Law) -> Option<State> {
        Some(match (self, law) {
            (UsageRecord::Count { count, last_time, .. }, Law::LifetimeTotal) => {
                State::LifetimeTotal(lifetime_total::TotalCount { used: count, last_time })
            }
            (UsageRecord::Count { count, last_time, .. }, Law::FixedWindow(_)) => {
                State::FixedWindow(fixed_window::WindowCount { count, last_time })
            }
            (UsageRecord::Bucket { tat, step, credits }, Law::TokenBucket(_)) => {
                State::TokenBucket(token_bucket::BucketState { tat, step, credits })
            }
            (UsageRecord::Sliding { at, count, last_time }, Law::SlidingWindow(_)) => {
                State::SlidingWindow(sliding_window::SlidingLog::from_sorted([(at, count)], last_time))
            }
            _ => return None,
        })
    }
}

fn blank_arrival(rule: &Rule) -> token_bucket::BucketState {
    let step = if let Law::TokenBucket(law) = &rule.law { law.step() } else { Span::ZERO };
    token_bucket::BucketState { tat: Timestamp::EPOCH, step, credits: Span::ZERO }
}

fn of_arrival(arrival: &token_bucket::BucketState) -> UsageRecord {
    UsageRecord::Bucket { tat: arrival.tat, step: arrival.step, credits: arrival.credits }
}

fn of_run(runs: &sliding_window::SlidingLog, (at, count): (Timestamp, Amount)) -> UsageRecord {
    UsageRecord::Sliding { at, count, last_time: runs.last_charge().unwrap_or(at) }
}

impl Row {
    /// Remembers a trace of the item at `index` of its limit, if it did not already. `false` if that is no trace of this item.
    pub fn merge_usage(&mut self, limit: &Limit, index: usize, trace: UsageRecord) -> bool {
        let Some(item) = limit.items().get(index) else { return false };
        let (Some(state), Some(own)) =
            (trace.state(&item.rule().law), self.states.get_mut(item.state_index()))
        else {
            return false;
        };
        merge(&item.rule().law, own, state);
        true
    }

    /// Forgets what has left sliding windows by now; nobody can tell.
    pub fn drop_expired(&mut self, limit: &Limit, per: Per, now: Timestamp) {
        for item in limit.items().iter().filter(|item| item.per() == per) {
            if let (Law::SlidingWindow(law), Some(State::SlidingWindow(runs))) =
                (&item.rule().law, self.states.get_mut(item.state_index()))
            {
                law.drop_expired(runs, now);
            }
        }
    }

    /// Remembers what another row of the same version of the same limit does, wherever that is more. What leases hold is not merged.
    pub fn merge(&mut self, other: &Row, limit: &Limit, per: Per) {
        for item in limit.items().iter().filter(|item| item.per() == per) {
            let (own, state) =
                (self.states.get_mut(item.state_index()), other.states.get(item.state_index()));
            if let (Some(own), Some(state)) = (own, state) {
                merge(&item.rule().law, own, state.clone());
            }
        }
    }
}

/// The least that remembers at least as much as both.
fn merge(law: &Law, own: &mut State, other: State) {
    match (law, own, other) {
        (_, State::LifetimeTotal(own), State::LifetimeTotal(other)) => {
            own.used = own.used.max(other.used);
            own.last_time = own.last_time.max(other.last_time);
        }
        (Law::FixedWindow(law), State::FixedWindow(own), State::FixedWindow(other)) => {
            *own = law.merge(*own, other)
        }
        (_, State::TokenBucket(own), State::TokenBucket(other)) => merge_arrivals(own, other),
        (Law::SlidingWindow(_), State::SlidingWindow(own), State::SlidingWindow(other)) => {
            SlidingWindow::merge(own, &other)
        }
        _ => {}
    }
}

/// The later arrival, reckoned with the shorter step: so there are as many units in it as in either. An exception may have charged one of
/// them at another rate.
fn merge_arrivals(own: &mut token_bucket::BucketState, other: token_bucket::BucketState) {
    if own.tat == Timestamp::EPOCH && own.credits == Span::ZERO {
        *own = other;
    } else if other.tat > Timestamp::EPOCH || other.credits > Span::ZERO {
        own.tat = own.tat.max(other.tat);
        own.step = own.step.min(other.step);
        own.credits = own.credits.max(other.credits);
    }
}

impl FixedWindow {
    /// The later window; of the same one, the higher count.
    fn merge(
        &self,
        one: fixed_window::WindowCount,
        other: fixed_window::WindowCount,
    ) -> fixed_window::WindowCount {
        let (early, late) = if one.last_time <= other.last_time { (one, other) } else { (other, one) };
        if late.count == 0 {
            return early;
        }
        if !self.is_open(&early, late.last_time) {
            return late;
        }
        let last_time = match self {
            FixedWindow::FirstHit { .. } => early.last_time,
            FixedWindow::Calendar(_) | FixedWindow::Resolved { .. } => late.last_time,
        };
        fixed_window::WindowCount { count: early.count.max(late.count), last_time }
    }
}

impl SlidingWindow {
    /// The higher amount at each mark.
    fn merge(own: &mut sliding_window::SlidingLog, other: &sliding_window::SlidingLog) {
        let last_time = own.last_charge().unwrap_or_default().max(other.last_charge().unwrap_or_default());
        // Most of what is read from a log comes after what was read before.
        if other.iter().len() == 1 && own.append(other, last_time) {
            return;
        }
        let former = std::mem::take(own);
        let mut all: Vec<(Timestamp, Amount)> = Vec::with_capacity(former.iter().len() + other.iter().len());
        let (mut ours, mut theirs) = (former.iter().peekable(), other.iter().peekable());
        loop {
            let next = match (ours.peek().copied(), theirs.peek().copied()) {
                (None, None) => break,
                (Some(run), None) | (None, Some(run)) => run,
                (Some(one), Some(two)) if one.0 == two.0 => (one.0, one.1.max(two.1)),
                (Some(one), Some(two)) => one.min(two),
            };
            ours.next_if(|run| run.0 == next.0);
            theirs.next_if(|run| run.0 == next.0);
            all.push(next);
        }
        *own = sliding_window::SlidingLog::from_sorted(all, last_time);
    }
}
