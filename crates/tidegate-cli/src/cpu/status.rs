//! `tidegate cpu status`: how the budget stood at the latest sample.
//!
//! It is reckoned from the samples alone, as a governor does that goes on after a restart, so it is told whether one is at work or not.

use serde::Serialize;
use tidegate_core::Zone;
use tidegate_cpu::Governor;
use tidegate_cpu::clock::Now;
use tidegate_cpu::journal::is_in_use;
use tidegate_cpu::metrics::{self, Governing};
use tidegate_cpu::runner::{in_force, recent};
use tidegate_cpu::status::Status;

use super::place::Place;
use super::replace::replace;
use super::shown::{self, Number};
use crate::args::CpuStatusArgs;
use crate::bench::number::grouped;
use crate::store::as_line;
use crate::{Failure, answer};

/// Says how it stands, and writes metrics if they are wanted.
pub(super) fn run(args: &CpuStatusArgs) -> Result<(), Failure> {
    let place = Place::open(&args.place)?;
    let zone = place.settings.tiling.zone().clone();
    let governing = if is_in_use(place.folder) { Governing::Yes } else { Governing::No };
    let status = read(place)?;
    if let Some(path) = &args.prometheus {
        replace(path, &metrics::text(&status, governing))?;
    }
    answer(&if args.json {
        as_line(&told(&zone, &status, governing))
    } else {
        text(&zone, &status, governing)
    })
}

fn read(place: Place<'_>) -> Result<Status, Failure> {
    let last = &place.last;
    let now = Now { wall: last.at.wall, uptime: last.uptime, boot: last.boot };
    let samples = recent(place.folder, &place.settings, now).map_err(|error| place.unread(&error))?;
    let governor = Governor::resume(place.settings, &samples);
    let mut governor = governor.ok_or_else(|| {
        Failure::Failed(format!("the samples in {} have just gone; try again", place.folder.display()))
    })?;
    Ok(Status::of(&mut governor))
}

/// The wire form of a status.
#[derive(Serialize)]
pub(super) struct Told {
    at: String,
    running: bool,
    status: &'static str,
    risk: &'static str,
    used: Number,
    remaining: Number,
    total_quota: Number,
    applied_limit: Number,
    enforced_limit: Number,
    safe_limit: Number,
    trailing_limit: Number,
    trailing_used: Number,
    trailing_quota: Number,
    target_cpu: Number,
    average: Number,
    samples: u64,
    exceeded: u64,
    window_start: String,
    window_end: String,
    remaining_minutes: Number,
    unobserved_minutes: Number,
    is_starting: bool,
}

/// A status for programs.
pub(super) fn told(zone: &Zone, status: &Status, governing: Governing) -> Told {
    let outlook = &status.outlook;
    let (trailing_used, trailing_quota) = status.trailing;
    Told {
        at: shown::instant(zone, status.at()),
        running: governing == Governing::Yes,
        status: outlook.status.word(),
        risk: status.risk.word(),
        used: shown::quota(outlook.used),
        remaining: shown::quota(outlook.remaining),
        total_quota: shown::quota(outlook.total),
        applied_limit: shown::rate(status.applied),
        enforced_limit: shown::rate(in_force(status.applied)),
        safe_limit: shown::rate(outlook.safe_rate),
        trailing_limit: shown::rate(shown::at_most_all(status.trailing_limit)),
        trailing_used: shown::quota(trailing_used),
        trailing_quota: shown::quota(trailing_quota),
        target_cpu: shown::rate(outlook.target),
        average: shown::rate(status.average),
        samples: status.samples,
        exceeded: status.exceeded,
        window_start: shown::instant(zone, status.window.start),
        window_end: shown::instant(zone, status.window.end),
        remaining_minutes: shown::minutes(outlook.left),
        unobserved_minutes: shown::minutes(status.unobserved),
        is_starting: status.is_starting,
    }
}

fn text(zone: &Zone, status: &Status, governing: Governing) -> String {
    let outlook = &status.outlook;
    let (start, end) = (status.window.start, status.window.end);
    let at = shown::instant(zone, status.at());
    let (used, total) = (shown::short_quota(outlook.used), shown::short_quota(outlook.total));
    let (trailing_used, trailing_total) = status.trailing;
    let trailing_limit = shown::short_rate(shown::at_most_all(status.trailing_limit));
    let is_at_work = match governing {
        Governing::Yes => format!("yes, latest sample at {at}"),
        Governing::No => format!("no; this is how it stood at {at}"),
    };
    let mut standing = outlook.status.word().to_owned();
    if status.is_starting {
        standing.push_str("; little is known of this window yet");
    }
    shown::table(&[
        ("governing", is_at_work),
        ("window", format!("{} to {}", shown::instant(zone, start), shown::instant(zone, end))),
        ("time left", shown::short_minutes(outlook.left)),
        ("used", format!("{used} of {total}, risk {}", status.risk.word())),
        ("remaining", shown::short_quota(outlook.remaining)),
        ("average", shown::short_rate(status.average)),
        (
            "limit",
            format!(
                "{}, put in force as {}",
                shown::short_rate(status.applied),
                shown::short_rate(in_force(status.applied))
            ),
        ),
        ("safe limit", shown::short_rate(outlook.safe_rate)),
        ("trailing limit", trailing_limit),
        (
            "trailing window",
            format!("{} of {}", shown::short_quota(trailing_used), shown::short_quota(trailing_total)),
        ),
        ("target", shown::short_rate(outlook.target)),
        ("samples", format!("{}, {} above the limit", grouped(status.samples), grouped(status.exceeded))),
        ("not observed", shown::short_minutes(status.unobserved)),
        ("status", standing),
    ])
}
