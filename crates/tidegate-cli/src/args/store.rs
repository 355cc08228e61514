//! `tidegate store`: what can be typed.

use std::path::PathBuf;

use clap::Subcommand;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate store verify ./tidegate-data
  tidegate store backup ./tidegate-data /backups/monday

Nothing is written into the directory, and a server may run on it meanwhile.
Exit codes: 0 all is well, 1 something is wrong with the store or could not be done, 2 bad input")]
pub(crate) struct StoreArgs {
    #[command(subcommand)]
    pub(crate) command: StoreCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Read everything, and say what is there and what is wrong with it
    Verify(VerifyArgs),
    /// Show every record, one per line
    Dump(DumpArgs),
    /// Copy it into an empty directory from which a server can start
    Backup(BackupArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  tidegate store verify ./tidegate-data")]
pub(crate) struct VerifyArgs {
    /// The directory of the store
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate store dump ./tidegate-data | less
  tidegate store dump --json ./tidegate-data | grep '\"limit_id\":\"sale\"'

Ids of leases are secrets: their first half is shown, which says the how-manieth it was.")]
pub(crate) struct DumpArgs {
    /// The directory of the store
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
    /// The directory of the store
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
    /// Where the copy goes: an empty directory, or one that is not there yet
    #[arg(value_name = "TO")]
    pub(crate) to: PathBuf,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}
