//! `cargo xtask test`: everything that must be green, in steps that say how long they took.
//!
//! nextest runs the tests where it is installed, because it is faster and names what is slow; it does not run doc
//! tests, so cargo does those. Without it cargo runs everything. Either way the last line says how many tests ran: a
//! suite that has quietly become empty must not look green.

use std::process::Command;
use std::time::Instant;

use crate::database::Database;
use crate::process::{run_shown, succeeds};
use crate::{Outcome, clients, database, models, needs, tidy};

/// How much work the property tests are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Length {
    Usual,
    /// `TIDEGATE_LONG=1`: many more cases, and the models.
    Long,
}

/// How many tests ran, and how they ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
}

/// Runs every step; the first that fails ends the run.
pub(crate) fn run(length: Length) -> Outcome {
    let began = Instant::now();
    step("preflight", needs::meet)?;
    step("client libraries", clients::prepare)?;
    let database = step("database", Database::start)?;
    let tested = step("tests", || tests(length, &database));
    // It goes before anything is said of what failed.
    drop(database);
    let mut tally = tested?;
    match length {
        Length::Long => tally = tally.plus(step("models", models::run)?),
        Length::Usual => step("models compile", models::check)?,
    }
    step("tidy", tidy::run)?;
    println!("\n{tally}; all green in {:.1} s", began.elapsed().as_secs_f64());
    Ok(())
}

/// Announces a step, does it, and says how long it took.
fn step<T>(name: &str, work: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    println!("\n==> {name}");
    let began = Instant::now();
    let outcome = work();
    let verdict = if outcome.is_ok() { "ok" } else { "FAILED" };
    println!("<== {name}: {verdict}, {:.1} s", began.elapsed().as_secs_f64());
    outcome
}

fn tests(length: Length, database: &Database) -> Outcome<Tally> {
    let mut tally = Tally::default();
    for arguments in test_commands(has_nextest()) {
        let mut command = Command::new("cargo");
        command.args(*arguments).env(database::GIVEN, database.url());
        if length == Length::Long {
            command.env("TIDEGATE_LONG", "1");
        }
        let ended = run_shown(command)?;
        tally = tally.plus(Tally::read(&ended.output));
        if !ended.succeeded() {
            return Err(format!("`cargo {}` failed ({tally})", arguments.join(" ")).into());
        }
    }
    if tally.passed == 0 {
        return Err("no test ran".into());
    }
    println!("{tally}");
    Ok(tally)
}

/// The commands that together run every test once. Those of the benchmarks are left out: they would compile every peer,
/// a tenth of the whole, and hold nothing up that users see. The lints compile them too, so they cannot rot.
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

impl Tally {
    /// Adds up what runners say of themselves: cargo's line for each binary, nextest's for all of them.
    pub(crate) fn read(output: &str) -> Tally {
        output.lines().filter_map(Tally::of_line).fold(Tally::default(), Tally::plus)
    }

    fn of_line(line: &str) -> Option<Tally> {
        let line = line.trim_start();
        let (_, counts) = if line.starts_with("test result: ") {
            line.split_once(". ")?
        } else if line.starts_with("Summary [") {
            line.split_once(" run: ")?
        } else {
            return None;
        };
        let counts = without_asides(counts);
        Some(Tally {
            passed: count(&counts, "passed"),
            failed: count(&counts, "failed") + count(&counts, "timed out"),
            ignored: count(&counts, "ignored") + count(&counts, "skipped"),
        })
    }

    fn plus(self, other: Tally) -> Tally {
        Tally {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            ignored: self.ignored + other.ignored,
        }
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Tally { passed, failed, ignored } = self;
        write!(f, "{} tests ran: {passed} passed, {failed} failed; {ignored} not run", passed + failed)
    }
}

/// The number before a word in a list such as `3 passed; 1 exec failed`, added up.
fn count(list: &str, word: &str) -> u64 {
    let parts = list.split([',', ';']).map(str::trim).filter(|part| part.ends_with(word));
    parts.filter_map(|part| part.split(' ').next()?.parse::<u64>().ok()).sum()
}

/// The text without what is in parentheses: nextest tells there how many were slow.
fn without_asides(text: &str) -> String {
    let outside = text.split('(').enumerate().map(|(index, part)| match part.split_once(')') {
        Some((_, after)) if index > 0 => after,
        _ => part,
    });
    outside.map(str::trim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(passed: u64, failed: u64, ignored: u64) -> Tally {
        Tally { passed, failed, ignored }
    }

    #[test]
    fn cargo_says_it_once_for_each_binary() {
        let output = "running 3 tests\n\
            test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
            test result: FAILED. 1 passed; 2 failed; 4 ignored; 0 measured; 9 filtered out; finished in 0.00s\n";
        assert_eq!(Tally::read(output), tally(4, 2, 4));
    }

    #[test]
    fn nextest_says_it_once_with_asides() {
        let output = "     Summary [   0.2s] 7/9 tests run: 4 passed (1 slow, 2 leaky), 2 failed, 1 timed out, 5 skipped";
        assert_eq!(Tally::read(output), tally(4, 3, 5));
    }

    #[test]
    fn what_tests_print_is_not_counted() {
        assert_eq!(Tally::read("12 passed\nmy test result: ok. 5 passed"), Tally::default());
    }

    #[test]
    fn doc_tests_run_with_either_runner() {
        assert!(test_commands(true).iter().any(|command| command.contains(&"--doc")));
        assert!(
            !test_commands(false).iter().any(|command| command.contains(&"--doc")),
            "cargo runs them anyway"
        );
    }
}
