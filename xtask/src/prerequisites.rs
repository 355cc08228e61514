//! What the tests need beside cargo, and how to come by it.
//!
//! On Debian, as root, what is missing is installed. Anywhere else nothing is touched and the person is told what to
//! install. The C compiler is asked for again although this very program could not have been linked without one:
//! Rust may be set up with another linker, and dependencies that build C look for `cc`.
//!
//! Where PostgreSQL is, the script knows that starts one for the tests: distributions keep it off the path. A package may
//! start a database of its own when it is installed, or fail to; nobody here minds, for the tests' is on another port.

use std::process::Command;

use crate::process::{exists, run_shown, succeeds};
use crate::{Outcome, database, process};

/// A program that must be there.
#[derive(Debug)]
struct Need {
    program: &'static str,
    proof: Proof,
    /// The Debian packages that bring it.
    packages: &'static [&'static str],
    /// What it is for, to finish the sentence "needed to …".
    purpose: &'static str,
}

/// How it is known that a program is there.
#[derive(Debug, Clone, Copy)]
enum Proof {
    /// It can be run.
    Runs,
    /// With these arguments it succeeds, if it has all that is needed of it.
    Succeeds(&'static [&'static str]),
    /// This script of the repository finds it.
    Found(&'static str),
}

const NEEDS: &[Need] = &[
    Need {
        program: "cc",
        proof: Proof::Runs,
        packages: &["gcc", "libc6-dev"],
        purpose: "link Rust programs and build C parts of dependencies",
    },
    Need {
        program: "curl",
        // One that was built without HTTP/2 does not know the option.
        proof: Proof::Succeeds(&["--http2-prior-knowledge", "--version"]),
        packages: &["curl"],
        purpose: "call the server over HTTP/1.0, HTTP/1.1 and HTTP/2",
    },
    Need {
        program: "openssl",
        proof: Proof::Succeeds(&["version"]),
        packages: &["openssl"],
        purpose: "make a certificate that clients of the gateway trust",
    },
    Need {
        program: "redis-cli",
        proof: Proof::Runs,
        packages: &["redis-tools"],
        purpose: "call the server over RESP",
    },
    Need {
        program: "python3",
        // Debian packs the module that fills a virtual environment apart from Python itself.
        proof: Proof::Succeeds(&["-c", "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))"]),
        packages: &["python3", "python3-venv"],
        purpose: "run client libraries in a virtual environment (3.10 or later, with venv and ensurepip)",
    },
    Need {
        program: "postgres",
        proof: Proof::Found(database::SCRIPT),
        packages: &["postgresql"],
        purpose: "keep counts in a database that is made for the tests",
    },
];

/// What the benchmark of the service is made with. Nothing else needs them.
const BENCH_NEEDS: &[Need] = &[
    Need {
        program: "redis-server",
        proof: Proof::Runs,
        packages: &["redis-server"],
        purpose: "measure Redis",
    },
    Need {
        program: "redis-benchmark",
        proof: Proof::Runs,
        packages: &["redis-tools"],
        purpose: "ask over RESP",
    },
    Need { program: "nginx", proof: Proof::Runs, packages: &["nginx-light"], purpose: "measure nginx" },
    Need { program: "haproxy", proof: Proof::Runs, packages: &["haproxy"], purpose: "measure HAProxy" },
    Need { program: "wrk", proof: Proof::Runs, packages: &["wrk"], purpose: "ask over HTTP" },
    Need {
        program: "protoc",
        proof: Proof::Runs,
        packages: &["protobuf-compiler"],
        purpose: "build throttlecrab-server",
    },
];

/// Who runs this and where: what may be done about a missing program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Power {
    /// Root on a Debian: it can be installed.
    Install,
    /// A Debian, but not as root.
    NotRoot,
    /// No `apt-get` here.
    NotDebian,
}

/// Makes sure that everything needed is there.
pub(crate) fn meet() -> Outcome {
    meet_all(NEEDS)
}

/// Makes sure that everything is there that the service is measured with.
pub(crate) fn meet_for_bench() -> Outcome {
    meet_all(BENCH_NEEDS)
}

fn meet_all(needs: &'static [Need]) -> Outcome {
    let missing = missing(needs);
    if missing.is_empty() {
        let names: Vec<&str> = needs.iter().map(|need| need.program).collect();
        println!("found: {}", names.join(", "));
        return Ok(());
    }
    let power = power();
    if power != Power::Install {
        return Err(advice(&missing, power).into());
    }
    install(&missing, needs)
}

impl Need {
    fn is_met(&self) -> bool {
        match self.proof {
            Proof::Runs => exists(self.program),
            Proof::Succeeds(arguments) => succeeds(Command::new(self.program).args(arguments)),
            Proof::Found(script) => database::is_found_by(script),
        }
    }
}

fn install(wanted: &[&Need], needs: &'static [Need]) -> Outcome {
    for arguments in [vec!["update", "-q"], install_arguments(wanted)] {
        let mut command = Command::new("apt-get");
        command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        let line = process::spoken(&command);
        if !run_shown(command)?.succeeded() {
            return Err(format!("`{line}` failed; {}", advice(wanted, Power::Install)).into());
        }
    }
    let missing = missing(needs);
    if missing.is_empty() { Ok(()) } else { Err(advice(&missing, Power::Install).into()) }
}

fn missing(needs: &'static [Need]) -> Vec<&'static Need> {
    needs.iter().filter(|need| !need.is_met()).collect()
}

fn install_arguments(missing: &[&Need]) -> Vec<&'static str> {
    let mut arguments = vec!["install", "-q", "-y", "--no-install-recommends"];
    arguments.extend(missing.iter().flat_map(|need| need.packages));
    arguments
}

/// What to do about missing programs, for somebody who must do it by hand.
fn advice(missing: &[&Need], power: Power) -> String {
    let why_not = match power {
        Power::Install => "install it by hand",
        Power::NotRoot => "it is not installed for you because you are not root",
        Power::NotDebian => "it is not installed for you because this system has no apt-get",
    };
    let lines = missing.iter().map(|need| {
        let packages = need.packages.join(" ");
        format!("\n  `{}`, needed to {} (Debian: apt-get install {packages})", need.program, need.purpose)
    });
    format!("something is missing; {why_not}:{}", lines.collect::<String>())
}

fn power() -> Power {
    if !exists("apt-get") {
        Power::NotDebian
    } else if is_root() {
        Power::Install
    } else {
        Power::NotRoot
    }
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROB: Need = Need {
        program: "frob",
        proof: Proof::Runs,
        packages: &["libfrob", "frob-bin"],
        purpose: "frobnicate",
    };

    #[test]
    fn advice_names_the_program_the_purpose_and_the_packages() {
        let text = advice(&[&FROB], Power::NotRoot);
        for part in ["`frob`", "needed to frobnicate", "apt-get install libfrob frob-bin", "not root"] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
        assert!(advice(&[&FROB], Power::NotDebian).contains("no apt-get"));
    }

    #[test]
    fn a_program_that_is_there_but_lacks_something_is_missing() {
        let shell = |proof| Need { program: "sh", proof, ..FROB };
        assert!(shell(Proof::Succeeds(&["-c", "exit 0"])).is_met());
        assert!(!shell(Proof::Succeeds(&["-c", "exit 1"])).is_met());
        assert!(shell(Proof::Runs).is_met());
        assert!(!FROB.is_met());
    }

    #[test]
    fn every_package_of_every_need_is_installed() {
        assert_eq!(install_arguments(&[&FROB])[4..], ["libfrob", "frob-bin"]);
    }
}
