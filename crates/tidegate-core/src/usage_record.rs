//! Usage records: what a write-ahead log stores of a state.
//!
//! A log may overstate usage but never understate it. Recovery then refuses too much at worst, and never grants too much. A
//! record may therefore be written with a higher amount than the state has. Records of one row can be merged in any order
//! and any number of times:
//!
//! ```text
//!   law                record                                            merge
//!   windows, total     count of the window that ends at `until`          later window; in the same window the higher count
//!   buckets            arrival time and credits                          the later and the higher
//!   sliding            units at one instant of the log                   the higher at each instant
//! ```
//!
//! Concurrency has no usage record, because the log stores each lease.

use crate::amount::Amount;
use crate::law::{
    FixedWindow, Law, Rule, SlidingWindow, State, fixed_window, lifetime_total, sliding_window, token_bucket,
};
use crate::limit::Limit;
use crate::row::Row;
use crate::spec::Per;
use crate::time::{Span, Timestamp};

/// The window end of a `total`, which has none.
pub const NO_END: Timestamp = Timestamp::from_ticks(u64::MAX);

/// The usage of one item, or a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageRecord {
    /// Units spent in a window, or in total.
    Count {
        /// The units.
        count: Amount,
        /// The first charge of an interval, the latest charge otherwise.
        last_time: Timestamp,
        /// The first instant after the window; [`NO_END`] for `total`.
        until: Timestamp,
    },
    /// The state of a bucket.
    Bucket {
        /// The theoretical arrival time.
        tat: Timestamp,
        /// The step that `tat` was computed with.
        step: Span,
        /// The sum of all credits.
        credits: Span,
    },
    /// Units at one instant of a sliding log.
    Sliding {
        /// The instant.
        at: Timestamp,
        /// The units.
        count: Amount,
        /// The time of the last charge.
        last_time: Timestamp,
    },
}

impl UsageRecord {
    /// The record of the latest charge. Merged with all earlier records it covers the whole state. `None` if nothing was charged,
    /// or for concurrency.
    pub fn latest(rule: &Rule, state: &State) -> Option<UsageRecord> {
        match (&rule.law, state) {
            (_, State::LifetimeTotal(total)) if total.used > 0 => {
                Some(UsageRecord::Count { count: total.used, last_time: total.last_time, until: NO_END })
            }
            (Law::FixedWindow(law), State::FixedWindow(count)) if count.count > 0 => {
                Some(UsageRecord::Count {
                    count: count.count,
                    last_time: count.last_time,
                    until: law.end(count),
                })
            }
            (_, State::TokenBucket(bucket)) if *bucket != blank_bucket(rule) => Some(bucket_record(bucket)),
            (_, State::SlidingWindow(log)) => log.latest().map(|entry| entry_record(log, entry)),
            _ => None,
        }
    }

    /// Calls `visit` with every record of a state.
    pub fn for_each(rule: &Rule, state: &State, mut visit: impl FnMut(UsageRecord)) {
        match state {
            State::SlidingWindow(log) => log.iter().for_each(|entry| visit(entry_record(log, entry))),
            state => UsageRecord::latest(rule, state).into_iter().for_each(visit),
        }
    }

    /// The smallest state with this usage; `None` if the record belongs to another law.
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

fn blank_bucket(rule: &Rule) -> token_bucket::BucketState {
    let step = if let Law::TokenBucket(law) = &rule.law { law.step() } else { Span::ZERO };
    token_bucket::BucketState { tat: Timestamp::EPOCH, step, credits: Span::ZERO }
}

fn bucket_record(bucket: &token_bucket::BucketState) -> UsageRecord {
    UsageRecord::Bucket { tat: bucket.tat, step: bucket.step, credits: bucket.credits }
}

fn entry_record(log: &sliding_window::SlidingLog, (at, count): (Timestamp, Amount)) -> UsageRecord {
    UsageRecord::Sliding { at, count, last_time: log.last_charge().unwrap_or(at) }
}

impl Row {
    /// Merges a record of the item at `index` into the row. Returns `false` if the record belongs to another law.
    pub fn merge_usage(&mut self, limit: &Limit, index: usize, record: UsageRecord) -> bool {
        let Some(item) = limit.items().get(index) else { return false };
        let (Some(state), Some(own)) =
            (record.state(&item.rule().law), self.states.get_mut(item.state_index()))
        else {
            return false;
        };
        merge(&item.rule().law, own, state);
        true
    }

    /// Removes log entries that have left their sliding window. This changes no decision.
    pub fn drop_expired(&mut self, limit: &Limit, per: Per, now: Timestamp) {
        for item in limit.items().iter().filter(|item| item.per() == per) {
            if let (Law::SlidingWindow(law), Some(State::SlidingWindow(log))) =
                (&item.rule().law, self.states.get_mut(item.state_index()))
            {
                law.drop_expired(log, now);
            }
        }
    }

    /// Merges another row of the same limit version. The higher usage of each item wins. Leases are not merged.
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

/// The smallest state that covers both states.
fn merge(law: &Law, own: &mut State, other: State) {
    match (law, own, other) {
        (_, State::LifetimeTotal(own), State::LifetimeTotal(other)) => {
            own.used = own.used.max(other.used);
            own.last_time = own.last_time.max(other.last_time);
        }
        (Law::FixedWindow(law), State::FixedWindow(own), State::FixedWindow(other)) => {
            *own = law.merge(*own, other);
        }
        (_, State::TokenBucket(own), State::TokenBucket(other)) => merge_buckets(own, other),
        (Law::SlidingWindow(_), State::SlidingWindow(own), State::SlidingWindow(other)) => {
            SlidingWindow::merge(own, &other);
        }
        _ => {}
    }
}

/// Takes the later arrival time and the shorter step, so the result covers the units of both. The steps differ if an
/// override charged one of them.
fn merge_buckets(own: &mut token_bucket::BucketState, other: token_bucket::BucketState) {
    if own.tat == Timestamp::EPOCH && own.credits == Span::ZERO {
        *own = other;
    } else if other.tat > Timestamp::EPOCH || other.credits > Span::ZERO {
        own.tat = own.tat.max(other.tat);
        own.step = own.step.min(other.step);
        own.credits = own.credits.max(other.credits);
    }
}

impl FixedWindow {
    /// The later window; in the same window the higher count.
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
    /// The higher amount at each instant.
    fn merge(own: &mut sliding_window::SlidingLog, other: &sliding_window::SlidingLog) {
        let last_time = own.last_charge().unwrap_or_default().max(other.last_charge().unwrap_or_default());
        // Log records usually arrive in time order.
        if other.iter().len() == 1 && own.append(other, last_time) {
            return;
        }
        let previous = std::mem::take(own);
        let mut all: Vec<(Timestamp, Amount)> =
            Vec::with_capacity(previous.iter().len() + other.iter().len());
        let (mut ours, mut theirs) = (previous.iter().peekable(), other.iter().peekable());
        loop {
            let next = match (ours.peek().copied(), theirs.peek().copied()) {
                (None, None) => break,
                (Some(entry), None) | (None, Some(entry)) => entry,
                (Some(one), Some(two)) if one.0 == two.0 => (one.0, one.1.max(two.1)),
                (Some(one), Some(two)) => one.min(two),
            };
            ours.next_if(|entry| entry.0 == next.0);
            theirs.next_if(|entry| entry.0 == next.0);
            all.push(next);
        }
        *own = sliding_window::SlidingLog::from_sorted(all, last_time);
    }
}
