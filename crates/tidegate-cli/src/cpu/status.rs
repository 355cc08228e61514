//! `tidegate cpu status`: the budget at the latest sample.
//!
//! The status is computed from the samples alone, as by a restarted governor. So it is the same whether or not a
//! governor is running.

use serde::Serialize;
use tidegate_core::Zone;
use tidegate_cpu::Governor;
use tidegate_cpu::clock::ClockReading;
use tidegate_cpu::journal::is_in_use;
use tidegate_cpu::metrics::{self, GovernorState};
use tidegate_cpu::runner::{recent, round_to_step};
use tidegate_cpu::status::GovernorStatus;

use super::atomic_file::write_atomically;
use super::format::{self, JsonNumber};
use super::state_directory::StateDirectory;
use crate::args::CpuStatusArgs;
use crate::bench::number::grouped;
use crate::store::as_line;
use crate::{Failure, print_result};

/// Prints the status and writes metrics if requested.
pub(super) fn run(args: &CpuStatusArgs) -> Result<(), Failure> {
    let state = StateDirectory::open(&args.state)?;
    let zone = state.settings.schedule.zone().clone();
    let governing = if is_in_use(state.folder) { GovernorState::Running } else { GovernorState::Stopped };
    let status = read(state)?;
    if let Some(path) = &args.prometheus {
        write_atomically(path, &metrics::text(&status, governing))?;
    }
    print_result(&if args.json {
        as_line(&status_json(&zone, &status, governing))
    } else {
        text(&zone, &status, governing)
    })
}

fn read(state: StateDirectory<'_>) -> Result<GovernorStatus, Failure> {
    let last = &state.last;
    let now = ClockReading { wall: last.at.wall, uptime: last.uptime, boot: last.boot };
    let samples =
        recent(state.folder, &state.settings, now).map_err(|error| state.unreadable_samples(&error))?;
    let governor = Governor::resume(state.settings, &samples);
    let mut governor = governor.ok_or_else(|| {
        Failure::Failed(format!(
            "the samples in {} were removed during the read; try again",
            state.folder.display()
        ))
    })?;
    Ok(GovernorStatus::of(&mut governor))
}

/// The JSON form of a status.
#[derive(Serialize)]
pub(super) struct StatusJson {
    at: String,
    running: bool,
    status: &'static str,
    risk: &'static str,
    used: JsonNumber,
    remaining: JsonNumber,
    total_quota: JsonNumber,
    applied_limit: JsonNumber,
    enforced_limit: JsonNumber,
    safe_limit: JsonNumber,
    trailing_limit: JsonNumber,
    trailing_used: JsonNumber,
    trailing_quota: JsonNumber,
    target_cpu: JsonNumber,
    average: JsonNumber,
    samples: u64,
    exceeded: u64,
    window_start: String,
    window_end: String,
    remaining_minutes: JsonNumber,
    unobserved_minutes: JsonNumber,
    is_starting: bool,
}

/// Builds the JSON form.
pub(super) fn status_json(zone: &Zone, status: &GovernorStatus, governing: GovernorState) -> StatusJson {
    let outlook = &status.outlook;
    let (trailing_used, trailing_quota) = status.trailing;
    StatusJson {
        at: format::instant(zone, status.at()),
        running: governing == GovernorState::Running,
        status: outlook.status.word(),
        risk: status.risk.word(),
        used: format::quota(outlook.used),
        remaining: format::quota(outlook.remaining),
        total_quota: format::quota(outlook.total),
        applied_limit: format::rate(status.applied),
        enforced_limit: format::rate(round_to_step(status.applied)),
        safe_limit: format::rate(outlook.safe_rate),
        trailing_limit: format::rate(format::at_most_all(status.trailing_limit)),
        trailing_used: format::quota(trailing_used),
        trailing_quota: format::quota(trailing_quota),
        target_cpu: format::rate(outlook.target),
        average: format::rate(status.average),
        samples: status.samples,
        exceeded: status.exceeded,
        window_start: format::instant(zone, status.window.start),
        window_end: format::instant(zone, status.window.end),
        remaining_minutes: format::minutes(outlook.left),
        unobserved_minutes: format::minutes(status.unobserved),
        is_starting: status.is_starting,
    }
}

fn text(zone: &Zone, status: &GovernorStatus, governing: GovernorState) -> String {
    let outlook = &status.outlook;
    let (start, end) = (status.window.start, status.window.end);
    let at = format::instant(zone, status.at());
    let (used, total) = (format::short_quota(outlook.used), format::short_quota(outlook.total));
    let (trailing_used, trailing_total) = status.trailing;
    let trailing_limit = format::short_rate(format::at_most_all(status.trailing_limit));
    let running = match governing {
        GovernorState::Running => format!("yes, latest sample at {at}"),
        GovernorState::Stopped => format!("no; state at {at}"),
    };
    let mut standing = outlook.status.word().to_owned();
    if status.is_starting {
        standing.push_str("; too few samples in this window yet");
    }
    format::table(&[
        ("governing", running),
        ("window", format!("{} to {}", format::instant(zone, start), format::instant(zone, end))),
        ("time left", format::short_minutes(outlook.left)),
        ("used", format!("{used} of {total}, risk {}", status.risk.word())),
        ("remaining", format::short_quota(outlook.remaining)),
        ("average", format::short_rate(status.average)),
        (
            "limit",
            format!(
                "{}, enforced as {}",
                format::short_rate(status.applied),
                format::short_rate(round_to_step(status.applied))
            ),
        ),
        ("safe limit", format::short_rate(outlook.safe_rate)),
        ("trailing limit", trailing_limit),
        (
            "trailing window",
            format!("{} of {}", format::short_quota(trailing_used), format::short_quota(trailing_total)),
        ),
        ("target", format::short_rate(outlook.target)),
        ("samples", format!("{}, {} above the limit", grouped(status.samples), grouped(status.exceeded))),
        ("not observed", format::short_minutes(status.unobserved)),
        ("status", standing),
    ])
}
