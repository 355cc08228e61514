//! The text exposition format of Prometheus, version 0.0.4.
//!
//! A family borrows the page while it is written, so its samples stay together. `HELP` and `TYPE` are written with the first sample:
//! a family without samples leaves no trace.

use std::fmt::{Display, Write};

/// The media type of the format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// Only rises.
    Counter,
    /// Rises and falls.
    Gauge,
    /// Counts per bucket.
    Histogram,
}

/// Name and value of a label.
pub type MetricLabel<'a> = (&'static str, &'a str);

/// The page written so far.
#[derive(Debug, Default)]
pub struct MetricsPage {
    text: String,
}

impl MetricsPage {
    /// Begins a metric family.
    pub fn family(&mut self, name: &'static str, kind: MetricKind, help: &'static str) -> MetricFamily<'_> {
        MetricFamily { page: self, name, kind, help: Some(help) }
    }

    /// The text of the page.
    pub fn into_text(self) -> String {
        self.text
    }

    fn write(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing into a string does not fail.
        let _never_fails = self.text.write_fmt(text);
    }
}

/// A metric family that is being written.
#[derive(Debug)]
pub struct MetricFamily<'p> {
    page: &'p mut MetricsPage,
    name: &'static str,
    kind: MetricKind,
    /// The help text, until it is written.
    help: Option<&'static str>,
}

impl MetricFamily<'_> {
    /// Writes one sample.
    pub fn sample(&mut self, labels: &[MetricLabel<'_>], value: impl Display) {
        self.sample_with_suffix("", labels, value);
    }

    /// Writes one sample of a histogram, with a suffix such as `_bucket`.
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

/// Escapes the value of a label.
fn escape(text: &mut String, value: &str) {
    for c in value.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            c => text.push(c),
        }
    }
}

/// Nanoseconds, displayed in seconds exactly and without floating point.
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
    fn family_header_is_written_once_and_only_with_samples() {
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
    fn label_values_are_escaped() {
        let mut page = MetricsPage::default();
        page.family("a", MetricKind::Gauge, "A.").sample(&[("x", "\"\\\n \u{e9}")], 1);
        assert!(page.into_text().ends_with("a{x=\"\\\"\\\\\\n \u{e9}\"} 1\n"));
    }

    #[test]
    fn seconds_are_displayed_exactly() {
        let texts = [0, 1, 1_000, 2_500_000, 1_000_000_000, 10_020_000_000]
            .map(|nanos| NanosAsSeconds(nanos).to_string());
        assert_eq!(texts, ["0", "0.000000001", "0.000001", "0.0025", "1", "10.02"]);
    }
}
