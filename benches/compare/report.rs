//! The report: Markdown tables, or one JSON object per line. It has no colors, so piped output looks the
//! same.

use serde_json::{Value, json};
use tidegate_bench::Measurements;

use crate::args::CompareEffort;
use crate::targets::BenchTarget;

/// The format of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// Markdown tables.
    Tables,
    /// One JSON object per figure.
    Json,
}

/// Prints each measurement at once, and the targets at the end.
pub(crate) struct BenchReport {
    format: Format,
    effort: CompareEffort,
    targets: Vec<BenchTarget>,
}

impl BenchReport {
    pub(crate) fn new(format: Format, effort: CompareEffort) -> BenchReport {
        BenchReport { format, effort, targets: Vec::new() }
    }

    /// Starts a table.
    pub(crate) fn head(&self, title: &str, columns: &[&str]) {
        if self.format == Format::Tables {
            println!("\n{title}\n\n| {} |\n|{}", columns.join(" | "), "---|".repeat(columns.len()));
        }
    }

    /// Prints a row of the table, or the object.
    pub(crate) fn row(&self, cells: &[String], object: &Value) {
        match self.format {
            Format::Tables => println!("| {} |", cells.join(" | ")),
            Format::Json => println!("{object}"),
        }
    }

    /// Adds a figure with a target.
    pub(crate) fn target(&mut self, target: BenchTarget) {
        self.targets.push(target);
    }

    /// Prints all targets.
    pub(crate) fn finish(&self) {
        match self.format {
            Format::Json => {
                let quick = self.effort == CompareEffort::Quick;
                self.targets.iter().for_each(|target| println!("{}", target.object(quick)));
            }
            Format::Tables if self.targets.is_empty() => {}
            Format::Tables => {
                let quick =
                    if self.effort == CompareEffort::Quick { ", which a quick run cannot judge" } else { "" };
                println!("\nTargets{quick}\n");
                self.targets.iter().for_each(|target| println!("- {target}"));
            }
        }
    }

    /// Prints one scenario for every subject, Tidegate first: the times, then Tidegate's speedup over each
    /// peer.
    pub(crate) fn figures(
        &self,
        scenario: &str,
        threads: usize,
        all: &[Measurements],
        columns: &[&str],
        peers: &[&str],
    ) {
        let Some(ours) = all.first() else { return };
        let of = |name: &str| all.iter().find(|figures| figures.subject == name);
        let times = columns.iter().map(|name| of(name).map_or_else(dash, median_cell));
        let ratios = peers
            .iter()
            .map(|name| of(name).map_or_else(dash, |peer| format!("{:.2}x", ours.speedup_over(peer))));
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
                "tidegate_as_fast": ours.speedup_over(figures),
            });
            self.row(&[], &object);
        }
    }
}

fn dash() -> String {
    "-".to_owned()
}

/// The median, and half of the interquartile range as a percentage of it.
fn median_cell(figures: &Measurements) -> String {
    let (low, high) = figures.quarters();
    let median = figures.median();
    format!("{median:.1} ±{:.0}%", (high - low) / 2.0 / median * 100.0)
}
