//! A PostgreSQL to test against: the one that `cargo xtask test` started for all tests, or one of this process's own.
//!
//! A script makes it, beside the tests of the store that it is for. Every test has a schema of its own in it; only who stops the database, or
//! counts what happens in all of it, needs one that nobody else has.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};

/// Where a database is that tests may use.
const GIVEN: &str = "TIDEGATE_TEST_POSTGRES";

/// What makes one.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tidegate-postgres/tests/cluster.sh");

/// A throw-away database. It goes with whoever has it, however they end.
#[derive(Debug)]
pub struct Cluster {
    url: String,
    orders: Mutex<Orders>,
    _child: Child,
}

/// Where the script listens, and where it answers.
#[derive(Debug)]
struct Orders {
    input: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Cluster {
    /// One with these settings, `NAME=VALUE`.
    ///
    /// # Panics
    /// If there is no PostgreSQL on this machine, or if it does not start.
    pub fn start(settings: &[&str]) -> Cluster {
        let mut child = Command::new("sh")
            .arg(SCRIPT)
            .args(settings)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("there is a shell");
        let input = child.stdin.take().expect("it is piped");
        let mut answers = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        answers.read_line(&mut line).expect("it says something");
        let url = line.trim().strip_prefix("ready ");
        let url = url.unwrap_or_else(|| panic!("no database can be started: {line}")).to_owned();
        Cluster { url, orders: Mutex::new(Orders { input, answers }), _child: child }
    }

    /// Where it is.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Does one of `stop`, `start`, `restart`, `crash`, `pause`, `resume`, and waits until it is done.
    ///
    /// # Panics
    /// If the script does not answer.
    pub fn run(&self, order: &str) {
        let mut orders = self.orders.lock().expect("nobody panics while giving an order");
        writeln!(orders.input, "{order}").expect("it listens");
        let mut line = String::new();
        orders.answers.read_line(&mut line).expect("it answers");
        assert_eq!(line.trim(), "done", "the answer to {order}");
    }
}

/// What such a database writes about itself, when it says that this is its `data_directory`.
pub fn server_log_path(data_directory: &str) -> PathBuf {
    PathBuf::from(data_directory).with_file_name("server.log")
}

/// The URL of a database that all tests share.
///
/// # Panics
/// If none was given and none can be started.
pub fn shared_url() -> &'static str {
    static OWN: OnceLock<Cluster> = OnceLock::new();
    static URL: OnceLock<String> = OnceLock::new();
    URL.get_or_init(|| {
        #[expect(
            clippy::disallowed_methods,
            reason = "which database to use is asked of the environment, by tests only"
        )]
        let given = std::env::var(GIVEN).ok();
        given.unwrap_or_else(|| OWN.get_or_init(|| Cluster::start(&[])).url().to_owned())
    })
}

/// A schema that nobody else has.
pub fn new_schema() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("t{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}
