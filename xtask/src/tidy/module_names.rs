//! No module names without meaning, such as `utils`.

use std::path::{Path, PathBuf};

use super::tokens::Token;
use super::{SourceText, Violation};

const MEANINGFUL: &str = "a module is named after its subject";

const EMPTY_NAMES: &[&str] = &["util", "utils", "common", "helper", "helpers", "misc"];

/// Rust files and folders with such names.
pub(super) fn violations(paths: &[PathBuf]) -> Vec<Violation> {
    let rust = paths.iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    rust.filter_map(|path| Some(Violation::of_file(path, MEANINGFUL, empty_part(path)?))).collect()
}

fn empty_part(path: &Path) -> Option<String> {
    let parts = path.with_extension("");
    let parts = parts.components().map(|part| part.as_os_str().to_string_lossy().into_owned());
    // This includes crate names such as tidegate-utils.
    parts.into_iter().find(|part| part.split('-').any(|word| EMPTY_NAMES.contains(&word)))
}

/// Inline modules with such names.
pub(super) fn module_violations(text: &SourceText, tokens: &[Token<'_>]) -> Vec<Violation> {
    let modules =
        tokens.windows(2).filter(|pair| pair[0].text == "mod" && EMPTY_NAMES.contains(&pair[1].text));
    modules
        .map(|pair| Violation::at(&text.path, pair[1].line, MEANINGFUL, format!("mod {}", pair[1].text)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::text;
    use super::super::tokens::tokens;
    use super::*;

    fn found(path: &str) -> Vec<String> {
        violations(&[path.into()]).into_iter().map(|violation| violation.found).collect()
    }

    #[test]
    fn names_without_meaning_are_violations() {
        assert_eq!(found("crates/a/src/utils.rs"), ["utils"]);
        assert_eq!(found("crates/a/tests/common/mod.rs"), ["common"]);
        assert_eq!(found("crates/tidegate-helpers/src/lib.rs"), ["tidegate-helpers"]);
        let text = text("a.rs", "mod helper {}\nmod law {}");
        assert_eq!(module_violations(&text, &tokens(&text.content)).len(), 1);
    }

    #[test]
    fn nouns_are_allowed() {
        assert_eq!(found("crates/a/src/commons.rs"), [""; 0]);
        assert_eq!(found("docs/common.md"), [""; 0]);
    }
}
