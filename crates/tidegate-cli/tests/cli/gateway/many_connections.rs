//! Ten thousand connections that stay open and then close or break.
//!
//! Separate processes (`tests/clients/hold_connections.py`) hold them, so that a test can kill them.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Resource, getrlimit};
use serde_json::Value;
use tidegate_testkit::skip;

use super::backend::TestBackend;
use super::fixture::{TestGateway, wait_until};

/// The number of connections, held by two processes.
const CONNECTIONS: u64 = 10_000;
const HALF: u64 = CONNECTIONS / 2;
/// Descriptors for everything else.
const SPARE_DESCRIPTORS: u64 = 500;

/// A process that holds connections.
struct ConnectionHolder(Child);

impl ConnectionHolder {
    /// Opens connections from a loopback address. Each has received one response.
    #[track_caller]
    fn of(gateway: &TestGateway, from: &str) -> ConnectionHolder {
        let hook = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/hold_connections.py");
        let mut child = Command::new("python3")
            .arg(hook)
            .args([&gateway.address.port().to_string(), &HALF.to_string(), from])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python starts");
        let mut ready = String::new();
        let stdout = child.stdout.take().expect("it was piped");
        BufReader::new(stdout).read_line(&mut ready).expect("text");
        assert_eq!(ready, "ready\n", "see its output above");
        ConnectionHolder(child)
    }

    /// Closes all connections and exits.
    fn close_all(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().expect("it is ours").success());
    }

    /// Kills the process.
    fn kill(mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it is ours");
    }
}

impl Drop for ConnectionHolder {
    fn drop(&mut self) {
        // The process may have exited by itself.
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}

/// The counts of the server, the backend and the route.
fn counted(gateway: &TestGateway) -> [Value; 3] {
    let limits = gateway.limits();
    [&limits["server"], &limits["backends"][0], &limits["routes"][0]]
        .map(|level| level["maxConnections"]["used"].clone())
}

/// The number of open connections, independent of limits.
fn open(gateway: &TestGateway) -> Value {
    gateway.manage("GET /health").json(200)["connections"].clone()
}

#[test]
fn ten_thousand_connections_are_counted_and_released() {
    let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    if most < CONNECTIONS + SPARE_DESCRIPTORS {
        return skip(&format!(
            "{CONNECTIONS} connections need more than the {most} descriptors that `ulimit -Hn` allows"
        ));
    }
    let backend = TestBackend::immediate();
    let rates =
        format!("rateLimit: {{maxConnections: {}, maxConnectionsPerClient: {}}}", CONNECTIONS + 1, HALF);
    let gateway = TestGateway::of(&format!(
        "server: {{listen: 127.0.0.1:0, idleTimeout: 1h, {rates}}}
management: {{listen: 127.0.0.1:0}}
backends: [{{name: b, endpoints: [{{host: 127.0.0.1, port: {}}}], {rates}}}]
routes: [{{backend: b, {rates}}}]
",
        backend.port()
    ));
    let (well, ill) =
        (ConnectionHolder::of(&gateway, "127.0.0.2"), ConnectionHolder::of(&gateway, "127.0.0.3"));
    assert_eq!(counted(&gateway), [CONNECTIONS, CONNECTIONS, CONNECTIONS].map(Value::from));
    // One more connection is served at once; further ones are refused.
    let mut one_more = super::http_client::HttpClient::to(gateway.address).expect("it listens");
    assert_eq!(one_more.get("/").is(200), "ok");
    assert_eq!(gateway.get("/").is(429), "Too Many Connections");
    assert_eq!(one_more.get("/").is(200), "ok");
    drop(one_more);
    wait_until("the extra connection is closed", || open(&gateway) == CONNECTIONS);
    well.close_all();
    wait_until("half of them have left", || counted(&gateway) == [HALF, HALF, HALF].map(Value::from));
    ill.kill();
    wait_until("no connection is counted", || counted(&gateway) == [0, 0, 0].map(Value::from));
    wait_until("no connection is open", || open(&gateway) == 0);
    assert_eq!(gateway.get("/").is(200), "ok");
    assert_eq!(backend.requests() as u64, CONNECTIONS + 3);
    gateway.end();
}
