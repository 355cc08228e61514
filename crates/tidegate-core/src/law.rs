//! A refill law: how spent capacity comes back.
//!
//! This is the whole zoo. What people call fixed windows, calendars, sliding logs, leaky and token buckets,
//! semaphores and lifetime quotas differ in this one thing, and each file below answers the same questions
//! in the same order:
//!
//! | question  | meaning                                                             |
//! |-----------|---------------------------------------------------------------------|
//! | `used`    | how much is in use at `now`                                         |
//! | `judge`   | does `cost` more fit, and if not, when will it                      |
//! | `charge`  | the state after spending `cost`, and a receipt for it               |
//! | `refund`  | the state after giving part of a receipt back                       |
//! | `empties` | when `used` will be zero if nobody asks                             |
//! | `adopt`   | the same use, remembered under a new law after an edit              |
//!
//! `judge` never changes anything and `charge` never refuses: whoever decides judges all limits first and
//! charges only if every one of them agrees (see [`crate::decide()`]). A state is meaningful only together with
//! the law that wrote it; after an edit `adopt` carries it over, once, at the time of the edit.
//!
//! A state that is *empty* at `now` has the same future as [`State::blank`], so a store may forget it.

pub mod concurrency;
pub mod fixed_window;
pub mod lifetime_total;
pub mod sliding_window;
pub mod token_bucket;

use crate::amount::{Amount, Capacity};
use crate::lease::LeaseTerm;
use crate::time::Timestamp;
use crate::verdict::Verdict;

pub use concurrency::Concurrency;
pub use fixed_window::FixedWindow;
pub use sliding_window::SlidingWindow;
pub use token_bucket::TokenBucket;

/// How spent capacity comes back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Law {
    /// Not at all: `total`.
    LifetimeTotal,
    /// All at once, at the end of a window: `second` to `year`, `interval`.
    FixedWindow(FixedWindow),
    /// Each unit one window after it was spent: `sliding`.
    SlidingWindow(SlidingWindow),
    /// Continuously, at a steady rate: `bucket`.
    TokenBucket(TokenBucket),
    /// When its holder gives it back or its lease lapses: `concurrency`.
    Concurrency(Concurrency),
}

/// What is remembered about one item of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum State {
    LifetimeTotal(lifetime_total::TotalCount),
    FixedWindow(fixed_window::WindowCount),
    SlidingWindow(sliding_window::SlidingLog),
    TokenBucket(token_bucket::BucketState),
    Concurrency(concurrency::LeaseHolders),
}

/// What a charge needs to remember so that it can be given back later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receipt {
    /// The charge is remembered by nothing but its amount, or not at all.
    Plain,
    /// The charge is remembered at this instant.
    At(Timestamp),
    /// The charge moved a bucket's arrival time.
    Bucket(token_bucket::BucketReceipt),
}

impl State {
    /// The state of a row that was never charged.
    pub fn blank(law: &Law) -> State {
        match law {
            Law::LifetimeTotal => State::LifetimeTotal(lifetime_total::TotalCount::default()),
            Law::FixedWindow(_) => State::FixedWindow(fixed_window::WindowCount::default()),
            Law::SlidingWindow(_) => State::SlidingWindow(sliding_window::SlidingLog::default()),
            Law::TokenBucket(law) => State::TokenBucket(law.blank()),
            Law::Concurrency(_) => State::Concurrency(concurrency::LeaseHolders::default()),
        }
    }
}

/// A capacity and a refill law: a whole limit, as arithmetic. Every question goes through here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// How much may be in use.
    pub capacity: Capacity,
    /// How it comes back.
    pub law: Law,
}

/// Laws and states are made in pairs and adopted in pairs.
const MATCHED: &str = "a state is always asked under the law that made it";

impl Rule {
    /// How much is in use at `now`.
    pub fn used(&self, state: &State, now: Timestamp) -> Amount {
        match (&self.law, state) {
            (Law::LifetimeTotal, State::LifetimeTotal(tally)) => tally.used,
            (Law::FixedWindow(law), State::FixedWindow(count)) => law.used(count, now),
            (Law::SlidingWindow(law), State::SlidingWindow(runs)) => law.used(runs, now),
            (Law::TokenBucket(law), State::TokenBucket(arrival)) => law.used(self.capacity, arrival, now),
            (Law::Concurrency(_), State::Concurrency(holders)) => concurrency::used(holders, now),
            _ => unreachable!("{MATCHED}"),
        }
    }

    /// Whether `cost` more fits at `now`, and if not, when it will.
    #[inline]
    pub fn check(&self, state: &State, cost: Amount, now: Timestamp) -> Verdict {
        if self.capacity == Capacity::Unlimited {
            return Verdict::Granted;
        }
        match (&self.law, state) {
            (Law::LifetimeTotal, State::LifetimeTotal(tally)) => {
                lifetime_total::check(self.capacity, tally, cost)
            }
            (Law::FixedWindow(law), State::FixedWindow(count)) => law.check(self.capacity, count, cost, now),
            (Law::SlidingWindow(law), State::SlidingWindow(runs)) => {
                law.check(self.capacity, runs, cost, now)
            }
            (Law::TokenBucket(law), State::TokenBucket(at)) => law.check(self.capacity, at, cost, now),
            (Law::Concurrency(_), State::Concurrency(held)) => {
                concurrency::check(self.capacity, held, cost, now)
            }
            _ => unreachable!("{MATCHED}"),
        }
    }

