//! A `tidegate gateway` process for one test.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use super::http_client::{HttpClient, HttpResponse, TEST_TIMEOUT};
use crate::{Files, tidegate};

/// How often a condition is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Waits until a condition holds.
#[track_caller]
pub(super) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..TEST_TIMEOUT.as_millis() / POLL_INTERVAL.as_millis() {
        if is_so() {
            return;
        }
        std::thread::park_timeout(POLL_INTERVAL);
    }
    panic!("timed out: {what}");
}

/// Settings with one backend. `rates` are the server's limits; `more` are lines under `server:`.
pub(super) fn settings(port: u16, rates: &str, more: &str) -> String {
    format!(
        "server:\n  listen: 127.0.0.1:0\n  rateLimit: {{{rates}}}\n{more}\nmanagement: {{listen: 127.0.0.1:0}}\nbackends: [{{name: b, endpoints: [{{host: 127.0.0.1, port: {port}}}]}}]\nroutes: [{{backend: b}}]\n"
    )
}

/// The output of a pipe, read as it arrives.
#[derive(Clone, Default)]
pub(super) struct PipeText(Arc<Mutex<String>>);

impl PipeText {
    fn listen(&self, mut to: impl BufRead + Send + 'static) -> JoinHandle<()> {
        let text = self.clone();
        std::thread::spawn(move || {
            let mut line = Vec::new();
            while to.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
                text.lock().push_str(&String::from_utf8_lossy(&line));
                line.clear();
            }
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn text(&self) -> String {
        self.lock().clone()
    }

    /// Waits until the output contains this text.
    #[track_caller]
    pub(super) fn wait_for(&self, what: &str) {
        wait_until(what, || self.lock().contains(what));
    }

    /// Waits for this number of lines.
    #[track_caller]
    pub(super) fn lines(&self, count: usize) -> Vec<String> {
        wait_until(&format!("{count} lines"), || self.lock().lines().count() >= count);
        self.text().lines().map(str::to_owned).collect()
    }
}

/// A gateway process that runs until its test ends.
pub(super) struct TestGateway {
    child: Child,
    files: Files,
    pub(super) address: SocketAddr,
    /// The address of the management port, or `off`.
    pub(super) management: String,
    /// Its log.
    pub(super) err: PipeText,
    /// Its access log.
    pub(super) out: PipeText,
    readers: Vec<JoinHandle<()>>,
}

impl TestGateway {
    /// Starts with these settings.
    #[track_caller]
    pub(super) fn of(text: &str) -> TestGateway {
        TestGateway::with(text, &[], LogCapture::Stdout)
    }

    /// Starts with these settings and arguments.
    #[track_caller]
    pub(super) fn with(text: &str, args: &[&str], capture: LogCapture) -> TestGateway {
        TestGateway::within(Files::new(), text, args, capture)
    }

    /// Starts in an existing directory.
    #[track_caller]
    pub(super) fn within(files: Files, text: &str, args: &[&str], capture: LogCapture) -> TestGateway {
        let config = files.write("gateway.yaml", text);
        let mut all = vec!["gateway", "--config", &config, "--workers", "2"];
        all.extend(args);
        let mut command = tidegate(&all);
        let mut child =
            command.stdin(Stdio::null()).env("LIMIT_OF_ALL", "7").spawn().expect("the binary starts");
        let mut err = BufReader::new(child.stderr.take().expect("it was piped"));
        let ready = ready(&mut err);
        let mut gateway = TestGateway {
            address: ready.0,
            management: ready.1,
            child,
            files,
            err: PipeText::default(),
            out: PipeText::default(),
            readers: Vec::new(),
        };
        gateway.readers.push(gateway.err.listen(err));
        if capture == LogCapture::Stdout {
            let out = BufReader::new(gateway.child.stdout.take().expect("it was piped"));
            gateway.readers.push(gateway.out.listen(out));
        }
        gateway
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Replaces the settings.
    pub(super) fn write(&self, text: &str) {
        self.files.write("gateway.yaml", text);
    }

    /// Sends a request on a new connection.
    #[track_caller]
    pub(super) fn get(&self, path: &str) -> HttpResponse {
        HttpClient::to(self.address).expect("it listens").get(path)
    }

    /// Sends a request to the management port.
    #[track_caller]
    pub(super) fn manage(&self, what: &str) -> HttpResponse {
        let mut wire = HttpClient::to(self.management.parse().expect("an address")).expect("it listens");
        wire.try_request(what, "localhost").expect("an answer")
    }

    /// The server's limits from `/limits`.
    #[track_caller]
    pub(super) fn limits(&self) -> Value {
        self.manage("GET /limits").json(200)
    }

    /// The number of counted connections, if there is such a limit.
    #[track_caller]
    pub(super) fn connections(&self) -> Option<u64> {
        self.limits()["server"]["maxConnections"]["used"].as_u64()
    }

    /// Sends a signal.
    #[track_caller]
    pub(super) fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.id().to_string()]).status();
        assert!(status.expect("kill runs").success());
    }

    /// Waits until the process has exited by itself.
    #[track_caller]
    pub(super) fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("it ends", || {
            status = self.child.try_wait().expect("it is ours");
            status.is_some()
        });
        for reader in self.readers.drain(..) {
            reader.join().expect("reading does not panic");
        }
        status.expect("it ended")
    }

    /// Waits until no connection is counted, stops the process, and returns its standard output.
    #[track_caller]
    pub(super) fn end(mut self) -> String {
        if self.management != "off" {
            wait_until("no connection is counted", || self.connections().unwrap_or_default() == 0);
        }
        self.signal("TERM");
        let status = self.ended();
        assert!(status.success(), "{status}: {}", self.err.text());
        self.out.text()
    }

    /// Closes the pipe of the access log.
    pub(super) fn close_log_pipe(&mut self) {
        drop(self.child.stdout.take().expect("not taken yet"));
    }

    /// Reads what is left in the pipe of the access log.
    pub(super) fn rest(&mut self) -> String {
        let mut rest = String::new();
        let mut out = self.child.stdout.take().expect("not taken yet");
        out.read_to_string(&mut rest).expect("text");
        rest
    }
}

impl Drop for TestGateway {
    fn drop(&mut self) {
        // The process may have exited by itself.
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

/// What is read from standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LogCapture {
    /// All lines.
    Stdout,
    /// Nothing.
    Nothing,
}

/// Parses the addresses from the ready line.
#[track_caller]
fn ready(err: &mut impl BufRead) -> (SocketAddr, String) {
    let mut output = String::new();
    loop {
        let begin = output.len();
        let length = err.read_line(&mut output).expect("text");
        assert!(length > 0, "the gateway ended before it was ready: {output}");
        if let Some(rest) = output[begin..].trim_end().strip_prefix("tidegate gateway ready http=") {
            let (http, management) = rest.split_once(" management=").expect("two addresses");
            return (http.parse().expect("an address"), management.to_owned());
        }
    }
}
