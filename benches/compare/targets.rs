//! Targets for figures. Each one is reported as met or missed, as text and as JSON.

use std::fmt;

use serde_json::{Value, json};
use tidegate_bench::Measurements;

/// The meaning of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TargetMeasure {
    /// The decisions of Tidegate per decision of governor.
    SpeedupOverGovernor,
    /// The time of Tidegate relative to governor.
    ShareOfGovernor,
    BytesPerKey,
    MebibytesGrown,
    Milliseconds,
    /// The number of wrong results.
    Wrong,
}

/// The bound of a target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum TargetBound {
    AtLeast(f64),
    AtMost(f64),
    Below(f64),
}

/// A figure and its target.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BenchTarget {
    pub(crate) scenario: String,
    pub(crate) measure: TargetMeasure,
    pub(crate) bound: TargetBound,
    pub(crate) figure: f64,
}

impl TargetBound {
    fn is_met_by(self, figure: f64) -> bool {
        match self {
            TargetBound::AtLeast(target) => figure >= target,
            TargetBound::AtMost(target) => figure <= target,
            TargetBound::Below(target) => figure < target,
        }
    }
}

impl BenchTarget {
    /// Compares Tidegate with governor.
    pub(crate) fn against_governor(
        scenario: String,
        measure: TargetMeasure,
        bound: TargetBound,
        ours: &Measurements,
        governor: &Measurements,
    ) -> BenchTarget {
        let figure = match measure {
            TargetMeasure::SpeedupOverGovernor => ours.speedup_over(governor),
            _ => ours.time_relative_to(governor),
        };
        BenchTarget { scenario, measure, bound, figure }
    }

    pub(crate) fn is_met(&self) -> bool {
        self.bound.is_met_by(self.figure)
    }

    /// `met` or `missed`.
    fn word(&self) -> &'static str {
        if self.is_met() { "met" } else { "missed" }
    }

    /// The JSON object. A quick run is marked, because it cannot judge targets.
    pub(crate) fn object(&self, quick: bool) -> Value {
        let (measure, bound) = (self.measure, self.bound);
        let (bound, target) = match bound {
            TargetBound::AtLeast(target) => ("at_least", target),
            TargetBound::AtMost(target) => ("at_most", target),
            TargetBound::Below(target) => ("below", target),
        };
        json!({
            "scenario": self.scenario,
            "measure": measure.name(),
            "figure": self.figure,
            bound: target,
            "met": self.is_met(),
            "quick": quick,
        })
    }
}

impl TargetMeasure {
    fn name(self) -> &'static str {
        match self {
            TargetMeasure::SpeedupOverGovernor => "as_fast_as_governor",
            TargetMeasure::ShareOfGovernor => "share_of_governor",
            TargetMeasure::BytesPerKey => "bytes_per_key",
            TargetMeasure::MebibytesGrown => "mebibytes_grown",
            TargetMeasure::Milliseconds => "milliseconds",
            TargetMeasure::Wrong => "wrong",
        }
    }
}

impl fmt::Display for BenchTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BenchTarget { scenario, figure, .. } = self;
        match self.measure {
            TargetMeasure::SpeedupOverGovernor => {
                write!(f, "{scenario}: tidegate is {figure:.2}x as fast as governor")?;
            }
            TargetMeasure::ShareOfGovernor => {
                write!(f, "{scenario}: tidegate takes {figure:.2} of governor's time")?;
            }
            TargetMeasure::BytesPerKey => write!(f, "{scenario}: {figure:.1} bytes per key")?,
            TargetMeasure::MebibytesGrown => write!(f, "{scenario}: grew by {figure:.1} MiB")?,
            TargetMeasure::Milliseconds => write!(f, "{scenario}: {figure:.2} ms of own time")?,
            TargetMeasure::Wrong => write!(f, "{scenario}: {figure:.0} times")?,
        }
        let word = self.word();
        match self.bound {
            TargetBound::AtLeast(target) => write!(f, " (at least {target}: {word})"),
            TargetBound::AtMost(target) => write!(f, " (at most {target}: {word})"),
            TargetBound::Below(target) => write!(f, " (below {target}: {word})"),
        }
    }
}
