//! A budget account: turns usage measurements into the rate that is allowed next.
//!
//! An account tracks two windows. The **scheduled window** starts at calendar times; [`BudgetTerms::forecast`] spreads its
//! remaining quota. The **trailing window** has the same length and ends now ([`TrailingWindow`]). Enforcing the trailing
//! window is optional; it matters where a provider measures it.
//!
//! The scheduled window follows the wall clock, the trailing window a monotonic clock. A clock adjustment therefore neither
//! loses nor adds trailing usage. A scheduled window that has ended is not reopened.

use std::time::Duration;

use super::{BudgetForecast, BudgetTerms, Quota, Rate, TrailingWindow};
use crate::calendar::{ScheduledWindow, WindowSchedule};
use crate::time::{Tick, Timestamp};

/// The time of a measurement, by two clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetTime {
    /// The wall clock, in nanoseconds.
    pub wall: Timestamp,
    /// A monotonic clock, in nanoseconds since any origin.
    pub monotonic: i64,
}

/// How unobserved time counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Unobserved {
    /// As usage at the average.
    #[default]
    Limit,
    /// As the average of the observed time in the same window.
    Average,
    /// As no usage.
    Zero,
}

impl Unobserved {
    /// Every policy.
    pub const ALL: [Unobserved; 3] = [Unobserved::Limit, Unobserved::Average, Unobserved::Zero];

    /// The word used in settings.
    pub const fn word(self) -> &'static str {
        match self {
            Unobserved::Limit => "limit",
            Unobserved::Average => "average",
            Unobserved::Zero => "zero",
        }
    }
}

/// A budget account.
#[derive(Debug, Clone)]
pub struct BudgetAccount {
    terms: BudgetTerms,
    schedule: WindowSchedule,
    unobserved: Unobserved,
    /// Whether the trailing window is enforced. It is tracked in any case.
    enforce_trailing: bool,
    trailing: TrailingWindow,
    window: ScheduledWindow,
    /// The observed usage of the current window, and the observed time.
    observed: Quota,
    observed_for: Duration,
    unobserved_for: Duration,
    now: BudgetTime,
}

/// The rates that are allowed now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetAdvice {
    /// The forecast of the scheduled window.
    pub forecast: BudgetForecast,
    /// The rate that the trailing window allows.
    pub trailing_rate: Rate,
    /// The allowed rate: the smaller of both if the trailing window is enforced, and at least the floor.
    pub limit: Rate,
}

impl BudgetAccount {
    /// Opens an account. `step` is the longest time between two measurements.
    pub fn open(
        terms: BudgetTerms,
        schedule: WindowSchedule,
        unobserved: Unobserved,
        enforce_trailing: bool,
        step: Duration,
        now: BudgetTime,
    ) -> BudgetAccount {
        let window = schedule.window(now.wall);
        let average = terms.effective_average();
        let before = if unobserved == Unobserved::Zero { Rate::ZERO } else { average };
        let trailing =
            TrailingWindow::new(average, terms.floor, schedule.nominal_length(), step, now.monotonic, before);
        BudgetAccount {
            terms,
            schedule,
            unobserved,
            enforce_trailing,
            trailing,
            window,
            observed: Quota::ZERO,
            observed_for: Duration::ZERO,
            unobserved_for: between(window.start, now.wall),
            now,
        }
    }

    /// Records the usage since the last measurement.
    pub fn observe(&mut self, now: BudgetTime, used: Quota) {
        self.trailing.observe(now.monotonic, used);
        let time = between(self.now.wall, now.wall);
        let in_window = self.advance_window(now.wall, time);
        let before = time.saturating_sub(in_window);
        // The usage is spread evenly. The part in an ended window stays there.
        let in_ended_window = if before.is_zero() { Quota::ZERO } else { used.portion(before, time) };
        self.observed = self.observed.plus(used.minus(in_ended_window));
        self.observed_for += in_window;
        self.now = BudgetTime {
            wall: self.now.wall.max(now.wall),
            monotonic: self.now.monotonic.max(now.monotonic),
        };
    }

    /// Records that the time since the last measurement was not observed.
    pub fn observe_gap(&mut self, now: BudgetTime) {
        let steady = u64::try_from(now.monotonic.saturating_sub(self.now.monotonic)).unwrap_or(0);
        self.trailing.observe(now.monotonic, self.unobserved_usage(Duration::from_nanos(steady)));
        let time = between(self.now.wall, now.wall);
        let in_window = self.advance_window(now.wall, time);
        self.unobserved_for += in_window;
        self.now = BudgetTime {
            wall: self.now.wall.max(now.wall),
            monotonic: self.now.monotonic.max(now.monotonic),
        };
    }

    /// The rates that are allowed until the next measurement.
    pub fn advice(&mut self) -> BudgetAdvice {
        let forecast = self.terms.forecast(self.window.length(), self.elapsed(), self.used());
        let trailing = self.trailing.max_rate();
        let limit = if self.enforce_trailing { forecast.safe_rate.min(trailing) } else { forecast.safe_rate };
        BudgetAdvice { forecast, trailing_rate: trailing, limit: limit.max(self.terms.floor) }
    }

    /// The usage of the current window, including the charge for unobserved time.
    pub fn used(&self) -> Quota {
        self.observed.plus(self.unobserved_usage(self.unobserved_for))
    }

    /// The average observed usage of the current window, rounded down.
    pub fn average(&self) -> Rate {
        if self.observed_for.is_zero() { Rate::ZERO } else { self.observed.rate_over(self.observed_for) }
    }

    /// The current scheduled window.
    pub fn window(&self) -> ScheduledWindow {
        self.window
    }

    /// The elapsed time of the current window.
    pub fn elapsed(&self) -> Duration {
        between(self.window.start, self.now.wall)
    }

    /// The unobserved time of the current window.
    pub fn unobserved_for(&self) -> Duration {
        self.unobserved_for
    }

    /// The usage of the trailing window.
    pub fn trailing_used(&self) -> Quota {
        self.trailing.used()
    }

    /// The quota of a whole window.
    pub fn trailing_total(&self) -> Quota {
        self.terms.total(self.schedule.nominal_length())
    }

    /// The time of the last measurement.
    pub fn now(&self) -> BudgetTime {
        self.now
    }

    /// The terms.
    pub fn terms(&self) -> &BudgetTerms {
        &self.terms
    }

    /// Moves to the window of `wall` if the current one has ended. Returns the part of `time` that falls into the current
    /// window.
    fn advance_window(&mut self, wall: Timestamp, time: Duration) -> Duration {
        if wall < self.window.end {
            return time;
        }
        self.window = self.schedule.window(wall);
        self.observed = Quota::ZERO;
        self.observed_for = Duration::ZERO;
        self.unobserved_for = Duration::ZERO;
        between(self.window.start.max(self.now.wall), wall)
    }

    /// The usage that unobserved time counts as.
    fn unobserved_usage(&self, time: Duration) -> Quota {
        match self.unobserved {
            Unobserved::Zero => Quota::ZERO,
            Unobserved::Average if !self.observed_for.is_zero() => {
                self.observed.scaled(time, self.observed_for)
            }
            Unobserved::Limit | Unobserved::Average => self.terms.effective_average().over(time),
        }
    }
}

fn between(from: Timestamp, to: Timestamp) -> Duration {
    Tick::NANOSECOND.duration(to.since(from))
}
