//! The loom models of the memory store: every interleaving of a few threads, by exhaustive search.
//!
//! The models are compiled with `--cfg tidegate_loom`, optimized, into a target folder of their own, so that the usual build
//! stays valid. `cargo xtask test` runs the models that end within minutes, `cargo xtask models` runs all.

use std::process::Command;

use crate::TaskResult;
use crate::process::run_shown;
use crate::test_suite::TestCounts;
use crate::workspace::Workspace;

/// Models that take more than a minute each.
const SLOW: &[&str] = &[
    "edit_to_wider_rows_beside_an_order_loses_no_charge",
    "row_that_was_dropped_after_a_split_is_not_charged_by_an_earlier_order",
    "row_that_was_dropped_is_not_charged_by_an_earlier_order",
    "split_loses_no_charge",
];

/// Runs the models that end within minutes.
pub(crate) fn run_fast() -> TaskResult<TestCounts> {
    run(SLOW)
}

/// Runs every model.
pub(crate) fn run_all() -> TaskResult<TestCounts> {
    run(&[])
}

fn run(skipped: &[&str]) -> TaskResult<TestCounts> {
    let mut command =
        cargo(&["test", "--release", "--locked", "--package", "tidegate", "--lib", "models::"])?;
    command.arg("--");
    for name in skipped {
        command.args(["--skip", name]);
    }
    let ended = run_shown(command)?;
    let counts = TestCounts::read(&ended.output);
    match counts {
        _ if !ended.succeeded() => Err(format!("a model failed ({counts})").into()),
        TestCounts { passed: 0, .. } => Err("no model ran".into()),
        _ => Ok(counts),
    }
}

/// Cargo with the models enabled.
fn cargo(arguments: &[&str]) -> TaskResult<Command> {
    let workspace = Workspace::load()?;
    let mut command = Command::new("cargo");
    command.args(arguments).current_dir(&workspace.root);
    command.env("RUSTFLAGS", "--cfg tidegate_loom").env("CARGO_TARGET_DIR", workspace.target.join("loom"));
    Ok(command)
}
