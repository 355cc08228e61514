//! Arguments of `tidegate store`.

use std::path::PathBuf;

use clap::Subcommand;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate store verify ./tidegate-data
  tidegate store backup ./tidegate-data /backups/monday

The directory is only read; a server may be running on it.
Exit codes: 0 no errors, 1 the store is damaged or the operation failed, 2 bad input")]
pub(crate) struct StoreArgs {
    #[command(subcommand)]
    pub(crate) command: StoreCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Read everything and report what is there and what is damaged
    Verify(VerifyArgs),
    /// Print every record, one per line
    Dump(DumpArgs),
    /// Copy the store to an empty directory that a server can start from
    Backup(BackupArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  tidegate store verify ./tidegate-data")]
pub(crate) struct VerifyArgs {
    /// Data directory
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate store dump ./tidegate-data | less
  tidegate store dump --json ./tidegate-data | grep '\"limit_id\":\"sale\"'

Lease ids are secrets: only the first half is shown, which is their serial number.")]
pub(crate) struct DumpArgs {
    /// Data directory
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
    /// One JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate store backup ./tidegate-data /backups/monday
  tidegate serve --store disk:/backups/monday")]
pub(crate) struct BackupArgs {
    /// Data directory
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
    /// Destination: an empty or new directory
    #[arg(value_name = "TO")]
    pub(crate) to: PathBuf,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}
