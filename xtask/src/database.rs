//! The database of a test run: one PostgreSQL for all tests, made for them and gone with them.
//!
//! A script makes it, because the tests use the same when nobody gave them one. It ends when its input does, so it goes however this
//! program ends. Refused: one for each test. A database takes a second to make, and every test has a schema of its own in it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::Outcome;
use crate::process::{spoken, succeeds};
use crate::workspace::Workspace;

/// What makes it, below the root.
pub(crate) const SCRIPT: &str = "crates/tidegate-postgres/tests/cluster.sh";

/// The variable that tells the tests where it is.
pub(crate) const GIVEN: &str = "TIDEGATE_TEST_POSTGRES";

/// A PostgreSQL that runs for as long as this is kept.
#[derive(Debug)]
pub(crate) struct Database {
    url: String,
    /// While this is open it runs.
    input: Option<ChildStdin>,
    child: Child,
}

impl Database {
    /// Makes one and waits until it can be used.
    pub(crate) fn start() -> Outcome<Database> {
        let script = Workspace::load()?.root.join(SCRIPT);
        let database = Database::run(&script)?;
        println!("{}", database.url);
        Ok(database)
    }

    fn run(script: &Path) -> Outcome<Database> {
        let mut command = Command::new("sh");
        command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child =
            command.spawn().map_err(|error| format!("cannot run {}: {error}", spoken(&command)))?;
        let input = child.stdin.take();
        let mut said = String::new();
        if let Some(output) = child.stdout.take() {
            // The rest of what it says is answers to orders, and nobody here gives any.
            BufReader::new(output).read_line(&mut said)?;
        }
        let url = read_url(&said);
        let database = Database { url: url.clone().unwrap_or_default(), input, child };
        match url {
            Ok(_) => Ok(database),
            Err(why) => Err(format!("no PostgreSQL for the tests: {why}").into()),
        }
    }

    /// Where it is.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        drop(self.input.take());
        // It removes what it made before it ends. If it cannot be waited for, it is gone.
        let _gone = self.child.wait();
    }
}

/// Whether the script finds the programs.
pub(crate) fn is_found_by(script: &str) -> bool {
    let find = |root: &Path| succeeds(Command::new("sh").arg(root.join(script)).arg("--where"));
    Workspace::load().is_ok_and(|workspace| find(&workspace.root))
}

/// The URL in the first line of the script, or what it says instead.
fn read_url(said: &str) -> Result<String, String> {
    let said = said.trim();
    match said.strip_prefix("ready ") {
        Some(url) => Ok(url.to_owned()),
        None if said.is_empty() => Err("the script said nothing".to_owned()),
        None => Err(said.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    /// A script that says this, writes a file when its input ends, and where both are.
    fn script(name: &str, says: &str) -> (PathBuf, PathBuf) {
        let place = std::env::temp_dir().join(format!("tidegate-xtask-{}-{name}", std::process::id()));
        fs::create_dir_all(&place).unwrap();
        let (script, ended) = (place.join("script.sh"), place.join("ended"));
        fs::write(&script, format!("echo '{says}'\ncat >/dev/null\necho over >{}\n", ended.display()))
            .unwrap();
        (script, ended)
    }

    #[test]
    fn it_ends_with_whoever_has_it() {
        let (script, ended) = script("ends", "ready postgres://somebody@somewhere/it");
        let database = Database::run(&script).unwrap();
        assert_eq!(database.url(), "postgres://somebody@somewhere/it");
        assert!(!ended.exists());
        drop(database);
        assert!(ended.exists());
        fs::remove_dir_all(script.parent().unwrap()).unwrap();
    }

    #[test]
    fn what_is_missing_is_said_and_nothing_is_left() {
        let (script, ended) = script("missing", "missing initdb and postgres");
        let error = Database::run(&script).unwrap_err().to_string();
        assert!(error.contains("missing initdb and postgres"), "{error}");
        assert!(ended.exists());
        fs::remove_dir_all(script.parent().unwrap()).unwrap();
    }

    #[test]
    fn silence_is_no_url() {
        assert_eq!(read_url("ready postgres://a@b/c\n"), Ok("postgres://a@b/c".to_owned()));
        assert!(read_url("").unwrap_err().contains("nothing"));
    }
}
