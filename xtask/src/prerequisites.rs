//! Programs that tests and benchmarks need besides cargo, and how to install them.
//!
//! On Debian as root, missing programs are installed. Elsewhere an error lists what to install. `cc` is checked although this
//! program could not be linked without a linker: Rust may use another linker, and dependencies that build C call `cc`.
//!
//! The script that starts PostgreSQL for the tests also finds it, because distributions keep it off the path. The Debian
//! package may start a server of its own; the tests use another port.

use std::process::Command;

use crate::process::{exists, run_shown, succeeds};
use crate::{TaskResult, database, process};

/// A required program.
#[derive(Debug)]
struct Prerequisite {
    program: &'static str,
    check: Check,
    /// The Debian packages that provide it.
    packages: &'static [&'static str],
    /// Completes the sentence "needed to …".
    purpose: &'static str,
}

/// How to find out whether a program is usable.
#[derive(Debug, Clone, Copy)]
enum Check {
    /// It starts.
    Runs,
    /// It exits with 0 for these arguments.
    Succeeds(&'static [&'static str]),
    /// This script of the repository finds it.
    Found(&'static str),
}

const TEST_PREREQUISITES: &[Prerequisite] = &[
    Prerequisite {
        program: "cc",
        check: Check::Runs,
        packages: &["gcc", "libc6-dev"],
        purpose: "link Rust programs and build C parts of dependencies",
    },
    Prerequisite {
        program: "curl",
        // A curl without HTTP/2 does not know the option.
        check: Check::Succeeds(&["--http2-prior-knowledge", "--version"]),
        packages: &["curl"],
        purpose: "call the server over HTTP/1.0, HTTP/1.1 and HTTP/2",
    },
    Prerequisite {
        program: "openssl",
        check: Check::Succeeds(&["version"]),
        packages: &["openssl"],
        purpose: "make a certificate that clients of the gateway trust",
    },
    Prerequisite {
        program: "redis-cli",
        check: Check::Runs,
        packages: &["redis-tools"],
        purpose: "call the server over RESP",
    },
    Prerequisite {
        program: "nginx",
        check: Check::Runs,
        packages: &["nginx-light"],
        purpose: "run the configuration of the nginx guide",
    },
    Prerequisite {
        program: "python3",
        // Debian packages ensurepip apart from Python.
        check: Check::Succeeds(&["-c", "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))"]),
        packages: &["python3", "python3-venv"],
        purpose: "run client libraries in a virtual environment (3.10 or later, with venv and ensurepip)",
    },
    Prerequisite {
        program: "postgres",
        check: Check::Found(database::SCRIPT),
        packages: &["postgresql"],
        purpose: "run the PostgreSQL store against a temporary database",
    },
];

/// Programs that only the benchmarks need.
const BENCH_PREREQUISITES: &[Prerequisite] = &[
    Prerequisite {
        program: "redis-server",
        check: Check::Runs,
        packages: &["redis-server"],
        purpose: "measure Redis",
    },
    Prerequisite {
        program: "redis-benchmark",
        check: Check::Runs,
        packages: &["redis-tools"],
        purpose: "generate load over RESP",
    },
    Prerequisite {
        program: "nginx",
        check: Check::Runs,
        packages: &["nginx-light"],
        purpose: "measure nginx",
    },
    Prerequisite {
        program: "haproxy",
        check: Check::Runs,
        packages: &["haproxy"],
        purpose: "measure HAProxy",
    },
    Prerequisite {
        program: "wrk",
        check: Check::Runs,
        packages: &["wrk"],
        purpose: "generate load over HTTP",
    },
    Prerequisite {
        program: "protoc",
        check: Check::Runs,
        packages: &["protobuf-compiler"],
        purpose: "build throttlecrab-server",
    },
];

/// Whether missing programs can be installed here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InstallRights {
    /// Root on Debian.
    Install,
    /// Debian, but not root.
    NotRoot,
    /// No `apt-get`.
    NotDebian,
}

/// Installs what the tests need, or says what is missing.
pub(crate) fn ensure() -> TaskResult {
    ensure_all(TEST_PREREQUISITES)
}

