//! `cargo xtask loom`: the models of what threads do to the memory store's table, every order of events of each.
//!
//! Everything is compiled anew with `--cfg tidegate_loom`, optimised, into a folder of its own so that the usual build stays as
//! it is. That takes minutes the first time, which is why `cargo xtask test` does it only with `--long`.

use std::process::Command;

use crate::Outcome;
use crate::process::run_shown;
use crate::suite::Tally;
use crate::workspace::Workspace;

/// Runs every model; says how many there were.
pub(crate) fn run() -> Outcome<Tally> {
    let workspace = Workspace::load()?;
    let mut command = Command::new("cargo");
    command.args(["test", "--release", "--locked", "--package", "tidegate", "--lib", "models::"]);
    command.current_dir(&workspace.root);
    command.env("RUSTFLAGS", "--cfg tidegate_loom").env("CARGO_TARGET_DIR", workspace.target.join("loom"));
    let ended = run_shown(command)?;
    let tally = Tally::read(&ended.output);
    match tally {
        _ if !ended.succeeded() => Err(format!("a model failed ({tally})").into()),
        Tally { passed: 0, .. } => Err("no model ran".into()),
        _ => Ok(tally),
    }
}
