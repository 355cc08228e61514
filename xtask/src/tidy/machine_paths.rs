//! Places that exist only here: paths of somebody's machine, and hosts that somebody's network may not reach.
//!
//! A package comes from whichever registry cargo is told to use, so no file names one; the lock file must.

use super::{Breach, Text};

const PATHS: &str = "no paths of one machine; the temporary directory in tests only";
const REGISTRIES: &str = "no registry is named outside Cargo.lock";

// Written in two halves, so that this file keeps its own rules.
const MACHINE: &[&str] = &[concat!("/", "work/"), concat!("/", "root/"), concat!("/", "home/")];
const TEMPORARY: &str = concat!("/", "tmp/");
const HOSTS: &[&str] = &[
    concat!("crates", ".io"),
    concat!("npmjs", ".org"),
    concat!("npmjs", ".com"),
    concat!("pypi", ".org"),
    concat!("pythonhosted", ".org"),
    concat!("proxy.golang", ".org"),
];

pub(super) fn breaches(text: &Text) -> Vec<Breach> {
    if text.path.file_name().is_some_and(|name| name == "Cargo.lock") {
        return Vec::new();
    }
    let mut breaches = Vec::new();
    for (index, line) in text.content.lines().enumerate() {
        let machine = MACHINE.iter().filter(|path| names_path(line, path));
        let temporary = (!text.is_test() && names_path(line, TEMPORARY)).then_some(&TEMPORARY);
        let paths = machine.chain(temporary).map(|path| (PATHS, path));
        let hosts = HOSTS.iter().filter(|host| line.contains(**host)).map(|host| (REGISTRIES, host));
        breaches
            .extend(paths.chain(hosts).map(|(rule, found)| Breach::at(&text.path, index + 1, rule, *found)));
    }
    breaches
}

/// Whether a line names this absolute path: not as the middle of a longer one, or of an address.
fn names_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|letter| letter.is_alphanumeric() || "._-~}>$".contains(letter))
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::text;
    use super::*;

    fn found(path: &str, content: &str) -> usize {
        breaches(&text(path, content)).len()
    }

    #[test]
    fn paths_of_a_machine_are_found() {
        for path in MACHINE {
            assert_eq!(found("a.rs", &format!("open(\"{path}x\")")), 1);
            assert_eq!(found("tests/a.rs", &format!("open(\"{path}x\")")), 1);
        }
        assert_eq!(found("a.sh", &format!("cd {TEMPORARY}x")), 1);
    }

    #[test]
    fn tests_may_use_the_temporary_directory() {
        assert_eq!(found("crates/a/tests/a.rs", &format!("open(\"{TEMPORARY}x\")")), 0);
    }

    #[test]
    fn the_middle_of_a_path_is_not_a_path() {
        for path in MACHINE {
            assert_eq!(found("a.md", &format!("https://example.com{path}x and docs{path}y")), 0);
        }
    }

    #[test]
    fn registries_are_found_but_in_the_lock() {
        for host in HOSTS {
            assert_eq!(found("README.md", &format!("see https://{host}/x")), 1);
            assert_eq!(found("fuzz/Cargo.lock", &format!("source = \"https://{host}/x\"")), 0);
        }
    }
}
