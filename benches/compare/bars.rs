//! Bars: what a figure must be. Each is told as met or missed, in words and in JSON.

use std::fmt;

use serde_json::{Value, json};
use tidegate_bench::Figures;

/// What a figure says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measure {
    /// How often Tidegate decides while governor decides once.
    AsFastAsGovernor,
    /// Tidegate's time as a share of governor's.
    ShareOfGovernor,
    BytesPerKey,
    MebibytesGrown,
    Milliseconds,
    /// How often something was said that is not so.
    Wrong,
}

/// How a figure must compare to its bar.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Need {
    AtLeast(f64),
    AtMost(f64),
    Below(f64),
}

/// A figure and its bar.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Bar {
    pub(crate) scenario: String,
    pub(crate) measure: Measure,
    pub(crate) need: Need,
    pub(crate) figure: f64,
}

impl Need {
    fn is_met_by(self, figure: f64) -> bool {
        match self {
            Need::AtLeast(bar) => figure >= bar,
            Need::AtMost(bar) => figure <= bar,
            Need::Below(bar) => figure < bar,
        }
    }
}

impl Bar {
    /// Tidegate beside governor, whatever the measure.
    pub(crate) fn beside(
        scenario: String,
        measure: Measure,
        need: Need,
        ours: &Figures,
        governor: &Figures,
    ) -> Bar {
        let figure = match measure {
            Measure::AsFastAsGovernor => ours.as_fast_as(governor),
            _ => ours.relative_to(governor),
        };
        Bar { scenario, measure, need, figure }
    }

    pub(crate) fn is_met(&self) -> bool {
        self.need.is_met_by(self.figure)
    }

    /// `met` or `missed`.
    fn word(&self) -> &'static str {
        if self.is_met() { "met" } else { "missed" }
    }

    /// As an object; a quick run judges nothing.
    pub(crate) fn object(&self, quick: bool) -> Value {
        let (measure, need) = (self.measure, self.need);
        let (need, bar) = match need {
            Need::AtLeast(bar) => ("at_least", bar),
            Need::AtMost(bar) => ("at_most", bar),
            Need::Below(bar) => ("below", bar),
        };
        json!({
            "scenario": self.scenario,
            "measure": measure.name(),
            "figure": self.figure,
            need: bar,
            "met": self.is_met(),
            "quick": quick,
        })
    }
}

impl Measure {
    fn name(self) -> &'static str {
        match self {
            Measure::AsFastAsGovernor => "as_fast_as_governor",
            Measure::ShareOfGovernor => "share_of_governor",
            Measure::BytesPerKey => "bytes_per_key",
            Measure::MebibytesGrown => "mebibytes_grown",
            Measure::Milliseconds => "milliseconds",
            Measure::Wrong => "wrong",
        }
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bar { scenario, figure, .. } = self;
        match self.measure {
            Measure::AsFastAsGovernor => {
                write!(f, "{scenario}: tidegate is {figure:.2}x as fast as governor")?;
            }
            Measure::ShareOfGovernor => {
                write!(f, "{scenario}: tidegate takes {figure:.2} of governor's time")?;
            }
            Measure::BytesPerKey => write!(f, "{scenario}: {figure:.1} bytes per key")?,
            Measure::MebibytesGrown => write!(f, "{scenario}: grew by {figure:.1} MiB")?,
            Measure::Milliseconds => write!(f, "{scenario}: {figure:.2} ms of own time")?,
            Measure::Wrong => write!(f, "{scenario}: {figure:.0} times")?,
        }
        let word = self.word();
        match self.need {
            Need::AtLeast(bar) => write!(f, " (at least {bar}: {word})"),
            Need::AtMost(bar) => write!(f, " (at most {bar}: {word})"),
            Need::Below(bar) => write!(f, " (below {bar}: {word})"),
        }
    }
}
