//! Budgets: an average that may not be exceeded over a window, of anything that is used in units per time.
//!
//! ```text
//!   total     = average × window                       what the window has
//!   used      = what was measured, added up
//!   remaining = total − used                           negative if over
//!   safe      = floor + (remaining − floor × left) / left × safety, between floor and ceiling
//! ```
//!
//! Whoever uses no more than the safe limit at every step ends at or below the average: the floor is set aside for all the time that is
//! left, and only the rest is spread. For a processor the unit is one percent of the machine; nothing here knows that.
//!
//! Decided: rates are whole billionths of a unit and time is nanoseconds, so that quotas are exact; divisions round the limit down.

pub mod account;
pub mod trailing_window;

use std::time::Duration;

pub use crate::calendar::{ScheduledWindow, WindowSchedule};
pub use account::{BudgetAccount, BudgetAdvice, BudgetTime, Unobserved};
pub use trailing_window::TrailingWindow;

/// Billionths in a unit, and in the whole.
const BILLION: u64 = 1_000_000_000;

/// Nanoseconds in a minute.
const MINUTE: i128 = 60_000_000_000;

/// How fast something is used: whole billionths of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Rate(u64);

impl Rate {
    /// Nothing is used.
    pub const ZERO: Rate = Rate(0);

    /// This many billionths of a unit.
    pub const fn from_billionths(billionths: u64) -> Rate {
        Rate(billionths)
    }

    /// This many units.
    pub const fn from_units(units: u32) -> Rate {
        Rate(units as u64 * BILLION)
    }

    /// Billionths of a unit.
    pub const fn billionths(self) -> u64 {
        self.0
    }

    /// What is used at this rate in some time.
    pub const fn over(self, time: Duration) -> Quota {
        // The largest rate for the longest time that a `Duration` of 64-bit nanoseconds has is below the largest quota.
        Quota((self.0 as i128).saturating_mul(nanos(time)))
    }

    /// This rate lowered; never below zero.
    pub const fn minus(self, other: Rate) -> Rate {
        Rate(self.0.saturating_sub(other.0))
    }

    /// This rate raised.
    pub const fn plus(self, other: Rate) -> Rate {
        Rate(self.0.saturating_add(other.0))
    }

    /// A part of it, rounded down.
    pub fn part(self, share: Share) -> Rate {
        let part = u128::from(self.0) * u128::from(share.0) / u128::from(BILLION);
        Rate(u64::try_from(part).unwrap_or(u64::MAX))
    }
}

/// How much was or may be used: a rate times a time. Below zero it is owed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Quota(i128);

impl Quota {
    /// Nothing.
    pub const ZERO: Quota = Quota(0);

    /// A quota of this many billionths of a unit for a nanosecond.
    pub const fn from_raw(raw: i128) -> Quota {
        Quota(raw)
    }

    /// Billionths of a unit, times nanoseconds.
    pub const fn raw(self) -> i128 {
        self.0
    }

    /// In billionths of a unit for a minute, rounded down.
    pub const fn billionth_minutes(self) -> i128 {
        self.0.div_euclid(MINUTE)
    }

    /// More.
    pub const fn plus(self, other: Quota) -> Quota {
        Quota(self.0.saturating_add(other.0))
    }

    /// Less.
    pub const fn minus(self, other: Quota) -> Quota {
        Quota(self.0.saturating_sub(other.0))
    }

    /// The rate at which this lasts for some time, rounded down; zero if it is owed, everything if there is no time.
    pub fn rate_over(self, time: Duration) -> Rate {
        if self.0 <= 0 {
            return Rate::ZERO;
        }
        let rate = self.0.checked_div(nanos(time)).and_then(|rate| u64::try_from(rate).ok());
        Rate(rate.unwrap_or(u64::MAX))
    }

    /// What falls on a part of some time in which it was used evenly, rounded down.
    pub(crate) fn portion(self, part: Duration, of: Duration) -> Quota {
        if part >= of { self } else { self.scaled(part, of) }
    }

    /// What is used in one time if this is used in another, rounded down.
    pub(crate) fn scaled(self, time: Duration, of: Duration) -> Quota {
        let (time, of) = (nanos(time), nanos(of).max(1));
        match self.0.checked_mul(time) {
            Some(product) => Quota(product.div_euclid(of)),
            // So large a quota loses nothing that anybody can see.
            None => Quota(self.0.div_euclid(of).saturating_mul(time)),
        }
    }
}

/// A part of the whole: whole billionths, at most all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share(u64);

impl Share {
    /// Nothing of it.
    pub const NONE: Share = Share(0);
    /// All of it.
    pub const ALL: Share = Share(BILLION);

    /// So many billionths; `None` above the whole.
    pub const fn from_billionths(billionths: u64) -> Option<Share> {
        if billionths <= BILLION { Some(Share(billionths)) } else { None }
    }

    /// Billionths.
    pub const fn billionths(self) -> u64 {
        self.0
    }

