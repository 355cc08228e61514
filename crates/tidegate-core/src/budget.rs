//! Budgets: keep the average usage of a resource within a bound over a window.
//!
//! ```text
//!   total     = average × window
//!   used      = sum of the measurements
//!   remaining = total − used                           negative if over budget
//!   safe_rate = floor + (remaining − floor × left) / left × safety, between floor and ceiling
//! ```
//!
//! Usage at or below the safe rate in every step ends at or below the average. The floor is reserved for all the time left,
//! and only the rest is spread. CPU budgets use one percent of the machine as the unit; this module works with any unit.
//!
//! Rates are whole billionths of a unit and times are nanoseconds, so quotas are exact. Divisions round the rate down.

pub mod account;
pub mod trailing_window;

use std::time::Duration;

pub use crate::calendar::{ScheduledWindow, WindowSchedule};
pub use account::{BudgetAccount, BudgetAdvice, BudgetTime, Unobserved};
pub use trailing_window::TrailingWindow;

/// Billionths in one unit.
const BILLION: u64 = 1_000_000_000;

/// Nanoseconds in a minute.
const MINUTE: i128 = 60_000_000_000;

/// Usage per time, in billionths of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Rate(u64);

impl Rate {
    /// A rate of zero.
    pub const ZERO: Rate = Rate(0);

    /// A rate in billionths of a unit.
    pub const fn from_billionths(billionths: u64) -> Rate {
        Rate(billionths)
    }

    /// A rate in whole units.
    pub const fn from_units(units: u32) -> Rate {
        Rate(units as u64 * BILLION)
    }

    /// The rate in billionths of a unit.
    pub const fn billionths(self) -> u64 {
        self.0
    }

    /// The usage at this rate over a time.
    pub const fn over(self, time: Duration) -> Quota {
        // The largest rate times the longest 64-bit nanosecond duration is below the largest quota.
        Quota((self.0 as i128).saturating_mul(nanos(time)))
    }

    /// Subtracts a rate; saturates at zero.
    pub const fn minus(self, other: Rate) -> Rate {
        Rate(self.0.saturating_sub(other.0))
    }

    /// Adds a rate; saturates.
    pub const fn plus(self, other: Rate) -> Rate {
        Rate(self.0.saturating_add(other.0))
    }

    /// A share of the rate, rounded down.
    pub fn part(self, share: Share) -> Rate {
        let part = u128::from(self.0) * u128::from(share.0) / u128::from(BILLION);
        Rate(u64::try_from(part).unwrap_or(u64::MAX))
    }
}

/// An amount of usage: a rate times a time. A negative quota is a deficit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Quota(i128);

impl Quota {
    /// A quota of zero.
    pub const ZERO: Quota = Quota(0);

    /// A quota in billionths of a unit times nanoseconds.
    pub const fn from_raw(raw: i128) -> Quota {
        Quota(raw)
    }

    /// The quota in billionths of a unit times nanoseconds.
    pub const fn raw(self) -> i128 {
        self.0
    }

    /// The quota in billionths of a unit times minutes, rounded down.
    pub const fn billionth_minutes(self) -> i128 {
        self.0.div_euclid(MINUTE)
    }

    /// Adds a quota; saturates.
    pub const fn plus(self, other: Quota) -> Quota {
        Quota(self.0.saturating_add(other.0))
    }

    /// Subtracts a quota; saturates.
    pub const fn minus(self, other: Quota) -> Quota {
        Quota(self.0.saturating_sub(other.0))
    }

    /// The constant rate that uses this quota over a time, rounded down. Zero for a deficit, the largest rate for a time of zero.
    pub fn rate_over(self, time: Duration) -> Rate {
        if self.0 <= 0 {
            return Rate::ZERO;
        }
        let rate = self.0.checked_div(nanos(time)).and_then(|rate| u64::try_from(rate).ok());
        Rate(rate.unwrap_or(u64::MAX))
    }

    /// The part of evenly spread usage that falls on `part` of a time, rounded down.
    pub(crate) fn portion(self, part: Duration, of: Duration) -> Quota {
        if part >= of { self } else { self.scaled(part, of) }
    }

    /// Scales usage over the time `of` to another time, rounded down.
    pub(crate) fn scaled(self, time: Duration, of: Duration) -> Quota {
        let (time, of) = (nanos(time), nanos(of).max(1));
        match self.0.checked_mul(time) {
            Some(product) => Quota(product.div_euclid(of)),
            // At this size the rounding error is negligible.
            None => Quota(self.0.div_euclid(of).saturating_mul(time)),
        }
    }
}

/// A fraction from 0 to 1, in billionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share(u64);

impl Share {
    /// The fraction 0.
    pub const NONE: Share = Share(0);
    /// The fraction 1.
    pub const ALL: Share = Share(BILLION);

    /// A fraction in billionths; `None` above 1.
    pub const fn from_billionths(billionths: u64) -> Option<Share> {
        if billionths <= BILLION { Some(Share(billionths)) } else { None }
    }

    /// The fraction in billionths.
    pub const fn billionths(self) -> u64 {
        self.0
    }

