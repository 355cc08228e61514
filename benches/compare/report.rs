//! How figures are told: tables for people, an object a line for programs. No colours, so that a pipe needs no other form.

use serde_json::{Value, json};
use tidegate_bench::Figures;

use crate::args::Effort;
use crate::bars::Bar;

/// What the report looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// Tables in Markdown.
    Tables,
    /// One JSON object for each figure.
    Json,
}

/// Tells what was measured as soon as it was, and which bars were met at the end.
pub(crate) struct Report {
    format: Format,
    effort: Effort,
    bars: Vec<Bar>,
}

impl Report {
    pub(crate) fn new(format: Format, effort: Effort) -> Report {
        Report { format, effort, bars: Vec::new() }
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

    /// A figure that has a bar; it is told at the end.
    pub(crate) fn bar(&mut self, bar: Bar) {
        self.bars.push(bar);
    }

    /// Tells all bars.
    pub(crate) fn finish(&self) {
        match self.format {
            Format::Json => {
                let quick = self.effort == Effort::Quick;
                self.bars.iter().for_each(|bar| println!("{}", bar.object(quick)));
            }
            Format::Tables if self.bars.is_empty() => {}
            Format::Tables => {
                let quick =
                    if self.effort == Effort::Quick { ", which a quick run cannot judge" } else { "" };
                println!("\nBars{quick}\n");
                self.bars.iter().for_each(|bar| println!("- {bar}"));
            }
        }
    }

    /// The figures of one scenario for every subject, ours first: the times in these columns, then how much faster than
    /// each peer we are.
    pub(crate) fn figures(
        &self,
        scenario: &str,
        threads: usize,
        all: &[Figures],
        columns: &[&str],
        peers: &[&str],
    ) {
        let Some(ours) = all.first() else { return };
        let of = |name: &str| all.iter().find(|figures| figures.subject == name);
        let times = columns.iter().map(|name| of(name).map_or_else(dash, told));
        let ratios = peers
            .iter()
            .map(|name| of(name).map_or_else(dash, |peer| format!("{:.2}x", ours.as_fast_as(peer))));
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
                "tidegate_as_fast": ours.as_fast_as(figures),
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
    format!("{median:.1} ±{:.0}%", (high - low) / 2.0 / median * 100.0)
}
