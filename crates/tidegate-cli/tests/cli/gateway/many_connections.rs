//! A crowd: ten thousand connections that stay, and leave well or not.
//!
//! They are held by processes of their own (`tests/clients/hold_connections.py`), so that those can be killed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Resource, getrlimit};
use serde_json::Value;

use super::backend::Backend;
use super::fixture::{Gateway, wait_until};

/// How many there are, held by two.
const CROWD: u64 = 10_000;
const HALF: u64 = CROWD / 2;
/// Descriptors for everything else.
const BESIDE: u64 = 500;

/// A process that holds connections.
struct Holder(Child);

impl Holder {
    /// From this address of the machine. The connections are open, and each has been answered.
    #[track_caller]
    fn of(gateway: &Gateway, from: &str) -> Holder {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/hold_connections.py");
        let mut child = Command::new("python3")
            .arg(script)
            .args([&gateway.address.port().to_string(), &HALF.to_string(), from])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("Python starts");
        let mut said = String::new();
        let stdout = child.stdout.take().expect("it was piped");
        BufReader::new(stdout).read_line(&mut said).expect("text");
        assert_eq!(said, "ready\n", "it says why above");
        Holder(child)
    }

    /// Closes every connection.
    fn leave(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().expect("it is ours").success());
    }

    /// Ends as nobody should.
    fn kill(mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it is ours");
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}

/// What every level counts: the server, the backend, the route.
fn counted(gateway: &Gateway) -> [Value; 3] {
    let limits = gateway.limits();
    [&limits["server"], &limits["backends"][0], &limits["routes"][0]]
        .map(|level| level["maxConnections"]["used"].clone())
}

/// How many connections there are, whatever the limits say.
fn open(gateway: &Gateway) -> Value {
    gateway.manage("GET /health").json(200)["connections"].clone()
}

#[test]
fn ten_thousand_stay_and_are_gone_to_the_last() {
    let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    if most < CROWD + BESIDE {
        eprintln!(
            "not tried: {CROWD} connections need more than the {most} descriptors that `ulimit -Hn` allows"
        );
        return;
    }
    let backend = Backend::quick();
    let rates = format!("rateLimit: {{maxConnections: {}, maxConnectionsPerClient: {}}}", CROWD + 1, HALF);
    let gateway = Gateway::of(&format!(
        "server: {{listen: 127.0.0.1:0, idleTimeout: 1h, {rates}}}
management: {{listen: 127.0.0.1:0}}
backends: [{{name: b, endpoints: [{{host: 127.0.0.1, port: {}}}], {rates}}}]
routes: [{{backend: b, {rates}}}]
",
        backend.port()
    ));
    let (well, ill) = (Holder::of(&gateway, "127.0.0.2"), Holder::of(&gateway, "127.0.0.3"));
    assert_eq!(counted(&gateway), [CROWD, CROWD, CROWD].map(Value::from));
    // There is room for one more, who is served as if nobody else was there, and for nobody beyond.
    let mut one_more = super::http_client::Wire::to(gateway.address).expect("it listens");
    assert_eq!(one_more.get("/").is(200), "ok");
    assert_eq!(gateway.get("/").is(429), "Too Many Connections");
    assert_eq!(one_more.get("/").is(200), "ok");
    drop(one_more);
    wait_until("the crowd is alone again", || open(&gateway) == CROWD);
    well.leave();
    wait_until("half of them have left", || counted(&gateway) == [HALF, HALF, HALF].map(Value::from));
    ill.kill();
    wait_until("nobody is counted any more", || counted(&gateway) == [0, 0, 0].map(Value::from));
    wait_until("nobody is there any more", || open(&gateway) == 0);
    assert_eq!(gateway.get("/").is(200), "ok");
    assert_eq!(backend.requests() as u64, CROWD + 3);
    gateway.end();
}