/// Installs what the benchmarks need, or says what is missing.
pub(crate) fn ensure_for_bench() -> TaskResult {
    ensure_all(BENCH_PREREQUISITES)
}

fn ensure_all(prerequisites: &'static [Prerequisite]) -> TaskResult {
    let missing = missing(prerequisites);
    if missing.is_empty() {
        let names: Vec<&str> = prerequisites.iter().map(|need| need.program).collect();
        println!("found: {}", names.join(", "));
        return Ok(());
    }
    let install_rights = install_rights();
    if install_rights != InstallRights::Install {
        return Err(advice(&missing, install_rights).into());
    }
    install(&missing, prerequisites)
}

impl Prerequisite {
    fn is_met(&self) -> bool {
        match self.check {
            Check::Runs => exists(self.program),
            Check::Succeeds(arguments) => succeeds(Command::new(self.program).args(arguments)),
            Check::Found(script) => database::is_found_by(script),
        }
    }
}

fn install(wanted: &[&Prerequisite], prerequisites: &'static [Prerequisite]) -> TaskResult {
    for arguments in [vec!["update", "-q"], install_arguments(wanted)] {
        let mut command = Command::new("apt-get");
        command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        let line = process::command_line(&command);
        if !run_shown(command)?.succeeded() {
            return Err(format!("`{line}` failed; {}", advice(wanted, InstallRights::Install)).into());
        }
    }
    let missing = missing(prerequisites);
    if missing.is_empty() { Ok(()) } else { Err(advice(&missing, InstallRights::Install).into()) }
}

fn missing(prerequisites: &'static [Prerequisite]) -> Vec<&'static Prerequisite> {
    prerequisites.iter().filter(|need| !need.is_met()).collect()
}

fn install_arguments(missing: &[&Prerequisite]) -> Vec<&'static str> {
    let mut arguments = vec!["install", "-q", "-y", "--no-install-recommends"];
    arguments.extend(missing.iter().flat_map(|need| need.packages));
    arguments
}

/// An error message that says how to install the missing programs.
fn advice(missing: &[&Prerequisite], install_rights: InstallRights) -> String {
    let why_not = match install_rights {
        InstallRights::Install => "install it by hand",
        InstallRights::NotRoot => "it is not installed for you because you are not root",
        InstallRights::NotDebian => "it is not installed for you because this system has no apt-get",
    };
    let lines = missing.iter().map(|need| {
        let packages = need.packages.join(" ");
        format!("\n  `{}`, needed to {} (Debian: apt-get install {packages})", need.program, need.purpose)
    });
    format!("programs are missing; {why_not}:{}", lines.collect::<String>())
}

fn install_rights() -> InstallRights {
    if !exists("apt-get") {
        InstallRights::NotDebian
    } else if is_root() {
        InstallRights::Install
    } else {
        InstallRights::NotRoot
    }
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROB: Prerequisite = Prerequisite {
        program: "frob",
        check: Check::Runs,
        packages: &["libfrob", "frob-bin"],
        purpose: "frobnicate",
    };

    #[test]
    fn advice_names_the_program_the_purpose_and_the_packages() {
        let text = advice(&[&FROB], InstallRights::NotRoot);
        for part in ["`frob`", "needed to frobnicate", "apt-get install libfrob frob-bin", "not root"] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
        assert!(advice(&[&FROB], InstallRights::NotDebian).contains("no apt-get"));
    }

    #[test]
    fn program_that_fails_its_check_is_missing() {
        let shell = |check| Prerequisite { program: "sh", check, ..FROB };
        assert!(shell(Check::Succeeds(&["-c", "exit 0"])).is_met());
        assert!(!shell(Check::Succeeds(&["-c", "exit 1"])).is_met());
        assert!(shell(Check::Runs).is_met());
        assert!(!FROB.is_met());
    }

    #[test]
    fn every_package_of_a_missing_program_is_installed() {
        assert_eq!(install_arguments(&[&FROB])[4..], ["libfrob", "frob-bin"]);
    }
}
