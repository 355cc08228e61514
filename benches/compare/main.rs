//! `cargo bench`: Tidegate and its peers, with the same keys and threads in the same run.
//!
//! | `cargo bench -- …` | measures |
//! |---|---|
//! | nothing | everything below except the flood |
//! | `hot-granted`, `hot-refused`, `uniform`, `batches`, `set-of-four`, `contended` | only decisions whose name contains this |
//! | `policies` | every policy beside the bucket |
//! | `growth` | the slowest insert while a table grows |
//! | `memory` | bytes per key |
//! | `flood [KEYS]` | fifty million keys against a store of 64 MiB |
//! | `--quick` | less of everything, as a functional check |
//! | `--own-time` | decisions in CPU time of each thread, for a busy machine; waiting for a lock does not count |
//! | `--json` | one object per row and target on standard output; the tables go to standard error |
//!
//! Tidegate is called as programs call it: through the handles of a `Limiter`. A speedup is the peer's time
//! divided by Tidegate's: above 1 Tidegate is faster. The end of the report lists which targets were met.

#![allow(clippy::print_stdout, reason = "a benchmark's report is its standard output")]
#![allow(clippy::print_stderr, reason = "a benchmark reports errors to its user")]

mod args;
mod decisions;
mod flood;
mod memory;
mod peers;
mod policies;
mod report;
mod slowest_decision;

use std::process::{Command, ExitCode};
use std::time::Duration;

use tidegate::Timestamp;

use args::Args;
use report::BenchReport;

/// An error message for the user.
type Failure = Box<dyn std::error::Error>;

/// The start of manual clocks: noon, so that no window ends during a run.
const NOON: Timestamp = Timestamp::from_ticks((19_000 * 86_400 + 43_200) * 1_000_000_000);
/// The interval between two keys by manual clocks.
const KEY_INTERVAL: Duration = Duration::from_micros(1);

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
    let mut report = BenchReport::new(args.is_json, args.effort);
    decisions::run(args, &mut report);
    if args.wants("policies") {
        policies::run(args, &mut report);
    }
    if args.wants("growth") {
        slowest_decision::growth(args, &mut report)?;
    }
    if args.wants("memory") {
        memory::run(args, &mut report)?;
    }
    if let Some(keys) = args.flood_keys {
        flood::run(keys, &mut report)?;
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
