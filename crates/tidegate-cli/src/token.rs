//! `tidegate token new`: creates a secret for a client, and the entry for the server's settings.
//!
//! The secret is printed once and stored nowhere. The entry is parsed before it is printed, so that it is known to be
//! valid.

use serde_json::{Value, json};
use tidegate_server::settings;
use tidegate_server::tokens::NewToken;

use crate::args::{NewTokenArgs, TokenArgs, TokenCommand};
use crate::{Failure, print_result};

/// Digits of the hash in a default name.
const NAME_DIGITS: usize = 8;

/// Creates a token.
pub(crate) fn run(args: &TokenArgs) -> Result<(), Failure> {
    let TokenCommand::New(args) = &args.command;
    let token = NewToken::generate().map_err(|error| Failure::Failed(error.to_string()))?;
    let entry = TokenEntry::new(args, &token);
    entry.read_back()?;
    print_result(&if args.json { entry.json(&token.secret) } else { entry.text(&token.secret) })
}

/// The entry for the settings file.
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

    /// The entry as YAML.
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
        let Err(wrong) = settings::read("the new lines", self.section().as_bytes()) else { return Ok(()) };
        let why: Vec<_> = wrong.iter().map(|found| format!("{}: {}", found.field, found.message)).collect();
        Err(Failure::BadInput(why.join("\n")))
    }

    fn text(&self, secret: &str) -> String {
        let section = self.section();
        format!(
            "The token for the client, as TIDEGATE_TOKEN; it is shown only once:\n\n{secret}\n\n\
             The entry for the server's settings file, with the hash of the token:\n\n{section}"
        )
    }

    fn json(&self, secret: &str) -> String {
        let TokenEntry { name, sha256, role, prefix } = self;
        let known = json!({"name": name, "sha256": sha256, "role": role, "prefix": prefix});
        format!("{}\n", json!({"secret": secret, "token": known}))
    }
}

/// Text as a YAML scalar, quoted if it could mean something else.
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
    use tidegate_server::settings::{Role, TokenSpec};

    /// The arguments of `tidegate token new`.
    #[derive(Parser)]
    struct Typed {
        #[command(flatten)]
        args: NewTokenArgs,
    }

    #[test]
    fn entry_has_the_given_name_role_and_prefix() {
        let token = NewToken { secret: "s".to_owned(), sha256: "ab".repeat(32) };
        for (name, prefix) in
            [("shop", "shop/"), ("Ada's: #1 {}", ":a"), ("null", ""), ("海\u{e9}\"\\", "7"), ("-", "-")]
        {
            let typed = ["new", "--role=read", &format!("--name={name}"), &format!("--prefix={prefix}")];
            let args = Typed::parse_from(typed).args;
            let section = TokenEntry::new(&args, &token).section();
            let read = settings::read("it", section.as_bytes()).expect("a section");
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
