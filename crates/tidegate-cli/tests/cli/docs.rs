//! What the documents show is what happens.
//!
//! Every `console` block is run: lines that begin with `$ ` are given to a shell at the root of the repository, with the
//! binary under test as `tidegate`, and what follows must be what they print, on either stream.

#![allow(
    clippy::disallowed_methods,
    reason = "whether to publish, and where the shell is, the environment says"
)]

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// One command of a document and what it says will happen.
struct Shown {
    line: usize,
    command: String,
    output: String,
}

/// The commands in a document's `console` blocks.
fn shown(document: &str) -> Vec<Shown> {
    let mut found: Vec<Shown> = Vec::new();
    let mut inside = false;
    for (index, line) in document.lines().enumerate() {
        match (inside, line) {
            (false, "```console") => inside = true,
            (true, "```") => inside = false,
            (true, line) => match (line.strip_prefix("$ "), found.last_mut()) {
                (Some(command), _) => {
                    let command = command.to_owned();
                    found.push(Shown { line: index + 1, command, output: String::new() });
                }
                (None, Some(last)) => last.output.extend([line, "\n"]),
                (None, None) => panic!("line {}: output without a command", index + 1),
            },
            (false, _) => {}
        }
    }
    found
}

/// What a command really prints, with numbers of microseconds, which nobody can foretell, blanked out.
fn printed(command: &str) -> String {
    let binary = Path::new(env!("CARGO_BIN_EXE_tidegate"));
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", binary.parent().expect("a binary is in a folder").display());
    let script = format!("exec 2>&1; {command}");
    let output = Command::new("sh").args(["-c", &script]).env("PATH", path).current_dir(root()).output();
    settled(&String::from_utf8(output.expect("there is a shell").stdout).expect("text"))
}

/// Blanks out what differs from run to run.
fn settled(text: &str) -> String {
    match text.split_once("\"mean_us\":") {
        Some((before, after)) => {
            let rest = after.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
            format!("{before}\"mean_us\":…{rest}")
        }
        None => text.to_owned(),
    }
}

#[track_caller]
fn check(document: &str) {
    let path = root().join(document);
    let text = std::fs::read_to_string(&path).expect("the document is there");
    if std::env::var_os("TIDEGATE_PUBLISH").is_some() {
        std::fs::write(&path, published(&text)).expect("the documents are writable");
        return;
    }
    let commands = shown(&text);
    assert!(!commands.is_empty(), "{document} shows nothing");
    for Shown { line, command, output } in commands {
        let really = printed(&command);
        assert_eq!(
            really, output,
            "{document}:{line}: `{command}` prints something else; if it is right, TIDEGATE_PUBLISH=1 writes it down"
        );
    }
}

/// The document with what its commands really print.
fn published(text: &str) -> String {
    let mut out = String::new();
    let (mut inside, mut skipping) = (false, false);
    for line in text.lines() {
        match (inside, line) {
            (false, "```console") => inside = true,
            (true, "```") => (inside, skipping) = (false, false),
            (true, line) if line.starts_with("$ ") => {
                out.extend([line, "\n", &printed(&line[2..])]);
                skipping = true;
                continue;
            }
            _ => {}
        }
        if !skipping {
            out.extend([line, "\n"]);
        }
    }
    out
}

#[test]
fn readme() {
    check("README.md");
}

#[test]
fn commands() {
    check("docs/commands.md");
}

#[test]
fn limits_file() {
    check("docs/limits-file.md");
}
