//! `cargo xtask tidy`: repository rules that the compiler does not check.
//!
//! Each module below holds one kind of rule and returns its violations. The report lists all of them with file, line and rule.
//! Every rule is a pure function of text, so its tests need no files.
//!
//! A checked file cannot suppress a rule. A rule that needs an exception is changed here, where reviewers see it.

mod core_purity;
mod crate_graph;
mod file_length;
mod leftovers;
mod links;
mod machine_paths;
mod module_cycles;
mod module_names;
mod tokens;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::workspace::Workspace;
use crate::{TaskResult, source_files};

/// A violated rule and its location.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Violation {
    path: PathBuf,
    /// From 1; `None` for the file as a whole.
    line: Option<usize>,
    /// The rule in words.
    rule: &'static str,
    /// What was found.
    found: String,
}

impl Violation {
    fn of_file(path: &Path, rule: &'static str, found: impl Into<String>) -> Violation {
        Violation { path: path.to_owned(), line: None, rule, found: found.into() }
    }

    fn at(path: &Path, line: usize, rule: &'static str, found: impl Into<String>) -> Violation {
        Violation { line: Some(line), ..Violation::of_file(path, rule, found) }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {} (rule: {})", self.found, self.rule)
    }
}

/// A text file.
#[derive(Debug)]
struct SourceText {
    path: PathBuf,
    content: String,
}

impl SourceText {
    fn is_rust(&self) -> bool {
        self.path.extension().is_some_and(|extension| extension == "rs")
    }

    fn is_markdown(&self) -> bool {
        self.path.extension().is_some_and(|extension| extension == "md")
    }

    /// Whether the whole file is test code: a file in `tests/` or a file `tests.rs`.
    fn is_test(&self) -> bool {
        self.path.components().any(|part| part.as_os_str() == "tests") || self.path.ends_with("tests.rs")
    }
}

/// Checks the whole repository.
pub(crate) fn run() -> TaskResult {
    let workspace = Workspace::load()?;
    let paths = source_files::files(&workspace.root)?;
    let texts = read(&workspace.root, &paths);
    let mut violations = crate_graph::violations(&workspace.crates);
    violations.extend(module_names::violations(&paths));
    violations.extend(module_cycles::violations(&texts));
    for text in &texts {
        violations.extend(check(text, &workspace.root));
    }
    violations.sort();
    for violation in &violations {
        println!("{violation}");
    }
    println!("{} files, {} crates: {} violations", paths.len(), workspace.crates.len(), violations.len());
    if violations.is_empty() {
        Ok(())
    } else {
        Err("the repository rules are violated; see the list above".into())
    }
}

fn check(text: &SourceText, root: &Path) -> Vec<Violation> {
    let mut violations = machine_paths::violations(text);
    violations.extend(file_length::violations(text));
    if text.is_markdown() {
        violations.extend(links::violations(text, &|path| root.join(path).exists()));
    }
    if text.is_rust() {
        let tokens = tokens::tokens(&text.content);
        violations.extend(leftovers::violations(text, &tokens));
        violations.extend(module_names::module_violations(text, &tokens));
        violations.extend(core_purity::violations(text, &tokens));
    }
    violations
}

/// Reads the files that are UTF-8 text.
fn read(root: &Path, paths: &[PathBuf]) -> Vec<SourceText> {
    let read = |path: &PathBuf| {
        let content = fs::read_to_string(root.join(path)).ok()?;
        Some(SourceText { path: path.clone(), content })
    };
    paths.iter().filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text at a path, for the tests of rules.
    pub(super) fn text(path: &str, content: &str) -> SourceText {
        SourceText { path: path.into(), content: content.to_owned() }
    }

    #[test]
    fn violation_names_file_line_and_rule() {
        let violation = Violation::at(Path::new("a/b.rs"), 7, "no x", "x");
        assert_eq!(violation.to_string(), "a/b.rs:7: x (rule: no x)");
        assert_eq!(Violation::of_file(Path::new("a"), "no x", "x").to_string(), "a: x (rule: no x)");
    }

    #[test]
    fn test_files_are_recognized_by_path() {
        assert!(text("crates/a/tests/laws.rs", "").is_test());
        assert!(text("crates/a/src/law/tests.rs", "").is_test());
        assert!(!text("crates/a/src/law.rs", "").is_test());
    }
}
