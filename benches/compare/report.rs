//! The report: Markdown tables, or one JSON object per line. It has no colors, so piped output looks the
//! same. A figure with a target is reported as met or missed.

use serde_json::{Value, json};

use crate::args::CompareEffort;

/// The format of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// Markdown tables.
    Tables,
    /// One JSON object per row and per target.
    Json,
}

/// The bound of a target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum TargetBound {
    AtLeast(f64),
    AtMost(f64),
}

/// Prints each row at once, and the targets at the end.
pub(crate) struct BenchReport {
    format: Format,
    effort: CompareEffort,
    targets: Vec<BenchTarget>,
}

/// A figure and its target.
struct BenchTarget {
    scenario: String,
    figure: f64,
    /// The unit and meaning of the figure.
    measure: &'static str,
    bound: TargetBound,
}

impl BenchReport {
    pub(crate) fn new(format: Format, effort: CompareEffort) -> BenchReport {
        BenchReport { format, effort, targets: Vec::new() }
    }

    /// Starts a table.
    pub(crate) fn table(&self, title: &str, columns: &[&str]) {
        if self.format == Format::Tables {
            println!("\n{title}\n\n| {} |\n|{}", columns.join(" | "), "---|".repeat(columns.len()));
        }
    }

    /// Prints a row: the whole object, or its values of these columns.
    pub(crate) fn row(&self, columns: &[&str], object: &Value) {
        match self.format {
            Format::Tables => {
                let cells: Vec<String> = columns.iter().map(|column| cell(&object[*column])).collect();
                println!("| {} |", cells.join(" | "));
            }
            Format::Json => println!("{object}"),
        }
    }

    /// Adds a figure with a target. Returns `met` or `missed`.
    pub(crate) fn target(
        &mut self,
        scenario: String,
        figure: f64,
        measure: &'static str,
        bound: TargetBound,
    ) -> &'static str {
        let target = BenchTarget { scenario, figure, measure, bound };
        let verdict = target.verdict();
        self.targets.push(target);
        verdict
    }

    /// Prints all targets.
    pub(crate) fn finish(&self) {
        let quick = self.effort == CompareEffort::Quick;
        match self.format {
            Format::Json => self.targets.iter().for_each(|target| println!("{}", target.object(quick))),
            Format::Tables if self.targets.is_empty() => {}
            Format::Tables => {
                println!("\nTargets{}\n", if quick { ", which a quick run cannot judge" } else { "" });
                self.targets.iter().for_each(|target| println!("- {}", target.line()));
            }
        }
    }
}

impl BenchTarget {
    fn verdict(&self) -> &'static str {
        let is_met = match self.bound {
            TargetBound::AtLeast(bound) => self.figure >= bound,
            TargetBound::AtMost(bound) => self.figure <= bound,
        };
        if is_met { "met" } else { "missed" }
    }

    /// The JSON object. A quick run is marked, because it cannot judge targets.
    fn object(&self, quick: bool) -> Value {
        let BenchTarget { scenario, figure, measure, .. } = self;
        let (bound, value) = match self.bound {
            TargetBound::AtLeast(value) => ("at_least", value),
            TargetBound::AtMost(value) => ("at_most", value),
        };
        let met = self.verdict() == "met";
        json!({ "target": scenario, "figure": figure, "measure": measure, bound: value, "met": met, "quick": quick })
    }

    fn line(&self) -> String {
        let BenchTarget { scenario, figure, measure, .. } = self;
        let bound = match self.bound {
            TargetBound::AtLeast(value) => format!("at least {value}"),
            TargetBound::AtMost(value) => format!("at most {value}"),
        };
        format!("{scenario}: {} {measure} ({bound}: {})", number(*figure), self.verdict())
    }
}

/// A cell of a table. A figure with a spread is an object.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(figure) if figure.is_f64() => number(figure.as_f64().unwrap_or(f64::NAN)),
        Value::Object(_) => {
            format!("{} ±{:.0}%", cell(&value["ns"]), value["spread_percent"].as_f64().unwrap_or(f64::NAN))
        }
        other => other.to_string(),
    }
}

/// Two decimals for small figures and one for others.
fn number(figure: f64) -> String {
    if figure < 10.0 { format!("{figure:.2}") } else { format!("{figure:.1}") }
}
