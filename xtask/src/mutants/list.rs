//! The list of mutants, as it is written.
//!
//! ```text
//!   # why this mistake is worth a test
//!   mutant  a-name
//!   file    crates/tidegate-core/src/law/rolling.rs
//!   old     the exact text, which occurs once
//!   new     what it becomes
//!   tests   -p tidegate-core a_test
//! ```
//!
//! A key and its value are parted by blanks. Text of several lines repeats its key; `|` before a value marks where it
//! begins, when that is a blank. `tests` is what follows `cargo test`. Nothing is escaped.

use std::fs;
use std::path::Path;

use crate::Outcome;

/// A mistake, and who should notice.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Mutant {
    pub(super) name: String,
    /// Relative to the root.
    pub(super) file: String,
    pub(super) old: String,
    pub(super) new: String,
    /// What follows `cargo test`.
    pub(super) tests: Vec<String>,
}

/// Reads the lists of all crates, `xtask/mutants/*.txt`, in the order of their names.
pub(super) fn load(root: &Path) -> Outcome<Vec<Mutant>> {
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

/// Every mutant of the list, or what is wrong with it and where.
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
    complete(mutants)
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

fn complete(mutants: Vec<Mutant>) -> Result<Vec<Mutant>, String> {
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
            return Err(format!("two mutants are called {}", mutant.name));
        }
    }
    Ok(mutants)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_read() {
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
    fn text_of_several_lines_keeps_its_blanks() {
        let mutants = parse("mutant a\nfile f\nold if x {\nold |    y\nold }\nnew\ntests -p z\n").unwrap();
        assert_eq!(mutants[0].old, "if x {\n    y\n}");
        assert_eq!(mutants[0].new, "");
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(parse("file f\n").unwrap_err().contains("line 1"));
        assert!(parse("mutant a\nflie f\n").unwrap_err().contains("line 2"));
        assert!(parse("mutant a\nfile f\nold x\nnew y\n").unwrap_err().contains("lacks `tests`"));
        assert!(
            parse("mutant a\nfile f\nold x\nnew x\ntests -p z\n").unwrap_err().contains("changes nothing")
        );
        let twice = "mutant a\nfile f\nold x\nnew y\ntests -p z\n".repeat(2);
        assert!(parse(&twice).unwrap_err().contains("two mutants"));
    }

    /// The mutants are planted rarely. That every text they replace still exists is checked in every run.
    #[test]
    fn every_mutant_matches_its_file_once() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for Mutant { name, file, old, .. } in load(&root).unwrap() {
            let text = fs::read_to_string(root.join(&file)).unwrap_or_default();
            assert_eq!(text.matches(&old).count(), 1, "{name}: its text is not in {file} exactly once");
        }
    }
}
