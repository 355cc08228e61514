//! The crate graph: which crate may depend on which.
//!
//! ```text
//!   core ◀─ config ◀─ tidegate ◀─ disk | redis | postgres        stores never name a protocol
//!                              ◀─ net ◀─ server | gateway        protocols never name a store
//!                              ◀─ cpu
//!                              ◀─ testkit                        any crate's tests may use it
//!                                                 ◀─ cli         wires everything
//!                                                 ◀─ bench       measures everything
//!   xtask                                                        uses no crate of the workspace
//! ```
//!
//! A crate that is not in [`EDGES`] is a violation.

use std::path::{Path, PathBuf};

use super::Violation;
use crate::workspace::{Crate, DependencyKind};

const CORE: &str = "tidegate-core";
const CONFIG: &str = "tidegate-config";
const LIBRARY: &str = "tidegate";
const DISK: &str = "tidegate-disk";
const POSTGRES: &str = "tidegate-postgres";
const REDIS: &str = "tidegate-redis";
const NET: &str = "tidegate-net";
const SERVER: &str = "tidegate-server";
const GATEWAY: &str = "tidegate-gateway";
const CPU: &str = "tidegate-cpu";
const TESTKIT: &str = "tidegate-testkit";
const CLI: &str = "tidegate-cli";
const BENCH: &str = "tidegate-bench";
const XTASK: &str = "xtask";

/// The workspace crates that each crate may depend on.
const EDGES: &[(&str, &[&str])] = &[
    (CORE, &[]),
    (CONFIG, &[CORE]),
    (LIBRARY, &[CORE, CONFIG]),
    (DISK, &[CORE, LIBRARY]),
    (POSTGRES, &[CORE, CONFIG, LIBRARY]),
    (REDIS, &[CORE, LIBRARY]),
    (NET, &[CORE, CONFIG, LIBRARY]),
    (SERVER, &[CORE, CONFIG, LIBRARY, NET]),
    (GATEWAY, &[CORE, CONFIG, LIBRARY, NET]),
    (CPU, &[CORE, CONFIG, LIBRARY]),
    (TESTKIT, &[CORE, LIBRARY]),
    (CLI, &[CORE, CONFIG, LIBRARY, DISK, POSTGRES, REDIS, NET, SERVER, GATEWAY, CPU]),
    (BENCH, &[CORE, CONFIG, LIBRARY, DISK, POSTGRES, REDIS, NET, SERVER, GATEWAY, CPU]),
    (XTASK, &[]),
];

/// The external crates that the core may use.
const CORE_EXTERNAL: &[&str] = &["hashbrown", "jiff"];

const GRAPH: &str = "core <- config <- tidegate <- stores and protocols <- cli";
const CORE_USES: &str = "the core uses hashbrown and jiff and nothing else";
const FOLDER: &str = "a crate's folder is its name, except xtask and benches";
const DESCRIPTION: &str = "every crate has a description";

/// Every violation in the crate graph.
pub(super) fn violations(crates: &[Crate]) -> Vec<Violation> {
    let names: Vec<&str> = crates.iter().map(|each| each.name.as_str()).collect();
    crates.iter().flat_map(|each| crate_violations(each, &names)).collect()
}

fn crate_violations(each: &Crate, members: &[&str]) -> Vec<Violation> {
    let manifest = each.folder.join("Cargo.toml");
    let mut violations = Vec::new();
    if each.folder != folder_for(&each.name) {
        let found = format!("{} is in {}", each.name, each.folder.display());
        violations.push(Violation::of_file(&manifest, FOLDER, found));
    }
    if each.description.as_deref().is_none_or(|text| text.trim().is_empty()) {
        violations.push(Violation::of_file(&manifest, DESCRIPTION, "no description"));
    }
    violations.extend(dependency_violations(each, members, &manifest));
    violations
}

fn dependency_violations(each: &Crate, members: &[&str], manifest: &Path) -> Vec<Violation> {
    let Some(allowed) = allowed(&each.name) else {
        let found =
            format!("{} is not in the crate graph; add it in xtask/src/tidy/crate_graph.rs", each.name);
        return vec![Violation::of_file(manifest, GRAPH, found)];
    };
    let mut violations = Vec::new();
    for dependency in &each.dependencies {
        let name = dependency.name.as_str();
        let for_tests = dependency.kind == DependencyKind::Development;
        if members.contains(&name) {
            // A crate may depend on itself to turn on its own cargo features in its tests.
            let is_for_tests = for_tests && (name == each.name || name == TESTKIT && each.name != XTASK);
            let is_allowed = allowed.contains(&name) || is_for_tests;
            if !is_allowed {
                let found = format!("{} depends on {name}", each.name);
                violations.push(Violation::of_file(manifest, GRAPH, found));
            }
        } else if each.name == CORE && !for_tests && !CORE_EXTERNAL.contains(&name) {
            violations.push(Violation::of_file(manifest, CORE_USES, format!("it uses {name}")));
        }
    }
    violations
}

