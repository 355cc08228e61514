//! `tidegate token` and `tidegate completions`: what can be typed.

use clap::{Subcommand, ValueEnum};
use tidegate::file::Role;

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  tidegate token new --name shop --role decide --prefix shop/")]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    pub(crate) command: TokenCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token: the secret for its holder, and the lines for the settings file
    New(NewTokenArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  tidegate token new --name shop --role decide --prefix shop/
  tidegate token new --name dashboard --role read --json")]
pub(crate) struct NewTokenArgs {
    /// What people call it; else it is named after its hash
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// What it allows
    #[arg(long, value_enum, default_value_t = RoleArg::Decide)]
    pub(crate) role: RoleArg,
    /// Only limits whose ids begin with this
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A role, as it is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RoleArg {
    /// To look: limits, counts, and what an ask would be answered
    Read,
    /// To ask and to give back, and to look
    Decide,
    /// To change limits and counts, and all the rest
    Admin,
}

impl RoleArg {
    /// The role that is meant.
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
    /// Which shell
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}
