//! Refill laws: how spent capacity comes back.
//!
//! Fixed windows, calendar windows, sliding logs, leaky and token buckets, semaphores and lifetime quotas differ only in
//! their refill law. Each file below implements one law with the same functions:
//!
//! | function   | meaning                                                  |
//! |------------|----------------------------------------------------------|
//! | `used`     | how much is in use at `now`                              |
//! | `check`    | whether `cost` more units fit, and if not, when they will |
//! | `charge`   | spends `cost` and returns a receipt                      |
//! | `refund`   | gives back part of a charge                              |
//! | `empty_at` | when `used` becomes zero without further charges         |
//! | `migrate`  | carries usage to a new law after an edit                 |
//!
//! `check` never changes a state and `charge` never refuses. [`crate::decide()`] checks all limits first and charges only
//! if all of them grant. A state is valid only with the law that wrote it; an edit migrates it once.
//!
//! A state that is *evictable* at `now` behaves like [`State::blank`] from then on, so a store may drop it.

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
    /// When its holder releases it or its lease expires: `concurrency`.
    Concurrency(Concurrency),
}

/// The state of one item in one row.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum State {
    LifetimeTotal(lifetime_total::TotalCount),
    FixedWindow(fixed_window::WindowCount),
    SlidingWindow(sliding_window::SlidingLog),
    TokenBucket(token_bucket::BucketState),
    Concurrency(concurrency::LeaseHolders),
}

/// What a refund of a charge needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receipt {
    /// The amount suffices.
    Plain,
    /// The instant at which the state counts the charge.
    At(Timestamp),
    /// The arrival time that the charge moved.
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

/// A capacity and a refill law. Dispatches each function to the law.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// How much may be in use.
    pub capacity: Capacity,
    /// How it comes back.
    pub law: Law,
}

/// A state and its law are created and migrated together.
const MATCHED: &str = "a state is used only with the law that created it";

impl Rule {
    /// How much is in use at `now`.
    pub fn used(&self, state: &State, now: Timestamp) -> Amount {
        match (&self.law, state) {
            (Law::LifetimeTotal, State::LifetimeTotal(total)) => total.used,
            (Law::FixedWindow(law), State::FixedWindow(count)) => law.used(count, now),
            (Law::SlidingWindow(law), State::SlidingWindow(log)) => law.used(log, now),
            (Law::TokenBucket(law), State::TokenBucket(bucket)) => law.used(self.capacity, bucket, now),
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
            (Law::LifetimeTotal, State::LifetimeTotal(total)) => {
                lifetime_total::check(self.capacity, total, cost)
            }
            (Law::FixedWindow(law), State::FixedWindow(count)) => law.check(self.capacity, count, cost, now),
            (Law::SlidingWindow(law), State::SlidingWindow(log)) => law.check(self.capacity, log, cost, now),
            (Law::TokenBucket(law), State::TokenBucket(at)) => law.check(self.capacity, at, cost, now),
            (Law::Concurrency(_), State::Concurrency(held)) => {
                concurrency::check(self.capacity, held, cost, now)
            }
            _ => unreachable!("{MATCHED}"),
        }
    }

    /// Spends `cost` at `now`, even past the capacity. The caller has checked it, or records work that is already done.
    pub fn charge(
        &self,
        state: &mut State,
        cost: Amount,
        term: Option<&LeaseTerm>,
        now: Timestamp,
    ) -> Receipt {
        if cost == 0 {
            return Receipt::Plain;
        }
        match (&self.law, state) {
            (Law::LifetimeTotal, State::LifetimeTotal(total)) => lifetime_total::charge(total, cost, now),
            (Law::FixedWindow(law), State::FixedWindow(count)) => law.charge(count, cost, now),
            (Law::SlidingWindow(law), State::SlidingWindow(log)) => law.charge(log, cost, now),
            (Law::TokenBucket(law), State::TokenBucket(at)) => law.charge(self.capacity, at, cost, now),
            (Law::Concurrency(_), State::Concurrency(held)) => concurrency::charge(held, cost, term, now),
            _ => unreachable!("{MATCHED}"),
        }
    }

    /// Gives back `amount` units of a charge, as far as the state still counts them.
    pub fn refund(&self, state: &mut State, receipt: Receipt, amount: Amount, now: Timestamp) {
        match (&self.law, state, receipt) {
            (Law::LifetimeTotal, State::LifetimeTotal(total), _) => lifetime_total::refund(total, amount),
            (Law::FixedWindow(law), State::FixedWindow(count), Receipt::At(at)) => {
                law.refund(count, at, amount, now);
            }
            (Law::SlidingWindow(_), State::SlidingWindow(log), Receipt::At(at)) => {
                SlidingWindow::refund(log, at, amount);
            }
            (Law::TokenBucket(law), State::TokenBucket(bucket), Receipt::Bucket(receipt)) => {
                law.refund(bucket, receipt, amount, now);
            }
            // Concurrency units come back by release. Other receipts mean that nothing was charged.
            _ => {}
        }
    }

    /// When `used` becomes zero without further charges. `None` if it is zero now, or if time alone does not reset it.
    pub fn empty_at(&self, state: &State, now: Timestamp) -> Option<Timestamp> {
        match (&self.law, state) {
            (Law::FixedWindow(law), State::FixedWindow(count)) => law.empty_at(count, now),
            (Law::SlidingWindow(law), State::SlidingWindow(log)) => law.empty_at(log, now),
            (Law::TokenBucket(law), State::TokenBucket(bucket)) => law.empty_at(bucket, now),
            _ => None,
        }
    }

    /// Whether dropping this state changes no decision from `now` on.
    pub fn is_evictable(&self, state: &State, now: Timestamp) -> bool {
        match (&self.law, state) {
            // A fraction of a unit in use still matters.
            (Law::TokenBucket(_), State::TokenBucket(bucket)) => bucket.tat <= now,
            _ => self.used(state, now) == 0,
        }
    }

    /// The time of the last charge, or for `interval` the start of its window, if the law stores it.
    pub fn last_time(&self, state: &State) -> Option<Timestamp> {
        match state {
            State::LifetimeTotal(total) => (total.used > 0).then_some(total.last_time),
            State::FixedWindow(count) => (count.count > 0).then_some(count.last_time),
            State::SlidingWindow(log) => log.last_charge(),
            State::TokenBucket(_) | State::Concurrency(_) => None,
        }
    }

    /// Carries the usage of `state` from the `previous` rule to this one at the instant `at`. Only usage that has already
    /// come back by then is dropped.
    pub fn migrate(&self, previous: &Rule, state: State, at: Timestamp) -> State {
        match (&self.law, state) {
            // A bucket keeps its credits even if it is full.
            (Law::TokenBucket(law), State::TokenBucket(bucket)) => {
                State::TokenBucket(law.migrate(bucket, at))
            }
            (law, state) if previous.is_evictable(&state, at) => State::blank(law),
            (Law::LifetimeTotal, State::LifetimeTotal(total)) => State::LifetimeTotal(total),
            (Law::FixedWindow(_), State::FixedWindow(count)) => State::FixedWindow(count),
            (Law::SlidingWindow(law), State::SlidingWindow(mut log)) => {
                if let Law::SlidingWindow(previous) = &previous.law {
                    previous.drop_expired(&mut log, at);
                }
                law.coarsen(&mut log);
                State::SlidingWindow(log)
            }
            (Law::Concurrency(_), State::Concurrency(holders)) => State::Concurrency(holders),
            // Another policy is another item and inherits nothing.
            (law, _) => State::blank(law),
        }
    }
}
