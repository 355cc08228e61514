//! No import cycles between the top-level modules of the library crates.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::tokens::{Token, tokens};
use super::{SourceText, Violation};

const ACYCLIC: &str = "top-level modules of a library crate import each other in one direction";

/// The crates that the rule is about. The others are programs, whose connections and workers know each other.
const LIBRARIES: &[&str] =
    &["tidegate", "tidegate-config", "tidegate-core", "tidegate-cpu", "tidegate-net", "tidegate-testkit"];

/// The modules of each library that are in a cycle, or on a path between two cycles.
pub(super) fn violations(texts: &[SourceText]) -> Vec<Violation> {
    let mut found = Vec::new();
    for library in LIBRARIES {
        let source = format!("crates/{library}/src");
        let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for text in texts.iter().filter(|text| text.is_rust() && !text.is_test()) {
            let Ok(path) = text.path.strip_prefix(&source) else { continue };
            let top = path.components().next().map(|part| Path::new(&part).with_extension(""));
            let module = top.map(|top| top.display().to_string()).filter(|module| module != "lib");
            if let Some(module) = module {
                let names = imported(&tokens(&text.content)).into_iter().filter(|name| *name != module);
                imports.entry(module.clone()).or_default().extend(names.map(str::to_owned));
            }
        }
        for (module, imported) in cyclic(imports) {
            let imported = imported.into_iter().collect::<Vec<_>>().join(", ");
            let message = format!("{module} imports {imported} and is imported by them, also over others");
            found.push(Violation::of_file(Path::new(&source), ACYCLIC, message));
        }
    }
    found
}

/// The first names behind `crate::`, until a module of tests begins.
fn imported<'a>(tokens: &[Token<'a>]) -> BTreeSet<&'a str> {
    let is_end = |three: &[Token<'_>]| three.iter().map(|token| token.text).eq(["mod", "tests", "{"]);
    let end = tokens.windows(3).position(is_end).unwrap_or(tokens.len());
    let mut names = BTreeSet::new();
    let is_path = |three: &[Token<'_>]| three.iter().map(|token| token.text).eq(["crate", ":", ":"]);
    let paths = tokens[..end].windows(3).enumerate().filter(|(_, three)| is_path(three));
    for (index, _) in paths {
        let mut depth = 0;
        // `crate::a::…`, or the names behind the brace and the commas of `crate::{a::…, b}`.
        for pair in tokens[index..end].windows(2).skip(2) {
            let (before, name) = (pair[0].text, pair[1].text);
            match before {
                ":" if depth == 0 && name != "{" => {
                    names.insert(name);
                    break;
                }
                "{" => depth += 1,
                "}" if depth == 1 => break,
                "}" => depth -= 1,
                ";" => break,
                _ => {}
            }
            if depth == 1 && matches!(before, "{" | ",") {
                names.insert(name);
            }
        }
    }
    names
}

/// Removes modules that import no module that is left, or that none imports, until all that are left are in cycles.
fn cyclic(mut imports: BTreeMap<String, BTreeSet<String>>) -> BTreeMap<String, BTreeSet<String>> {
    loop {
        let modules: BTreeSet<String> = imports.keys().cloned().collect();
        for imported in imports.values_mut() {
            imported.retain(|name| modules.contains(name));
        }
        let needed: BTreeSet<String> = imports.values().flatten().cloned().collect();
        imports.retain(|module, imported| !imported.is_empty() && needed.contains(module));
        if imports.len() == modules.len() {
            return imports;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::text;
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let texts: Vec<SourceText> = files.iter().map(|(path, content)| text(path, content)).collect();
        violations(&texts).into_iter().map(|violation| violation.found).collect()
    }

    #[test]
    fn modules_that_import_each_other_are_violations() {
        let files = [
            ("crates/tidegate/src/a.rs", "use crate::{d, b::{X, Y}};"),
            ("crates/tidegate/src/b/c.rs", "fn f() { crate::a::f() }"),
            ("crates/tidegate/src/d.rs", "use std::fmt;"),
            ("crates/tidegate/src/e.rs", "use crate::a;"),
        ];
        assert_eq!(
            found(&files),
            [
                "a imports b and is imported by them, also over others",
                "b imports a and is imported by them, also over others",
            ]
        );
    }

    #[test]
    fn imports_of_tests_comments_and_own_module_do_not_count() {
        let files = [
            ("crates/tidegate/src/a.rs", "use crate::b::X; use crate::a::Z;"),
            (
                "crates/tidegate/src/b.rs",
                "// crate::a\nuse crate::Root;\npub(crate) fn f(_: a) {}\n#[cfg(test)]\nmod tests { use crate::a::Y; }",
            ),
            ("crates/tidegate/src/lib.rs", "use crate::a; mod a;"),
            ("crates/tidegate-server/src/a.rs", "use crate::b;"),
            ("crates/tidegate-server/src/b.rs", "use crate::a;"),
        ];
        assert_eq!(found(&files), [""; 0]);
    }
}
