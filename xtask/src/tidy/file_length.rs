//! How long a file may be before it is two.
//!
//! Tests are not counted: a long list of examples is easier to read than a short one that was cut.

use std::path::Path;

use super::{Breach, Text};

const RUST: &str = "a Rust file has at most 600 lines, tests aside";
const MAP: &str = "the map of the house has fewer than 250 lines";

const LONGEST_RUST: usize = 600;
const LONGEST_MAP: usize = 249;

pub(super) fn breaches(text: &Text) -> Vec<Breach> {
    let (lines, longest, rule) = if text.path == Path::new("ARCHITECTURE.md") {
        (text.content.lines().count(), LONGEST_MAP, MAP)
    } else if text.is_rust() && !text.is_test() {
        (lines_before_tests(&text.content), LONGEST_RUST, RUST)
    } else {
        return Vec::new();
    };
    let too_long = lines > longest;
    too_long.then(|| Breach::of_file(&text.path, rule, format!("{lines} lines"))).into_iter().collect()
}

/// How many lines come before the tests at the end of a file.
fn lines_before_tests(source: &str) -> usize {
    let lines: Vec<&str> = source.lines().collect();
    let begins_tests = |pair: &[&str]| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod tests");
    lines.windows(2).position(begins_tests).unwrap_or(lines.len())
}

#[cfg(test)]
mod tests {
    use super::super::tests::text;
    use super::*;

    fn is_too_long(path: &str, lines: usize, after: &str) -> bool {
        !breaches(&text(path, &("x\n".repeat(lines) + after))).is_empty()
    }

    #[test]
    fn rust_ends_at_six_hundred() {
        assert!(!is_too_long("a.rs", 600, ""));
        assert!(is_too_long("a.rs", 601, ""));
    }

    #[test]
    fn tests_are_not_counted() {
        assert!(!is_too_long("tests/a.rs", 2000, ""));
        assert!(!is_too_long("a.rs", 600, "#[cfg(test)]\nmod tests {\n}\n"));
        assert!(is_too_long("a.rs", 601, "#[cfg(test)]\nmod tests {\n}\n"));
    }

    #[test]
    fn the_map_ends_before_two_hundred_and_fifty() {
        assert!(!is_too_long("ARCHITECTURE.md", 249, ""));
        assert!(is_too_long("ARCHITECTURE.md", 250, ""));
        assert!(!is_too_long("docs/guide.md", 1000, ""));
    }
}
