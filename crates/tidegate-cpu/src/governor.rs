//! The governor: when a limit changes, and to what.
//!
//! It is told what was used since it last looked, and says what may be used until it looks again. A limit that has to fall falls at
//! once; one that could rise rises when it is worth it (`increase_deadband_points`) and not too often (`adjust_interval_seconds`). No clock is
//! read here.

use std::time::Duration;

use tidegate::budget::{BudgetAccount, BudgetAdvice, BudgetStatus, BudgetTime, Quota, Rate};

use crate::journal::UsageSample;
use crate::settings::GovernorSettings;

/// Keeps a budget.
#[derive(Debug, Clone)]
pub struct Governor {
    settings: GovernorSettings,
    account: BudgetAccount,
    applied: Rate,
    /// When the limit may rise again.
    rises_at: i64,
    /// How many samples were taken in this window.
    samples: u64,
    /// How many of them were above the limit by more than the tolerance.
    exceeded: u64,
}

/// What was seen since the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observation {
    /// So much was used.
    Used(Quota),
    /// Nobody knows.
    Nothing,
}

/// What came of a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GovernorDecision {
    /// What the budget says.
    pub advice: BudgetAdvice,
    /// What the present time slot allows, if there is one.
    pub slot: Option<Rate>,
    /// What may be used until the next look.
    pub applied: Rate,
    /// What was used since the last look, on average.
    pub measured: Option<Rate>,
    /// Whether that was above the limit by more than the tolerance.
    pub exceeds: bool,
}

/// How much of the quota is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Risk {
    /// Below 70 %.
    Low,
    /// From 70 % on.
    Medium,
    /// From 90 % on.
    High,
}

impl Risk {
    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Risk::Low => "low",
            Risk::Medium => "medium",
            Risk::High => "high",
        }
    }
}

impl Governor {
    /// Governs from now on.
    pub fn new(settings: GovernorSettings, now: BudgetTime) -> Governor {
        let account = BudgetAccount::open(
            settings.terms,
            settings.tiling.clone(),
            settings.unobserved,
            settings.guards,
            settings.step(),
            now,
        );
        let applied = settings.terms.average.clamp(settings.terms.floor, settings.terms.ceiling);
        let mut governor =
            Governor { settings, account, applied, rises_at: now.monotonic, samples: 0, exceeded: 0 };
        governor.decide();
        governor
    }

    /// Something was used, or nobody knows; what may be used from now on.
    pub fn look(&mut self, now: BudgetTime, seen: Observation) -> GovernorDecision {
        let (measured, exceeds) = self.take(now, seen);
        let (advice, slot) = self.decide();
        GovernorDecision { advice, slot, applied: self.applied, measured, exceeds }
    }

    /// Goes on where samples end, which reach back to the beginning of the window and of the trail if there are as many. `None` if there are none.
    pub fn resume(settings: GovernorSettings, samples: &[UsageSample]) -> Option<Governor> {
        let (first, rest) = samples.split_first()?;
        let mut governor = Governor::new(settings, first.at);
        let mut before = first;
        for sample in rest {
            governor.applied = before.applied;
            let passed = sample.at.monotonic.saturating_sub(before.at.monotonic);
            let used = Observation::Used(sample.total.minus(before.total).min(most_in(passed)));
            governor.take(sample.at, if sample.observed { used } else { Observation::Nothing });
            before = sample;
        }
        let terms = &governor.settings.terms;
        governor.applied = before.applied.clamp(terms.floor, terms.ceiling);
        governor.rises_at = governor.account.now().monotonic;
        Some(governor)
    }

    /// Puts what was seen into the books: what was used on average since the last time, and whether that was too much.
    fn take(&mut self, now: BudgetTime, seen: Observation) -> (Option<Rate>, bool) {
        let (before, tile) = (self.account.now(), self.account.window());
        match seen {
            Observation::Used(used) => self.account.observe(now, used),
            Observation::Nothing => self.account.observe_gap(now),
        }
        if self.account.window() != tile {
            (self.samples, self.exceeded) = (0, 0);
        }
        let Observation::Used(used) = seen else { return (None, false) };
        self.samples += 1;
        let nanos = u64::try_from(now.monotonic.saturating_sub(before.monotonic)).unwrap_or(0);
        let measured = (nanos > 0).then(|| used.rate_over(Duration::from_nanos(nanos)));
        let exceeds = measured.is_some_and(|rate| rate > self.applied.plus(self.settings.tolerance));
        self.exceeded += u64::from(exceeds);
        (measured, exceeds)
    }

    /// Decides again: time has passed, or much was recalled.
    fn decide(&mut self) -> (BudgetAdvice, Option<Rate>) {
        let now = self.account.now();
        let advice = self.account.advice();
        let slot = (!self.settings.slots.is_empty())
            .then(|| self.settings.tiling.zone().minute_of_day(now.wall))
            .and_then(|minute| self.settings.slot_ceiling(minute));
        let floor = self.settings.terms.floor;
        let wanted = slot.map_or(advice.limit, |slot| advice.limit.min(slot)).max(floor);
        if wanted < self.applied {
            self.applied = wanted;
        } else if self.is_worth_it(wanted) && now.monotonic >= self.rises_at {
            self.applied = wanted;
            let pause = i64::try_from(self.settings.adjust_every.as_nanos()).unwrap_or(i64::MAX);
            self.rises_at = now.monotonic.saturating_add(pause);
        }
        (advice, slot)
    }

    /// Whether a limit rises to this one: by the dead band, or to the ceiling, from which nothing better is to be waited for.
    fn is_worth_it(&self, wanted: Rate) -> bool {
        wanted >= self.applied.plus(self.settings.dead_band)
            || (wanted > self.applied && wanted >= self.settings.terms.ceiling)
    }

    /// What may be used until the next look.
    pub fn applied(&self) -> Rate {
        self.applied
    }

    /// The books.
    pub fn account(&self) -> &BudgetAccount {
        &self.account
    }

    /// What the budget says now.
    pub fn advice(&mut self) -> BudgetAdvice {
        self.account.advice()
    }

    /// How it governs.
    pub fn settings(&self) -> &GovernorSettings {
        &self.settings
    }

    /// How many samples were taken in this window, and how many were above the limit by more than the tolerance.
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

    /// Whether what is left suffices for the floor.
    pub fn standing(&mut self) -> BudgetStatus {
        self.account.advice().forecast.status
    }
}

/// The most that a machine can do in so many nanoseconds. Whatever a counter says, no more was used.
pub(crate) fn most_in(nanos: i64) -> Quota {
    Rate::from_units(100).over(Duration::from_nanos(u64::try_from(nanos).unwrap_or(0)))
}
