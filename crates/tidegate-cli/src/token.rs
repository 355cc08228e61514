//! `tidegate token new`: a secret for whoever asks, and what the server must know of it.
//!
//! The secret is shown once and kept nowhere. The lines for the settings file are read back before they are shown, so that
//! what is shown can be used.

use serde_json::{Value, json};
use tidegate::file;
use tidegate_server::tokens::NewToken;

use crate::args::{NewTokenArgs, TokenArgs, TokenCommand};
use crate::{Failure, print_result};

/// How many digits of its hash name a token that nobody named.
const NAME_DIGITS: usize = 8;

/// Makes a token.
pub(crate) fn run(args: &TokenArgs) -> Result<(), Failure> {
    let TokenCommand::New(args) = &args.command;
    let token = NewToken::generate().map_err(|error| Failure::Failed(error.to_string()))?;
    let shown = TokenEntry::new(args, &token);
    shown.read_back()?;
    print_result(&if args.json { shown.json(&token.secret) } else { shown.text(&token.secret) })
}

/// What the settings file is to know.
struct TokenEntry<'a> {
    name: String,
    sha256: &'a str,
    role: &'static str,
    prefix: &'a str,
}

impl<'a> TokenEntry<'a> {
    fn new(args: &'a NewTokenArgs, token: &'a NewToken) -> TokenEntry<'a> {
        let digits = token.sha256.get(..NAME_DIGITS).unwrap_or_default();
        let name = args.name.clone().unwrap_or_else(|| format!("token-{digits}"));
        TokenEntry { name, sha256: &token.sha256, role: args.role.role().word(), prefix: &args.prefix }
    }

    /// The section for the settings file.
    fn section(&self) -> String {
        let prefix =
            if self.prefix.is_empty() { String::new() } else { format!(", prefix: {}", scalar(self.prefix)) };
        let TokenEntry { name, sha256, role, .. } = self;
        format!(
            "auth:\n  tokens:\n    - {{name: {}, role: {role}{prefix}, sha256: {sha256}}}\n",
            scalar(name)
        )
    }

    fn read_back(&self) -> Result<(), Failure> {
        let Err(wrong) = file::read("the new lines", self.section().as_bytes()) else { return Ok(()) };
        let why: Vec<_> = wrong.iter().map(|found| format!("{}: {}", found.field, found.message)).collect();
        Err(Failure::BadInput(why.join("\n")))
    }

    fn text(&self, secret: &str) -> String {
        let section = self.section();
        format!(
            "The token, for whoever asks, as TIDEGATE_TOKEN; it is shown this once:\n\n{secret}\n\n\
             For the server's settings file, which knows it by its hash:\n\n{section}"
        )
    }

    fn json(&self, secret: &str) -> String {
        let TokenEntry { name, sha256, role, prefix } = self;
        let known = json!({"name": name, "sha256": sha256, "role": role, "prefix": prefix});
        format!("{}\n", json!({"secret": secret, "token": known}))
    }
}

/// Text as YAML: as it is if it can only be that text, else in quotes.
fn scalar(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._/-".contains(c);
    let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(plain);
    let means_else = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];
    if is_word && !means_else.contains(&&*text.to_ascii_lowercase()) {
        text.to_owned()
    } else {
        Value::from(text).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use tidegate::file::{Role, TokenSpec};

    /// What is typed behind `tidegate token new`, by itself.
    #[derive(Parser)]
    struct Typed {
        #[command(flatten)]
        args: NewTokenArgs,
    }

    #[test]
    fn the_lines_say_what_was_asked_for() {
        let token = NewToken { secret: "s".to_owned(), sha256: "ab".repeat(32) };
        for (name, prefix) in
            [("shop", "shop/"), ("Ada's: #1 {}", ":a"), ("null", ""), ("海\u{e9}\"\\", "7"), ("-", "-")]
        {
            let typed = ["new", "--role=read", &format!("--name={name}"), &format!("--prefix={prefix}")];
            let args = Typed::parse_from(typed).args;
            let section = TokenEntry::new(&args, &token).section();
            let read = file::read("it", section.as_bytes()).expect("a section");
            let meant = TokenSpec {
                name: name.to_owned(),
                sha256: token.sha256.clone(),
                role: Role::Read,
                prefix: prefix.to_owned(),
            };
            assert_eq!(read.settings.tokens, Some(vec![meant]), "{section}");
        }
    }
}
