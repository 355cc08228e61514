//! Names that say nothing: a module is called after what it is about.

use std::path::{Path, PathBuf};

use super::code::Token;
use super::{Breach, Text};

const NOUN: &str = "a module is named after what it is about";

const EMPTY_NAMES: &[&str] = &["util", "utils", "common", "helper", "helpers", "misc"];

/// Files and folders with Rust in them that are called nothing.
pub(super) fn breaches(paths: &[PathBuf]) -> Vec<Breach> {
    let rust = paths.iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    rust.filter_map(|path| Some(Breach::of_file(path, NOUN, empty_part(path)?))).collect()
}

fn empty_part(path: &Path) -> Option<String> {
    let parts = path.with_extension("");
    let parts = parts.components().map(|part| part.as_os_str().to_string_lossy().into_owned());
    // A crate called tidegate-utils is no better than a module called utils.
    parts.into_iter().find(|part| part.split('-').any(|word| EMPTY_NAMES.contains(&word)))
}

/// Modules inside a file that are called nothing.
pub(super) fn module_breaches(text: &Text, tokens: &[Token<'_>]) -> Vec<Breach> {
    let modules =
        tokens.windows(2).filter(|pair| pair[0].text == "mod" && EMPTY_NAMES.contains(&pair[1].text));
    modules.map(|pair| Breach::at(&text.path, pair[1].line, NOUN, format!("mod {}", pair[1].text))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::code::tokens;
    use super::super::tests::text;
    use super::*;

    fn found(path: &str) -> Vec<String> {
        breaches(&[path.into()]).into_iter().map(|breach| breach.found).collect()
    }

    #[test]
    fn empty_names_are_found_wherever_they_are() {
        assert_eq!(found("crates/a/src/utils.rs"), ["utils"]);
        assert_eq!(found("crates/a/tests/common/mod.rs"), ["common"]);
        assert_eq!(found("crates/tidegate-helpers/src/lib.rs"), ["tidegate-helpers"]);
        let text = text("a.rs", "mod helper {}\nmod law {}");
        assert_eq!(module_breaches(&text, &tokens(&text.content)).len(), 1);
    }

    #[test]
    fn nouns_are_not() {
        assert_eq!(found("crates/a/src/commons.rs"), [""; 0]);
        assert_eq!(found("docs/common.md"), [""; 0]);
    }
}