/// The workspace crates that this crate may depend on; `None` for a crate outside the graph.
fn allowed(name: &str) -> Option<&'static [&'static str]> {
    EDGES.iter().find(|(from, _)| *from == name).map(|(_, to)| *to)
}

fn folder_for(name: &str) -> PathBuf {
    match name {
        XTASK => name.into(),
        BENCH => "benches".into(),
        name => Path::new("crates").join(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Dependency;

    fn a_crate(name: &str, always: &[&str], for_tests: &[&str]) -> Crate {
        let dependency = |kind| move |name: &&str| Dependency { name: (*name).to_owned(), kind };
        let always = always.iter().map(dependency(DependencyKind::Normal));
        let for_tests = for_tests.iter().map(dependency(DependencyKind::Development));
        Crate {
            name: name.to_owned(),
            description: Some("something".to_owned()),
            folder: folder_for(name),
            dependencies: always.chain(for_tests).collect(),
        }
    }

    /// The violations of a valid workspace with one crate replaced.
    fn found_with(changed: Crate) -> Vec<String> {
        let mut crates = vec![
            a_crate(CORE, &["hashbrown", "jiff"], &["proptest", TESTKIT]),
            a_crate(CONFIG, &[CORE, "granit-parser"], &[]),
            a_crate(LIBRARY, &[CORE, CONFIG, "tokio"], &[LIBRARY, TESTKIT]),
            a_crate("tidegate-disk", &[CORE, LIBRARY], &[TESTKIT]),
            a_crate(NET, &[LIBRARY], &[]),
            a_crate("tidegate-server", &[CORE, LIBRARY, NET], &[TESTKIT]),
            a_crate(TESTKIT, &[CORE, LIBRARY], &[]),
            a_crate(CLI, &[LIBRARY, "tidegate-disk", "tidegate-server"], &[TESTKIT]),
            a_crate(BENCH, &[LIBRARY, "tidegate-disk"], &["governor"]),
            a_crate(XTASK, &["serde_json"], &[]),
        ];
        crates.retain(|each| each.name != changed.name);
        crates.push(changed);
        violations(&crates).into_iter().map(|violation| violation.found).collect()
    }

    #[test]
    fn valid_workspace_has_no_violations() {
        assert_eq!(found_with(a_crate(XTASK, &[], &[])), [""; 0]);
    }

    #[test]
    fn edge_outside_the_graph_is_a_violation() {
        for (from, to) in [
            (CORE, LIBRARY),
            (CORE, CONFIG),
            (CONFIG, LIBRARY),
            (LIBRARY, LIBRARY),
            (CORE, TESTKIT),
            (LIBRARY, "tidegate-disk"),
            ("tidegate-server", "tidegate-disk"),
            ("tidegate-disk", "tidegate-server"),
            ("tidegate-disk", NET),
            (NET, "tidegate-server"),
            (TESTKIT, "tidegate-disk"),
            (CLI, TESTKIT),
            (CLI, BENCH),
            (LIBRARY, BENCH),
            (XTASK, CORE),
        ] {
            assert_eq!(found_with(a_crate(from, &[to], &[])), [format!("{from} depends on {to}")]);
        }
    }

    #[test]
    fn dev_dependency_outside_the_graph_is_a_violation() {
        let found = found_with(a_crate("tidegate-server", &[LIBRARY], &["tidegate-disk"]));
        assert_eq!(found, ["tidegate-server depends on tidegate-disk"]);
        assert_eq!(found_with(a_crate(XTASK, &[], &[TESTKIT])), ["xtask depends on tidegate-testkit"]);
    }

    #[test]
    fn external_crate_in_the_core_is_a_violation() {
        assert_eq!(found_with(a_crate(CORE, &["hashbrown", "serde"], &[])), ["it uses serde"]);
    }

    #[test]
    fn crate_outside_graph_or_folder_or_without_description_is_a_violation() {
        assert_eq!(found_with(a_crate("tidegate-etcd", &[], &[])).len(), 1);
        let moved = Crate { folder: "crates/core".into(), ..a_crate(CORE, &[], &[]) };
        assert_eq!(found_with(moved), ["tidegate-core is in crates/core"]);
        let silent = Crate { description: Some(" ".to_owned()), ..a_crate(CORE, &[], &[]) };
        assert_eq!(found_with(silent), ["no description"]);
    }
}