    /// What is left of the whole beside it.
    pub const fn rest(self) -> Share {
        Share(BILLION - self.0)
    }
}

/// What a budget promises, and how it is spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetTerms {
    /// What may be used on average.
    pub average: Rate,
    /// What may always be used. The average must have room for it.
    pub floor: Rate,
    /// What may be used at most at any time.
    pub ceiling: Rate,
    /// All there is of it; what is advised never exceeds this.
    pub capacity: Rate,
    /// How much of what can be spread is spread evenly; the rest comes later.
    pub safety: Share,
    /// How much of the quota is taken off at once, against what cannot be measured.
    pub reserve: Share,
}

/// What is wrong with terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BudgetTermsError {
    /// The floor is above the ceiling.
    FloorAboveCeiling,
    /// The ceiling is above all there is.
    CeilingAboveCapacity,
    /// The average is zero.
    NoAverage,
    /// The average is above all there is.
    AverageAboveCapacity,
    /// The floor alone would exceed the average.
    FloorAboveAverage,
    /// What is left of the average after the reserve is below the floor.
    FloorAboveEffectiveAverage,
    /// Nothing would ever be spread.
    NoSafety,
}

impl BudgetTerms {
    /// Whether the terms can be kept.
    pub fn check(&self) -> Result<(), BudgetTermsError> {
        let flaws = [
            (self.floor > self.ceiling, BudgetTermsError::FloorAboveCeiling),
            (self.ceiling > self.capacity, BudgetTermsError::CeilingAboveCapacity),
            (self.average == Rate::ZERO, BudgetTermsError::NoAverage),
            (self.average > self.capacity, BudgetTermsError::AverageAboveCapacity),
            (self.floor > self.average, BudgetTermsError::FloorAboveAverage),
            (self.floor > self.effective_average(), BudgetTermsError::FloorAboveEffectiveAverage),
            (self.safety == Share::NONE, BudgetTermsError::NoSafety),
        ];
        flaws.into_iter().find(|(is_so, _)| *is_so).map_or(Ok(()), |(_, flaw)| Err(flaw))
    }

    /// The average after the reserve is taken off: what everything is reckoned with.
    pub fn effective_average(&self) -> Rate {
        self.average.part(self.reserve.rest())
    }

    /// What a window of this length has.
    pub fn total(&self, window: Duration) -> Quota {
        self.effective_average().over(window)
    }

    /// How a window stands after some of its time. At its very end the next one has begun.
    pub fn forecast(&self, window: Duration, elapsed: Duration, used: Quota) -> BudgetForecast {
        let total = self.total(window);
        let remaining = total.minus(used);
        let left = window.saturating_sub(elapsed);
        let mut outlook = BudgetForecast {
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
            outlook.target = if remaining < Quota::ZERO { Rate::ZERO } else { self.average };
            outlook.safe_rate = self.spread(total, window);
        } else if remaining <= Quota::ZERO {
            outlook.status = BudgetStatus::Exhausted;
        } else if remaining < outlook.future_floor {
            outlook.status = BudgetStatus::Insufficient;
        } else {
            outlook.safe_rate = self.spread(remaining, left);
        }
        outlook
    }

    /// How a window stands of which too little is known: as if nothing had been used.
    pub fn forecast_unmeasured(&self, window: Duration, elapsed: Duration) -> BudgetForecast {
        BudgetForecast { target: self.average, ..self.forecast(window, elapsed, Quota::ZERO) }
    }

    /// The floor, and what is left beside it spread over the time.
    fn spread(&self, remaining: Quota, left: Duration) -> Rate {
        let beside = remaining.minus(self.floor.over(left)).rate_over(left).part(self.safety);
        self.floor.plus(beside).clamp(self.floor, self.ceiling)
    }
}

/// How a window stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetForecast {
    /// What it had at the beginning.
    pub total: Quota,
    /// What is used of that.
    pub used: Quota,
    /// What is left; below zero it is over its budget.
    pub remaining: Quota,
    /// The time that is left.
    pub left: Duration,
    /// What the floor needs for that time.
    pub future_floor: Quota,
    /// What could be used from now on to end at the average, if nothing were held back. BudgetAdvice only.
    pub target: Rate,
    /// What may be used now.
    pub safe_rate: Rate,
    /// Whether the floor can be kept.
    pub status: BudgetStatus,
}

/// Whether what is left suffices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BudgetStatus {
    /// There is enough for the floor.
    Ok,
    /// The floor alone needs more than there is.
    Insufficient,
    /// There is nothing left.
    Exhausted,
}

impl BudgetStatus {
    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            BudgetStatus::Ok => "ok",
            BudgetStatus::Insufficient => "insufficient",
            BudgetStatus::Exhausted => "exhausted",
        }
    }
}

/// Nanoseconds of a time.
pub(crate) const fn nanos(time: Duration) -> i128 {
    time.as_nanos().cast_signed()
}
