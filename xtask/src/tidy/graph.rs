//! Who may lean on whom.
//!
//! ```text
//!   core ◀─ config                                     settings files; for all that follow
//!        ◀─ tidegate ◀─ disk | redis | postgres        stores: never name a door
//!                    ◀─ rim ◀─ server | gateway        doors:  never name a store
//!                    ◀─ cpu
//!                    ◀─ testkit                        anybody's tests may use it
//!                                          ◀─ cli      the only one that names both
//!                                          ◀─ bench    measures any of them, and nobody leans on it
//!   xtask                                              leans on nobody
//! ```
//!
//! A crate that is not in the drawing has no place yet, and that is a breach too.

use std::path::{Path, PathBuf};

use super::Breach;
use crate::workspace::{Crate, Role};

const CORE: &str = "tidegate-core";
/// Settings files. The library has it as a cargo feature, the crates above it always.
const CONFIG: &str = "tidegate-config";
const LIBRARY: &str = "tidegate";
const TESTKIT: &str = "tidegate-testkit";
/// What doors share.
const RIM: &str = "tidegate-net";
const DOORS: &[&str] = &["tidegate-server", "tidegate-gateway"];
const BESIDE_EACH_OTHER: &[&str] = &[
    "tidegate-disk",
    "tidegate-redis",
    "tidegate-postgres",
    "tidegate-server",
    "tidegate-gateway",
    "tidegate-cpu",
    RIM,
    TESTKIT,
];
const CLI: &str = "tidegate-cli";
const BENCH: &str = "tidegate-bench";
const XTASK: &str = "xtask";

/// What the core may use of the world outside.
const CORE_MAY_USE: &[&str] = &["hashbrown", "jiff"];

const GRAPH: &str = "core <- config <- tidegate <- stores and doors <- cli";
const CORE_USES: &str = "the core uses hashbrown and jiff and nothing else";
const FOLDER: &str = "a crate's folder is its name, but for the chores and the benchmarks";
const DESCRIPTION: &str = "every crate says what it is";

/// Everything wrong with the crates as such.
pub(super) fn breaches(crates: &[Crate]) -> Vec<Breach> {
    let names: Vec<&str> = crates.iter().map(|each| each.name.as_str()).collect();
    crates.iter().flat_map(|each| crate_breaches(each, &names)).collect()
}

fn crate_breaches(each: &Crate, members: &[&str]) -> Vec<Breach> {
    let manifest = each.folder.join("Cargo.toml");
    let mut breaches = Vec::new();
    if each.folder != folder_for(&each.name) {
        let found = format!("{} lives in {}", each.name, each.folder.display());
        breaches.push(Breach::of_file(&manifest, FOLDER, found));
    }
    if each.description.as_deref().is_none_or(|text| text.trim().is_empty()) {
        breaches.push(Breach::of_file(&manifest, DESCRIPTION, "no description"));
    }
    breaches.extend(leaning_breaches(each, members, &manifest));
    breaches
}

fn leaning_breaches(each: &Crate, members: &[&str], manifest: &Path) -> Vec<Breach> {
    let Some(allowed) = allowed(&each.name) else {
        let found =
            format!("{} has no place in the graph; give it one in xtask/src/tidy/graph.rs", each.name);
        return vec![Breach::of_file(manifest, GRAPH, found)];
    };
    let mut breaches = Vec::new();
    for dependency in &each.leans_on {
        let name = dependency.name.as_str();
        let for_tests = dependency.role == Role::Development;
        if members.contains(&name) {
            let is_drawn = allowed.contains(&name) || for_tests && name == TESTKIT && each.name != XTASK;
            if !is_drawn {
                let found = format!("{} leans on {name}", each.name);
                breaches.push(Breach::of_file(manifest, GRAPH, found));
            }
        } else if each.name == CORE && !for_tests && !CORE_MAY_USE.contains(&name) {
            breaches.push(Breach::of_file(manifest, CORE_USES, format!("it uses {name}")));
        }
    }
    breaches
}

