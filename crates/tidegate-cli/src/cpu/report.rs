//! `tidegate cpu report`: a picture of what was used and what was allowed.

mod columns;
mod chart;
mod axis_ticks;

use std::time::Duration;

use serde::Serialize;
use tidegate_cpu::journal::{before, read_since};

use super::state_directory::Place;
use super::atomic_file::Replacement;
use super::format::{self, Number};
use crate::args::CpuReportArgs;
use crate::bench::number::counted;
use crate::store::as_line;
use crate::{Failure, answer};

use columns::Columns;
use chart::COLUMNS;

/// The wire form of what was drawn.
#[derive(Serialize)]
struct Told {
    svg: String,
    from: String,
    to: String,
    samples: u64,
    /// What was used, where somebody looked.
    average: Option<Number>,
    highest: Option<Number>,
    unobserved_minutes: Number,
}

/// Draws, and says what.
pub(super) fn run(args: &CpuReportArgs) -> Result<(), Failure> {
    let place = Place::open(&args.place)?;
    let mut svg = Replacement::begin_for("--svg", &args.svg)?;
    let to = place.last.at.wall;
    let since = before(to, Duration::from_secs(u64::from(args.hours) * 3600));
    let samples = read_since(place.folder, since).map_err(|error| place.unread(&error))?;
    let from = samples.first().map_or(to, |first| first.at.wall).max(since);
    let columns = Columns::of(&samples, from, to, COLUMNS);
    svg.write(chart::draw(&columns, &place.settings).as_bytes())?;
    svg.finish()?;
    let zone = place.settings.tiling.zone();
    let (from, to, svg) =
        (format::instant(zone, from), format::instant(zone, to), args.svg.display().to_string());
    let drawn = columns.samples();
    if args.json {
        let whole = columns.whole();
        return answer(&as_line(&Told {
            svg,
            from,
            to,
            samples: drawn,
            average: whole.mean().map(format::rate),
            highest: whole.range().map(|(_, highest)| format::rate(highest)),
            unobserved_minutes: format::minutes(whole.unseen()),
        }));
    }
    answer(&format!("drew {} from {from} to {to} into {svg}\n", counted(drawn, "sample", "samples")))
}
