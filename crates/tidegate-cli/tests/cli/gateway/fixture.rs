//! A `tidegate gateway` of one test's own.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use super::http_client::{FAR_TOO_LONG, Told, Wire};
use crate::{Files, tidegate};

/// How long it is waited before something is looked at again.
const MOMENT: Duration = Duration::from_millis(5);

/// Waits until something is so.
#[track_caller]
pub(super) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..FAR_TOO_LONG.as_millis() / MOMENT.as_millis() {
        if is_so() {
            return;
        }
        std::thread::park_timeout(MOMENT);
    }
    panic!("in vain: {what}");
}

/// The settings of a gateway before one backend. `rates` is the server's, `more` are lines behind `server:`.
pub(super) fn settings(port: u16, rates: &str, more: &str) -> String {
    format!(
        "server:\n  listen: 127.0.0.1:0\n  rateLimit: {{{rates}}}\n{more}\nmanagement: {{listen: 127.0.0.1:0}}\nbackends: [{{name: b, endpoints: [{{host: 127.0.0.1, port: {port}}}]}}]\nroutes: [{{backend: b}}]\n"
    )
}

/// What comes out of a pipe, read as it comes.
#[derive(Clone, Default)]
pub(super) struct Heard(Arc<Mutex<String>>);

impl Heard {
    fn listen(&self, mut to: impl BufRead + Send + 'static) -> JoinHandle<()> {
        let heard = self.clone();
        std::thread::spawn(move || {
            let mut line = Vec::new();
            while to.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
                heard.lock().push_str(&String::from_utf8_lossy(&line));
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

    /// Waits until this was said.
    #[track_caller]
    pub(super) fn wait_for(&self, what: &str) {
        wait_until(what, || self.lock().contains(what));
    }

    /// Waits until there are so many lines.
    #[track_caller]
    pub(super) fn lines(&self, count: usize) -> Vec<String> {
        wait_until(&format!("{count} lines"), || self.lock().lines().count() >= count);
        self.text().lines().map(str::to_owned).collect()
    }
}

/// A gateway that runs until its test is over.
pub(super) struct Gateway {
    child: Child,
    files: Files,
    pub(super) address: SocketAddr,
    /// Where it is managed, or `off`.
    pub(super) management: String,
    /// Its log.
    pub(super) err: Heard,
    /// Its access log.
    pub(super) out: Heard,
    readers: Vec<JoinHandle<()>>,
}

impl Gateway {
    /// With these settings.
    #[track_caller]
    pub(super) fn of(text: &str) -> Gateway {
        Gateway::with(text, &[], Hearing::Out)
    }

    /// With these arguments too.
    #[track_caller]
    pub(super) fn with(text: &str, args: &[&str], hearing: Hearing) -> Gateway {
        Gateway::within(Files::new(), text, args, hearing)
    }

    /// The same beside files that are there already.
    #[track_caller]
    pub(super) fn within(files: Files, text: &str, args: &[&str], hearing: Hearing) -> Gateway {
        let config = files.write("gateway.yaml", text);
        let mut all = vec!["gateway", "--config", &config, "--workers", "2"];
        all.extend(args);
        let mut command = tidegate(&all);
        let mut child =
            command.stdin(Stdio::null()).env("LIMIT_OF_ALL", "7").spawn().expect("the binary starts");
        let mut err = BufReader::new(child.stderr.take().expect("it was piped"));
        let ready = ready(&mut err);
        let mut gateway = Gateway {
            address: ready.0,
            management: ready.1,
            child,
            files,
            err: Heard::default(),
            out: Heard::default(),
            readers: Vec::new(),
        };
        gateway.readers.push(gateway.err.listen(err));
        if hearing == Hearing::Out {
            let out = BufReader::new(gateway.child.stdout.take().expect("it was piped"));
            gateway.readers.push(gateway.out.listen(out));
        }
        gateway
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Writes its settings anew.
    pub(super) fn write(&self, text: &str) {
        self.files.write("gateway.yaml", text);
    }

    /// Asks on a connection of its own.
    #[track_caller]
    pub(super) fn get(&self, path: &str) -> Told {
        Wire::to(self.address).expect("it listens").get(path)
    }

    /// Asks the management port.
    #[track_caller]
    pub(super) fn manage(&self, what: &str) -> Told {
        let mut wire = Wire::to(self.management.parse().expect("an address")).expect("it listens");
        wire.try_ask(what, "localhost").expect("an answer")
    }

    /// What its limits say of everybody together.
    #[track_caller]
    pub(super) fn limits(&self) -> Value {
        self.manage("GET /limits").json(200)
    }

    /// How many connections its limits count, if there is such a limit.
    #[track_caller]
    pub(super) fn connections(&self) -> Option<u64> {
        self.limits()["server"]["maxConnections"]["used"].as_u64()
    }

    /// Sends it a signal.
    #[track_caller]
    pub(super) fn signal(&self, name: &str) {
        let told = Command::new("kill").args([&format!("-{name}"), &self.id().to_string()]).status();
        assert!(told.expect("there is kill").success());
    }

    /// Waits until it has ended, by itself.
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

    /// When everybody has left and nothing is counted any more, tells it to end, and waits until it has; what it wrote to standard output.
    #[track_caller]
    pub(super) fn end(mut self) -> String {
        if self.management != "off" {
            wait_until("nothing is counted any more", || self.connections().unwrap_or_default() == 0);
        }
        self.signal("TERM");
        let status = self.ended();
        assert!(status.success(), "{status}: {}", self.err.text());
        self.out.text()
    }

    /// Closes the pipe of its access log.
    pub(super) fn stop_hearing(&mut self) {
        drop(self.child.stdout.take().expect("nobody took it"));
    }

    /// What is still in the pipe of its access log, which nobody read before.
    pub(super) fn rest(&mut self) -> String {
        let mut rest = String::new();
        let mut out = self.child.stdout.take().expect("nobody took it");
        out.read_to_string(&mut rest).expect("text");
        rest
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // It may have ended by itself, and nobody is left to be told.
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

/// What is read of a gateway's standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hearing {
    /// All of it.
    Out,
    /// Nothing.
    Nothing,
}

/// Where it says that it is, as soon as it is ready.
#[track_caller]
fn ready(err: &mut impl BufRead) -> (SocketAddr, String) {
    let mut said = String::new();
    loop {
        let begin = said.len();
        let length = err.read_line(&mut said).expect("text");
        assert!(length > 0, "the gateway ended before it was ready: {said}");
        if let Some(rest) = said[begin..].trim_end().strip_prefix("tidegate gateway ready http=") {
            let (http, management) = rest.split_once(" management=").expect("two addresses");
            return (http.parse().expect("an address"), management.to_owned());
        }
    }
}
