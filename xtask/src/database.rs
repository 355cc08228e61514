//! The PostgreSQL server of a test run: one temporary server for all tests.
//!
//! A script starts it; tests run the same script if they are started without `cargo xtask test`. The script stops the server
//! when its standard input closes, so the server never outlives this program. One server per test would cost a second each;
//! instead every test has its own schema.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::TaskResult;
use crate::process::{command_line, succeeds};
use crate::workspace::Workspace;

/// The script that starts it, relative to the repository root.
pub(crate) const SCRIPT: &str = "crates/tidegate-postgres/tests/cluster.sh";

/// The environment variable with its URL.
pub(crate) const URL_VARIABLE: &str = "TIDEGATE_TEST_POSTGRES";

/// A PostgreSQL server that stops when this value is dropped.
#[derive(Debug)]
pub(crate) struct Database {
    url: String,
    /// The server runs while this pipe is open.
    input: Option<ChildStdin>,
    child: Child,
}

impl Database {
    /// Starts the server and waits until it accepts connections.
    pub(crate) fn start() -> TaskResult<Database> {
        let script = Workspace::load()?.root.join(SCRIPT);
        let database = Database::run(&script)?;
        println!("{}", database.url);
        Ok(database)
    }

    fn run(script: &Path) -> TaskResult<Database> {
        let mut command = Command::new("sh");
        command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child =
            command.spawn().map_err(|error| format!("cannot run {}: {error}", command_line(&command)))?;
        let input = child.stdin.take();
        let mut ready_line = String::new();
        if let Some(output) = child.stdout.take() {
            // The script only prints more in reply to commands.
            BufReader::new(output).read_line(&mut ready_line)?;
        }
        let url = read_url(&ready_line);
        let database = Database { url: url.clone().unwrap_or_default(), input, child };
        match url {
            Ok(_) => Ok(database),
            Err(why) => Err(format!("no PostgreSQL for the tests: {why}").into()),
        }
    }

    /// Its connection URL.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        drop(self.input.take());
        // The script removes its files before it exits.
        let _exited = self.child.wait();
    }
}

/// Whether the script finds PostgreSQL.
pub(crate) fn is_found_by(script: &str) -> bool {
    let find = |root: &Path| succeeds(Command::new("sh").arg(root.join(script)).arg("--where"));
    Workspace::load().is_ok_and(|workspace| find(&workspace.root))
}

/// The URL in the first line of the script, or its error message.
fn read_url(line: &str) -> Result<String, String> {
    let line = line.trim();
    match line.strip_prefix("ready ") {
        Some(url) => Ok(url.to_owned()),
        None if line.is_empty() => Err("the script printed nothing".to_owned()),
        None => Err(line.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    /// Writes a script that prints `line` and creates a file when its input closes. Returns both paths.
    fn script(name: &str, line: &str) -> (PathBuf, PathBuf) {
        let folder = std::env::temp_dir().join(format!("tidegate-xtask-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (script, ended) = (folder.join("script.sh"), folder.join("ended"));
        fs::write(&script, format!("echo '{line}'\ncat >/dev/null\necho over >{}\n", ended.display()))
            .unwrap();
        (script, ended)
    }

    #[test]
    fn server_stops_when_dropped() {
        let (script, ended) = script("ends", "ready postgres://user@host/db");
        let database = Database::run(&script).unwrap();
        assert_eq!(database.url(), "postgres://user@host/db");
        assert!(!ended.exists());
        drop(database);
        assert!(ended.exists());
        fs::remove_dir_all(script.parent().unwrap()).unwrap();
    }

    #[test]
    fn start_failure_reports_the_script_message_and_stops_it() {
        let (script, ended) = script("missing", "missing initdb and postgres");
        let error = Database::run(&script).unwrap_err().to_string();
        assert!(error.contains("missing initdb and postgres"), "{error}");
        assert!(ended.exists());
        fs::remove_dir_all(script.parent().unwrap()).unwrap();
    }

    #[test]
    fn empty_output_is_an_error() {
        assert_eq!(read_url("ready postgres://a@b/c\n"), Ok("postgres://a@b/c".to_owned()));
        assert!(read_url("").unwrap_err().contains("nothing"));
    }
}
