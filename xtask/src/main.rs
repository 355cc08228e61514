//! Development tasks of this repository: `cargo xtask TASK`.
//!
//! | command                    | does                                                         |
//! |----------------------------|--------------------------------------------------------------|
//! | `cargo xtask test`         | installs what tests need, runs every test, then `tidy`       |
//! | `cargo xtask clients`      | installs the client libraries that tests use                 |
//! | `cargo xtask tidy`         | checks repository rules that the compiler does not check     |
//! | `cargo xtask mutants`      | plants known bugs and checks that a test fails for each      |
//! | `cargo xtask models`       | runs every loom model of the memory store                    |
//! | `cargo xtask bench`        | measures `tidegate simulate` and `tidegate pipe`             |
//! | `cargo xtask bench serve`  | measures the server beside its peers                         |
//! | `cargo xtask bench gateway`| measures the gateway beside nginx and HAProxy                |
//! | `cargo xtask instructions` | counts instructions per decision                             |
//!
//! There is no argument parser and one dependency (`serde_json`) to read `cargo metadata`. Tasks are Rust rather than shell
//! scripts so that their logic is tested.

#![allow(clippy::print_stdout, reason = "a task reports on standard output")]
#![allow(clippy::print_stderr, reason = "a task reports failures on standard error")]
#![allow(clippy::disallowed_methods, reason = "tasks time their steps; no code here decides about limits")]

mod bench;
mod database;
mod instructions;
mod models;
mod mutants;
mod prerequisites;
mod process;
mod python_clients;
mod skipped_tests;
mod source_files;
mod test_suite;
mod tidy;
mod workspace;

use std::process::ExitCode;

use bench::{BenchEffort, BenchScope};
use instructions::CountsMode;
use test_suite::TestLength;

/// The result of a task: nothing, or an error message for the developer.
type TaskResult<T = ()> = Result<T, Box<dyn std::error::Error>>;

const USAGE: &str = "\
usage: cargo xtask TASK

  test [--long]          install what tests need, run every test and the fast models, then tidy;
                         --long gives property tests more cases and runs every model
  clients                only install what tests need, so that `cargo test` finds it
  tidy                   check repository rules that the compiler does not check
  mutants [--only NAME]  plant the bugs listed in xtask/mutants/ and check that a test fails for each
  models                 run every loom model of the memory store
  bench                  measure `simulate` and `pipe`; takes minutes on an otherwise idle machine
  bench serve [resp|http|disk] [--quick]
                         measure the server beside Redis, nginx and throttlecrab-server, and the disk store beside the
                         memory store; peers are installed; `resp`, `http`, `disk`: only that part; --quick: smoke test
  bench gateway [--quick]
                         measure the gateway beside nginx and HAProxy; peers are installed
  instructions [--save]  count instructions per decision and compare with benches/instructions.txt; --save rewrites it";

/// A parsed command line.
#[derive(Debug, PartialEq, Eq)]
enum Task {
    Test(TestLength),
    Clients,
    Tidy,
    Mutants {
        only: Option<String>,
    },
    Models,
    Bench,
    BenchServe(BenchScope, BenchEffort),
    BenchGateway(BenchEffort),
    /// The load generator that `bench serve` starts on another core.
    Load(Vec<String>),
    Instructions(CountsMode),
    Help,
}

