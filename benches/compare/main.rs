//! `cargo bench`: Tidegate and its peers, with the same keys and threads in the same run.
//!
//! | `cargo bench -- …` | measures |
//! |---|---|
//! | nothing | everything below except the flood |
//! | `hot-granted`, `hot-refused`, `uniform`, `set-of-four` | only decisions whose name contains this |
//! | `memory` | bytes per key |
//! | `growth` | the slowest insert while a table grows |
//! | `flood [KEYS]` | fifty million keys against a store of 64 MiB |
//! | `--quick` | less of everything, as a functional check |
//! | `--own-time` | decisions in CPU time of each thread, for a busy machine; waiting for a lock does not count |
//! | `--json` | one object per figure instead of tables |
//!
//! A ratio is the peer's time divided by Tidegate's: above 1 Tidegate is faster. The end of the report lists
//! which targets were met.

#![allow(clippy::print_stdout, reason = "a benchmark's report is its standard output")]
#![allow(clippy::print_stderr, reason = "a benchmark reports errors to its user")]

mod args;
mod decisions;
mod flood;
mod growth;
mod memory;
mod peers;
mod report;
mod slowest_decision;
mod targets;

use std::process::{Command, ExitCode};

use args::Args;
use report::BenchReport;

/// An error message for the user.
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
            Some((scenario, case)) if scenario == slowest_decision::CHILD => slowest_decision::child(case)?,
            _ => return Err("no such case".into()),
        };
        println!("{answer}");
        return Ok(());
    }
    let mut report = BenchReport::new(args.format, args.effort);
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

/// Measures a case in a child process, so that memory that one store returned to the allocator is not reused
/// by the next.
fn run_in_child(scenario: &str, case: &[String]) -> Result<serde_json::Value, Failure> {
    let child = Command::new(std::env::current_exe()?).args([args::CHILD, scenario]).args(case).output()?;
    if !child.status.success() {
        return Err(String::from_utf8_lossy(&child.stderr).trim().to_owned().into());
    }
    Ok(serde_json::from_slice(&child.stdout)?)
}
