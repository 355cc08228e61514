//! The status: how the budget stands, in numbers for people and programs.

use std::time::Duration;

use tidegate::budget::{BudgetForecast, Quota, Rate};
use tidegate_core::calendar::ScheduledWindow;
use tidegate_core::{Tick, Timestamp};

use crate::governor::{Governor, Risk};

/// Below this part of the samples that there could be, in percent, little is known of a window.
const STARTING_PERCENT: u64 = 10;

/// How the budget stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GovernorStatus {
    /// The present window.
    pub window: ScheduledWindow,
    /// How much of it has passed.
    pub elapsed: Duration,
    /// How it stands.
    pub outlook: BudgetForecast,
    /// What was seen to be used on average in it.
    pub average: Rate,
    /// What the trail allows.
    pub trailing_limit: Rate,
    /// What was used in the window that ends now, and what it may use.
    pub trailing: (Quota, Quota),
    /// What may be used.
    pub applied: Rate,
    /// How much of the quota is used.
    pub risk: Risk,
    /// How many samples there are.
    pub samples: u64,
    /// How many of them were above the limit by more than the tolerance.
    pub exceeded: u64,
    /// How much of the window nobody looked at.
    pub unobserved: Duration,
    /// Whether there are so few samples that little is known.
    pub is_starting: bool,
}

impl GovernorStatus {
    /// The instant at which it stood so.
    pub fn at(&self) -> Timestamp {
        self.window.start.plus(Tick::NANOSECOND.span(self.elapsed))
    }

    /// How a governor's budget stands.
    pub fn of(governor: &mut Governor) -> GovernorStatus {
        let advice = governor.advice();
        let (samples, exceeded) = governor.samples();
        let account = governor.account();
        let elapsed = account.elapsed();
        let seen = elapsed.saturating_sub(account.unobserved_for()).as_nanos();
        GovernorStatus {
            window: account.window(),
            elapsed,
            outlook: advice.forecast,
            average: account.average(),
            trailing_limit: advice.trailing_rate,
            trailing: (account.trailing_used(), account.trailing_total()),
            applied: governor.applied(),
            risk: governor.risk(),
            samples,
            exceeded,
            unobserved: account.unobserved_for(),
            is_starting: seen * 100 < elapsed.as_nanos() * u128::from(STARTING_PERCENT),
        }
    }
}