/// Which crates of the workspace this one may lean on; `None` if it is not in the drawing.
fn allowed(name: &str) -> Option<Vec<&'static str>> {
    match name {
        CORE | XTASK => Some(vec![]),
        CONFIG => Some(vec![CORE]),
        // The second is itself with all its features, for its tests.
        LIBRARY => Some(vec![CORE, CONFIG, LIBRARY]),
        CLI | BENCH => {
            let beside = BESIDE_EACH_OTHER.iter().copied().filter(|name| *name != TESTKIT);
            Some([CORE, CONFIG, LIBRARY].into_iter().chain(beside).collect())
        }
        name if DOORS.contains(&name) => Some(vec![CORE, CONFIG, LIBRARY, RIM]),
        name => BESIDE_EACH_OTHER.contains(&name).then(|| vec![CORE, CONFIG, LIBRARY]),
    }
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
        let dependency = |role| move |name: &&str| Dependency { name: (*name).to_owned(), role };
        let always = always.iter().map(dependency(Role::Always));
        let for_tests = for_tests.iter().map(dependency(Role::Development));
        Crate {
            name: name.to_owned(),
            description: Some("something".to_owned()),
            folder: folder_for(name),
            leans_on: always.chain(for_tests).collect(),
        }
    }

    /// A house in order, with one crate replaced.
    fn found_with(changed: Crate) -> Vec<String> {
        let mut crates = vec![
            a_crate(CORE, &["hashbrown", "jiff"], &["proptest", TESTKIT]),
            a_crate(CONFIG, &[CORE, "granit-parser"], &[]),
            a_crate(LIBRARY, &[CORE, CONFIG, "tokio"], &[TESTKIT, LIBRARY]),
            a_crate("tidegate-disk", &[CORE, LIBRARY], &[TESTKIT]),
            a_crate(RIM, &[LIBRARY], &[]),
            a_crate("tidegate-server", &[CORE, CONFIG, LIBRARY, RIM], &[TESTKIT]),
            a_crate(TESTKIT, &[CORE, LIBRARY], &[]),
            a_crate(CLI, &[LIBRARY, "tidegate-disk", "tidegate-server"], &[TESTKIT]),
            a_crate(BENCH, &[LIBRARY, "tidegate-disk"], &["governor"]),
            a_crate(XTASK, &["serde_json"], &[]),
        ];
        crates.retain(|each| each.name != changed.name);
        crates.push(changed);
        breaches(&crates).into_iter().map(|breach| breach.found).collect()
    }

    #[test]
    fn a_house_in_order_has_no_breaches() {
        assert_eq!(found_with(a_crate(XTASK, &[], &[])), [""; 0]);
    }

    #[test]
    fn every_arrow_that_is_not_drawn_is_a_breach() {
        for (from, to) in [
            (CORE, LIBRARY),
            (CORE, CONFIG),
            (CONFIG, LIBRARY),
            (CORE, TESTKIT),
            (LIBRARY, "tidegate-disk"),
            ("tidegate-server", "tidegate-disk"),
            ("tidegate-disk", "tidegate-server"),
            ("tidegate-disk", RIM),
            (RIM, "tidegate-server"),
            (TESTKIT, "tidegate-disk"),
            (CLI, TESTKIT),
            (CLI, BENCH),
            (LIBRARY, BENCH),
            (XTASK, CORE),
        ] {
            assert_eq!(found_with(a_crate(from, &[to], &[])), [format!("{from} leans on {to}")]);
        }
    }

    #[test]
    fn tests_may_not_cross_either() {
        let found = found_with(a_crate("tidegate-server", &[LIBRARY], &["tidegate-disk"]));
        assert_eq!(found, ["tidegate-server leans on tidegate-disk"]);
        assert_eq!(found_with(a_crate(XTASK, &[], &[TESTKIT])), ["xtask leans on tidegate-testkit"]);
    }

    #[test]
    fn the_core_uses_little() {
        assert_eq!(found_with(a_crate(CORE, &["hashbrown", "serde"], &[])), ["it uses serde"]);
    }

    #[test]
    fn a_crate_out_of_place_is_a_breach() {
        assert_eq!(found_with(a_crate("tidegate-etcd", &[], &[])).len(), 1);
        let moved = Crate { folder: "crates/core".into(), ..a_crate(CORE, &[], &[]) };
        assert_eq!(found_with(moved), ["tidegate-core lives in crates/core"]);
        let silent = Crate { description: Some(" ".to_owned()), ..a_crate(CORE, &[], &[]) };
        assert_eq!(found_with(silent), ["no description"]);
    }
}
