//! The server under test: this program as a child process.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{ChildStderr, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::super::stopwatch::now;
use crate::Failure;

/// Timeout of a start, recovery included.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Number of output lines in the message of a failed start.
const SHOWN_LINES: usize = 8;

/// The addresses of a running server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ServerAddresses {
    pub(super) http: SocketAddr,
    pub(super) resp: SocketAddr,
}

impl ServerAddresses {
    /// Parses the ready line.
    fn of(line: &str) -> Option<ServerAddresses> {
        let mut words = line.strip_prefix("tidegate ready ")?.split(' ');
        let http = words.next()?.strip_prefix("http=")?.parse().ok()?;
        let resp = words.next()?.strip_prefix("resp=")?.parse().ok()?;
        Some(ServerAddresses { http, resp })
    }
}

/// A server process. It is killed on drop.
#[derive(Debug)]
pub(super) struct ServerProcess {
    process: std::process::Child,
}

impl ServerProcess {
    /// Starts a server and waits until it is ready. Returns the time that this took.
    pub(super) fn start(store: &str) -> Result<(ServerProcess, ServerAddresses, Duration), Failure> {
        let started_at = now();
        let (server, started) = ServerProcess::spawn(store)?;
        match started.recv_timeout(START_TIMEOUT) {
            Ok(Ok(addresses)) => Ok((server, addresses, now().duration_since(started_at))),
            Ok(Err(output)) => Err(Failure::Failed(format!("the server did not start:\n{output}"))),
            Err(_) => {
                let seconds = START_TIMEOUT.as_secs();
                Err(Failure::Failed(format!("the server was not ready within {seconds}s")))
            }
        }
    }

    /// Starts a server and kills it after this time, or when it is ready.
    pub(super) fn start_and_kill(store: &str, within: Duration) -> Result<(), Failure> {
        let (mut server, started) = ServerProcess::spawn(store)?;
        match started.recv_timeout(within) {
            Ok(Err(output)) => Err(Failure::Failed(format!("the server did not start:\n{output}"))),
            Ok(Ok(_)) | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => server.kill(),
        }
    }

    fn spawn(store: &str) -> Result<(ServerProcess, Receiver<StartResult>), Failure> {
        let failed = |what: &str, error: std::io::Error| Failure::Failed(format!("cannot {what}: {error}"));
        let program = std::env::current_exe().map_err(|error| failed("find this program", error))?;
        let mut process = Command::new(program)
            .args(["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--store", store])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| failed("start a server", error))?;
        let output = process.stderr.take();
        let server = ServerProcess { process };
        let (tell, started) = mpsc::channel();
        // The thread ends with the server's output.
        std::thread::Builder::new()
            .name("bench-log".to_owned())
            .spawn(move || read_output(output, &tell))
            .map_err(|error| failed("start a thread", error))?;
        Ok((server, started))
    }

    /// Kills the server with SIGKILL and waits for its end.
    pub(super) fn kill(&mut self) -> Result<(), Failure> {
        let killed = self.process.kill().and_then(|()| self.process.wait());
        killed.map(|_| ()).map_err(|error| Failure::Failed(format!("cannot kill the server: {error}")))
    }

    /// Stops the server with SIGTERM and waits for its end.
    pub(super) fn end(mut self) -> Result<(), Failure> {
        let failed = |error: std::io::Error| Failure::Failed(format!("cannot end the server: {error}"));
        kill_process(Pid::from_child(&self.process), Signal::TERM).map_err(|error| failed(error.into()))?;
        let status = self.process.wait().map_err(failed)?;
        if status.success() {
            Ok(())
        } else {
            Err(Failure::Failed(format!("the server ended with {status}")))
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // The server may have ended before.
        let _killed = self.kill();
    }
}

/// The addresses, or the last lines of output if the server ended.
type StartResult = Result<ServerAddresses, String>;

fn read_output(output: Option<ChildStderr>, tell: &Sender<StartResult>) {
    let mut last = VecDeque::new();
    for line in output.into_iter().flat_map(|output| BufReader::new(output).lines()).map_while(Result::ok) {
        if let Some(addresses) = ServerAddresses::of(&line) {
            // The receiver is gone if the server was killed during its start.
            let _told = tell.send(Ok(addresses));
        }
        last.push_back(line);
        if last.len() > SHOWN_LINES {
            last.pop_front();
        }
    }
    let output: Vec<_> = last.into_iter().collect();
    let _told = tell.send(Err(output.join("\n")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_line_has_the_addresses() {
        let addresses = ServerAddresses::of("tidegate ready http=127.0.0.1:1 resp=[::1]:2 store=disk")
            .expect("a ready line");
        assert_eq!(
            (addresses.http.to_string(), addresses.resp.to_string()),
            ("127.0.0.1:1".into(), "[::1]:2".into())
        );
        for other in ["", "tidegate ready", "tidegate ready http=off resp=[::1]:2", "ready http=127.0.0.1:1"]
        {
            assert_eq!(ServerAddresses::of(other), None, "{other}");
        }
    }
}
