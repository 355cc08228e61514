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

pub mod continuous;
pub mod never;
pub mod on_release;
pub mod rolling;
pub mod windowed;

use crate::amount::{Amount, Capacity};
use crate::lease::Tenure;
use crate::time::Timestamp;
use crate::verdict::Verdict;

pub use continuous::Continuous;
pub use on_release::OnRelease;
pub use rolling::Rolling;
pub use windowed::Windowed;

/// How spent capacity comes back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Law {
    /// Not at all: `total`.
    Never,
    /// All at once, at the end of a window: `second` to `year`, `interval`.
    Windowed(Windowed),
    /// Each unit one window after it was spent: `sliding`.
    Rolling(Rolling),
    /// Continuously, at a steady rate: `bucket`.
    Continuous(Continuous),
    /// When its holder gives it back or its lease lapses: `concurrency`.
    OnRelease(OnRelease),
}

/// What is remembered about one item of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum State {
    Never(never::Tally),
    Windowed(windowed::Count),
    Rolling(rolling::Runs),
    Continuous(continuous::Arrival),
    OnRelease(on_release::Holders),
}

/// What a charge needs to remember so that it can be given back later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receipt {
    /// The charge is remembered by nothing but its amount, or not at all.
    Plain,
    /// The charge is remembered at this instant.
    At(Timestamp),
    /// The charge moved a bucket's arrival time.
    Arrival(continuous::Ticket),
}

impl State {
    /// The state of a row that was never charged.
    pub fn blank(law: &Law) -> State {
        match law {
            Law::Never => State::Never(never::Tally::default()),
            Law::Windowed(_) => State::Windowed(windowed::Count::default()),
            Law::Rolling(_) => State::Rolling(rolling::Runs::default()),
            Law::Continuous(law) => State::Continuous(law.blank()),
            Law::OnRelease(_) => State::OnRelease(on_release::Holders::default()),
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
            (Law::Never, State::Never(tally)) => tally.used,
            (Law::Windowed(law), State::Windowed(count)) => law.used(count, now),
            (Law::Rolling(law), State::Rolling(runs)) => law.used(runs, now),
            (Law::Continuous(law), State::Continuous(arrival)) => law.used(self.capacity, arrival, now),
            (Law::OnRelease(_), State::OnRelease(holders)) => on_release::used(holders, now),
            _ => unreachable!("{MATCHED}"),
        }
    }

    /// Whether `cost` more fits at `now`, and if not, when it will.
    #[inline]
    pub fn judge(&self, state: &State, cost: Amount, now: Timestamp) -> Verdict {
        if self.capacity == Capacity::Unlimited {
            return Verdict::Granted;
        }
        match (&self.law, state) {
            (Law::Never, State::Never(tally)) => never::judge(self.capacity, tally, cost),
            (Law::Windowed(law), State::Windowed(count)) => law.judge(self.capacity, count, cost, now),
            (Law::Rolling(law), State::Rolling(runs)) => law.judge(self.capacity, runs, cost, now),
            (Law::Continuous(law), State::Continuous(at)) => law.judge(self.capacity, at, cost, now),
            (Law::OnRelease(_), State::OnRelease(held)) => on_release::judge(self.capacity, held, cost, now),
            _ => unreachable!("{MATCHED}"),
        }
    }

    /// Spends `cost` at `now`, whether it fits or not. Whoever charges has judged, or is recording work that
    /// was done anyway.
    pub fn charge(
        &self,
        state: &mut State,
        cost: Amount,
        tenure: Option<&Tenure>,
        now: Timestamp,
    ) -> Receipt {
        if cost == 0 {
            return Receipt::Plain;
        }
        match (&self.law, state) {
            (Law::Never, State::Never(tally)) => never::charge(tally, cost, now),
            (Law::Windowed(law), State::Windowed(count)) => law.charge(count, cost, now),
            (Law::Rolling(law), State::Rolling(runs)) => law.charge(runs, cost, now),
            (Law::Continuous(law), State::Continuous(at)) => law.charge(self.capacity, at, cost, now),
            (Law::OnRelease(_), State::OnRelease(held)) => on_release::charge(held, cost, tenure, now),
            _ => unreachable!("{MATCHED}"),
        }
    }

    /// Gives back `amount` units of a charge, as far as the state still remembers them.
    pub fn refund(&self, state: &mut State, receipt: Receipt, amount: Amount, now: Timestamp) {
        match (&self.law, state, receipt) {
            (Law::Never, State::Never(tally), _) => never::refund(tally, amount),
            (Law::Windowed(law), State::Windowed(count), Receipt::At(at)) => {
                law.refund(count, at, amount, now);
            }
            (Law::Rolling(_), State::Rolling(runs), Receipt::At(at)) => Rolling::refund(runs, at, amount),
            (Law::Continuous(law), State::Continuous(arrival), Receipt::Arrival(ticket)) => {
                law.refund(arrival, ticket, amount, now);
            }
            // Held units come back by release, not by refund; and nothing was charged without a receipt.
            _ => {}
        }
    }

    /// When `used` becomes zero if nobody asks; `None` if it is zero now, or time alone will not do it.
    pub fn empties(&self, state: &State, now: Timestamp) -> Option<Timestamp> {
        match (&self.law, state) {
            (Law::Windowed(law), State::Windowed(count)) => law.empties(count, now),
            (Law::Rolling(law), State::Rolling(runs)) => law.empties(runs, now),
            (Law::Continuous(law), State::Continuous(arrival)) => law.empties(arrival, now),
            _ => None,
        }
    }

    /// Whether forgetting this state would be invisible from `now` on.
    pub fn is_fresh(&self, state: &State, now: Timestamp) -> bool {
        match (&self.law, state) {
            // A bucket is in use by the tick, not by the whole unit.
            (Law::Continuous(_), State::Continuous(arrival)) => arrival.tat <= now,
            _ => self.used(state, now) == 0,
        }
    }

    /// The time the count was last updated (for `interval`, when its window began), where the law keeps it.
    pub fn last_time(&self, state: &State) -> Option<Timestamp> {
        match state {
            State::Never(tally) => (tally.used > 0).then_some(tally.last_time),
            State::Windowed(count) => (count.count > 0).then_some(count.last_time),
            State::Rolling(runs) => runs.last_charge(),
            State::Continuous(_) | State::OnRelease(_) => None,
        }
    }

    /// The use that `state` remembers under `former` at the instant `at`, remembered under this rule. What had
    /// already come back by then is forgotten; nothing else is.
    pub fn adopt(&self, former: &Rule, state: State, at: Timestamp) -> State {
        match (&self.law, state) {
            // A bucket goes on counting its credits, full or not.
            (Law::Continuous(law), State::Continuous(arrival)) => State::Continuous(law.adopt(arrival, at)),
            (law, state) if former.is_fresh(&state, at) => State::blank(law),
            (Law::Never, State::Never(tally)) => State::Never(tally),
            (Law::Windowed(_), State::Windowed(count)) => State::Windowed(count),
            (Law::Rolling(law), State::Rolling(mut runs)) => {
                if let Law::Rolling(former) = &former.law {
                    former.forget_expired(&mut runs, at);
                }
                law.settle_into(&mut runs);
                State::Rolling(runs)
            }
            (Law::OnRelease(_), State::OnRelease(holders)) => State::OnRelease(holders),
            // Another policy is another item: nothing of the old one speaks to it.
            (law, _) => State::blank(law),
        }
    }
}
