//! `tidegate cpu report`: a chart of usage and limits.

mod axis_ticks;
mod chart;
mod columns;

use std::time::Duration;

use serde::Serialize;
use tidegate_cpu::journal::{before, read_since};

use super::atomic_file::AtomicFile;
use super::format::{self, JsonNumber};
use super::state_directory::StateDirectory;
use crate::args::CpuReportArgs;
use crate::bench::number::counted;
use crate::store::as_line;
use crate::{Failure, print_result};

use chart::COLUMNS;
use columns::ChartColumns;

/// The JSON summary of a chart.
#[derive(Serialize)]
struct CpuReportJson {
    svg: String,
    from: String,
    to: String,
    samples: u64,
    /// Average and maximum load of the observed time.
    average: Option<JsonNumber>,
    highest: Option<JsonNumber>,
    unobserved_minutes: JsonNumber,
}

/// Draws the chart and prints its summary.
pub(super) fn run(args: &CpuReportArgs) -> Result<(), Failure> {
    let state = StateDirectory::open(&args.state)?;
    let mut svg = AtomicFile::begin_for("--svg", &args.svg)?;
    let to = state.last.at.wall;
    let since = before(to, Duration::from_secs(u64::from(args.hours) * 3600));
    let samples = read_since(state.folder, since).map_err(|error| state.unreadable_samples(&error))?;
    let from = samples.first().map_or(to, |first| first.at.wall).max(since);
    let columns = ChartColumns::of(&samples, from, to, COLUMNS);
    svg.write(chart::draw(&columns, &state.settings).as_bytes())?;
    svg.finish()?;
    let zone = state.settings.schedule.zone();
    let (from, to, svg) =
        (format::instant(zone, from), format::instant(zone, to), args.svg.display().to_string());
    let drawn = columns.samples();
    if args.json {
        let whole = columns.whole();
        return print_result(&as_line(&CpuReportJson {
            svg,
            from,
            to,
            samples: drawn,
            average: whole.mean().map(format::rate),
            highest: whole.range().map(|(_, highest)| format::rate(highest)),
            unobserved_minutes: format::minutes(whole.unobserved()),
        }));
    }
    print_result(&format!("drew {} from {from} to {to} into {svg}\n", counted(drawn, "sample", "samples")))
}
