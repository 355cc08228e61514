//! The report of a simulation, as text and as JSON.

use serde::Serialize;
use tidegate::budget::Quota;
use tidegate::model::Timestamp;
use tidegate_core::Zone;
use tidegate_cpu::GovernorSettings;
use tidegate_cpu::simulation::{CpuSimulationSummary, SimulatedWindow};

use crate::bench::number::grouped;
use crate::cpu::format::{self, JsonNumber};
use crate::remote::table;
use crate::store::as_line;

/// Results of a simulation.
#[derive(Debug)]
pub(super) struct SimulationReport {
    zone: Zone,
    average: tidegate::budget::Rate,
    from: Timestamp,
    to: Timestamp,
    outcome: CpuSimulationSummary,
    worst: tidegate::budget::Rate,
    /// In billionths of a percent.
    utilisation: Option<i128>,
    served: Option<i128>,
    windows: Vec<SimulatedWindow>,
}

impl SimulationReport {
    pub(super) fn of(
        settings: &GovernorSettings,
        from: Timestamp,
        to: Timestamp,
        outcome: &CpuSimulationSummary,
        windows: &[SimulatedWindow],
    ) -> SimulationReport {
        let whole = || windows.iter().filter(|window| window.is_whole);
        let used = whole().fold(Quota::ZERO, |sum, window| sum.plus(window.used));
        let allowed = whole().fold(Quota::ZERO, |sum, window| sum.plus(window.allowed));
        SimulationReport {
            zone: settings.schedule.zone().clone(),
            average: settings.terms.average,
            from,
            to,
            outcome: *outcome,
            worst: outcome.worst_trailing.rate_over(settings.schedule.nominal_length()),
            utilisation: format::part(used, allowed),
            served: format::part(outcome.used, outcome.demand),
            windows: windows.to_vec(),
        }
    }

    /// The report as JSON.
    pub(super) fn json(&self) -> String {
        let window = |window: &SimulatedWindow| WindowJson {
            start: format::instant(&self.zone, window.bounds.start),
            end: format::instant(&self.zone, window.bounds.end),
            average: format::rate(window.used.rate_over(window.bounds.length())),
            used: format::quota(window.used),
            quota: format::quota(window.allowed),
            of_quota: format::part(window.used, window.allowed).map(format::json_number),
            whole: window.is_whole,
        };
        as_line(&SimulationJson {
            from: format::instant(&self.zone, self.from),
            to: format::instant(&self.zone, self.to),
            avg_limit: format::rate(self.average),
            worst_trailing: format::rate(self.worst),
            utilisation: self.utilisation.map(format::json_number),
            demand_served: self.served.map(format::json_number),
            changes: self.outcome.changes,
            looks: self.outcome.samples,
            windows: self.windows.iter().map(window).collect(),
        })
    }

    /// The report as text.
    pub(super) fn text(&self) -> String {
        let percent = |billionths: Option<i128>| {
            billionths.map_or("-".to_owned(), |billionths| format!("{} %", format::short(billionths)))
        };
        let row = |window: &SimulatedWindow| {
            [
                format::instant(&self.zone, window.bounds.start),
                format::instant(&self.zone, window.bounds.end),
                format::short_rate(window.used.rate_over(window.bounds.length())),
                percent(format::part(window.used, window.allowed)),
                (if window.is_whole { "yes" } else { "no" }).to_owned(),
            ]
        };
        let rows: Vec<_> = self.windows.iter().map(row).collect();
        let mut text = table::lines(["START", "END", " AVERAGE", " OF QUOTA", "WHOLE"], &rows);
        text.push('\n');
        text.push_str(&format::table(&[
            ("limit", format!("{} on average", format::short_rate(self.average))),
            ("worst trailing average", format::short_rate(self.worst)),
            ("quota used in whole windows", percent(self.utilisation)),
            ("demand served", percent(self.served)),
            ("changes of the limit", grouped(self.outcome.changes)),
        ]));
        text
    }
}

/// The JSON form of a simulation.
#[derive(Serialize)]
struct SimulationJson {
    from: String,
    to: String,
    avg_limit: JsonNumber,
    worst_trailing: JsonNumber,
    utilisation: Option<JsonNumber>,
    demand_served: Option<JsonNumber>,
    changes: u64,
    looks: u64,
    windows: Vec<WindowJson>,
}

/// The JSON form of a window.
#[derive(Serialize)]
struct WindowJson {
    start: String,
    end: String,
    average: JsonNumber,
    used: JsonNumber,
    quota: JsonNumber,
    of_quota: Option<JsonNumber>,
    whole: bool,
}
