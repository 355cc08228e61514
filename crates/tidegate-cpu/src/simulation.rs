//! Simulation: runs the governor over a recorded or synthetic load, as fast as possible.
//!
//! A trace contains the demand, and the governor allows a part of it. Usage between two samples is evenly distributed.

use std::time::Duration;

use tidegate::budget::{BudgetTime, Quota, Rate};
use tidegate_core::calendar::ScheduledWindow;
use tidegate_core::{Span, Timestamp};

use crate::governor::{Governor, GovernorDecision, Observation};
use crate::settings::GovernorSettings;

/// A governor with a simulated load.
#[derive(Debug, Clone)]
pub struct Simulation {
    governor: Governor,
    current_window: ScheduledWindow,
    is_whole: bool,
    windows: Vec<SimulatedWindow>,
    outcome: CpuSimulationSummary,
    /// Usage in the current window.
    used: Quota,
}

/// A completed window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimulatedWindow {
    /// Bounds of the window.
    pub bounds: ScheduledWindow,
    /// Usage in the window.
    pub used: Quota,
    /// Usage that the average allows, including the reserve.
    pub allowed: Quota,
    /// Whether the trace covers the whole window.
    pub is_whole: bool,
}

/// Totals of a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuSimulationSummary {
    /// Number of samples.
    pub samples: u64,
    /// Number of limit changes.
    pub changes: u64,
    /// Usage without limits.
    pub demand: Quota,
    /// Actual usage.
    pub used: Quota,
    /// Highest usage of any trailing window.
    pub worst_trailing: Quota,
}

impl Simulation {
    /// Starts a simulation. Earlier time counts as unobserved.
    pub fn new(settings: GovernorSettings, begin: Timestamp) -> Simulation {
        let monotonic = i64::try_from(begin.ticks()).unwrap_or(i64::MAX);
        let governor = Governor::new(settings, BudgetTime { wall: begin, monotonic });
        let current_window = governor.account().window();
        Simulation {
            current_window,
            is_whole: current_window.start == begin,
            governor,
            windows: Vec::new(),
            outcome: CpuSimulationSummary::default(),
            used: Quota::ZERO,
        }
    }

    /// Continues until an instant with a constant demand. Calls `on_sample` after each sample.
    pub fn run(
        &mut self,
        until: Timestamp,
        demand: Rate,
        mut on_sample: impl FnMut(Timestamp, Rate, &GovernorDecision),
    ) {
        let sample = Span::from_ticks(nanos(self.governor.settings().sample_every));
        loop {
            let now = self.governor.account().now().wall;
            if now >= until {
                return;
            }
            let next = now.plus(sample).min(until).min(self.current_window.end);
            self.step(next, demand, &mut on_sample);
        }
    }

    fn step(
        &mut self,
        next: Timestamp,
        demand: Rate,
        on_sample: &mut impl FnMut(Timestamp, Rate, &GovernorDecision),
    ) {
        let now = self.governor.account().now();
        let time = Duration::from_nanos(next.since(now.wall).ticks());
        let applied = self.governor.applied();
        let rate = demand.min(applied);
        let used = rate.over(time);
        let monotonic = now.monotonic.saturating_add_unsigned(nanos(time));
        let decision = self.governor.observe(BudgetTime { wall: next, monotonic }, Observation::Used(used));
        self.used = self.used.plus(used);
        let outcome = &mut self.outcome;
        outcome.samples += 1;
        outcome.changes += u64::from(decision.applied != applied);
        outcome.demand = outcome.demand.plus(demand.over(time));
        outcome.used = outcome.used.plus(used);
        outcome.worst_trailing = outcome.worst_trailing.max(self.governor.account().trailing_used());
        if next >= self.current_window.end {
            self.close(true);
        }
        on_sample(next, rate, &decision);
    }

    fn close(&mut self, ended: bool) {
        let allowed = self.governor.settings().terms.average.over(self.current_window.length());
        let window = SimulatedWindow {
            bounds: self.current_window,
            used: self.used,
            allowed,
            is_whole: self.is_whole && ended,
        };
        self.windows.push(window);
        self.current_window = self.governor.account().window();
        self.is_whole = true;
        self.used = Quota::ZERO;
    }

    /// Ends the simulation and returns the totals and the windows.
    pub fn finish(mut self) -> (CpuSimulationSummary, Vec<SimulatedWindow>) {
        if self.governor.account().now().wall > self.current_window.start || self.windows.is_empty() {
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
