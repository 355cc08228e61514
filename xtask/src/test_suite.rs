//! `cargo xtask test`: prerequisites, every test, the fast models and the repository rules, with the time of each step.
//!
//! nextest runs the tests if it is installed, because it is faster and reports slow tests. nextest does not run doc tests, so
//! cargo runs those. Without nextest cargo runs everything. The last line counts passed, failed and skipped tests. A run
//! that executes no test fails.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Instant;

use crate::database::Database;
use crate::process::{run_shown, succeeds};
use crate::skipped_tests::{self, SkippedTestsFile};
use crate::workspace::Workspace;
use crate::{TaskResult, database, models, prerequisites, python_clients, tidy};

/// How many cases the property tests run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TestLength {
    Usual,
    /// Sets `TIDEGATE_LONG=1`: many more cases, long stress tests, and every model.
    Long,
}

/// How many tests ran, and how they ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct TestCounts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

/// Runs every step and stops at the first failure.
pub(crate) fn run(length: TestLength) -> TaskResult {
    let began = Instant::now();
    let skipped = SkippedTestsFile::create(&Workspace::load()?.target)?;
    step("prerequisites", prerequisites::ensure)?;
    step("client libraries", python_clients::prepare)?;
    let database = step("database", Database::start)?;
    let tested = step("tests", || run_tests(length, &database, &skipped));
    drop(database);
    let models = match length {
        TestLength::Usual => models::run_fast,
        TestLength::Long => models::run_all,
    };
    let counts = tested?.plus(step("models", models)?);
    step("tidy", tidy::run)?;
    let skipped = skipped.read()?;
    print_skipped(&skipped);
    println!("\nall green in {:.1} s", began.elapsed().as_secs_f64());
    println!("{}", counts.with_skipped(&skipped));
    Ok(())
}

/// Lists the tests that could not run here.
fn print_skipped(skipped: &BTreeMap<String, String>) {
    for (name, reason) in skipped {
        println!("skipped  {name}: {reason}");
    }
}

/// Prints a step's name, runs it, and prints how long it took.
fn step<T>(name: &str, work: impl FnOnce() -> TaskResult<T>) -> TaskResult<T> {
    println!("\n==> {name}");
    let began = Instant::now();
    let result = work();
    let verdict = if result.is_ok() { "ok" } else { "FAILED" };
    println!("<== {name}: {verdict}, {:.1} s", began.elapsed().as_secs_f64());
    result
}

fn run_tests(length: TestLength, database: &Database, skipped: &SkippedTestsFile) -> TaskResult<TestCounts> {
    let mut counts = TestCounts::default();
    for arguments in test_commands(has_nextest()) {
        let mut command = Command::new("cargo");
        command.args(*arguments).env(database::URL_VARIABLE, database.url());
        command.env(skipped_tests::VARIABLE, skipped.path());
        if length == TestLength::Long {
            command.env("TIDEGATE_LONG", "1");
        }
        let ended = run_shown(command)?;
        counts = counts.plus(TestCounts::read(&ended.output));
        if !ended.succeeded() {
            return Err(format!("`cargo {}` failed ({counts})", arguments.join(" ")).into());
        }
    }
    if counts.passed == 0 {
        return Err("no test ran".into());
    }
    Ok(counts)
}

/// The commands that together run every test once. The tests of the benchmarks are excluded because they compile every
/// peer, a tenth of the whole build; clippy still compiles them.
fn test_commands(has_nextest: bool) -> &'static [&'static [&'static str]] {
    if has_nextest {
        &[
            &["nextest", "run", "--workspace", "--exclude", "tidegate-bench", "--locked"],
            &["test", "--workspace", "--exclude", "tidegate-bench", "--doc", "--locked"],
        ]
    } else {
        &[&["test", "--workspace", "--exclude", "tidegate-bench", "--locked"]]
    }
}

fn has_nextest() -> bool {
    succeeds(Command::new("cargo").args(["nextest", "--version"]))
}

impl TestCounts {
    /// Adds up the summaries of the runners: one line per binary from cargo, one line in all from nextest.
    pub(crate) fn read(output: &str) -> TestCounts {
        output.lines().filter_map(TestCounts::of_line).fold(TestCounts::default(), TestCounts::plus)
    }

    fn of_line(line: &str) -> Option<TestCounts> {
        let line = line.trim_start();
        let (_, counts) = if line.starts_with("test result: ") {
            line.split_once(". ")?
        } else if line.starts_with("Summary [") {
            line.split_once(" run: ")?
        } else {
            return None;
        };
        let counts = without_parentheses(counts);
        Some(TestCounts {
            passed: count(&counts, "passed"),
            failed: count(&counts, "failed") + count(&counts, "timed out"),
            skipped: count(&counts, "ignored") + count(&counts, "skipped"),
        })
    }

    fn plus(self, other: TestCounts) -> TestCounts {
        TestCounts {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            skipped: self.skipped + other.skipped,
        }
    }

    /// Moves tests that returned early because they cannot run here from `passed` to `skipped`.
    fn with_skipped(self, skipped: &BTreeMap<String, String>) -> TestCounts {
        let skipped = skipped.len() as u64;
        TestCounts { passed: self.passed.saturating_sub(skipped), skipped: self.skipped + skipped, ..self }
    }
}

impl std::fmt::Display for TestCounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TestCounts { passed, failed, skipped } = self;
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

/// The sum of the numbers before a word in a list such as `3 passed; 1 exec failed`.
fn count(list: &str, word: &str) -> u64 {
    let parts = list.split([',', ';']).map(str::trim).filter(|part| part.ends_with(word));
    parts.filter_map(|part| part.split(' ').next()?.parse::<u64>().ok()).sum()
}

/// The text without parentheses and their content: nextest reports slow tests there.
fn without_parentheses(text: &str) -> String {
    let outside = text.split('(').enumerate().map(|(index, part)| match part.split_once(')') {
        Some((_, after)) if index > 0 => after,
        _ => part,
    });
    outside.map(str::trim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(passed: u64, failed: u64, skipped: u64) -> TestCounts {
        TestCounts { passed, failed, skipped }
    }

    #[test]
    fn cargo_summaries_of_all_binaries_are_added() {
        let output = "running 3 tests\n\
            test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
            test result: FAILED. 1 passed; 2 failed; 4 ignored; 0 measured; 9 filtered out; finished in 0.00s\n";
        assert_eq!(TestCounts::read(output), counts(4, 2, 4));
    }

    #[test]
    fn nextest_summary_with_parentheses_is_read() {
        let output = "     Summary [   0.2s] 7/9 tests run: 4 passed (1 slow, 2 leaky), 2 failed, 1 timed out, 5 skipped";
        assert_eq!(TestCounts::read(output), counts(4, 3, 5));
    }

    #[test]
    fn output_of_tests_is_not_counted() {
        assert_eq!(TestCounts::read("12 passed\nmy test result: ok. 5 passed"), TestCounts::default());
    }

    #[test]
    fn doc_tests_run_with_and_without_nextest() {
        assert!(test_commands(true).iter().any(|command| command.contains(&"--doc")));
        assert!(
            !test_commands(false).iter().any(|command| command.contains(&"--doc")),
            "cargo runs them anyway"
        );
    }

    #[test]
    fn skipped_tests_are_not_passed_tests() {
        let skipped = BTreeMap::from([("a".to_owned(), "not root".to_owned())]);
        assert_eq!(counts(5, 0, 1).with_skipped(&skipped).to_string(), "4 passed, 0 failed, 2 skipped");
    }
}
