//! Simulations: the governor over a recorded or invented load, as fast as it can be reckoned.
//!
//! A trace says how much would be used; of that the governor allows what it allows. What happens in between two looks happens evenly, as
//! everywhere.

use std::time::Duration;

use tidegate::budget::{BudgetTime, Quota, Rate};
use tidegate_core::calendar::ScheduledWindow;
use tidegate_core::{Span, Timestamp};

use crate::governor::{Governor, GovernorDecision, Observation};
use crate::settings::GovernorSettings;

/// A governor and a load.
#[derive(Debug, Clone)]
pub struct Simulation {
    governor: Governor,
    tile: ScheduledWindow,
    is_whole: bool,
    windows: Vec<SimulatedWindow>,
    outcome: SimulationSummary,
    /// What was used in the present window.
    used: Quota,
}

/// A window that has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimulatedWindow {
    /// From when to when.
    pub tile: ScheduledWindow,
    /// What was used in it.
    pub used: Quota,
    /// What the average allows, reserve included.
    pub allowed: Quota,
    /// Whether the trace covers all of it.
    pub is_whole: bool,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SimulationSummary {
    /// How often the governor looked.
    pub looks: u64,
    /// How often the limit changed.
    pub changes: u64,
    /// What would have been used.
    pub demand: Quota,
    /// What was used.
    pub used: Quota,
    /// The most that any window used that ends at any moment.
    pub worst_trailing: Quota,
}

impl Simulation {
    /// Begins at an instant. What was used before counts as the settings say of time that nobody looked at.
    pub fn new(settings: GovernorSettings, begin: Timestamp) -> Simulation {
        let steady = i64::try_from(begin.ticks()).unwrap_or(i64::MAX);
        let governor = Governor::new(settings, BudgetTime { wall: begin, monotonic: steady });
        let tile = governor.account().window();
        Simulation {
            tile,
            is_whole: tile.start == begin,
            governor,
            windows: Vec::new(),
            outcome: SimulationSummary::default(),
            used: Quota::ZERO,
        }
    }

    /// Goes on to an instant; until then so much would be used. Each look is told.
    pub fn run(
        &mut self,
        until: Timestamp,
        demand: Rate,
        mut seen: impl FnMut(Timestamp, Rate, &GovernorDecision),
    ) {
        let sample = Span::from_ticks(nanos(self.governor.settings().sample_every));
        loop {
            let now = self.governor.account().now().wall;
            if now >= until {
                return;
            }
            let next = now.plus(sample).min(until).min(self.tile.end);
            self.step(next, demand, &mut seen);
        }
    }

    fn step(
        &mut self,
        next: Timestamp,
        demand: Rate,
        seen: &mut impl FnMut(Timestamp, Rate, &GovernorDecision),
    ) {
        let now = self.governor.account().now();
        let time = Duration::from_nanos(next.since(now.wall).ticks());
        let applied = self.governor.applied();
        let rate = demand.min(applied);
        let used = rate.over(time);
        let steady = now.monotonic.saturating_add_unsigned(nanos(time));
        let look = self.governor.look(BudgetTime { wall: next, monotonic: steady }, Observation::Used(used));
        self.used = self.used.plus(used);
        let outcome = &mut self.outcome;
        outcome.looks += 1;
        outcome.changes += u64::from(look.applied != applied);
        outcome.demand = outcome.demand.plus(demand.over(time));
        outcome.used = outcome.used.plus(used);
        outcome.worst_trailing = outcome.worst_trailing.max(self.governor.account().trailing_used());
        if next >= self.tile.end {
            self.close(true);
        }
        seen(next, rate, &look);
    }

    fn close(&mut self, ended: bool) {
        let allowed = self.governor.settings().terms.average.over(self.tile.length());
        let window =
            SimulatedWindow { tile: self.tile, used: self.used, allowed, is_whole: self.is_whole && ended };
        self.windows.push(window);
        self.tile = self.governor.account().window();
        self.is_whole = true;
        self.used = Quota::ZERO;
    }

    /// What happened, window by window.
    pub fn finish(mut self) -> (SimulationSummary, Vec<SimulatedWindow>) {
        if self.governor.account().now().wall > self.tile.start || self.windows.is_empty() {
            self.close(false);
        }
        (self.outcome, self.windows)
    }

    /// The governor.
    pub fn governor(&self) -> &Governor {
        &self.governor
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
