//! Arguments of `tidegate token` and `tidegate completions`.

use clap::{Subcommand, ValueEnum};
use tidegate_server::settings::Role;

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  tidegate token new --name shop --role decide --prefix shop/")]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    pub(crate) command: TokenCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Create a token: the secret for the client and the lines for the settings file
    New(NewTokenArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate token new --name shop --role decide --prefix shop/
  tidegate token new --name dashboard --role read --json")]
pub(crate) struct NewTokenArgs {
    /// Name of the token [default: derived from its hash]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Permissions of the token
    #[arg(long, value_enum, default_value_t = RoleArg::Decide)]
    pub(crate) role: RoleArg,
    /// Only limits whose ids start with this
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A role on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoleArg {
    /// Read limits and usage, and peek
    Read,
    /// Also acquire, release, renew and settle
    Decide,
    /// Also change limits and counts
    Admin,
}

impl RoleArg {
    /// The role of the settings file.
    pub(crate) const fn role(self) -> Role {
        match self {
            RoleArg::Read => Role::Read,
            RoleArg::Decide => Role::Decide,
            RoleArg::Admin => Role::Admin,
        }
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate completions bash > /etc/bash_completion.d/tidegate
  tidegate completions zsh > ~/.zfunc/_tidegate
  tidegate completions fish > ~/.config/fish/completions/tidegate.fish")]
pub(crate) struct CompletionsArgs {
    /// Shell
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}
