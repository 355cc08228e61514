//! Command-line arguments. Every command shows an example under `--help`; no decisions are made here.

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
use tidegate::stream::MessageRate;
use tidegate_config::text;

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

/// Rate limits, quotas, leases and CPU budgets
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
    /// Run the rate-limit server (HTTP and RESP)
    Serve(ServeArgs),
    /// Run the gateway: a reverse proxy that limits requests
    Gateway(GatewayArgs),
    /// Check a settings file and list every error
    Check(CheckArgs),
    /// Run recorded or made-up events through the engine, on their own clock
    Simulate(SimulateArgs),
    /// Throttle a stream of JSON lines; lines within the limits pass unchanged and in order
    Pipe(PipeArgs),
    /// Add, change, show and delete limits of a running server
    Limit(LimitArgs),
    /// Acquire from a running server; exit code 0 if granted, 3 if refused
    Acquire(AcquireArgs),
    /// Check whether an acquire would be granted, without charging
    Peek(PeekArgs),
    /// Release a lease
    Release(ReleaseArgs),
    /// Renew a lease
    Renew(RenewArgs),
    /// Settle a held charge to its actual cost
    Settle(SettleArgs),
    /// Load-test a server and check that no limit is exceeded
    Bench(Box<BenchArgs>),
    /// Keep the average CPU load under a limit: plan, run, simulate, report
    Cpu(CpuArgs),
    /// Verify, dump and back up the data directory of a server
    Store(StoreArgs),
    /// Create access tokens
    Token(TokenArgs),
    /// Print shell completions
    Completions(CompletionsArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate check tidegate.yaml
  tidegate check --json - < tidegate.yaml
  tidegate check --schema > tidegate.schema.json")]
pub(crate) struct CheckArgs {
    /// File to check; - for standard input
    #[arg(required_unless_present = "schema")]
    pub(crate) file: Option<PathBuf>,
    /// Print JSON
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
    /// File with the limits; - for standard input, if --input is given
    #[arg(long, value_name = "FILE")]
    pub(crate) limits: PathBuf,
    /// File with the events [default: standard input]
    #[arg(long, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    /// Print a last line with allowed and refused counts per limit
    #[arg(long)]
    pub(crate) summary: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  tail -f chat.ndjson | tidegate pipe --global 100/60s --per-key 10/60s --key user.id | publish")]
pub(crate) struct PipeArgs {
    /// Messages that pass in any window, all users together; 0/60s refuses all, unlimited only counts
    #[arg(long, value_name = "RATE", default_value = "100/60s", value_parser = parse_rate, allow_hyphen_values = true)]
    pub(crate) global: MessageRate,
    /// Messages that pass in any window, per user
    #[arg(long, value_name = "RATE", default_value = "10/60s", value_parser = parse_rate, allow_hyphen_values = true)]
    pub(crate) per_key: MessageRate,
    /// Dotted path of the user in a message; a message without it counts as `unknown_user`
    #[arg(long, value_name = "PATH", default_value = "user_id", value_parser = parse_path)]
    pub(crate) key: MessagePath,
    /// Dotted path of the time in a message (RFC 3339 or seconds), to replay a recording [default: the clock]
    #[arg(long, value_name = "PATH", value_parser = parse_path)]
    pub(crate) time_field: Option<MessagePath>,
    /// What to do with a line that is not JSON or has no valid time
    #[arg(long, value_enum, default_value_t = OnError::Drop)]
    pub(crate) on_error: OnError,
    /// Append refused lines to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) drops: Option<PathBuf>,
    /// Print statistics as one JSON object on standard error at the end
    #[arg(long)]
    pub(crate) stats: bool,
    /// Log the number of refused messages to standard error whenever it has doubled
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

/// What `pipe` does with a line that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnError {
    /// Drop the line
    Drop,
    /// Pass the line without charging a limit
    Pass,
}

fn parse_rate(text: &str) -> Result<MessageRate, String> {
    let (limit, window) = match text.strip_prefix("unlimited") {
        Some("") => return Ok(MessageRate::unlimited(Duration::from_secs(60))),
        Some(rest) => text::parse_rate(&format!("-1{rest}"))?,
        None => text::parse_rate(text)?,
    };
    Ok(MessageRate { limit, window })
}

/// A dotted path: the field names from a message to one of its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MessagePath {
    pub(crate) first: String,
    pub(crate) rest: Vec<String>,
}

impl fmt::Display for MessagePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.first)?;
        self.rest.iter().try_for_each(|name| write!(f, ".{name}"))
    }
}

fn parse_path(text: &str) -> Result<MessagePath, String> {
    let mut names = text.split('.').map(str::to_owned);
    let path = MessagePath { first: names.next().unwrap_or_default(), rest: names.collect() };
    if path.first.is_empty() || path.rest.iter().any(String::is_empty) {
        return Err("must be field names with dots between them, such as user.id".to_owned());
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use tidegate::stream::StreamRules;

    #[test]
    fn command_definition_is_consistent() {
        CliArgs::command().debug_assert();
    }

    #[test]
    fn rate_unlimited_is_parsed() {
        assert_eq!(parse_rate("unlimited"), Ok(MessageRate::unlimited(Duration::from_secs(60))));
        let hour = Duration::from_secs(3600);
        assert_eq!(parse_rate("unlimited/1h"), Ok(MessageRate::unlimited(hour)));
        assert_eq!(parse_rate("-1/1h"), Ok(MessageRate::unlimited(hour)));
        assert!(parse_rate("unlimited1h").is_err());
    }

    #[test]
    fn pipe_defaults_are_those_of_the_library() {
        let CliCommand::Pipe(pipe) = CliArgs::parse_from(["tidegate", "pipe"]).command else {
            panic!("expected the pipe command")
        };
        assert_eq!(StreamRules { global: pipe.global, user: pipe.per_key }, StreamRules::default());
    }

    #[test]
    fn path_with_empty_name_is_refused() {
        assert!(parse_path("").is_err());
        assert!(parse_path("a..b").is_err());
        assert!(parse_path("a.").is_err());
        assert_eq!(parse_path("a.b"), Ok(MessagePath { first: "a".into(), rest: vec!["b".into()] }));
    }
}
