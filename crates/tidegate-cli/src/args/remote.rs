//! Arguments of the commands that talk to a server.

use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use tidegate_config::text;
use tidegate_core::order::MAX_WAIT;

use crate::remote::ask::RemoteAsk;
use crate::remote::url::ServerUrl;

/// Default address of `tidegate serve`.
pub(crate) const DEFAULT_SERVER: &str = "http://127.0.0.1:7700";

/// The server and the token. Tokens come from the environment or a file: command lines are visible to every user of a
/// machine.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Server")]
pub(crate) struct ServerArgs {
    #[arg(long, value_name = "URL", value_parser = ServerUrl::parse)]
    #[arg(help = "Server URL [default: $TIDEGATE_SERVER, else http://127.0.0.1:7700]")]
    pub(crate) server: Option<ServerUrl>,
    #[arg(long, value_name = "FILE", help = "File with the token [default: $TIDEGATE_TOKEN]")]
    pub(crate) token_file: Option<PathBuf>,
    /// Timeout for the reply, in addition to --wait
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = positive_duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate limit add login --item policy=sliding,limit=5,window=15s,per=key
  tidegate limit list --prefix shop/
  tidegate limit get login --key ada")]
pub(crate) struct LimitArgs {
    #[command(subcommand)]
    pub(crate) command: LimitCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LimitCommand {
    /// Add a limit, or all limits of a file
    Add(AddArgs),
    /// Replace a limit, or all limits of a file; items that stay keep their counts
    Set(SetArgs),
    /// Show a limit and its usage
    Get(GetArgs),
    /// List the limits
    List(ListArgs),
    /// Delete a limit and its counts
    Delete(DeleteArgs),
    /// Reset the counts of a limit or of one key
    Reset(ResetArgs),
}

/// A limit given as a file or on the command line.
#[derive(Debug, clap::Args)]
pub(crate) struct LimitSource {
    /// File with one limit or a settings file, - for standard input; with --item the id of the limit
    #[arg(value_name = "FILE|ID")]
    pub(crate) from: PathBuf,
    /// An item with the fields of a settings file: policy=sliding,limit=5,window=15s,per=key
    #[arg(long = "item", value_name = "FIELDS")]
    pub(crate) items: Vec<String>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate limit add tidegate.yaml
  tidegate limit add login --item policy=sliding,limit=5,window=15s,per=key --item policy=day,limit=1000")]
pub(crate) struct AddArgs {
    #[command(flatten)]
    pub(crate) source: LimitSource,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate limit set tidegate.yaml
  tidegate limit set login --item policy=day,limit=9 --if-version 1-a94ce19e4c05e4e4")]
pub(crate) struct SetArgs {
    #[command(flatten)]
    pub(crate) source: LimitSource,
    /// Only if the limit still has this version, as shown by `limit get`
    #[arg(long, value_name = "VERSION", value_parser = parse_version)]
    pub(crate) if_version: Option<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate limit get login
  tidegate limit get login --key ada --json")]
pub(crate) struct GetArgs {
    /// Id of the limit
    #[arg(value_parser = parse_limit_id)]
    pub(crate) id: String,
    /// Also show usage of this key
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  tidegate limit list --prefix shop/")]
pub(crate) struct ListArgs {
    /// Only limits whose ids start with this
    #[arg(long)]
    pub(crate) prefix: Option<String>,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  tidegate limit delete login")]
pub(crate) struct DeleteArgs {
    /// The limit's id
    #[arg(value_parser = parse_limit_id)]
    pub(crate) id: String,
    /// Only if this is its version by now, as `limit get` shows it
    #[arg(long, value_name = "VERSION", value_parser = parse_version)]
    pub(crate) if_version: Option<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate limit reset login --key ada
  tidegate limit reset login")]
pub(crate) struct ResetArgs {
    /// The limit's id
    #[arg(value_parser = parse_limit_id)]
    pub(crate) id: String,
    /// Reset only this key's items [default: everything]
    #[arg(long)]
    pub(crate) key: Option<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// One ask, or several that are granted together or not at all.
#[derive(Debug, clap::Args)]
pub(crate) struct AskArgs {
    /// The limit's id
    #[arg(required_unless_present = "asks", conflicts_with = "asks")]
    pub(crate) limit: Option<String>,
    /// Key, for items that count per key
    #[arg(conflicts_with = "asks")]
    pub(crate) key: Option<String>,
    /// Units to acquire; 0 checks only
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "asks")]
    pub(crate) count: u64,
    /// One of several asks, granted together or not at all: limit=ID[,count=N][,key=KEY] with the key last, or JSON
    #[arg(long = "ask", value_name = "ASK", value_parser = RemoteAsk::parse)]
    pub(crate) asks: Vec<RemoteAsk>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate acquire login ada
  tidegate acquire workers --hold --ttl 5m --wait 30s
  tidegate acquire --ask limit=team-tokens,count=500,key=blue --ask limit=all-tokens,count=500")]
pub(crate) struct AcquireArgs {
    #[command(flatten)]
    pub(crate) wanted: AskArgs,
    /// Wait in the queue for up to this long
    #[arg(long, value_name = "DURATION", value_parser = parse_wait)]
    pub(crate) wait: Option<Duration>,
    /// Hold the charge: the grant has a lease and can be settled
    #[arg(long)]
    pub(crate) hold: bool,
    /// Lease duration [default: the limit's]
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    pub(crate) ttl: Option<Duration>,
    /// Idempotency id: within 10 minutes a repeated request is charged once
    #[arg(long, value_name = "NAME")]
    pub(crate) request_id: Option<String>,
    /// Print the server's JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate peek login ada
  tidegate peek login ada --count 3 --json")]
pub(crate) struct PeekArgs {
    #[command(flatten)]
    pub(crate) wanted: AskArgs,
    /// Print the server's JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  tidegate release \"$LEASE\"")]
pub(crate) struct ReleaseArgs {
    /// Id of the lease, printed by `acquire`
    pub(crate) lease: String,
    /// Print the server's JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  tidegate renew \"$LEASE\" --ttl 5m")]
pub(crate) struct RenewArgs {
    /// Id of the lease, printed by `acquire`
    pub(crate) lease: String,
    /// Lease duration from now on [default: as when granted]
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    pub(crate) ttl: Option<Duration>,
    /// Print the server's JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate settle \"$LEASE\" 312
  tidegate settle \"$LEASE\" 312 40")]
pub(crate) struct SettleArgs {
    /// Id of the lease, printed by `acquire --hold`
    pub(crate) lease: String,
    /// Actual cost: one number for all asks, or one for each ask in order
    #[arg(required = true, value_name = "ACTUAL")]
    pub(crate) actual: Vec<u64>,
    /// Print the server's JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// Refuses an empty id, which would address another path.
fn parse_limit_id(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("must not be empty".to_owned()) } else { Ok(text.to_owned()) }
}

/// Accepts a version with or without the quotes of its `ETag`.
fn parse_version(text: &str) -> Result<String, String> {
    let bare = text.trim_matches('"');
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if bare.is_empty() || !bare.bytes().all(fits) {
        return Err("must be as `tidegate limit get` shows it, such as 1-a94ce19e4c05e4e4".to_owned());
    }
    Ok(bare.to_owned())
}

pub(super) fn positive_duration(text: &str) -> Result<Duration, String> {
    match text::parse_duration(text)? {
        Duration::ZERO => Err("must be at least 1ms".to_owned()),
        time => Ok(time),
    }
}

fn parse_wait(text: &str) -> Result<Duration, String> {
    let wait = text::parse_duration(text)?;
    if wait > MAX_WAIT {
        return Err(format!("must be at most {}s, found {text}", MAX_WAIT.as_secs()));
    }
    Ok(wait)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_with_quotes_is_accepted() {
        assert_eq!(parse_version("\"3-a94c\""), Ok("3-a94c".to_owned()));
        assert_eq!(parse_version("3-a94c"), Ok("3-a94c".to_owned()));
        for wrong in ["", "\"\"", "3 4", "3,4", "*"] {
            assert!(parse_version(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn wait_longer_than_server_allows_is_refused() {
        assert_eq!(parse_wait("60s"), Ok(Duration::from_secs(60)));
        assert_eq!(parse_wait("0s"), Ok(Duration::ZERO));
        assert!(parse_wait("61s").is_err());
        assert!(positive_duration("0s").is_err());
    }
}
