//! A strict parser of the Prometheus text format 0.0.4: panics on everything that a scraper might reject.

use std::collections::{BTreeMap, BTreeSet};

/// A page as families by name.
pub(crate) struct ParsedPage {
    families: BTreeMap<String, ParsedFamily>,
}

#[derive(Debug)]
struct ParsedFamily {
    kind: String,
    samples: Vec<ParsedSample>,
}

#[derive(Debug)]
struct ParsedSample {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

impl ParsedPage {
    /// Parses a page, or panics.
    #[track_caller]
    pub(crate) fn read(text: &str) -> ParsedPage {
        assert!(text.ends_with('\n'), "the last line ends");
        let mut families: BTreeMap<String, ParsedFamily> = BTreeMap::new();
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            let (name, help) = line
                .strip_prefix("# HELP ")
                .and_then(|rest| rest.split_once(' '))
                .unwrap_or_else(|| panic!("a family begins with its help: {line}"));
            assert!(is_name(name) && !help.is_empty() && !help.contains('\\'), "{line}");
            let kind = lines
                .next()
                .and_then(|line| line.strip_prefix("# TYPE ")?.strip_prefix(name)?.strip_prefix(' '));
            let kind = kind.unwrap_or_else(|| panic!("{name} says its type")).to_owned();
            assert!(["counter", "gauge", "histogram"].contains(&&*kind), "{name}: {kind}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
            let mut samples = Vec::new();
            while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
                samples.push(sample(line));
            }
            let family = ParsedFamily { kind, samples };
            family.check(name);
            assert!(families.insert(name.to_owned(), family).is_none(), "{name} is there twice");
        }
        ParsedPage { families }
    }

    /// The value of the sample with this name and exactly these labels.
    #[track_caller]
    pub(crate) fn get(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.find(name, labels).unwrap_or_else(|| panic!("no {name} {labels:?}"))
    }

    /// The same; `None` if it is missing.
    pub(crate) fn find(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let has = |sample: &&ParsedSample| {
            sample.name == name
                && sample.labels.len() == labels.len()
                && labels.iter().all(|(name, value)| {
                    sample.labels.iter().any(|(other, actual)| other == name && actual == value)
                })
        };
        self.families.values().flat_map(|family| &family.samples).find(has).map(|sample| sample.value)
    }

    /// All values of this label, over all families.
    pub(crate) fn values(&self, label: &str) -> BTreeSet<&str> {
        let samples = self.families.values().flat_map(|family| &family.samples);
        let labels = samples.flat_map(|sample| &sample.labels);
        labels.filter(|(name, _)| name == label).map(|(_, value)| value.as_str()).collect()
    }

    /// The names of the families.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.families.keys().map(String::as_str)
    }
}

impl ParsedFamily {
    fn check(&self, name: &str) {
        assert!(!self.samples.is_empty(), "{name} is about nothing");
        let mut seen = BTreeSet::new();
        for sample in &self.samples {
            let mut labels = sample.labels.clone();
            labels.sort();
            assert!(labels.windows(2).all(|two| two[0].0 != two[1].0), "{sample:?} has a label twice");
            assert!(seen.insert((&sample.name, labels)), "{sample:?} is there twice");
            assert!(sample.value.is_finite(), "{sample:?}");
            if self.kind != "gauge" {
                assert!(sample.value >= 0.0, "{sample:?}");
            }
        }
        if self.kind == "histogram" {
            self.check_histogram(name);
        } else {
            assert!(self.samples.iter().all(|sample| sample.name == name), "{name} has parts");
        }
    }

    /// For every label set: cumulative buckets up to `+Inf`, then a sum, and a count equal to the last bucket.
    fn check_histogram(&self, name: &str) {
        let mut rest = &self.samples[..];
        while !rest.is_empty() {
            let buckets = rest.iter().take_while(|sample| sample.name == format!("{name}_bucket")).count();
            let (first, after) = rest.split_at(buckets);
            let [sum, count, after @ ..] = after else { panic!("{name} ends too early") };
            assert_eq!((&*sum.name, &*count.name), (&*format!("{name}_sum"), &*format!("{name}_count")));
            let mut bounds = Vec::new();
            for bucket in first {
                let (labels, bound): (Vec<_>, Vec<_>) =
                    bucket.labels.iter().cloned().partition(|(label, _)| label != "le");
                assert_eq!((&labels, &labels), (&sum.labels, &count.labels), "{name}");
                assert_eq!(bound.len(), 1, "{name}");
                let bound = if bound[0].1 == "+Inf" { f64::INFINITY } else { number(&bound[0].1) };
                bounds.push((bound, bucket.value));
            }
            assert!(bounds.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1), "{bounds:?}");
            assert_eq!(bounds.last(), Some(&(f64::INFINITY, count.value)), "{name}");
            rest = after;
        }
    }
}

fn is_name(name: &str) -> bool {
    name.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '_')
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

fn number(text: &str) -> f64 {
    let plain = text.chars().all(|letter| letter.is_ascii_digit() || letter == '.');
    assert!(plain, "{text} is not a plain number");
    text.parse().unwrap_or_else(|_| panic!("{text} is not a number"))
}

fn sample(line: &str) -> ParsedSample {
    let end = line.find(['{', ' ']).unwrap_or_else(|| panic!("no value: {line}"));
    let (name, rest) = line.split_at(end);
    assert!(is_name(name), "{line}");
    let (labels, value) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest),
        None => (Vec::new(), rest),
    };
    let value = value.strip_prefix(' ').unwrap_or_else(|| panic!("no space before the value: {line}"));
    ParsedSample { name: name.to_owned(), labels, value: number(value) }
}

/// The labels after an opening brace, and the text after the closing one.
fn labels(mut rest: &str) -> (Vec<(String, String)>, &str) {
    let mut labels = Vec::new();
    loop {
        let (name, after) = rest.split_once("=\"").unwrap_or_else(|| panic!("no label: {rest}"));
        assert!(is_name(name), "{rest}");
        let (value, after) = quoted(after);
        labels.push((name.to_owned(), value));
        match after.split_at_checked(1) {
            Some((",", after)) => rest = after,
            Some(("}", after)) => return (labels, after),
            _ => panic!("labels end badly: {after}"),
        }
    }
}

fn quoted(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return (value, &text[at + 1..]),
            '\\' => value.push(match letters.next() {
                Some((_, '\\')) => '\\',
                Some((_, '"')) => '"',
                Some((_, 'n')) => '\n',
                other => panic!("no such escape: {other:?}"),
            }),
            letter => value.push(letter),
        }
    }
    panic!("no closing quote: {text}")
}

#[test]
#[should_panic(expected = "is there twice")]
fn repeated_samples_are_rejected() {
    ParsedPage::read("# HELP a A.\n# TYPE a gauge\na{x=\"1\"} 1\na{x=\"1\"} 2\n");
}

#[test]
#[should_panic(expected = "is there twice")]
fn split_families_are_rejected() {
    ParsedPage::read(
        "# HELP a A.\n# TYPE a gauge\na 1\n# HELP b B.\n# TYPE b gauge\nb 1\n# HELP a A.\n# TYPE a gauge\na{x=\"1\"} 1\n",
    );
}

#[test]
#[should_panic(expected = "[(1.0, 2.0), (inf, 1.0)]")]
fn falling_buckets_are_rejected() {
    ParsedPage::read(
        "# HELP a A.\n# TYPE a histogram\na_bucket{le=\"1\"} 2\na_bucket{le=\"+Inf\"} 1\na_sum 1\na_count 1\n",
    );
}
