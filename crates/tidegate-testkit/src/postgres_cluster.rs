//! A PostgreSQL cluster for tests: the one that `cargo xtask test` started for all tests, or one of this process.
//!
//! A script beside the tests of the PostgreSQL store starts it. Each test uses its own schema. A test that stops the
//! database, or counts events of the whole cluster, starts a cluster of its own.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};

/// Environment variable with the URL of a database for tests.
const DATABASE_URL: &str = "TIDEGATE_TEST_POSTGRES";

/// The script that starts a cluster.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tidegate-postgres/tests/cluster.sh");

/// A temporary cluster. It is removed when this value is dropped or its process ends.
#[derive(Debug)]
pub struct Cluster {
    url: String,
    script: Mutex<ScriptPipe>,
    _child: Child,
}

/// Input and output of the script.
#[derive(Debug)]
struct ScriptPipe {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Cluster {
    /// Starts a cluster with these settings, each as `NAME=VALUE`.
    ///
    /// # Panics
    /// If PostgreSQL is not installed or does not start.
    pub fn start(settings: &[&str]) -> Cluster {
        let mut child = Command::new("sh")
            .arg(SCRIPT)
            .args(settings)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("there is a shell");
        let input = child.stdin.take().expect("the stream is piped");
        let mut output = BufReader::new(child.stdout.take().expect("the stream is piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("the script prints a line");
        let url = line.trim().strip_prefix("ready ");
        let url = url.unwrap_or_else(|| panic!("no database can be started: {line}")).to_owned();
        Cluster { url, script: Mutex::new(ScriptPipe { input, output }), _child: child }
    }

    /// URL of the database.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Runs one of `stop`, `start`, `restart`, `crash`, `pause`, `resume`, and waits until it is done.
    ///
    /// # Panics
    /// If the script does not reply.
    pub fn run(&self, command: &str) {
        let mut script = self.script.lock().expect("no panic while a command runs");
        writeln!(script.input, "{command}").expect("the script reads its input");
        let mut line = String::new();
        script.output.read_line(&mut line).expect("it output");
        assert_eq!(line.trim(), "done", "the reply to {command}");
    }
}

/// Path of the server log of a cluster with this `data_directory`.
pub fn server_log_path(data_directory: &str) -> PathBuf {
    PathBuf::from(data_directory).with_file_name("server.log")
}

/// URL of the database that all tests share.
///
/// # Panics
/// If no URL is given and no cluster can be started.
pub fn shared_url() -> &'static str {
    static STARTED: OnceLock<Cluster> = OnceLock::new();
    static URL: OnceLock<String> = OnceLock::new();
    URL.get_or_init(|| {
        #[expect(
            clippy::disallowed_methods,
            reason = "which database to use is asked of the environment, by tests only"
        )]
        let url = std::env::var(DATABASE_URL).ok();
        url.unwrap_or_else(|| STARTED.get_or_init(|| Cluster::start(&[])).url().to_owned())
    })
}

/// A schema name that no other test uses.
pub fn new_schema() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("t{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}