    /// One minus this fraction.
    pub const fn rest(self) -> Share {
        Share(BILLION - self.0)
    }
}

/// The terms of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetTerms {
    /// The largest average usage.
    pub average: Rate,
    /// The usage that is always allowed. It must not exceed the average.
    pub floor: Rate,
    /// The largest usage at any time.
    pub ceiling: Rate,
    /// The capacity of the resource. No rate exceeds it.
    pub capacity: Rate,
    /// The fraction of the spreadable quota that is spread now; the rest is held back.
    pub safety: Share,
    /// The fraction of the quota that is set aside for usage that cannot be measured.
    pub reserve: Share,
}

/// Why terms cannot be met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BudgetTermsError {
    /// The floor is above the ceiling.
    FloorAboveCeiling,
    /// The ceiling is above the capacity.
    CeilingAboveCapacity,
    /// The average is zero.
    NoAverage,
    /// The average is above the capacity.
    AverageAboveCapacity,
    /// The floor is above the average.
    FloorAboveAverage,
    /// The floor is above the average less the reserve.
    FloorAboveEffectiveAverage,
    /// The safety is zero, so nothing would be spread.
    NoSafety,
}

impl BudgetTerms {
    /// Checks that the terms can be met.
    pub fn check(&self) -> Result<(), BudgetTermsError> {
        let errors = [
            (self.floor > self.ceiling, BudgetTermsError::FloorAboveCeiling),
            (self.ceiling > self.capacity, BudgetTermsError::CeilingAboveCapacity),
            (self.average == Rate::ZERO, BudgetTermsError::NoAverage),
            (self.average > self.capacity, BudgetTermsError::AverageAboveCapacity),
            (self.floor > self.average, BudgetTermsError::FloorAboveAverage),
            (self.floor > self.effective_average(), BudgetTermsError::FloorAboveEffectiveAverage),
            (self.safety == Share::NONE, BudgetTermsError::NoSafety),
        ];
        errors.into_iter().find(|(applies, _)| *applies).map_or(Ok(()), |(_, error)| Err(error))
    }

    /// The average less the reserve. All computations use it.
    pub fn effective_average(&self) -> Rate {
        self.average.part(self.reserve.rest())
    }

    /// The quota of a window.
    pub fn total(&self, window: Duration) -> Quota {
        self.effective_average().over(window)
    }

    /// The forecast of a window after some elapsed time. At its end the forecast is that of the next window.
    pub fn forecast(&self, window: Duration, elapsed: Duration, used: Quota) -> BudgetForecast {
        let total = self.total(window);
        let remaining = total.minus(used);
        let left = window.saturating_sub(elapsed);
        let mut forecast = BudgetForecast {
            total,
            used,
            remaining,
            left,
            future_floor: self.floor.over(left),
            target: remaining.rate_over(left).min(self.capacity),
            safe_rate: self.floor,
            status: BudgetStatus::Ok,
        };
        if left.is_zero() {
            forecast.target = if remaining < Quota::ZERO { Rate::ZERO } else { self.average };
            forecast.safe_rate = self.spread(total, window);
        } else if remaining <= Quota::ZERO {
            forecast.status = BudgetStatus::Exhausted;
        } else if remaining < forecast.future_floor {
            forecast.status = BudgetStatus::Insufficient;
        } else {
            forecast.safe_rate = self.spread(remaining, left);
        }
        forecast
    }

    /// The forecast while too little is measured: as if nothing was used.
    pub fn forecast_unmeasured(&self, window: Duration, elapsed: Duration) -> BudgetForecast {
        BudgetForecast { target: self.average, ..self.forecast(window, elapsed, Quota::ZERO) }
    }

    /// The floor plus the spreadable rest of the quota.
    fn spread(&self, remaining: Quota, left: Duration) -> Rate {
        let spreadable = remaining.minus(self.floor.over(left)).rate_over(left).part(self.safety);
        self.floor.plus(spreadable).clamp(self.floor, self.ceiling)
    }
}

/// The forecast of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetForecast {
    /// The quota of the window.
    pub total: Quota,
    /// The usage so far.
    pub used: Quota,
    /// The quota left; negative if over budget.
    pub remaining: Quota,
    /// The time left.
    pub left: Duration,
    /// The usage of the floor over the time left.
    pub future_floor: Quota,
    /// The rate that ends at the average if nothing is held back. Advisory only.
    pub target: Rate,
    /// The rate that is allowed now.
    pub safe_rate: Rate,
    /// Whether the floor can be kept.
    pub status: BudgetStatus,
}

/// Whether the remaining quota suffices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BudgetStatus {
    /// The remaining quota covers the floor.
    Ok,
    /// The floor alone exceeds the remaining quota.
    Insufficient,
    /// No quota remains.
    Exhausted,
}

impl BudgetStatus {
    /// The word used in reports.
    pub const fn word(self) -> &'static str {
        match self {
            BudgetStatus::Ok => "ok",
            BudgetStatus::Insufficient => "insufficient",
            BudgetStatus::Exhausted => "exhausted",
        }
    }
}

/// The nanoseconds of a duration.
pub(crate) const fn nanos(time: Duration) -> i128 {
    time.as_nanos().cast_signed()
}
