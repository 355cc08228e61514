//! What can be typed. Every command shows an example under `--help`; nothing here decides anything.

mod bench;
mod cpu;
mod gateway;
mod remote;
mod serve;
mod store;
mod token;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use tidegate::stream::Rate;
use tidegate::text;

pub(crate) use bench::BenchArgs;
pub(crate) use cpu::{
    CpuArgs, CpuCommand, CpuPlanArgs, CpuReportArgs, CpuRunArgs, CpuSimulateArgs, CpuStateArgs,
    CpuStatusArgs, CpuTarget, CpuWatchArgs, EnforceMethod,
};
pub(crate) use gateway::{AccessLog, GatewayArgs};
pub(crate) use remote::{
    AcquireArgs, AddArgs, AskArgs, DEFAULT_SERVER, DeleteArgs, GetArgs, LimitArgs, LimitCommand, LimitSource,
    ListArgs, PeekArgs, ReleaseArgs, RenewArgs, ResetArgs, ServerArgs, SetArgs, SettleArgs,
};
pub(crate) use serve::ServeArgs;
pub(crate) use store::{BackupArgs, DumpArgs, StoreArgs, StoreCommand, VerifyArgs};
pub(crate) use token::{CompletionsArgs, NewTokenArgs, TokenArgs, TokenCommand};

/// Decide who may do how much, how fast, and how many at once
#[derive(Debug, Parser)]
#[command(name = "tidegate", version)]
#[command(after_help = "Example:
  tidegate check tidegate.yaml

