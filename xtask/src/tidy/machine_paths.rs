//! No paths of one machine and no registry hosts in files.
//!
//! Packages come from the registry that cargo is configured with, so no file except the lock file names one.

use super::{SourceText, Violation};

const PATHS: &str = "no machine-specific paths; the temporary directory only in tests";
const REGISTRIES: &str = "no registry is named outside Cargo.lock";

// Split in two, so that this file does not violate its own rule.
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

pub(super) fn violations(text: &SourceText) -> Vec<Violation> {
    if text.path.file_name().is_some_and(|name| name == "Cargo.lock") {
        return Vec::new();
    }
    let mut violations = Vec::new();
    for (index, line) in text.content.lines().enumerate() {
        let machine = MACHINE.iter().filter(|path| names_path(line, path));
        let temporary = (!text.is_test() && names_path(line, TEMPORARY)).then_some(&TEMPORARY);
        let paths = machine.chain(temporary).map(|path| (PATHS, path));
        let hosts = HOSTS.iter().filter(|host| line.contains(**host)).map(|host| (REGISTRIES, host));
        violations.extend(
            paths.chain(hosts).map(|(rule, found)| Violation::at(&text.path, index + 1, rule, *found)),
        );
    }
    violations
}

/// Whether a line contains this absolute path, not as part of a longer path or of an address.
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
        violations(&text(path, content)).len()
    }

    #[test]
    fn machine_paths_are_violations() {
        for path in MACHINE {
            assert_eq!(found("a.rs", &format!("open(\"{path}x\")")), 1);
            assert_eq!(found("tests/a.rs", &format!("open(\"{path}x\")")), 1);
        }
        assert_eq!(found("a.sh", &format!("cd {TEMPORARY}x")), 1);
    }

    #[test]
    fn temporary_directory_is_allowed_in_tests() {
        assert_eq!(found("crates/a/tests/a.rs", &format!("open(\"{TEMPORARY}x\")")), 0);
    }

    #[test]
    fn part_of_a_longer_path_is_allowed() {
        for path in MACHINE {
            assert_eq!(found("a.md", &format!("https://example.com{path}x and docs{path}y")), 0);
        }
    }

    #[test]
    fn registries_are_violations_except_in_lock_files() {
        for host in HOSTS {
            assert_eq!(found("README.md", &format!("see https://{host}/x")), 1);
            assert_eq!(found("fuzz/Cargo.lock", &format!("source = \"https://{host}/x\"")), 0);
        }
    }
}
