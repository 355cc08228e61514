//! `cargo xtask instructions`: instructions per decision on each hot path, compared with `benches/instructions.txt`.
//!
//! Valgrind runs `benches/examples/instructions.rs` once per path and counts only its function `walk`. The counts depend on
//! the compiler and the build, not on the load of the machine, so a difference is a difference of the code. They do not
//! include cache misses. `--save` rewrites the file. A benchmark framework with its own runner would add nothing to the one
//! number that valgrind prints.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use crate::TaskResult;
use crate::process::{exists, run_shown};
use crate::workspace::Workspace;

const EXAMPLE: &str = "instructions";
const BASELINE: &str = "benches/instructions.txt";

/// What to do with the counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CountsMode {
    /// Compare them with the baseline.
    Compare,
    /// Compare them and replace the baseline.
    Save,
}

/// Instructions per decision of each path, in tenths.
type PathCounts = Vec<(String, u64)>;

pub(crate) fn run(mode: CountsMode) -> TaskResult {
    if !exists("valgrind") {
        return Err("valgrind is missing (Debian: apt-get install valgrind)".into());
    }
    let workspace = Workspace::load()?;
    let mut build = Command::new("cargo");
    build.args(["build", "--release", "--locked", "--package", "tidegate-bench", "--example", EXAMPLE]);
    build.current_dir(&workspace.root);
    if !run_shown(build)?.succeeded() {
        return Err("the release build failed".into());
    }
    let program = workspace.target.join("release/examples").join(EXAMPLE);
    let file = workspace.root.join(BASELINE);
    let baseline = std::fs::read_to_string(&file).map_or_else(|_| PathCounts::new(), |text| parse(&text));
    let now = counts(&program)?;
    println!("\n{}", table(&baseline, &now));
    if mode == CountsMode::Save {
        std::fs::write(&file, format_counts(&now))?;
        println!("\nwritten to {BASELINE}");
    }
    Ok(())
}

fn counts(program: &Path) -> TaskResult<PathCounts> {
    let list = Command::new(program).output()?;
    let list = String::from_utf8(list.stdout)?;
    let paths = list.lines().filter_map(|line| line.split_once(' '));
    paths
        .map(|(name, decisions)| {
            Ok((name.to_owned(), count(program, name)? * 10 / decisions.parse::<u64>()?))
        })
        .collect()
}

/// The instructions of one path.
fn count(program: &Path, path: &str) -> TaskResult<u64> {
    let mut valgrind = Command::new("valgrind");
    // The pattern matches the mangled name.
    valgrind.args([
        "--tool=callgrind",
        "--callgrind-out-file=/dev/null",
        "--toggle-collect=*instructions*walk*",
    ]);
    valgrind.arg(program).arg(path);
    let output = valgrind.output()?;
    let report = String::from_utf8_lossy(&output.stderr);
    match collected(&report) {
        Some(count) if output.status.success() && count > 0 => Ok(count),
        _ => Err(format!("valgrind did not report a count for {path}:\n{report}").into()),
    }
}

/// The number after `Collected :`.
fn collected(report: &str) -> Option<u64> {
    let (_, number) = report.lines().find_map(|line| line.split_once("Collected : "))?;
    number.trim().parse().ok()
}

/// Parses lines of a name and a count with one decimal.
fn parse(text: &str) -> PathCounts {
    let line = |line: &str| {
        let (name, count) = line.split_once(' ')?;
        let (whole, tenths) = count.trim().split_once('.')?;
        Some((name.to_owned(), whole.parse::<u64>().ok()? * 10 + tenths.parse::<u64>().ok()?))
    };
    text.lines().filter_map(line).collect()
}

fn format_counts(counts: &PathCounts) -> String {
    counts.iter().fold(String::new(), |mut text, (name, count)| {
        writeln!(text, "{name:<22} {}.{}", count / 10, count % 10).expect("writing to a String cannot fail");
        text
    })
}

fn table(before: &PathCounts, now: &PathCounts) -> String {
    let mut text =
        String::from("| path | instructions per decision | baseline | change |\n|---|---|---|---|");
    for (name, count) in now {
        let decimal = |count: u64| format!("{}.{}", count / 10, count % 10);
        let (was, change) = match before.iter().find(|(known, _)| known == name) {
            Some((_, was)) => (decimal(*was), change(*was, *count)),
            None => ("-".to_owned(), "new".to_owned()),
        };
        write!(text, "\n| {name} | {} | {was} | {change} |", decimal(*count))
            .expect("writing to a String cannot fail");
    }
    text
}

/// The signed change in percent.
fn change(was: u64, is: u64) -> String {
    let per_mille = (i128::from(is) - i128::from(was)) * 1_000 / i128::from(was.max(1));
    let sign = if per_mille < 0 { '-' } else { '+' };
    let size = per_mille.unsigned_abs();
    format!("{sign}{}.{} %", size / 10, size % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valgrind_count_is_parsed() {
        let report = "==7== Events    : Ir\n==7== Collected : 123456\n==7== \n";
        assert_eq!(collected(report), Some(123_456));
        assert_eq!(collected("==7== no such thing"), None);
    }

    #[test]
    fn baseline_round_trips() {
        let counts = vec![("a".to_owned(), 1_234), ("b_c".to_owned(), 5)];
        assert_eq!(format_counts(&counts), "a                      123.4\nb_c                    0.5\n");
        assert_eq!(parse(&format_counts(&counts)), counts);
    }

    #[test]
    fn change_has_a_sign() {
        assert_eq!(
            [change(1_000, 1_100), change(1_000, 995), change(10, 10)],
            ["+10.0 %", "-0.5 %", "+0.0 %"]
        );
        let table = table(&vec![("a".to_owned(), 100)], &vec![("a".to_owned(), 50), ("b".to_owned(), 7)]);
        assert!(table.ends_with("| a | 5.0 | 10.0 | -50.0 % |\n| b | 0.7 | - | new |"), "{table}");
    }
}
