//! `cargo xtask clients`: a Python virtual environment with the client libraries that tests use.
//!
//! The environment is `tmp/clients` in the build directory (`CARGO_TARGET_TMPDIR` of integration tests). It is rebuilt when
//! the list of libraries changed, when its Python is gone, or when the last attempt did not finish. Otherwise nothing is
//! fetched.
//!
//! Every library is pinned, including transitive ones, so that only a change in this repository can break a test. Libraries
//! are never built from source, because that needs compilers of unknown kinds.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{command_line, run_shown, succeeds};
use crate::workspace::Workspace;
use crate::{TaskResult, prerequisites};

/// The list of libraries, relative to the repository root.
const REQUIREMENTS: &str = "crates/tidegate-cli/tests/clients/requirements.txt";

/// The environment, relative to the build directory.
const ENVIRONMENT: &str = "tmp/clients";

/// A copy of the list inside the environment, written last.
const MARKER: &str = "made-of.txt";

/// Installs prerequisites and libraries.
pub(crate) fn run() -> TaskResult {
    prerequisites::ensure()?;
    prepare()
}

/// Installs the libraries unless they are installed.
pub(crate) fn prepare() -> TaskResult {
    let workspace = Workspace::load()?;
    let list = workspace.root.join(REQUIREMENTS);
    let wanted = fs::read_to_string(&list).map_err(|error| format!("{REQUIREMENTS}: {error}"))?;
    let env = PythonEnv { folder: workspace.target.join(ENVIRONMENT) };
    if !env.is_built_from(&wanted) {
        env.build(&list)?;
        fs::write(env.marker(), &wanted)?;
    }
    println!("found: {} libraries in {}", requirements(&wanted).count(), env.folder.display());
    Ok(())
}

/// A Python environment.
#[derive(Debug)]
struct PythonEnv {
    folder: PathBuf,
}

impl PythonEnv {
    fn python(&self) -> PathBuf {
        self.folder.join("bin/python")
    }

    fn marker(&self) -> PathBuf {
        self.folder.join(MARKER)
    }

    /// Whether it was built from this list and its Python still starts.
    fn is_built_from(&self, wanted: &str) -> bool {
        fs::read_to_string(self.marker()).is_ok_and(|built_from| built_from == wanted)
            && succeeds(Command::new(self.python()).arg("--version"))
    }

    fn build(&self, list: &Path) -> TaskResult {
        let mut empty = Command::new("python3");
        empty.args(["-m", "venv", "--clear"]).arg(&self.folder);
        let mut fill = Command::new(self.python());
        fill.args(["-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check", "install"]);
        fill.args(["--only-binary", ":all:", "--requirement"]).arg(list);
        for command in [empty, fill] {
            let line = command_line(&command);
            if !run_shown(command)?.succeeded() {
                return Err(advice(&line).into());
            }
        }
        Ok(())
    }
}

/// An error message for a failed installation.
fn advice(line: &str) -> String {
    format!(
        "`{line}` failed. The tests need the Python libraries of {REQUIREMENTS}; pip fetches them from the index it is set \
         up with (PIP_INDEX_URL or a pip.conf chooses another, PIP_FIND_LINKS a directory). Once they are there, \
         nothing is fetched again"
    )
}

/// The requirement lines of a list.
fn requirements(wanted: &str) -> impl Iterator<Item = &str> {
    let lines = wanted.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An environment without Python in a temporary folder.
    fn env(name: &str) -> PythonEnv {
        let folder = std::env::temp_dir().join(format!("tidegate-xtask-{}-{name}", std::process::id()));
        fs::create_dir_all(folder.join("bin")).unwrap();
        PythonEnv { folder }
    }

    fn put_python(env: &PythonEnv) {
        let sh = fs::canonicalize("/bin/sh").unwrap();
        std::os::unix::fs::symlink(sh, env.python()).unwrap();
    }

    #[test]
    fn incomplete_environment_is_rebuilt() {
        let env = env("whole");
        assert!(!env.is_built_from("a==1\n"), "the marker is missing");
        fs::write(env.marker(), "a==1\n").unwrap();
        assert!(!env.is_built_from("a==1\n"), "Python is missing");
        fs::remove_dir_all(&env.folder).unwrap();
    }

    #[test]
    fn environment_of_another_list_is_rebuilt() {
        let env = env("other");
        put_python(&env);
        fs::write(env.marker(), "a==1\n").unwrap();
        assert!(!env.is_built_from("a==2\n"));
        fs::remove_dir_all(&env.folder).unwrap();
    }

    #[test]
    fn every_requirement_is_pinned() {
        let list = include_str!("../../crates/tidegate-cli/tests/clients/requirements.txt");
        assert!(requirements(list).count() > 2);
        for name in requirements(list) {
            assert!(name.contains("=="), "{name} is not pinned");
        }
    }

    #[test]
    fn failed_installation_names_the_pip_settings() {
        let text = advice("pip install x");
        for part in ["`pip install x` failed", REQUIREMENTS, "PIP_INDEX_URL", "PIP_FIND_LINKS"] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
    }
}
