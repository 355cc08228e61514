//! `cargo xtask instructions`: how many instructions a decision takes on each hot path, beside what was last written down.
//!
//! Valgrind runs `benches/examples/instructions.rs` once for each path and counts only its function `walk`. The counts
//! depend on the compiler and the build, not on the machine's mood, so a difference is a difference of the code; they say
//! nothing about waiting for memory. `--save` writes them to `benches/instructions.txt`.
//!
//! Refused: a benchmarking framework with a runner of its own to install, for one number that valgrind prints anyway.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use crate::Outcome;
use crate::process::{exists, run_shown};
use crate::workspace::Workspace;

const EXAMPLE: &str = "instructions";
const WRITTEN: &str = "benches/instructions.txt";

/// What becomes of the counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// They are compared with what was written down.
    Compare,
    /// And written down in its place.
    Save,
}

/// Instructions for one decision of each path, in tenths.
type Counts = Vec<(String, u64)>;

pub(crate) fn run(keep: Keep) -> Outcome {
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
    let file = workspace.root.join(WRITTEN);
    let before = std::fs::read_to_string(&file).map_or_else(|_| Counts::new(), |text| read(&text));
    let now = counts(&program)?;
    println!("\n{}", table(&before, &now));
    if keep == Keep::Save {
        std::fs::write(&file, written(&now))?;
        println!("\nwritten to {WRITTEN}");
    }
    Ok(())
}

fn counts(program: &Path) -> Outcome<Counts> {
    let list = Command::new(program).output()?;
    let list = String::from_utf8(list.stdout)?;
    let paths = list.lines().filter_map(|line| line.split_once(' '));
    paths
        .map(|(name, decisions)| {
            Ok((name.to_owned(), count(program, name)? * 10 / decisions.parse::<u64>()?))
        })
        .collect()
}

/// The instructions of one walk.
fn count(program: &Path, path: &str) -> Outcome<u64> {
    let mut valgrind = Command::new("valgrind");
    // The pattern fits the name however the compiler mangles it.
    valgrind.args([
        "--tool=callgrind",
        "--callgrind-out-file=/dev/null",
        "--toggle-collect=*instructions*walk*",
    ]);
    valgrind.arg(program).arg(path);
    let output = valgrind.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    match collected(&said) {
        Some(count) if output.status.success() && count > 0 => Ok(count),
        _ => Err(format!("valgrind could not walk {path}:\n{said}").into()),
    }
}

/// The number behind `Collected :`.
fn collected(said: &str) -> Option<u64> {
    let (_, number) = said.lines().find_map(|line| line.split_once("Collected : "))?;
    number.trim().parse().ok()
}

/// Lines of a name and a count with one decimal.
fn read(text: &str) -> Counts {
    let line = |line: &str| {
        let (name, count) = line.split_once(' ')?;
        let (whole, tenths) = count.trim().split_once('.')?;
        Some((name.to_owned(), whole.parse::<u64>().ok()? * 10 + tenths.parse::<u64>().ok()?))
    };
    text.lines().filter_map(line).collect()
}

fn written(counts: &Counts) -> String {
    counts.iter().fold(String::new(), |mut text, (name, count)| {
        writeln!(text, "{name:<20} {}.{}", count / 10, count % 10)
            .expect("a string takes whatever is written to it");
        text
    })
}

fn table(before: &Counts, now: &Counts) -> String {
    let mut text =
        String::from("| path | instructions per decision | written down | change |\n|---|---|---|---|");
    for (name, count) in now {
        let told = |count: u64| format!("{}.{}", count / 10, count % 10);
        let (was, change) = match before.iter().find(|(known, _)| known == name) {
            Some((_, was)) => (told(*was), change(*was, *count)),
            None => ("-".to_owned(), "new".to_owned()),
        };
        write!(text, "\n| {name} | {} | {was} | {change} |", told(*count))
            .expect("a string takes whatever is written to it");
    }
    text
}

/// The change in per cent, with its sign.
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
    fn what_valgrind_counted_is_read() {
        let said = "==7== Events    : Ir\n==7== Collected : 123456\n==7== \n";
        assert_eq!(collected(said), Some(123_456));
        assert_eq!(collected("==7== no such thing"), None);
    }

    #[test]
    fn what_is_written_is_read_again() {
        let counts = vec![("a".to_owned(), 1_234), ("b_c".to_owned(), 5)];
        assert_eq!(written(&counts), "a                    123.4\nb_c                  0.5\n");
        assert_eq!(read(&written(&counts)), counts);
    }

    #[test]
    fn a_change_has_a_sign() {
        assert_eq!(
            [change(1_000, 1_100), change(1_000, 995), change(10, 10)],
            ["+10.0 %", "-0.5 %", "+0.0 %"]
        );
        let table = table(&vec![("a".to_owned(), 100)], &vec![("a".to_owned(), 50), ("b".to_owned(), 7)]);
        assert!(table.ends_with("| a | 5.0 | 10.0 | -50.0 % |\n| b | 0.7 | - | new |"), "{table}");
    }
}
