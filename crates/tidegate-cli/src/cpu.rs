//! `tidegate cpu`: the average load of a processor, kept under a limit.
//!
//! ```text
//!   plan       pure arithmetic: what may be used from here on
//!   run        the governor at work
//!   simulate   a trace through the governor, as fast as it can be reckoned
//!   status     how the budget stands, from the governor's journal
//!   report     a picture of the same
//! ```
//!
//! Nothing is reckoned here. Budgets are [`tidegate::budget`], the governor is [`tidegate_cpu`]; these commands read what people write, and
//! write what people and programs read.

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

/// Plans, simulates, or looks at what a governor has written.
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
