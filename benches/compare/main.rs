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
//! A ratio is Tidegate's figure divided by the peer's, below 1 where Tidegate is better.

#![allow(clippy::print_stdout, reason = "a benchmark's report is its standard output")]
#![allow(clippy::print_stderr, reason = "a benchmark's failure is told to the person who ran it")]

mod args;
mod decisions;
mod flood;
mod growth;
mod memory;
mod peers;
mod report;

use std::process::ExitCode;

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
        return memory::child(case);
    }
    let mut report = Report::new(args.format);
    if args.flood {
        flood::run(args, &mut report);
        return Ok(());
    }
    decisions::run(args, &mut report);
    if args.wants("growth") {
        growth::run(args, &mut report);
    }
    if args.wants("memory") {
        memory::run(args, &mut report)?;
    }
    Ok(())
}
