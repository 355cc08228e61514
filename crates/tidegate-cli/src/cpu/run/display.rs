//! Progress output: one updated line on a terminal, a line per minute elsewhere, or one JSON object per sample.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use serde::Serialize;
use tidegate_cpu::metrics::GovernorState;
use tidegate_cpu::status::GovernorStatus;
use tidegate_cpu::{Governor, GovernorDecision};

use crate::args::CpuRunArgs;
use crate::cpu::format::{self, JsonNumber};
use crate::cpu::status::{StatusJson, status_json};
use crate::print_message;
use crate::store::as_line;

/// Interval of lines that are not on a terminal, in nanoseconds of the governor's clock.
const LINE_EVERY: i64 = 60_000_000_000;

/// The output mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DisplayMode {
    Line,
    Lines,
    Json,
    Silent,
}

/// Prints progress.
pub(super) struct StatusDisplay {
    mode: DisplayMode,
    what: String,
    last_line: Option<i64>,
}

impl StatusDisplay {
    pub(super) fn new(args: &CpuRunArgs, what: &str) -> StatusDisplay {
        let mode = match () {
            () if args.quiet => DisplayMode::Silent,
            () if args.json => DisplayMode::Json,
            () if io::stderr().is_terminal() => DisplayMode::Line,
            () => DisplayMode::Lines,
        };
        StatusDisplay { mode, what: what.to_owned(), last_line: None }
    }

    pub(super) fn begin(&self, governor: &Governor) {
        if !matches!(self.mode, DisplayMode::Silent | DisplayMode::Json) {
            let terms = governor.settings().terms;
            let (average, limit) =
                (format::short_rate(terms.average), format::short_rate(governor.applied()));
            print_message(&format!("governing {}: {average} on average, at first {limit}", self.what));
        }
    }

    pub(super) fn look(&mut self, governor: &mut Governor, look: &GovernorDecision) {
        let now = governor.account().now().monotonic;
        match self.mode {
            DisplayMode::Silent => {}
            DisplayMode::Json => print_message(&sample_json(governor, look)),
            DisplayMode::Line => {
                let mut out = io::stderr().lock();
                let line = truncate(&status_line(&GovernorStatus::of(governor), look), width_of(&out));
                let line = format!("\r\x1b[K{line}");
                let _unseen = out.write_all(line.as_bytes()).and_then(|()| out.flush());
            }
            DisplayMode::Lines => {
                let is_due = self.last_line.is_none_or(|last| now - last >= LINE_EVERY);
                if is_due {
                    self.last_line = Some(now);
                    print_message(&status_line(&GovernorStatus::of(governor), look));
                }
            }
        }
    }

    /// The target has ended.
    pub(super) fn gone(&self) {
        if !matches!(self.mode, DisplayMode::Silent | DisplayMode::Json) {
            let clear = if self.mode == DisplayMode::Line { "\r\x1b[K" } else { "" };
            let what = self.what.split(',').next().unwrap_or(&self.what);
            print_message(&format!("{clear}{what} has ended; nothing left to govern"));
        }
    }

    pub(super) fn end(&self, governor: &mut Governor) {
        if matches!(self.mode, DisplayMode::Silent | DisplayMode::Json) {
            return;
        }
        let status = GovernorStatus::of(governor);
        let clear = if self.mode == DisplayMode::Line { "\r\x1b[K" } else { "" };
        let (used, total) = (status.outlook.used, status.outlook.total);
        print_message(&format!(
            "{clear}done: {} of {} used in this window, {} on average while it was watched",
            format::short_quota(used),
            format::short_quota(total),
            format::short_rate(status.average)
        ));
    }
}

/// The width of the terminal; unlimited if unknown.
fn width_of(out: &io::StderrLock<'_>) -> usize {
    let columns = rustix::termios::tcgetwinsize(out).map_or(0, |size| usize::from(size.ws_col));
    if columns == 0 { usize::MAX } else { columns }
}

/// Truncates a line to the width of the terminal, because a wrapped line cannot be overwritten.
fn truncate(line: &str, columns: usize) -> String {
    if line.chars().count() < columns {
        return line.to_owned();
    }
    let mut fitting: String = line.chars().take(columns.saturating_sub(2)).collect();
    fitting.push('…');
    fitting
}

/// The status line: usage, quota, limit, and time left.
fn status_line(status: &GovernorStatus, look: &GovernorDecision) -> String {
    let outlook = &status.outlook;
    let used = format::part(outlook.used, outlook.total).unwrap_or(0);
    format!(
        "now {} · used {} % of the quota, {} left · limit {} (safe {}, trailing {}) · {} left",
        look.measured.map_or("unknown".to_owned(), format::short_rate),
        format::short(used),
        format::short_quota(outlook.remaining),
        format::short_rate(look.applied),
        format::short_rate(outlook.safe_rate),
        format::short_rate(format::at_most_all(status.trailing_limit)),
        time(outlook.left),
    )
}

/// A sample as JSON: the status and the load since the previous sample.
#[derive(Serialize)]
struct SampleJson {
    measured: Option<JsonNumber>,
    #[serde(flatten)]
    status: StatusJson,
}

fn sample_json(governor: &mut Governor, look: &GovernorDecision) -> String {
    let status = GovernorStatus::of(governor);
    let status = status_json(governor.settings().schedule.zone(), &status, GovernorState::Running);
    as_line(&SampleJson { measured: look.measured.map(format::rate), status })
}

fn time(left: Duration) -> String {
    let seconds = left.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_cut_to_the_terminal_width() {
        assert_eq!(truncate("now 5 % · used", 80), "now 5 % · used");
        assert_eq!(truncate("now 5 % · used", 15), "now 5 % · used");
        assert_eq!(truncate("now 5 % · used", 14), "now 5 % · us…");
        for columns in 0..14 {
            assert!(
                truncate("now 5 % · used", columns).chars().count() <= columns.saturating_sub(1).max(1),
                "{columns}"
            );
        }
        assert_eq!(truncate("now", usize::MAX), "now");
    }
}
