//! The progress bar of a load test, drawn only on a terminal.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use super::load_plan::LoadPlan;
use super::number::{counted, grouped};
use super::workers::RunProgress;

/// Width of the bar.
const WIDTH: usize = 24;

/// Phase of a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoadPhase {
    WarmUp,
    Measured,
}

impl LoadPhase {
    const fn label(self) -> &'static str {
        match self {
            LoadPhase::WarmUp => "warming up",
            LoadPhase::Measured => "measuring",
        }
    }
}

/// A bar that fills with elapsed time.
#[derive(Debug)]
pub(super) struct ProgressBar {
    is_terminal: bool,
    level: Duration,
    total: Duration,
    warm_up: Duration,
    done: Duration,
}

impl ProgressBar {
    /// A bar on standard error, if that is a terminal.
    pub(super) fn on_stderr(plan: &LoadPlan) -> ProgressBar {
        let level = plan.warm_up + plan.duration;
        let levels = u32::try_from(plan.levels.len()).unwrap_or(u32::MAX);
        ProgressBar {
            is_terminal: io::stderr().is_terminal(),
            level,
            total: level.saturating_mul(levels),
            warm_up: plan.warm_up,
            done: Duration::ZERO,
        }
    }

    /// Draws the bar.
    pub(super) fn draw(&self, connections: usize, phase: LoadPhase, now: RunProgress) {
        if self.is_terminal {
            let before = if phase == LoadPhase::Measured { self.warm_up } else { Duration::ZERO };
            let line = line(self.done + before + now.passed, self.total, connections, phase.label(), now);
            // Errors are ignored: the bar is decoration.
            let _unseen = write!(io::stderr().lock(), "\r\u{1b}[K{line}");
        }
    }

    /// Marks a level as done.
    pub(super) fn level_done(&mut self) {
        self.done += self.level;
    }

    /// Erases the bar.
    pub(super) fn clear(&self) {
        if self.is_terminal {
            let _unseen = write!(io::stderr().lock(), "\r\u{1b}[K");
        }
    }
}

impl Drop for ProgressBar {
    fn drop(&mut self) {
        self.clear();
    }
}

fn line(passed: Duration, total: Duration, connections: usize, doing: &str, now: RunProgress) -> String {
    let (passed, total) = (passed.min(total), total.max(Duration::from_nanos(1)));
    let full = usize::try_from(passed.as_nanos() * WIDTH as u128 / total.as_nanos()).unwrap_or(WIDTH);
    let bar = format!("{}{}", "█".repeat(full), "░".repeat(WIDTH - full));
    let rate = u128::from(now.answered) * 1_000_000_000 / now.passed.as_nanos().max(1);
    let left = total.saturating_sub(passed).as_secs_f64().ceil();
    let connections = counted(connections as u64, "connection", "connections");
    let rate = grouped(u64::try_from(rate).unwrap_or(u64::MAX));
    format!("{bar} {connections}, {doing}: {rate}/s, {left}s left")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_fills_with_elapsed_time() {
        let now = RunProgress { passed: Duration::from_secs(2), answered: 3000 };
        let half = line(Duration::from_secs(5), Duration::from_secs(10), 16, "measuring", now);
        assert_eq!(half, "████████████░░░░░░░░░░░░ 16 connections, measuring: 1,500/s, 5s left");
        let late = line(Duration::from_secs(50), Duration::from_secs(10), 1, "measuring", now);
        assert!(
            late.starts_with(&"█".repeat(WIDTH))
                && late.ends_with("1 connection, measuring: 1,500/s, 0s left")
        );
    }
}