impl Task {
    fn parse(words: &[&str]) -> Result<Task, String> {
        match words {
            ["test"] => Ok(Task::Test(TestLength::Usual)),
            ["test", "--long"] => Ok(Task::Test(TestLength::Long)),
            ["clients"] => Ok(Task::Clients),
            ["tidy"] => Ok(Task::Tidy),
            ["mutants"] => Ok(Task::Mutants { only: None }),
            ["mutants", "--only", name] => Ok(Task::Mutants { only: Some((*name).to_owned()) }),
            ["models"] => Ok(Task::Models),
            ["bench"] => Ok(Task::Bench),
            ["bench", "serve", rest @ ..] => {
                let (scope, effort) = parse_bench_serve(rest)?;
                Ok(Task::BenchServe(scope, effort))
            }
            ["bench", "gateway"] => Ok(Task::BenchGateway(BenchEffort::Full)),
            ["bench", "gateway", "--quick"] => Ok(Task::BenchGateway(BenchEffort::Quick)),
            ["load", words @ ..] => Ok(Task::Load(words.iter().map(|&word| word.to_owned()).collect())),
            ["instructions"] => Ok(Task::Instructions(CountsMode::Compare)),
            ["instructions", "--save"] => Ok(Task::Instructions(CountsMode::Save)),
            ["help" | "-h" | "--help"] => Ok(Task::Help),
            [] => Err("name a task".to_owned()),
            words => Err(format!("unknown task: {}", words.join(" "))),
        }
    }

    fn run(self) -> TaskResult {
        match self {
            Task::Test(length) => test_suite::run(length),
            Task::Clients => python_clients::run(),
            Task::Tidy => tidy::run(),
            Task::Mutants { only } => mutants::run(only.as_deref()),
            Task::Models => models::run_all().map(|_| ()),
            Task::Bench => bench::commands::run(),
            Task::BenchServe(scope, effort) => bench::servers::run(scope, effort),
            Task::BenchGateway(effort) => bench::proxies::run(effort),
            Task::Load(words) => bench::generate(&words.iter().map(String::as_str).collect::<Vec<_>>()),
            Task::Instructions(mode) => instructions::run(mode),
            Task::Help => {
                println!("{USAGE}");
                Ok(())
            }
        }
    }
}

/// Parses `[resp|http|disk] [--quick]`.
fn parse_bench_serve(words: &[&str]) -> Result<(BenchScope, BenchEffort), String> {
    let (words, effort) = match words {
        [rest @ .., "--quick"] => (rest, BenchEffort::Quick),
        all => (all, BenchEffort::Full),
    };
    let scope = match words {
        [] => BenchScope::Everything,
        ["resp"] => BenchScope::Resp,
        ["http"] => BenchScope::Http,
        ["disk"] => BenchScope::Disk,
        words => return Err(format!("unknown part of `bench serve`: {}", words.join(" "))),
    };
    Ok((scope, effort))
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let task = match Task::parse(&words) {
        Ok(task) => task,
        Err(message) => {
            eprintln!("xtask: {message}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match task.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_documented_task_is_parsed() {
        assert_eq!(Task::parse(&["test"]), Ok(Task::Test(TestLength::Usual)));
        assert_eq!(Task::parse(&["test", "--long"]), Ok(Task::Test(TestLength::Long)));
        assert_eq!(Task::parse(&["clients"]), Ok(Task::Clients));
        assert_eq!(Task::parse(&["tidy"]), Ok(Task::Tidy));
        assert_eq!(Task::parse(&["mutants"]), Ok(Task::Mutants { only: None }));
        assert_eq!(Task::parse(&["models"]), Ok(Task::Models));
        assert_eq!(Task::parse(&["instructions", "--save"]), Ok(Task::Instructions(CountsMode::Save)));
        let only = Some("x".to_owned());
        assert_eq!(Task::parse(&["mutants", "--only", "x"]), Ok(Task::Mutants { only }));
        let disk = Task::BenchServe(BenchScope::Disk, BenchEffort::Quick);
        assert_eq!(Task::parse(&["bench", "serve", "disk", "--quick"]), Ok(disk));
    }

    #[test]
    fn unknown_words_are_refused() {
        assert!(Task::parse(&["tidy", "--fix"]).is_err());
        assert!(Task::parse(&["mutants", "--only"]).is_err());
        assert!(Task::parse(&["bench", "serve", "grpc"]).is_err());
        assert!(Task::parse(&[]).is_err());
    }
}
