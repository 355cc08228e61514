//! Chores of this repository, so that one command does what otherwise everybody would do a little differently.
//!
//! | command                    | does                                                                |
//! |----------------------------|---------------------------------------------------------------------|
//! | `cargo xtask test`         | everything that must be green: what is needed, every test, tidiness |
//! | `cargo xtask clients`      | fetches the client libraries that tests speak through               |
//! | `cargo xtask tidy`         | the rules of the house that a compiler does not hold                |
//! | `cargo xtask mutants`      | plants known mistakes and shows that a test notices each            |
//! | `cargo xtask loom`         | tries every order of events in the models of the table              |
//! | `cargo xtask bench`        | measures the commands, beside what else can be had                  |
//! | `cargo xtask bench serve`  | measures the service, beside its peers                              |
//! | `cargo xtask instructions` | counts the instructions of a decision                               |
//!
//! Decided: no argument parser, no framework, one dependency (to read what `cargo metadata` says). Refused: shell
//! scripts with logic in them, which nobody tests.

#![allow(clippy::print_stdout, reason = "a chore's report is its standard output")]
#![allow(clippy::print_stderr, reason = "a chore's failure is told to the person who ran it")]
#![allow(clippy::disallowed_methods, reason = "a chore times its steps; nothing here decides about limits")]

mod bench;
mod clients;
mod database;
mod instructions;
mod models;
mod mutants;
mod needs;
mod process;
mod serving;
mod suite;
mod tidy;
mod tree;
mod workspace;

use std::process::ExitCode;

use instructions::Keep;
use serving::{Effort, What};
use suite::Length;

/// What a chore answers: nothing, or what went wrong, in words for the person who ran it.
type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

const USAGE: &str = "\
usage: cargo xtask <chore>

  test [--long]          install what is missing, run every test, then tidy; --long gives property tests more cases,
                         and runs the models
  clients                only install what is missing, so that `cargo test` finds it
  tidy                   check the rules of the house
  mutants [--only NAME]  plant the mistakes listed in xtask/mutants/ and see that tests notice
  loom                   try every order of events in the models of the memory store's table
  bench                  measure the commands and print a table; minutes, on an otherwise idle machine
  bench serve [resp|http|disk] [--quick]
                         measure the service beside Redis, nginx and throttlecrab, which are installed, and its store on
                         disk beside the one in memory; `resp`, `http`, `disk`: only that; --quick: only whether it works
  bench gateway [--quick]
                         measure the gateway beside nginx and HAProxy, which are installed
  instructions [--save]  count the instructions of a decision, beside benches/instructions.txt; --save rewrites it";

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
enum Chore {
    Test(Length),
    Clients,
    Tidy,
    Mutants {
        only: Option<String>,
    },
    Loom,
    Bench,
    BenchServe(What, Effort),
    BenchGateway(Effort),
    /// What `bench serve` runs on another core.
    Load(Vec<String>),
    Instructions(Keep),
    Help,
}

impl Chore {
    fn parse(words: &[&str]) -> Result<Chore, String> {
        match words {
            ["test"] => Ok(Chore::Test(Length::Usual)),
            ["test", "--long"] => Ok(Chore::Test(Length::Long)),
            ["clients"] => Ok(Chore::Clients),
            ["tidy"] => Ok(Chore::Tidy),
            ["mutants"] => Ok(Chore::Mutants { only: None }),
            ["mutants", "--only", name] => Ok(Chore::Mutants { only: Some((*name).to_owned()) }),
            ["loom"] => Ok(Chore::Loom),
            ["bench"] => Ok(Chore::Bench),
            ["bench", "serve"] => Ok(Chore::BenchServe(What::Everything, Effort::Full)),
            ["bench", "serve", "--quick"] => Ok(Chore::BenchServe(What::Everything, Effort::Quick)),
            ["bench", "serve", "resp"] => Ok(Chore::BenchServe(What::Resp, Effort::Full)),
            ["bench", "serve", "http"] => Ok(Chore::BenchServe(What::Http, Effort::Full)),
            ["bench", "serve", "disk"] => Ok(Chore::BenchServe(What::Disk, Effort::Full)),
            ["bench", "serve", "disk", "--quick"] => Ok(Chore::BenchServe(What::Disk, Effort::Quick)),
            ["bench", "gateway"] => Ok(Chore::BenchGateway(Effort::Full)),
            ["bench", "gateway", "--quick"] => Ok(Chore::BenchGateway(Effort::Quick)),
            ["load", words @ ..] => Ok(Chore::Load(words.iter().map(|&word| word.to_owned()).collect())),
            ["instructions"] => Ok(Chore::Instructions(Keep::Compare)),
            ["instructions", "--save"] => Ok(Chore::Instructions(Keep::Save)),
            ["help" | "-h" | "--help"] => Ok(Chore::Help),
            [] => Err("which chore?".to_owned()),
            words => Err(format!("not a chore: {}", words.join(" "))),
        }
    }

    fn run(self) -> Outcome {
        match self {
            Chore::Test(length) => suite::run(length),
            Chore::Clients => clients::run(),
            Chore::Tidy => tidy::run(),
            Chore::Mutants { only } => mutants::run(only.as_deref()),
            Chore::Loom => models::run().map(|_| ()),
            Chore::Bench => bench::run(),
            Chore::BenchServe(what, effort) => serving::run(what, effort),
            Chore::BenchGateway(effort) => serving::proxies::run(effort),
            Chore::Load(words) => serving::generate(&words.iter().map(String::as_str).collect::<Vec<_>>()),
            Chore::Instructions(keep) => instructions::run(keep),
            Chore::Help => {
                println!("{USAGE}");
                Ok(())
            }
        }
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let chore = match Chore::parse(&words) {
        Ok(chore) => chore,
        Err(mistake) => {
            eprintln!("xtask: {mistake}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match chore.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_usage_is_understood() {
        assert_eq!(Chore::parse(&["test"]), Ok(Chore::Test(Length::Usual)));
        assert_eq!(Chore::parse(&["test", "--long"]), Ok(Chore::Test(Length::Long)));
        assert_eq!(Chore::parse(&["clients"]), Ok(Chore::Clients));
        assert_eq!(Chore::parse(&["tidy"]), Ok(Chore::Tidy));
        assert_eq!(Chore::parse(&["mutants"]), Ok(Chore::Mutants { only: None }));
        assert_eq!(Chore::parse(&["loom"]), Ok(Chore::Loom));
        assert_eq!(Chore::parse(&["instructions", "--save"]), Ok(Chore::Instructions(Keep::Save)));
        let only = Some("x".to_owned());
        assert_eq!(Chore::parse(&["mutants", "--only", "x"]), Ok(Chore::Mutants { only }));
    }

    #[test]
    fn a_word_too_many_is_a_mistake() {
        assert!(Chore::parse(&["tidy", "--fix"]).is_err());
        assert!(Chore::parse(&["mutants", "--only"]).is_err());
        assert!(Chore::parse(&[]).is_err());
    }
}
