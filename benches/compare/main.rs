//! `cargo bench`: Tidegate beside its peers, on the same keys and threads in the same run.
//!
//! | `cargo bench -- …` | does |
//! |---|---|
//! | nothing | everything below but the flood |
//! | `hot-granted`, `hot-refused`, `uniform`, `set-of-four` | only the decisions whose names contain that |
//! | `memory` | bytes for each key that is remembered |
//! | `growth` | the slowest insert while a table grows |
//! | `flood [KEYS]` | fifty million keys against a store of 64 MiB |
//! | `--quick` | the same with less of everything, to see that it works |
//! | `--own-time` | decisions timed by what each thread itself used: for a busy machine; waiting for a lock does not count |
//! | `--json` | one object for each figure in place of tables |
//!
//! A ratio is the peer's time divided by Tidegate's: above 1 Tidegate is faster. Where a figure has a bar, the end of the report
//! says whether it was met.

#![allow(clippy::print_stdout, reason = "a benchmark's report is its standard output")]
#![allow(clippy::print_stderr, reason = "a benchmark's failure is told to the person who ran it")]

mod args;
mod bars;
mod decisions;
mod flood;
mod growth;
mod memory;
mod pace;
mod peers;
mod report;

use std::process::{Command, ExitCode};

use args::Args;
use report::Report;

/// What went wrong, in words for the person who ran it.
type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match Args::parse(std::env::args().skip(1)).and_then(|args| run(&args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("bench: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), Failure> {
    if let Some(case) = &args.child {
        let answer = match case.split_first() {
            Some((scenario, case)) if scenario == memory::CHILD => memory::child(case)?,
            Some((scenario, case)) if scenario == flood::CHILD => flood::child(case)?,
            Some((scenario, case)) if scenario == pace::CHILD => pace::child(case)?,
            _ => return Err("no such case".into()),
        };
        println!("{answer}");
        return Ok(());
    }
    let mut report = Report::new(args.format, args.effort);
    if args.flood {
        flood::run(args, &mut report)?;
        report.finish();
        return Ok(());
    }
    decisions::run(args, &mut report);
    if args.wants("growth") {
        growth::run(args, &mut report);
    }
    if args.wants("memory") {
        memory::run(args, &mut report)?;
    }
    report.finish();
    Ok(())
}

/// Measures a case in a process of its own, this program started again: what one store gave back to the allocator must not be
/// room for the next.
fn in_a_child(scenario: &str, case: &[String]) -> Result<serde_json::Value, Failure> {
    let child = Command::new(std::env::current_exe()?).args([args::CHILD, scenario]).args(case).output()?;
    if !child.status.success() {
        return Err(String::from_utf8_lossy(&child.stderr).trim().to_owned().into());
    }
    Ok(serde_json::from_slice(&child.stdout)?)
}
