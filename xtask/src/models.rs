//! `cargo xtask loom`: the models of what threads do to the memory store's table, every order of events of each.
//!
//! Everything is compiled anew with `--cfg tidegate_loom`, optimised, into a folder of its own so that the usual build stays as
//! it is. That takes minutes the first time, which is why `cargo xtask test` runs them only with `--long`; without it, it sees that
//! they compile.

use std::process::Command;

use crate::Outcome;
use crate::process::run_shown;
use crate::suite::Tally;
use crate::workspace::Workspace;

/// Sees that the models still compile, so that they do not rot between two runs.
pub(crate) fn check() -> Outcome {
    let ended =
        run_shown(cargo(&["check", "--locked", "--package", "tidegate", "--lib", "--profile", "test"])?)?;
    if ended.succeeded() { Ok(()) } else { Err("the models do not compile".into()) }
}

/// Runs every model; says how many there were.
pub(crate) fn run() -> Outcome<Tally> {
    let ended =
        run_shown(cargo(&["test", "--release", "--locked", "--package", "tidegate", "--lib", "models::"])?)?;
    let tally = Tally::read(&ended.output);
    match tally {
        _ if !ended.succeeded() => Err(format!("a model failed ({tally})").into()),
        Tally { passed: 0, .. } => Err("no model ran".into()),
        _ => Ok(tally),
    }
}

/// Cargo, with the models in the build.
fn cargo(arguments: &[&str]) -> Outcome<Command> {
    let workspace = Workspace::load()?;
    let mut command = Command::new("cargo");
    command.args(arguments).current_dir(&workspace.root);
    command.env("RUSTFLAGS", "--cfg tidegate_loom").env("CARGO_TARGET_DIR", workspace.target.join("loom"));
    Ok(command)
}
