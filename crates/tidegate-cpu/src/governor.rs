//! The governor decides when the limit changes, and to what.
//!
//! It receives the usage since the last call and returns the limit until the next one. A lower limit applies at once. A higher one applies
//! when the increase is large enough (`increase_deadband_points`) and not too soon (`adjust_interval_seconds`). The governor reads no clock.

use std::time::Duration;

use tidegate::budget::{BudgetAccount, BudgetAdvice, BudgetStatus, BudgetTime, Quota, Rate};

use crate::journal::UsageSample;
use crate::settings::GovernorSettings;

/// Decides the limit from a CPU budget.
#[derive(Debug, Clone)]
pub struct Governor {
    settings: GovernorSettings,
    account: BudgetAccount,
    applied: Rate,
    /// Earliest time of the next increase.
    next_increase_at: i64,
    /// Samples in this window.
    samples: u64,
    /// Samples in this window above limit and tolerance.
    exceeded: u64,
}

/// Usage since the last call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observation {
    /// Measured usage.
    Used(Quota),
    /// Usage is unknown.
    Nothing,
}

/// Result of one observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GovernorDecision {
    /// Advice of the budget.
    pub advice: BudgetAdvice,
    /// Ceiling of the current time slot, if there is one.
    pub slot: Option<Rate>,
    /// Limit until the next observation.
    pub applied: Rate,
    /// Average usage since the last observation.
    pub measured: Option<Rate>,
    /// Whether the usage exceeded the limit by more than the tolerance.
    pub exceeds: bool,
}

/// Level of quota usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Risk {
    /// Below 70 %.
    Low,
    /// From 70 %.
    Medium,
    /// From 90 %.
    High,
}

impl Risk {
    /// The name used in outputs.
    pub const fn word(self) -> &'static str {
        match self {
            Risk::Low => "low",
            Risk::Medium => "medium",
            Risk::High => "high",
        }
    }
}

impl Governor {
    /// Starts a governor with an empty history.
    pub fn new(settings: GovernorSettings, now: BudgetTime) -> Governor {
        let account = BudgetAccount::open(
            settings.terms,
            settings.schedule.clone(),
            settings.unobserved,
            settings.guards,
            settings.step(),
            now,
        );
        let applied = settings.terms.average.clamp(settings.terms.floor, settings.terms.ceiling);
        let mut governor =
            Governor { settings, account, applied, next_increase_at: now.monotonic, samples: 0, exceeded: 0 };
        governor.decide();
        governor
    }

    /// Records usage and decides the limit until the next call.
    pub fn observe(&mut self, now: BudgetTime, observation: Observation) -> GovernorDecision {
        let (measured, exceeds) = self.record(now, observation);
        let (advice, slot) = self.decide();
        GovernorDecision { advice, slot, applied: self.applied, measured, exceeds }
    }

    /// Resumes from samples. They should reach back to the start of the window and of the trailing window. Returns `None` without
    /// samples.
    pub fn resume(settings: GovernorSettings, samples: &[UsageSample]) -> Option<Governor> {
        let (first, rest) = samples.split_first()?;
        let mut governor = Governor::new(settings, first.at);
        let mut before = first;
        for sample in rest {
            governor.applied = before.applied;
            let passed = sample.at.monotonic.saturating_sub(before.at.monotonic);
            let used = Observation::Used(sample.total.minus(before.total).min(capacity_in(passed)));
            governor.record(sample.at, if sample.observed { used } else { Observation::Nothing });
            before = sample;
        }
        let terms = &governor.settings.terms;
        governor.applied = before.applied.clamp(terms.floor, terms.ceiling);
        governor.next_increase_at = governor.account.now().monotonic;
        Some(governor)
    }

    /// Records usage. Returns the average rate and whether it exceeded the limit.
    fn record(&mut self, now: BudgetTime, observation: Observation) -> (Option<Rate>, bool) {
        let (before, window) = (self.account.now(), self.account.window());
        match observation {
            Observation::Used(used) => self.account.observe(now, used),
            Observation::Nothing => self.account.observe_gap(now),
        }
        if self.account.window() != window {
            (self.samples, self.exceeded) = (0, 0);
        }
        let Observation::Used(used) = observation else { return (None, false) };
        self.samples += 1;
        let nanos = u64::try_from(now.monotonic.saturating_sub(before.monotonic)).unwrap_or(0);
        let measured = (nanos > 0).then(|| used.rate_over(Duration::from_nanos(nanos)));
        let exceeds = measured.is_some_and(|rate| rate > self.applied.plus(self.settings.tolerance));
        self.exceeded += u64::from(exceeds);
        (measured, exceeds)
    }

    /// Decides the limit for the current time and history.
    fn decide(&mut self) -> (BudgetAdvice, Option<Rate>) {
        let now = self.account.now();
        let advice = self.account.advice();
        let slot = (!self.settings.slots.is_empty())
            .then(|| self.settings.schedule.zone().minute_of_day(now.wall))
            .and_then(|minute| self.settings.slot_ceiling(minute));
        let floor = self.settings.terms.floor;
        let wanted = slot.map_or(advice.limit, |slot| advice.limit.min(slot)).max(floor);
        if wanted < self.applied {
            self.applied = wanted;
        } else if self.is_worth_it(wanted) && now.monotonic >= self.next_increase_at {
            self.applied = wanted;
            let pause = i64::try_from(self.settings.adjust_every.as_nanos()).unwrap_or(i64::MAX);
            self.next_increase_at = now.monotonic.saturating_add(pause);
        }
        (advice, slot)
    }

    /// Whether an increase is large enough: at least the dead band, or up to the ceiling.
    fn is_worth_it(&self, wanted: Rate) -> bool {
        wanted >= self.applied.plus(self.settings.dead_band)
            || (wanted > self.applied && wanted >= self.settings.terms.ceiling)
    }

    /// Limit until the next observation.
    pub fn applied(&self) -> Rate {
        self.applied
    }

    /// The budget account.
    pub fn account(&self) -> &BudgetAccount {
        &self.account
    }

    /// Current advice of the budget.
    pub fn advice(&mut self) -> BudgetAdvice {
        self.account.advice()
    }

    /// Settings of the governor.
    pub fn settings(&self) -> &GovernorSettings {
        &self.settings
    }

    /// Number of samples in this window, and how many exceeded limit and tolerance.
    pub fn samples(&self) -> (u64, u64) {
        (self.samples, self.exceeded)
    }

    /// How much of the window's quota is used.
    pub fn risk(&self) -> Risk {
        let (used, total) =
            (self.account.used().raw(), self.settings.terms.total(self.account.window().length()).raw());
        let reaches = |percent: i128| used.saturating_mul(100) >= total.saturating_mul(percent);
        match () {
            () if reaches(90) => Risk::High,
            () if reaches(70) => Risk::Medium,
            () => Risk::Low,
        }
    }

    /// Whether the remaining quota covers the floor.
    pub fn budget_status(&mut self) -> BudgetStatus {
        self.account.advice().forecast.status
    }
}

/// Maximum usage of a machine in this many nanoseconds. Higher counter values are capped.
pub(crate) fn capacity_in(nanos: i64) -> Quota {
    Rate::from_units(100).over(Duration::from_nanos(u64::try_from(nanos).unwrap_or(0)))
}
