//! `tidegate completions`: completion scripts for shells.

use clap::CommandFactory;

use crate::args::{CliArgs, CompletionsArgs};
use crate::{Failure, print_result};

/// Prints the script for a shell.
pub(crate) fn run(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut CliArgs::command(), "tidegate", &mut script);
    print_result(&String::from_utf8_lossy(&script))
}