    /// Spends `cost` at `now`, whether it fits or not. Whoever charges has judged, or is recording work that
    /// was done anyway.
    pub fn charge(
        &self,
        state: &mut State,
        cost: Amount,
        tenure: Option<&LeaseTerm>,
        now: Timestamp,
    ) -> Receipt {
        if cost == 0 {
            return Receipt::Plain;
        }
        match (&self.law, state) {
            (Law::LifetimeTotal, State::LifetimeTotal(tally)) => lifetime_total::charge(tally, cost, now),
            (Law::FixedWindow(law), State::FixedWindow(count)) => law.charge(count, cost, now),
            (Law::SlidingWindow(law), State::SlidingWindow(runs)) => law.charge(runs, cost, now),
            (Law::TokenBucket(law), State::TokenBucket(at)) => law.charge(self.capacity, at, cost, now),
            (Law::Concurrency(_), State::Concurrency(held)) => concurrency::charge(held, cost, tenure, now),
            _ => unreachable!("{MATCHED}"),
        }
    }

    /// Gives back `amount` units of a charge, as far as the state still remembers them.
    pub fn refund(&self, state: &mut State, receipt: Receipt, amount: Amount, now: Timestamp) {
        match (&self.law, state, receipt) {
            (Law::LifetimeTotal, State::LifetimeTotal(tally), _) => lifetime_total::refund(tally, amount),
            (Law::FixedWindow(law), State::FixedWindow(count), Receipt::At(at)) => {
                law.refund(count, at, amount, now);
            }
            (Law::SlidingWindow(_), State::SlidingWindow(runs), Receipt::At(at)) => {
                SlidingWindow::refund(runs, at, amount)
            }
            (Law::TokenBucket(law), State::TokenBucket(arrival), Receipt::Bucket(ticket)) => {
                law.refund(arrival, ticket, amount, now);
            }
            // Held units come back by release, not by refund; and nothing was charged without a receipt.
            _ => {}
        }
    }

    /// When `used` becomes zero if nobody asks; `None` if it is zero now, or time alone will not do it.
    pub fn empty_at(&self, state: &State, now: Timestamp) -> Option<Timestamp> {
        match (&self.law, state) {
            (Law::FixedWindow(law), State::FixedWindow(count)) => law.empty_at(count, now),
            (Law::SlidingWindow(law), State::SlidingWindow(runs)) => law.empty_at(runs, now),
            (Law::TokenBucket(law), State::TokenBucket(arrival)) => law.empty_at(arrival, now),
            _ => None,
        }
    }

    /// Whether forgetting this state would be invisible from `now` on.
    pub fn is_evictable(&self, state: &State, now: Timestamp) -> bool {
        match (&self.law, state) {
            // A bucket is in use by the tick, not by the whole unit.
            (Law::TokenBucket(_), State::TokenBucket(arrival)) => arrival.tat <= now,
            _ => self.used(state, now) == 0,
        }
    }

    /// The time the count was last updated (for `interval`, when its window began), where the law keeps it.
    pub fn last_time(&self, state: &State) -> Option<Timestamp> {
        match state {
            State::LifetimeTotal(tally) => (tally.used > 0).then_some(tally.last_time),
            State::FixedWindow(count) => (count.count > 0).then_some(count.last_time),
            State::SlidingWindow(runs) => runs.last_charge(),
            State::TokenBucket(_) | State::Concurrency(_) => None,
        }
    }

    /// The use that `state` remembers under `former` at the instant `at`, remembered under this rule. What had
    /// already come back by then is forgotten; nothing else is.
    pub fn migrate(&self, former: &Rule, state: State, at: Timestamp) -> State {
        match (&self.law, state) {
            // A bucket goes on counting its credits, full or not.
            (Law::TokenBucket(law), State::TokenBucket(arrival)) => {
                State::TokenBucket(law.migrate(arrival, at))
            }
            (law, state) if former.is_evictable(&state, at) => State::blank(law),
            (Law::LifetimeTotal, State::LifetimeTotal(tally)) => State::LifetimeTotal(tally),
            (Law::FixedWindow(_), State::FixedWindow(count)) => State::FixedWindow(count),
            (Law::SlidingWindow(law), State::SlidingWindow(mut runs)) => {
                if let Law::SlidingWindow(former) = &former.law {
                    former.drop_expired(&mut runs, at);
                }
                law.settle_into(&mut runs);
                State::SlidingWindow(runs)
            }
            (Law::Concurrency(_), State::Concurrency(holders)) => State::Concurrency(holders),
            // Another policy is another item: nothing of the old one speaks to it.
            (law, _) => State::blank(law),
        }
    }
}
