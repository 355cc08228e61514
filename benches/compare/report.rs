//! How figures are told: tables for people, an object a line for programs. No colours, so that a pipe needs no other form.

use serde_json::{Value, json};
use tidegate_bench::Figures;

/// What the report looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// Tables in Markdown.
    Tables,
    /// One JSON object for each figure.
    Json,
}

/// Tells what was measured as soon as it was.
pub(crate) struct Report {
    format: Format,
}

impl Report {
    pub(crate) fn new(format: Format) -> Report {
        Report { format }
    }

    /// Begins a table.
    pub(crate) fn head(&self, title: &str, columns: &[&str]) {
        if self.format == Format::Tables {
            println!("\n{title}\n\n| {} |\n|{}", columns.join(" | "), "---|".repeat(columns.len()));
        }
    }

    /// One line of it, or the same as an object.
    pub(crate) fn row(&self, cells: &[String], object: &Value) {
        match self.format {
            Format::Tables => println!("| {} |", cells.join(" | ")),
            Format::Json => println!("{object}"),
        }
    }

    /// The figures of one scenario for every subject, ours first.
    pub(crate) fn figures(&self, scenario: &str, threads: usize, all: &[Figures], columns: &[&str]) {
        let Some(ours) = all.first() else { return };
        let of = |name: &&str| all.iter().find(|figures| figures.subject == *name);
        let times = columns.iter().map(|name| of(name).map_or_else(dash, told));
        let ratios = columns.iter().skip(1);
        let ratios =
            ratios.map(|name| of(name).map_or_else(dash, |peer| format!("{:.2}", ours.relative_to(peer))));
        let cells: Vec<String> =
            [scenario.to_owned(), threads.to_string()].into_iter().chain(times).chain(ratios).collect();
        if self.format == Format::Tables {
            self.row(&cells, &Value::Null);
            return;
        }
        for figures in all {
            let (low, high) = figures.quarters();
            let object = json!({
                "scenario": scenario,
                "threads": threads,
                "subject": figures.subject,
                "ns_per_decision": figures.median(),
                "lower_quarter": low,
                "upper_quarter": high,
                "rounds": figures.rounds.len(),
                "granted_percent": figures.granted_percent,
                "tidegate_relative": ours.relative_to(figures),
            });
            self.row(&[], &object);
        }
    }
}

fn dash() -> String {
    "-".to_owned()
}

/// The median, and half the distance of the quarter points in per cent of it.
fn told(figures: &Figures) -> String {
    let (low, high) = figures.quarters();
    let median = figures.median();
    format!("{median:.0} ±{:.0}%", (high - low) / 2.0 / median * 100.0)
}
