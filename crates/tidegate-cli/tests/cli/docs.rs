//! What the documents show is what happens.
//!
//! Every `console` block is run: lines that begin with `$ ` are given to a shell at the root of the repository, with the
//! binary under test as `tidegate`, and what follows must be what they print, on either stream. A `…` stands for what
//! nobody can foretell: anything that does not end a line.
//!
//! Every document has a server of its own, which `TIDEGATE_SERVER` names, and its commands are run in their order. `TIDEGATE_DATA` is the
//! directory that the server keeps everything in; temporary files go when the document is done.

#![allow(
    clippy::disallowed_methods,
    reason = "whether to publish, and where the shell is, the environment says"
)]

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::remote::Serving;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The text of a document.
pub(crate) fn read(document: &str) -> String {
    std::fs::read_to_string(root().join(document)).expect("the document is there")
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

/// What a command really prints.
fn printed(command: &str, server: &Serving) -> String {
    let binary = Path::new(env!("CARGO_BIN_EXE_tidegate"));
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", binary.parent().expect("a binary is in a folder").display());
    let script = format!("exec 2>&1; {command}");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).env("PATH", path).env("TIDEGATE_SERVER", server.url()).current_dir(root());
    shell.env("TIDEGATE_DATA", server.folder()).env("TMPDIR", server.place());
    let output = shell.env_remove("TIDEGATE_TOKEN").output().expect("there is a shell");
    String::from_utf8(output.stdout).expect("text")
}

/// Whether this was foretold.
fn foretold(shown: &str, really: &str) -> bool {
    let mut lines = (shown.lines(), really.lines());
    loop {
        match (lines.0.next(), lines.1.next()) {
            (None, None) => return true,
            (Some(shown), Some(really)) if line_foretold(shown, really) => {}
            _ => return false,
        }
    }
}

/// The same of one line: its parts are there, in their order, and nothing but a `…` is between them.
fn line_foretold(shown: &str, really: &str) -> bool {
    let mut parts = shown.split('…');
    let Some(mut rest) = parts.next().and_then(|first| really.strip_prefix(first)) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        let found =
            if parts.peek().is_none() { rest.ends_with(part).then_some("") } else { after(rest, part) };
        let Some(after) = found else { return false };
        rest = after;
    }
    true
}

/// What follows the first such part.
fn after<'a>(text: &'a str, part: &str) -> Option<&'a str> {
    text.split_once(part).map(|(_, after)| after)
}

#[track_caller]
fn check(document: &str) {
    check_with(document, &Serving::start());
}

/// The same with a server that keeps what it counts elsewhere.
#[track_caller]
pub(crate) fn check_with(document: &str, server: &Serving) {
    let path = root().join(document);
    let text = read(document);
    if std::env::var_os("TIDEGATE_PUBLISH").is_some() {
        std::fs::write(&path, published(&text, server)).expect("the documents are writable");
        return;
    }
    let commands = shown(&text);
    assert!(!commands.is_empty(), "{document} shows nothing");
    for Shown { line, command, output } in commands {
        let really = printed(&command, server);
        let advice = "if it is right, TIDEGATE_PUBLISH=1 writes it down";
        assert!(
            foretold(&output, &really),
            "{document}:{line}: `{command}` prints something else; {advice}:\n{really}instead of:\n{output}"
        );
    }
}

/// The document with what its commands really print, where that is something else than it shows.
fn published(text: &str, server: &Serving) -> String {
    let mut commands = shown(text).into_iter();
    let mut out = String::new();
    let (mut inside, mut skipping) = (false, false);
    for line in text.lines() {
        match (inside, line) {
            (false, "```console") => inside = true,
            (true, "```") => (inside, skipping) = (false, false),
            (true, line) if line.starts_with("$ ") => {
                let Shown { command, output, .. } = commands.next().expect("it was found before");
                let really = printed(&command, server);
                out.extend([line, "\n", if foretold(&output, &really) { &output } else { &really }]);
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
fn an_ellipsis_stands_for_a_part_of_a_line() {
    for (shown, really) in [
        ("a", "a"),
        ("a…", "a"),
        ("a…", "abc"),
        ("…", "x"),
        ("a … c …", "a b c d"),
        ("…c", "cc"),
        ("a\n…b", "a\nxb"),
    ] {
        assert!(foretold(shown, really), "{shown} {really}");
    }
    for (shown, really) in
        [("a", "ab"), ("a", "a\na"), ("a\na", "a"), ("a…c", "ab"), ("…a…", "b"), ("a…", "b"), ("…", "a\nb")]
    {
        assert!(!foretold(shown, really), "{shown} {really}");
    }
}

#[test]
fn activity() {
    check("docs/activity.md");
}

#[test]
fn readme() {
    check("README.md");
}

#[test]
fn service() {
    check("docs/service.md");
}

#[test]
fn commands() {
    check("docs/commands.md");
}

#[test]
fn operations() {
    check("docs/operations.md");
}

#[test]
fn limits_file() {
    check("docs/limits-file.md");
}

#[test]
fn bench() {
    check("docs/bench.md");
}

#[test]
fn cpu() {
    check("docs/cpu.md");
}

#[test]
fn gateway() {
    check("docs/gateway.md");
}
