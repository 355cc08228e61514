//! `cargo xtask clients`: the client libraries that tests speak through, in a Python environment of their own.
//!
//! The environment is `tmp/clients` below the build directory, which is where cargo tells integration tests to put
//! things, so that they find it by themselves. It is made anew when the list of libraries has changed, when Python has,
//! or when the last attempt did not come to its end; otherwise nothing is done and nothing is fetched.
//!
//! Decided: every library is pinned, those that others bring along too. A test that fails only since yesterday should
//! fail because of a change here. Refused: building libraries from source, which needs compilers of unknown kinds.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{run_shown, spoken, succeeds};
use crate::workspace::Workspace;
use crate::{Outcome, needs};

/// The list of libraries, below the root.
const WANTED: &str = "crates/tidegate-cli/tests/clients/requirements.txt";

/// The environment, below the build directory.
const PLACE: &str = "tmp/clients";

/// What the environment was made of, below the environment. It is written last.
const DONE: &str = "made-of.txt";

/// Makes sure that what is needed is there, and that the libraries are.
pub(crate) fn run() -> Outcome {
    needs::meet()?;
    prepare()
}

/// Makes sure that the libraries are there.
pub(crate) fn prepare() -> Outcome {
    let workspace = Workspace::load()?;
    let list = workspace.root.join(WANTED);
    let wanted = fs::read_to_string(&list).map_err(|error| format!("{WANTED}: {error}"))?;
    let room = Room { place: workspace.target.join(PLACE) };
    if !room.is_made_of(&wanted) {
        room.make(&list)?;
        fs::write(room.done(), &wanted)?;
    }
    println!("found: {} libraries in {}", names(&wanted).count(), room.place.display());
    Ok(())
}

/// A Python environment.
#[derive(Debug)]
struct Room {
    place: PathBuf,
}

impl Room {
    fn python(&self) -> PathBuf {
        self.place.join("bin/python")
    }

    fn done(&self) -> PathBuf {
        self.place.join(DONE)
    }

    /// Whether it was made of this list, and by a Python that is still there.
    fn is_made_of(&self, wanted: &str) -> bool {
        fs::read_to_string(self.done()).is_ok_and(|made_of| made_of == wanted)
            && succeeds(Command::new(self.python()).arg("--version"))
    }

    fn make(&self, list: &Path) -> Outcome {
        let mut empty = Command::new("python3");
        empty.args(["-m", "venv", "--clear"]).arg(&self.place);
        let mut fill = Command::new(self.python());
        fill.args(["-m", "pip", "--quiet", "--no-input", "--disable-pip-version-check", "install"]);
        fill.args(["--only-binary", ":all:", "--requirement"]).arg(list);
        for command in [empty, fill] {
            let line = spoken(&command);
            if !run_shown(command)?.succeeded() {
                return Err(advice(&line).into());
            }
        }
        Ok(())
    }
}

/// What to do if libraries cannot be had.
fn advice(line: &str) -> String {
    format!(
        "`{line}` failed. The tests need the Python libraries of {WANTED}; pip fetches them from the index it is set \
         up with (PIP_INDEX_URL or a pip.conf chooses another, PIP_FIND_LINKS a directory). Once they are there, \
         nothing is fetched again"
    )
}

/// The libraries of a list.
fn names(wanted: &str) -> impl Iterator<Item = &str> {
    let lines = wanted.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A place below the build directory that is empty.
    fn room(name: &str) -> Room {
        let place = std::env::temp_dir().join(format!("tidegate-xtask-{}-{name}", std::process::id()));
        fs::create_dir_all(place.join("bin")).unwrap();
        Room { place }
    }

    fn put_python(room: &Room) {
        let sh = fs::canonicalize("/bin/sh").unwrap();
        std::os::unix::fs::symlink(sh, room.python()).unwrap();
    }

    #[test]
    fn an_environment_is_used_again_only_if_it_is_whole() {
        let room = room("whole");
        assert!(!room.is_made_of("a==1\n"), "it was never finished");
        fs::write(room.done(), "a==1\n").unwrap();
        assert!(!room.is_made_of("a==1\n"), "there is no Python in it");
        fs::remove_dir_all(&room.place).unwrap();
    }

    #[test]
    fn an_environment_of_another_list_is_not_used() {
        let room = room("other");
        put_python(&room);
        fs::write(room.done(), "a==1\n").unwrap();
        assert!(!room.is_made_of("a==2\n"));
        fs::remove_dir_all(&room.place).unwrap();
    }

    #[test]
    fn every_library_of_the_list_is_pinned() {
        let list = include_str!("../../crates/tidegate-cli/tests/clients/requirements.txt");
        assert!(names(list).count() > 2);
        for name in names(list) {
            assert!(name.contains("=="), "{name} may change under our feet");
        }
    }

    #[test]
    fn who_cannot_fetch_is_told_how() {
        let text = advice("pip install x");
        for part in ["`pip install x` failed", WANTED, "PIP_INDEX_URL", "PIP_FIND_LINKS"] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
    }
}
