//! What a simulation is told as: a table for people, an object for programs.

use serde::Serialize;
use tidegate::Timestamp;
use tidegate::budget::Quota;
use tidegate_core::Zone;
use tidegate_cpu::Settings;
use tidegate_cpu::simulation::{Outcome, Window};

use crate::bench::number::grouped;
use crate::cpu::shown::{self, Number};
use crate::remote::table;
use crate::store::as_line;

/// What came of a simulation.
#[derive(Debug)]
pub(super) struct Told {
    zone: Zone,
    average: tidegate::budget::Rate,
    from: Timestamp,
    to: Timestamp,
    outcome: Outcome,
    worst: tidegate::budget::Rate,
    /// In billionths of a percent.
    utilisation: Option<i128>,
    served: Option<i128>,
    windows: Vec<Window>,
}

impl Told {
    pub(super) fn of(
        settings: &Settings,
        from: Timestamp,
        to: Timestamp,
        outcome: &Outcome,
        windows: &[Window],
    ) -> Told {
        let whole = || windows.iter().filter(|window| window.is_whole);
        let used = whole().fold(Quota::ZERO, |sum, window| sum.plus(window.used));
        let allowed = whole().fold(Quota::ZERO, |sum, window| sum.plus(window.allowed));
        Told {
            zone: settings.tiling.zone().clone(),
            average: settings.terms.average,
            from,
            to,
            outcome: *outcome,
            worst: outcome.worst_trailing.rate_over(settings.tiling.nominal_length()),
            utilisation: shown::part(used, allowed),
            served: shown::part(outcome.used, outcome.demand),
            windows: windows.to_vec(),
        }
    }

    /// For programs.
    pub(super) fn json(&self) -> String {
        let window = |window: &Window| WindowTold {
            start: shown::instant(&self.zone, window.tile.start),
            end: shown::instant(&self.zone, window.tile.end),
            average: shown::rate(window.used.rate_over(window.tile.length())),
            used: shown::quota(window.used),
            quota: shown::quota(window.allowed),
            of_quota: shown::part(window.used, window.allowed).map(shown::number),
            whole: window.is_whole,
        };
        as_line(&SimulationTold {
            from: shown::instant(&self.zone, self.from),
            to: shown::instant(&self.zone, self.to),
            avg_limit: shown::rate(self.average),
            worst_trailing: shown::rate(self.worst),
            utilisation: self.utilisation.map(shown::number),
            demand_served: self.served.map(shown::number),
            changes: self.outcome.changes,
            looks: self.outcome.looks,
            windows: self.windows.iter().map(window).collect(),
        })
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let percent = |billionths: Option<i128>| {
            billionths.map_or("-".to_owned(), |billionths| format!("{} %", shown::short(billionths)))
        };
        let row = |window: &Window| {
            [
                shown::instant(&self.zone, window.tile.start),
                shown::instant(&self.zone, window.tile.end),
                shown::short_rate(window.used.rate_over(window.tile.length())),
                percent(shown::part(window.used, window.allowed)),
                (if window.is_whole { "yes" } else { "no" }).to_owned(),
            ]
        };
        let rows: Vec<_> = self.windows.iter().map(row).collect();
        let mut text = table::lines(["START", "END", " AVERAGE", " OF QUOTA", "WHOLE"], &rows);
        text.push('\n');
        text.push_str(&shown::table(&[
            ("limit", format!("{} on average", shown::short_rate(self.average))),
            ("worst trailing average", shown::short_rate(self.worst)),
            ("quota used in whole windows", percent(self.utilisation)),
            ("demand served", percent(self.served)),
            ("changes of the limit", grouped(self.outcome.changes)),
        ]));
        text
    }
}

/// The wire form of a simulation.
#[derive(Serialize)]
struct SimulationTold {
    from: String,
    to: String,
    avg_limit: Number,
    worst_trailing: Number,
    utilisation: Option<Number>,
    demand_served: Option<Number>,
    changes: u64,
    looks: u64,
    windows: Vec<WindowTold>,
}

/// The wire form of a window.
#[derive(Serialize)]
struct WindowTold {
    start: String,
    end: String,
    average: Number,
    used: Number,
    quota: Number,
    of_quota: Option<Number>,
    whole: bool,
}
