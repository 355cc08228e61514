//! The console examples of the documents, run and compared with what the documents show.
//!
//! The test `every_document_shows_real_output` finds `README.md` and every `*.md` file below `docs/`. A document without a
//! `console` block needs no entry anywhere and costs nothing.
//!
//! # How an example is run
//!
//! ````text
//! ```console
//! $ tidegate limit add sale --item policy=total,limit=2
//! added sale, version …
//! ```
//! ````
//!
//! - A line that begins with `$ ` is a command for `sh`. The lines after it are what it prints on both streams, in order.
//! - A command goes on in the next line after a trailing `\`. A here-document (`<<EOF`, `<<'EOF'`) goes on until its end word.
//! - `…` in the output stands for any part of one line, also an empty one. It never stands for a line break.
//! - Commands of a document run in order, each in a shell of its own: `cd`, variables and `export` do not carry over.
//! - The working directory is the root of the repository, or an empty one; see `directory` below.
//! - `tidegate` is the binary under test. `TIDEGATE_TOKEN` is not set.
//!
//! Every document has a server of its own, with the store in a temporary directory. It starts with the first command and is
//! killed after the last one.
//!
//! - `TIDEGATE_SERVER` is its URL, `TIDEGATE_DATA` its store directory, `TMPDIR` is removed with it.
//! - `127.0.0.1:7700`, `localhost:7700` and the same with port 7701 in a command mean this server: its HTTP and its RESP
//!   port. Its real addresses in the output are written back as `127.0.0.1:7700` and `127.0.0.1:7701`.
//!
//! # Directives in the info string of a block
//!
//! | block | effect |
//! |---|---|
//! | ```` ```console ```` | runs and is compared |
//! | ```` ```console no-run ```` | is not run: for what needs a network, a cluster or root |
//! | ```` ```console server ```` | starts the server of the commands that follow, in place of the one before |
//!
//! A `console server` block has one command, `$ tidegate serve …`. The lines after it are what the server prints until it is
//! ready. `--http` and `--resp` are replaced by free ports. Arguments are split at blanks, without quoting.
//!
//! # Directives in HTML comments
//!
//! Each stands on a line of its own, before the first example, and holds for the whole document.
//!
//! | comment | effect |
//! |---|---|
//! | `<!-- console: store=postgres -->` | the document's server shares the tests' PostgreSQL, in a schema of its own |
//! | `<!-- console: config=examples/x.yaml -->` | the document's server reads this settings file, a path below the root |
//! | `<!-- console: directory=empty -->` | commands and `console server` run in an empty directory, not in the root |
//! | `<!-- console: requires=NAME -->` | the document is skipped, with a note, where `PATH` has no such program |
//!
//! A hidden block prepares or cleans up. It is an HTML comment that readers do not see; its commands run like others:
//!
//! ````text
//! <!-- console
//! $ cp /somewhere/tidegate.yaml .
//! -->
//! ````
//!
//! # Running it
//!
//! - `cargo test -p tidegate-cli --test cli docs` runs every document.
//! - `nginx.rs` runs the configuration of the nginx guide in a real nginx.
//! - `TIDEGATE_DOCS=how-to/gateway` restricts it to documents whose path contains that text.
//! - `TIDEGATE_PUBLISH=1` writes real output into the documents where it differs. Read the difference before you commit it.

#![allow(
    clippy::disallowed_methods,
    reason = "which documents are wanted and where programs are is in the environment"
)]

mod document;
mod nginx;
mod pattern;
mod session;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread::available_parallelism;

use document::{Document, Example};
use session::Session;

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The text of a document.
fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).expect("the document is there")
}

/// The paths of all documents below the root, in order.
fn paths() -> Vec<String> {
    let mut found = vec!["README.md".to_owned()];
    let mut folders = vec!["docs".to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(root().join(&folder)).expect("a readable folder") {
            let entry = entry.expect("a readable entry");
            let path = format!("{folder}/{}", entry.file_name().to_str().expect("a name in UTF-8"));
            if entry.file_type().expect("a type").is_dir() {
                folders.push(path);
            } else if Path::new(&path).extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The SQL blocks of all documents, in order: `sql` blocks without `no-run`.
pub(crate) fn sql_blocks() -> Vec<String> {
    let text: Vec<String> = paths().iter().map(|path| read(path)).collect();
    let blocks = text.iter().flat_map(|text| text.split("```sql\n").skip(1));
    blocks.filter_map(|rest| rest.split("```").next()).map(str::to_owned).collect()
}

/// Runs one document. Returns what it shows and does not happen.
fn differences(path: &str, publish: bool) -> Vec<String> {
    let text = read(path);
    let document = Document::parse(path, &text);
    if document.examples.is_empty() {
        return Vec::new();
    }
    if let Some(program) = document.directives.missing_program() {
        tidegate_testkit::skip(&format!("{path} needs {program}"));
        return Vec::new();
    }
    let mut session = Session::new(&document.directives);
    let mut differences = Vec::new();
    let mut outputs = Vec::new();
    for example in &document.examples {
        let Example { line, command, shown, .. } = example;
        let printed = session.run(example);
        let is_as_shown = pattern::matches(shown, &printed);
        if !is_as_shown {
            differences.push(format!("{path}:{line}: `{command}` prints\n{printed}instead of\n{shown}"));
        }
        outputs.push(if is_as_shown { shown.clone() } else { printed });
    }
    if publish {
        std::fs::write(root().join(path), document.with_outputs(&outputs))
            .expect("the documents are writable");
        return Vec::new();
    }
    differences
}

#[test]
fn every_document_shows_real_output() {
    let publish = std::env::var_os("TIDEGATE_PUBLISH").is_some();
    let wanted = std::env::var("TIDEGATE_DOCS").unwrap_or_default();
    let mut paths = paths();
    paths.retain(|path| path.contains(&wanted));
    assert!(!paths.is_empty(), "no document's path contains '{wanted}'");
    let remaining = Mutex::new(paths.into_iter());
    let found = Mutex::new(Vec::new());
    let workers = available_parallelism().map_or(2, |cores| cores.get().clamp(2, 8));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let next = remaining.lock().expect("no thread panics with it").next();
                    let Some(path) = next else { return };
                    let differences = differences(&path, publish);
                    found.lock().expect("no thread panics with it").extend(differences);
                }
            });
        }
    });
    let found = found.into_inner().expect("no thread panics with it");
    let advice = "if this is right, TIDEGATE_PUBLISH=1 writes it into the documents";
    assert!(found.is_empty(), "{}\n{advice}", found.join("\n"));
}
