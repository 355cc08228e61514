//! `cargo xtask tidy`: the rules of the house that a compiler does not hold.
//!
//! Each file below holds one kind of rule and answers with its breaches; all of them are told at once, each with the
//! file, the line and the rule. Every rule is a function of text, so its tests can break it without touching a disk.
//!
//! Refused: exceptions written into the files being judged. A rule that needs one is changed here, where it is seen.

mod code;
mod graph;
mod leftovers;
mod lengths;
mod links;
mod names;
mod places;
mod purity;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::workspace::Workspace;
use crate::{Outcome, tree};

/// A rule that is broken, and where.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Breach {
    path: PathBuf,
    /// From 1; `None` if it is about the file as a whole.
    line: Option<usize>,
    /// The rule, as it would be stated.
    rule: &'static str,
    /// What was found instead.
    found: String,
}

impl Breach {
    fn of_file(path: &Path, rule: &'static str, found: impl Into<String>) -> Breach {
        Breach { path: path.to_owned(), line: None, rule, found: found.into() }
    }

    fn at(path: &Path, line: usize, rule: &'static str, found: impl Into<String>) -> Breach {
        Breach { line: Some(line), ..Breach::of_file(path, rule, found) }
    }
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {} (rule: {})", self.found, self.rule)
    }
}

/// A file that is text.
#[derive(Debug)]
struct Text {
    path: PathBuf,
    content: String,
}

impl Text {
    fn is_rust(&self) -> bool {
        self.path.extension().is_some_and(|extension| extension == "rs")
    }

    fn is_markdown(&self) -> bool {
        self.path.extension().is_some_and(|extension| extension == "md")
    }

    /// Whether the whole file is tests: a file of `tests/`, or a `tests.rs` beside what it tests.
    fn is_test(&self) -> bool {
        self.path.components().any(|part| part.as_os_str() == "tests") || self.path.ends_with("tests.rs")
    }
}

/// Judges the whole repository.
pub(crate) fn run() -> Outcome {
    let workspace = Workspace::load()?;
    let paths = tree::files(&workspace.root)?;
    let texts = read(&workspace.root, &paths);
    let mut breaches = graph::breaches(&workspace.crates);
    breaches.extend(names::breaches(&paths));
    for text in &texts {
        breaches.extend(judge(text, &workspace.root));
    }
    breaches.sort();
    for breach in &breaches {
        println!("{breach}");
    }
    println!("{} files, {} crates: {} breaches", paths.len(), workspace.crates.len(), breaches.len());
    if breaches.is_empty() { Ok(()) } else { Err("the house is not tidy".into()) }
}

fn judge(text: &Text, root: &Path) -> Vec<Breach> {
    let mut breaches = places::breaches(text);
    breaches.extend(lengths::breaches(text));
    if text.is_markdown() {
        breaches.extend(links::breaches(text, &|path| root.join(path).exists()));
    }
    if text.is_rust() {
        let tokens = code::tokens(&text.content);
        breaches.extend(leftovers::breaches(text, &tokens));
        breaches.extend(names::module_breaches(text, &tokens));
        breaches.extend(purity::breaches(text, &tokens));
    }
    breaches
}

/// The files that are text; what is not UTF-8 has no lines to judge.
fn read(root: &Path, paths: &[PathBuf]) -> Vec<Text> {
    let read = |path: &PathBuf| {
        let content = fs::read_to_string(root.join(path)).ok()?;
        Some(Text { path: path.clone(), content })
    };
    paths.iter().filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text at a path, for the tests of the rules.
    pub(super) fn text(path: &str, content: &str) -> Text {
        Text { path: path.into(), content: content.to_owned() }
    }

    #[test]
    fn a_breach_names_file_line_and_rule() {
        let breach = Breach::at(Path::new("a/b.rs"), 7, "no x", "x");
        assert_eq!(breach.to_string(), "a/b.rs:7: x (rule: no x)");
        assert_eq!(Breach::of_file(Path::new("a"), "no x", "x").to_string(), "a: x (rule: no x)");
    }

    #[test]
    fn tests_are_told_by_their_place() {
        assert!(text("crates/a/tests/laws.rs", "").is_test());
        assert!(text("crates/a/src/law/tests.rs", "").is_test());
        assert!(!text("crates/a/src/law.rs", "").is_test());
    }
}
