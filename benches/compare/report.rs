//! The report: Markdown tables, and one JSON object per row and target if wanted. It has no colors, so piped
//! output looks the same. A figure with a target is reported as met or missed.

use serde_json::{Value, json};

use crate::args::CompareEffort;

/// The bound of a target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum TargetBound {
    AtLeast(f64),
    AtMost(f64),
}

/// Prints each row at once, and the targets at the end.
pub(crate) struct BenchReport {
    /// Whether standard output has JSON, and standard error the tables.
    is_json: bool,
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
    pub(crate) fn new(is_json: bool, effort: CompareEffort) -> BenchReport {
        BenchReport { is_json, effort, targets: Vec::new() }
    }

    /// Starts a table.
    pub(crate) fn table(&self, title: &str, columns: &[&str]) {
        self.line(&format!("\n{title}\n\n| {} |\n|{}", columns.join(" | "), "---|".repeat(columns.len())));
    }

    /// Prints the values of these columns, and the whole object as JSON.
    pub(crate) fn row(&self, columns: &[&str], object: &Value) {
        let cells: Vec<String> = columns.iter().map(|column| cell(&object[*column])).collect();
        self.line(&format!("| {} |", cells.join(" | ")));
        self.object(object);
    }

    fn line(&self, text: &str) {
        if self.is_json { eprintln!("{text}") } else { println!("{text}") }
    }

    fn object(&self, object: &Value) {
        if self.is_json {
            println!("{object}");
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
        if !self.targets.is_empty() {
            self.line(&format!("\nTargets{}\n", if quick { ", which a quick run cannot judge" } else { "" }));
        }
        for target in &self.targets {
            self.line(&format!("- {}", target.line()));
            self.object(&target.object(quick));
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
