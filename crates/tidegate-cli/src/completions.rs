//! `tidegate completions`: what a shell needs to complete our commands.

use clap::CommandFactory;

use crate::args::{Args, CompletionsArgs};
use crate::{Failure, answer};

/// Prints the script for a shell.
pub(crate) fn run(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "tidegate", &mut script);
    answer(&String::from_utf8_lossy(&script))
}
