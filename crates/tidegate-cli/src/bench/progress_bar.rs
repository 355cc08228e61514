//! How far it is, for somebody who looks at a terminal; nothing for anybody else.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use super::workers::SoFar;
use super::number::{counted, grouped};
use super::load_plan::Plan;

/// How wide the bar is.
const WIDTH: usize = 24;

/// What a level is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    WarmUp,
    Measured,
}

impl Phase {
    const fn words(self) -> &'static str {
        match self {
            Phase::WarmUp => "warming up",
            Phase::Measured => "measuring",
        }
    }
}

/// A bar that fills as time goes by.
#[derive(Debug)]
pub(super) struct Progress {
    is_seen: bool,
    each: Duration,
    whole: Duration,
    warm_up: Duration,
    done: Duration,
}

impl Progress {
    /// On standard error, if that is a terminal.
    pub(super) fn on_stderr(plan: &Plan) -> Progress {
        let each = plan.warm_up + plan.duration;
        let levels = u32::try_from(plan.levels.len()).unwrap_or(u32::MAX);
        Progress {
            is_seen: io::stderr().is_terminal(),
            each,
            whole: each.saturating_mul(levels),
            warm_up: plan.warm_up,
            done: Duration::ZERO,
        }
    }

    /// Draws it as it is by now.
    pub(super) fn draw(&self, connections: usize, phase: Phase, now: SoFar) {
        if self.is_seen {
            let before = if phase == Phase::Measured { self.warm_up } else { Duration::ZERO };
            let line = line(self.done + before + now.passed, self.whole, connections, phase.words(), now);
            // A terminal that is gone needs no bar.
            let _unseen = write!(io::stderr().lock(), "\r\u{1b}[K{line}");
        }
    }

    /// Another level is over.
    pub(super) fn level_done(&mut self) {
        self.done += self.each;
    }

    /// Takes it away.
    pub(super) fn clear(&self) {
        if self.is_seen {
            let _unseen = write!(io::stderr().lock(), "\r\u{1b}[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

fn line(passed: Duration, whole: Duration, connections: usize, doing: &str, now: SoFar) -> String {
    let (passed, whole) = (passed.min(whole), whole.max(Duration::from_nanos(1)));
    let full = usize::try_from(passed.as_nanos() * WIDTH as u128 / whole.as_nanos()).unwrap_or(WIDTH);
    let bar = format!("{}{}", "█".repeat(full), "░".repeat(WIDTH - full));
    let rate = u128::from(now.answered) * 1_000_000_000 / now.passed.as_nanos().max(1);
    let left = whole.saturating_sub(passed).as_secs_f64().ceil();
    let connections = counted(connections as u64, "connection", "connections");
    let rate = grouped(u64::try_from(rate).unwrap_or(u64::MAX));
    format!("{bar} {connections}, {doing}: {rate}/s, {left}s left")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fills() {
        let now = SoFar { passed: Duration::from_secs(2), answered: 3000 };
        let half = line(Duration::from_secs(5), Duration::from_secs(10), 16, "measuring", now);
        assert_eq!(half, "████████████░░░░░░░░░░░░ 16 connections, measuring: 1,500/s, 5s left");
        let late = line(Duration::from_secs(50), Duration::from_secs(10), 1, "measuring", now);
        assert!(
            late.starts_with(&"█".repeat(WIDTH))
                && late.ends_with("1 connection, measuring: 1,500/s, 0s left")
        );
    }
}
