//! Arguments of `tidegate gateway`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::ValueEnum;

use super::serve::parse_workers;
use crate::log::LogArgs;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate gateway --config gateway.yaml
  tidegate gateway --config gateway.yaml --access-log json

SIGTERM drains and ends, SIGHUP reads the settings again, as do an edit of the file and POST /reload at the management port.")]
pub(crate) struct GatewayArgs {
    /// The settings: where to listen, backends, routes, limits
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// How many threads serve; as many as there are cores unless said
    #[arg(long, value_name = "NUMBER", value_parser = parse_workers)]
    pub(crate) workers: Option<NonZeroUsize>,
    /// A line on standard output for every request, refused ones included
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = AccessLog::Text)]
    pub(crate) access_log: AccessLog,
    #[command(flatten)]
    pub(crate) logging: LogArgs,
}

/// What the access log looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum AccessLog {
    /// Lines for people
    Text,
    /// An object per line
    Json,
    /// None
    Off,
}
