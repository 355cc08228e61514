//! Maximum lengths of files.
//!
//! Tests do not count: a long list of examples is easier to read than one that was split.

use std::path::Path;

use super::{SourceText, Violation};

const RUST: &str = "a Rust file has at most 600 lines without its tests";
const MAP: &str = "ARCHITECTURE.md has at most 200 lines";

const LONGEST_RUST: usize = 600;
const LONGEST_MAP: usize = 200;

pub(super) fn violations(text: &SourceText) -> Vec<Violation> {
    let (lines, longest, rule) = if text.path == Path::new("ARCHITECTURE.md") {
        (text.content.lines().count(), LONGEST_MAP, MAP)
    } else if text.is_rust() && !text.is_test() {
        (lines_before_tests(&text.content), LONGEST_RUST, RUST)
    } else {
        return Vec::new();
    };
    let too_long = lines > longest;
    too_long.then(|| Violation::of_file(&text.path, rule, format!("{lines} lines"))).into_iter().collect()
}

/// The number of lines before the test module at the end of a file.
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
        !violations(&text(path, &("x\n".repeat(lines) + after))).is_empty()
    }

    #[test]
    fn rust_file_over_600_lines_is_a_violation() {
        assert!(!is_too_long("a.rs", 600, ""));
        assert!(is_too_long("a.rs", 601, ""));
    }

    #[test]
    fn test_lines_do_not_count() {
        assert!(!is_too_long("tests/a.rs", 2000, ""));
        assert!(!is_too_long("a.rs", 600, "#[cfg(test)]\nmod tests {\n}\n"));
        assert!(is_too_long("a.rs", 601, "#[cfg(test)]\nmod tests {\n}\n"));
    }

    #[test]
    fn architecture_page_over_200_lines_is_a_violation() {
        assert!(!is_too_long("ARCHITECTURE.md", 200, ""));
        assert!(is_too_long("ARCHITECTURE.md", 201, ""));
        assert!(!is_too_long("docs/guide.md", 1000, ""));
    }
}
