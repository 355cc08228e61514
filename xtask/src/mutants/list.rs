//! The format of the mutant lists.
//!
//! ```text
//!   # why this bug is worth a test
//!   mutant  a-name
//!   file    crates/tidegate-core/src/law/rolling.rs
//!   old     the exact text, which occurs exactly once
//!   new     its replacement
//!   tests   -p tidegate-core a_test
//! ```
//!
//! Blanks separate a key from its value. Text of several lines repeats its key. `|` before a value marks its start if the
//! value begins with blanks. `tests` holds the arguments of `cargo test`. There is no escaping.

use std::fs;
use std::path::Path;

use crate::TaskResult;

/// A bug and the tests that must fail for it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Mutant {
    pub(super) name: String,
    /// Relative to the repository root.
    pub(super) file: String,
    pub(super) old: String,
    pub(super) new: String,
    /// Arguments of `cargo test`.
    pub(super) tests: Vec<String>,
}

/// Reads the lists of all crates, `xtask/mutants/*.txt`, sorted by name.
pub(super) fn load(root: &Path) -> TaskResult<Vec<Mutant>> {
    let mut paths = fs::read_dir(root.join("xtask/mutants"))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()?;
    paths.sort();
    let mut text = String::new();
    for path in paths {
        text.push_str(&fs::read_to_string(path)?);
    }
    Ok(parse(&text)?)
}

/// Parses a list, or says what is wrong and on which line.
pub(super) fn parse(text: &str) -> Result<Vec<Mutant>, String> {
    let mut mutants: Vec<Mutant> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let wrong = |what: &str| format!("line {}: {what}", index + 1);
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let (key, value) = key_and_value(line);
        if key == "mutant" {
            mutants.push(Mutant { name: value.to_owned(), ..Mutant::default() });
            continue;
        }
        let mutant = mutants.last_mut().ok_or_else(|| wrong("an entry begins with `mutant`"))?;
        match key {
            "file" => value.clone_into(&mut mutant.file),
            "old" => add_line(&mut mutant.old, value),
            "new" => add_line(&mut mutant.new, value),
            "tests" => mutant.tests = value.split_whitespace().map(str::to_owned).collect(),
            _ => return Err(wrong("write `mutant`, `file`, `old`, `new` or `tests`")),
        }
    }
    validate(mutants)
}

fn key_and_value(line: &str) -> (&str, &str) {
    let (key, rest) = line.split_once(' ').unwrap_or((line, ""));
    let value = rest.trim_start();
    (key, value.strip_prefix('|').unwrap_or(value))
}

fn add_line(text: &mut String, line: &str) {
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str(line);
}

fn validate(mutants: Vec<Mutant>) -> Result<Vec<Mutant>, String> {
    for (index, mutant) in mutants.iter().enumerate() {
        let lacks = [
            ("a name", mutant.name.is_empty()),
            ("`file`", mutant.file.is_empty()),
            ("`old`", mutant.old.is_empty()),
            ("`tests`", mutant.tests.is_empty()),
        ];
        if let Some((what, _)) = lacks.iter().find(|(_, lacking)| *lacking) {
            return Err(format!("mutant {} lacks {what}", mutant.name));
        }
        if mutant.old == mutant.new {
            return Err(format!("mutant {} changes nothing", mutant.name));
        }
        if mutants[..index].iter().any(|other| other.name == mutant.name) {
            return Err(format!("two mutants are named {}", mutant.name));
        }
    }
    Ok(mutants)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_entry_is_parsed() {
        let mutants =
            parse("# why\nmutant  a\nfile    f.rs\nold     x < y\nnew     x <= y\ntests   -p z some_test\n")
                .unwrap();
        let expected = Mutant {
            name: "a".to_owned(),
            file: "f.rs".to_owned(),
            old: "x < y".to_owned(),
            new: "x <= y".to_owned(),
            tests: vec!["-p".to_owned(), "z".to_owned(), "some_test".to_owned()],
        };
        assert_eq!(mutants, [expected]);
    }

    #[test]
    fn multiline_text_keeps_its_indentation() {
        let mutants = parse("mutant a\nfile f\nold if x {\nold |    y\nold }\nnew\ntests -p z\n").unwrap();
        assert_eq!(mutants[0].old, "if x {\n    y\n}");
        assert_eq!(mutants[0].new, "");
    }

    #[test]
    fn errors_name_the_line_or_the_mutant() {
        assert!(parse("file f\n").unwrap_err().contains("line 1"));
        assert!(parse("mutant a\nflie f\n").unwrap_err().contains("line 2"));
        assert!(parse("mutant a\nfile f\nold x\nnew y\n").unwrap_err().contains("lacks `tests`"));
        assert!(
            parse("mutant a\nfile f\nold x\nnew x\ntests -p z\n").unwrap_err().contains("changes nothing")
        );
        let twice = "mutant a\nfile f\nold x\nnew y\ntests -p z\n".repeat(2);
        assert!(parse(&twice).unwrap_err().contains("two mutants"));
    }

    /// Mutants are planted rarely, so every test run checks that the text they replace still exists.
    #[test]
    fn old_text_of_every_mutant_occurs_exactly_once() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for Mutant { name, file, old, .. } in load(&root).unwrap() {
            let text = fs::read_to_string(root.join(&file)).unwrap_or_default();
            assert_eq!(text.matches(&old).count(), 1, "{name}: its text is not in {file} exactly once");
        }
    }
}