Exit codes: 0 done, 1 failed, 2 bad input, 3 refused, 4 unreachable")]
pub(crate) struct CliArgs {
    #[command(subcommand)]
    pub(crate) command: CliCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    /// Answer over HTTP and RESP: the service
    Serve(ServeArgs),
    /// Stand in front of services, and let through what their limits allow: the gateway
    Gateway(GatewayArgs),
    /// Find everything that is wrong with a file, before it is used
    Check(CheckArgs),
    /// Run a recorded or an invented day through the engine, in milliseconds
    Simulate(SimulateArgs),
    /// Throttle a stream of JSON lines: admitted ones pass, byte for byte and in order
    Pipe(PipeArgs),
    /// Add, change and look at the limits of a running server
    Limit(LimitArgs),
    /// Ask a running server for something: exit code 0 if it is granted, 3 if it is refused
    Acquire(AcquireArgs),
    /// Ask the same and take nothing
    Peek(PeekArgs),
    /// Give a lease back
    Release(ReleaseArgs),
    /// Let a lease last longer
    Renew(RenewArgs),
    /// Correct what was taken with --hold to what it has truly cost
    Settle(SettleArgs),
    /// Put load on a server, and check that it sells nothing twice
    Bench(Box<BenchArgs>),
    /// Keep the average load of a processor under a limit: plans, simulations, how it stands
    Cpu(CpuArgs),
    /// Look at a directory that a server keeps its counts in, and copy it
    Store(StoreArgs),
    /// Make tokens for a server that asks for them
    Token(TokenArgs),
    /// Print what a shell needs to complete these commands
    Completions(CompletionsArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate check tidegate.yaml
  tidegate check --json - < tidegate.yaml
  tidegate check --schema > tidegate.schema.json")]
pub(crate) struct CheckArgs {
    /// The file to check; - for standard input
    #[arg(required_unless_present = "schema")]
    pub(crate) file: Option<PathBuf>,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print the JSON schema of settings files, for editors
    #[arg(long, conflicts_with_all = ["file", "json"])]
    pub(crate) schema: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = r#"Example:
  echo '{"at":"2026-02-17T00:00:00+08:00","limit_id":"spring-sale","limit_key":"ada"}' |
    tidegate simulate --limits tidegate.yaml --summary

Events, one per line; at is RFC 3339 or seconds since 1970:
  {"at":…,"op":"acquire|peek|release|reset","limit_id":"x","limit_key":"u","count":1,"as":"label","lease":"label"}"#)]
pub(crate) struct SimulateArgs {
    /// The file with the limits; - for standard input, if the events come from elsewhere
    #[arg(long, value_name = "FILE")]
    pub(crate) limits: PathBuf,
    /// The events; standard input if not given
    #[arg(long, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    /// Close with a line that counts what was allowed and what refused it
    #[arg(long)]
    pub(crate) summary: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  tail -f chat.ndjson | tidegate pipe --global 100/60s --per-key 10/60s --key user.id | publish")]
pub(crate) struct PipeArgs {
    /// How many messages pass in any window, all users together; 0/60s refuses all, unlimited only counts
    #[arg(long, value_name = "RATE", default_value = "100/60s", value_parser = parse_rate, allow_hyphen_values = true)]
    pub(crate) global: Rate,
    /// How many messages of each user
    #[arg(long, value_name = "RATE", default_value = "10/60s", value_parser = parse_rate, allow_hyphen_values = true)]
    pub(crate) per_key: Rate,
    /// Where a message names its user, as a dotted path; without one it is from `unknown_user`
    #[arg(long, value_name = "PATH", default_value = "user_id", value_parser = parse_path)]
    pub(crate) key: FieldPath,
    /// Where a message says when it was sent (RFC 3339 or seconds), to replay a recording; else it is now
    #[arg(long, value_name = "PATH", value_parser = parse_path)]
    pub(crate) time_field: Option<FieldPath>,
    /// What happens to a line that is not JSON, or has no time that can be read
    #[arg(long, value_enum, default_value_t = OnError::Drop)]
    pub(crate) on_error: OnError,
    /// Append refused lines to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) drops: Option<PathBuf>,
    /// Close with counts, as JSON on standard error
    #[arg(long)]
    pub(crate) stats: bool,
    /// Say on standard error how many messages were refused, whenever that has doubled
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

/// What happens to a line that cannot be judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnError {
    /// It goes no further
    Drop,
    /// It passes, and nobody is charged
    Pass,
}

fn parse_rate(text: &str) -> Result<Rate, String> {
    let (limit, window) = match text.strip_prefix("unlimited") {
        Some("") => return Ok(Rate::unlimited(Duration::from_secs(60))),
        Some(rest) => text::parse_rate(&format!("-1{rest}"))?,
        None => text::parse_rate(text)?,
    };
    Ok(Rate { limit, window })
}

/// The names on the way from a message to one of its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FieldPath {
    pub(crate) first: String,
    pub(crate) rest: Vec<String>,
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.first)?;
        self.rest.iter().try_for_each(|name| write!(f, ".{name}"))
    }
}

fn parse_path(text: &str) -> Result<FieldPath, String> {
    let mut names = text.split('.').map(str::to_owned);
    let path = FieldPath { first: names.next().unwrap_or_default(), rest: names.collect() };
    if path.first.is_empty() || path.rest.iter().any(String::is_empty) {
        return Err("must be field names with dots between them, such as user.id".to_owned());
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use tidegate::stream::Rules;

    #[test]
    fn the_grammar_holds_together() {
        CliArgs::command().debug_assert();
    }

    #[test]
    fn rates_may_be_unlimited() {
        assert_eq!(parse_rate("unlimited"), Ok(Rate::unlimited(Duration::from_secs(60))));
        let hour = Duration::from_secs(3600);
        assert_eq!(parse_rate("unlimited/1h"), Ok(Rate::unlimited(hour)));
        assert_eq!(parse_rate("-1/1h"), Ok(Rate::unlimited(hour)));
        assert!(parse_rate("unlimited1h").is_err());
    }

    #[test]
    fn the_defaults_are_those_of_the_rules() {
        let CliCommand::Pipe(pipe) = CliArgs::parse_from(["tidegate", "pipe"]).command else {
            panic!("that is pipe")
        };
        assert_eq!(Rules { global: pipe.global, user: pipe.per_key }, Rules::default());
    }

    #[test]
    fn paths_have_no_empty_names() {
        assert!(parse_path("").is_err());
        assert!(parse_path("a..b").is_err());
        assert!(parse_path("a.").is_err());
        assert_eq!(parse_path("a.b"), Ok(FieldPath { first: "a".into(), rest: vec!["b".into()] }));
    }
}
