//! The status of a budget, in numbers.

use std::time::Duration;

use tidegate::budget::{BudgetForecast, Quota, Rate};
use tidegate_core::calendar::ScheduledWindow;
use tidegate_core::{Tick, Timestamp};

use crate::governor::{Governor, Risk};

/// A window with a smaller observed part, in percent, is reported as starting.
const STARTING_PERCENT: u64 = 10;

/// The status of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GovernorStatus {
    /// The current window.
    pub window: ScheduledWindow,
    /// Elapsed time in the window.
    pub elapsed: Duration,
    /// Forecast for the window.
    pub outlook: BudgetForecast,
    /// Average observed usage in the window.
    pub average: Rate,
    /// Limit of the trailing window.
    pub trailing_limit: Rate,
    /// Usage of the trailing window, and its quota.
    pub trailing: (Quota, Quota),
    /// The current limit.
    pub applied: Rate,
    /// Level of quota usage.
    pub risk: Risk,
    /// Number of samples in the window.
    pub samples: u64,
    /// Samples above limit and tolerance.
    pub exceeded: u64,
    /// Unobserved time in the window.
    pub unobserved: Duration,
    /// Whether too little of the window is observed for a reliable average.
    pub is_starting: bool,
}

impl GovernorStatus {
    /// Time of the status.
    pub fn at(&self) -> Timestamp {
        self.window.start.plus(Tick::NANOSECOND.span(self.elapsed))
    }

    /// The status of a governor's budget.
    pub fn of(governor: &mut Governor) -> GovernorStatus {
        let advice = governor.advice();
        let (samples, exceeded) = governor.samples();
        let account = governor.account();
        let elapsed = account.elapsed();
        let observed = elapsed.saturating_sub(account.unobserved_for()).as_nanos();
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
            is_starting: observed * 100 < elapsed.as_nanos() * u128::from(STARTING_PERCENT),
        }
    }
}
