//! What people see meanwhile: one line that is written anew on a terminal, a line now and then elsewhere, or an object a sample.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use tidegate::budget::Rate;
use tidegate::text::shown_decimal;
use tidegate_cpu::status::Status;
use tidegate_cpu::{Governor, Look};

use crate::args::CpuRunArgs;
use crate::say;

/// Where nobody looks at a terminal, a line is written once in so many nanoseconds of the governor's time.
const LINE_EVERY: i64 = 60_000_000_000;

/// How it is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    Line,
    Lines,
    Json,
    Silent,
}

/// Tells how it goes.
pub(super) struct Display {
    manner: Manner,
    what: String,
    last_line: Option<i64>,
}

impl Display {
    pub(super) fn new(args: &CpuRunArgs, what: &str) -> Display {
        let manner = match () {
            () if args.quiet => Manner::Silent,
            () if args.json => Manner::Json,
            () if io::stderr().is_terminal() => Manner::Line,
            () => Manner::Lines,
        };
        Display { manner, what: what.to_owned(), last_line: None }
    }

    pub(super) fn begin(&self, governor: &Governor) {
        if !matches!(self.manner, Manner::Silent | Manner::Json) {
            let terms = governor.settings().terms;
            let (average, limit) = (percent(terms.average), percent(governor.applied()));
            say(&format!("governing {}: {average} on average, at first {limit}", self.what));
        }
    }

    pub(super) fn look(&mut self, governor: &mut Governor, look: &Look) {
        let now = governor.account().now().steady;
        match self.manner {
            Manner::Silent => {}
            Manner::Json => say(&object(&Status::of(governor), look)),
            Manner::Line => {
                let line = format!("\r\x1b[K{}", line(&Status::of(governor), look));
                let mut out = io::stderr().lock();
                let _unseen = out.write_all(line.as_bytes()).and_then(|()| out.flush());
            }
            Manner::Lines => {
                let is_due = self.last_line.is_none_or(|last| now - last >= LINE_EVERY);
                if is_due {
                    self.last_line = Some(now);
                    say(&line(&Status::of(governor), look));
                }
            }
        }
    }

    pub(super) fn end(&self, governor: &mut Governor) {
        if matches!(self.manner, Manner::Silent | Manner::Json) {
            return;
        }
        let status = Status::of(governor);
        let clear = if self.manner == Manner::Line { "\r\x1b[K" } else { "" };
        let (used, total) = (
            minutes(status.outlook.used.billionths_for_a_minute()),
            minutes(status.outlook.total.billionths_for_a_minute()),
        );
        let average = percent(status.average);
        say(&format!(
            "{clear}done: {used} of {total} %·min used in this window, {average} on average while it was watched"
        ));
    }
}

/// Used, remaining, the limit and why, and the time that is left.
fn line(status: &Status, look: &Look) -> String {
    let measured = look.measured.map_or("?".to_owned(), percent);
    let (used, total) = (status.outlook.used.raw(), status.outlook.total.raw().max(1));
    let part =
        percent(Rate::from_billionths(u64::try_from(used.max(0) * 100_000 / total).unwrap_or(0) * 1_000_000));
    let remaining = minutes(status.outlook.remaining.billionths_for_a_minute());
    format!(
        "now {measured} · used {part} of the quota, {remaining} %·min left · limit {} (safe {}, trailing {}) · {} left",
        percent(look.applied),
        percent(look.advice.outlook.safe),
        percent(look.advice.trailing.min(Rate::from_units(100))),
        time(status.outlook.left),
    )
}

fn object(status: &Status, look: &Look) -> String {
    let rate = |rate: Rate| shown_decimal(rate.billionths().into());
    let quota = |quota: tidegate::budget::Quota| shown_decimal(quota.billionths_for_a_minute());
    format!(
        "{{\"measured\":{},\"applied_limit\":{},\"safe_limit\":{},\"trailing_limit\":{},\"used\":{},\"remaining\":{},\"total_quota\":{},\
         \"risk\":\"{}\",\"samples\":{},\"exceeded\":{},\"remaining_minutes\":{},\"status\":\"{}\"}}",
        look.measured.map_or("null".to_owned(), rate),
        rate(look.applied),
        rate(look.advice.outlook.safe),
        rate(look.advice.trailing.min(Rate::from_units(100))),
        quota(status.outlook.used),
        quota(status.outlook.remaining),
        quota(status.outlook.total),
        status.risk.word(),
        status.samples,
        status.exceeded,
        shown_decimal(i128::try_from(status.outlook.left.as_nanos() / 60).unwrap_or(i128::MAX)),
        status.outlook.standing.word(),
    )
}

/// A rate in percent, with one place.
fn percent(rate: Rate) -> String {
    let tenths = rate.billionths() / 100_000_000;
    format!("{}.{} %", tenths / 10, tenths % 10)
}

fn minutes(billionths: i128) -> String {
    (billionths / 1_000_000_000).to_string()
}

fn time(left: Duration) -> String {
    let seconds = left.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}
