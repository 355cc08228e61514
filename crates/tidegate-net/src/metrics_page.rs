//! The text format: families of samples, each with what it is and what kind of thing.
//!
//! A family is written in one piece, because a borrow of the page is what writes it; its two lines of introduction come with its
//! first sample, so that there are none about nothing.

use std::fmt::{Display, Write};

/// The media type of a page.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What kind of thing a family is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// It only rises.
    Counter,
    /// It is as it is now.
    Gauge,
    /// Counts below bounds.
    Histogram,
}

/// A label: its name and its value.
pub type MetricLabel<'a> = (&'static str, &'a str);

/// The text so far.
#[derive(Debug, Default)]
pub struct MetricsPage {
    text: String,
}

impl MetricsPage {
    /// Begins a family.
    pub fn family(&mut self, name: &'static str, kind: MetricKind, help: &'static str) -> MetricFamily<'_> {
        MetricFamily { page: self, name, kind, help: Some(help) }
    }

    /// The whole text.
    pub fn into_text(self) -> String {
        self.text
    }

    fn write(&mut self, said: std::fmt::Arguments<'_>) {
        // A string takes everything.
        let _never_fails = self.text.write_fmt(said);
    }
}

/// A family that is being written.
#[derive(Debug)]
pub struct MetricFamily<'p> {
    page: &'p mut MetricsPage,
    name: &'static str,
    kind: MetricKind,
    /// What it is, until that is said.
    help: Option<&'static str>,
}

impl MetricFamily<'_> {
    /// One sample.
    pub fn sample(&mut self, labels: &[MetricLabel<'_>], value: impl Display) {
        self.sample_with_suffix("", labels, value);
    }

    /// One sample of a histogram's parts.
    pub fn sample_with_suffix(&mut self, suffix: &str, labels: &[MetricLabel<'_>], value: impl Display) {
        if let Some(help) = self.help.take() {
            let kind = match self.kind {
                MetricKind::Counter => "counter",
                MetricKind::Gauge => "gauge",
                MetricKind::Histogram => "histogram",
            };
            let name = self.name;
            self.page.write(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
        }
        self.page.write(format_args!("{}{suffix}", self.name));
        let mut opening = '{';
        for (name, value) in labels {
            self.page.write(format_args!("{opening}{name}=\""));
            escape(&mut self.page.text, value);
            self.page.text.push('"');
            opening = ',';
        }
        self.page.text.push_str(if labels.is_empty() { " " } else { "} " });
        self.page.write(format_args!("{value}\n"));
    }
}

/// The value of a label, between its quotes.
fn escape(text: &mut String, value: &str) {
    for letter in value.chars() {
        match letter {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            letter => text.push(letter),
        }
    }
}

/// So many nanoseconds, said in seconds to the last digit and without floating point.
#[derive(Debug, Clone, Copy)]
pub struct NanosAsSeconds(pub u128);

impl Display for NanosAsSeconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (whole, rest) = (self.0 / 1_000_000_000, self.0 % 1_000_000_000);
        if rest == 0 {
            return write!(f, "{whole}");
        }
        let digits = format!("{rest:09}");
        write!(f, "{whole}.{}", digits.trim_end_matches('0'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_introduced_once_and_only_if_there_is_something_of_it() {
        let mut page = MetricsPage::default();
        let mut family = page.family("a_total", MetricKind::Counter, "What is counted.");
        family.sample(&[("x", "1"), ("y", "")], 2);
        family.sample(&[], 3);
        page.family("b", MetricKind::Gauge, "Nothing.");
        assert_eq!(
            page.into_text(),
            "# HELP a_total What is counted.\n# TYPE a_total counter\na_total{x=\"1\",y=\"\"} 2\na_total 3\n"
        );
    }

    #[test]
    fn quotes_backslashes_and_ends_of_lines_are_escaped() {
        let mut page = MetricsPage::default();
        page.family("a", MetricKind::Gauge, "A.").sample(&[("x", "\"\\\n \u{e9}")], 1);
        assert!(page.into_text().ends_with("a{x=\"\\\"\\\\\\n \u{e9}\"} 1\n"));
    }

    #[test]
    fn seconds_are_exact() {
        let said =
            [0, 1, 1_000, 2_500_000, 1_000_000_000, 10_020_000_000].map(|nanos| NanosAsSeconds(nanos).to_string());
        assert_eq!(said, ["0", "0.000000001", "0.000001", "0.0025", "1", "10.02"]);
    }
}
