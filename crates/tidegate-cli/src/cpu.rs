//! `tidegate cpu`: keep the average CPU load under a limit.
//!
//! ```text
//!   plan       the remaining budget, from given numbers
//!   run        the governor
//!   simulate   a load trace through the governor
//!   status     the state of the budget, from the governor's journal
//!   report     a chart of the journal
//! ```
//!
//! The arithmetic is in [`tidegate::budget`], the governor in [`tidegate_cpu`]. These commands only parse input and
//! format output.

mod atomic_file;
mod format;
mod plan;
mod report;
mod run;
mod settings;
mod simulate;
mod state_directory;
mod status;
mod trace;

use crate::Failure;
use crate::args::{CpuArgs, CpuCommand};

/// Runs a subcommand.
pub(crate) fn run(args: &CpuArgs) -> Result<(), Failure> {
    match &args.command {
        CpuCommand::Plan(args) => plan::run(args),
        CpuCommand::Run(args) => run::run(args),
        CpuCommand::Simulate(args) => simulate::run(args),
        CpuCommand::Status(args) => status::run(args),
        CpuCommand::Report(args) => report::run(args),
        CpuCommand::Watch(args) => run::run_watchdog(args),
    }
}
