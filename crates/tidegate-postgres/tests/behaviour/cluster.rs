//! A database to test against: the one that `cargo xtask test` started for all tests, or one of this process's own.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};

use tidegate_postgres::Options;

use crate::sql::Sql;

/// Where a database is that tests may use.
const GIVEN: &str = "TIDEGATE_TEST_POSTGRES";

/// A throw-away database. It goes with whoever has it, however they end.
pub(crate) struct Cluster {
    url: String,
    orders: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
    _child: Child,
}

impl Cluster {
    /// One with these settings, `NAME=VALUE`.
    pub(crate) fn start(settings: &[&str]) -> Cluster {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cluster.sh");
        let mut child = Command::new("sh")
            .arg(script)
            .args(settings)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("there is a shell");
        let orders = child.stdin.take().expect("it is piped");
        let mut answers = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        answers.read_line(&mut line).expect("it says something");
        let url = line.trim().strip_prefix("ready ");
        let url = url.unwrap_or_else(|| panic!("no database can be started: {line}")).to_owned();
        Cluster { url, orders: Mutex::new((orders, answers)), _child: child }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Does one of `stop`, `start`, `restart`, `crash`, `pause`, `resume`.
    pub(crate) fn order(&self, order: &str) {
        let mut orders = self.orders.lock().expect("one at a time");
        writeln!(orders.0, "{order}").expect("it listens");
        let mut line = String::new();
        orders.1.read_line(&mut line).expect("it answers");
        assert_eq!(line.trim(), "done");
    }
}

/// The URL of a database that all tests share.
pub(crate) fn shared() -> &'static str {
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
pub(crate) fn new_schema() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("t{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// The options for this schema of the shared database.
pub(crate) fn options(schema: &str) -> Options {
    Options::parse(&format!("{}?schema={schema}", shared())).expect("a URL of ours")
}

/// The URL of a database beside the shared one, with nobody else in it.
pub(crate) fn new_database() -> String {
    let name = new_schema();
    Sql::new(shared()).rows(&format!("CREATE DATABASE {name}"));
    let (server, _) = shared().rsplit_once('/').expect("a URL of ours names a database");
    format!("{server}/{name}")
}
