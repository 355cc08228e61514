//! A `tidegate serve` process of one test.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command};

use tempfile::TempDir;

use crate::{Run, feed, tidegate};

/// A server that runs until the end of the test, by default in its own temporary directory.
pub(crate) struct TestServer {
    child: Child,
    /// The temporary working directory, unless the caller has one.
    directory: Option<TempDir>,
    url: String,
    resp: String,
    /// Standard error until the ready line.
    startup_output: String,
    /// Kept open, so that the server can go on writing.
    err: BufReader<ChildStderr>,
}

impl TestServer {
    /// Without limits or tokens.
    pub(crate) fn start() -> TestServer {
        TestServer::with_args(&[])
    }

    /// With these limits.
    pub(crate) fn with_limits(limits: &str) -> TestServer {
        let serving = TestServer::start();
        serving.run_with_input(&["limit", "add", "-"], limits).done();
        serving
    }

    /// With more arguments.
    pub(crate) fn with_args(args: &[&str]) -> TestServer {
        let directory = TempDir::new().expect("a temporary directory");
        let mut serving = TestServer::at(directory.path(), args);
        serving.directory = Some(directory);
        serving
    }

    /// In this directory, which an earlier server may have used.
    pub(crate) fn at(directory: &Path, args: &[&str]) -> TestServer {
        TestServer::with_environment(directory, args, &[])
    }

    /// With environment variables too.
    pub(crate) fn with_environment(
        directory: &Path,
        args: &[&str],
        variables: &[(&str, &str)],
    ) -> TestServer {
        let places = ["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"];
        let mut command = tidegate(&[&places, args].concat());
        command.envs(variables.iter().copied());
        let mut child = command.current_dir(directory).spawn().expect("the binary starts");
        let mut err = BufReader::new(child.stderr.take().expect("it was piped"));
        let mut startup_output = String::new();
        let (address, resp) = loop {
            let mut line = String::new();
            let length = err.read_line(&mut line).expect("text");
            assert!(length > 0, "the server ended before it was ready: {startup_output}");
            startup_output.push_str(&line);
            if let Some(rest) = line.strip_prefix("tidegate ready http=") {
                let mut words = rest.split(' ').map(str::to_owned);
                let (http, resp) = (words.next().expect("an address"), words.next().expect("another"));
                break (http, resp.replace("resp=", "redis://"));
            }
        };
        TestServer { child, directory: None, url: format!("http://{address}"), resp, startup_output, err }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The address of its HTTP port.
    pub(crate) fn http_address(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    /// The address of its RESP port.
    pub(crate) fn resp_address(&self) -> &str {
        self.resp.trim_start_matches("redis://")
    }

    /// The URL of its RESP port.
    pub(crate) fn resp(&self) -> &str {
        &self.resp
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its temporary working directory. Panics if the caller chose the directory.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.as_ref().expect("a directory of its own").path()
    }

    /// Its default data directory.
    pub(crate) fn store_directory(&self) -> PathBuf {
        self.directory().join("tidegate-data")
    }

    /// What it said until it was ready.
    pub(crate) fn startup_output(&self) -> &str {
        &self.startup_output
    }

    /// Kills the server, as a crash does.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it was started");
    }

    /// Stops the server. Returns standard error since the ready line.
    pub(crate) fn end(mut self) -> String {
        self.send_sigterm();
        let mut startup_output = String::new();
        self.err.read_to_string(&mut startup_output).expect("text");
        let status = self.child.wait().expect("it was started");
        assert!(status.success(), "{status}: {startup_output}");
        startup_output
    }

    /// Stops the server without reading standard error.
    pub(crate) fn stop_without_reading(mut self) {
        self.send_sigterm();
        let status = self.child.wait().expect("it was started");
        assert!(status.success(), "{status}");
    }

    fn send_sigterm(&self) {
        let output = Command::new("sh").args(["-c", &format!("kill {}", self.child.id())]).status();
        assert!(output.expect("there is a shell").success());
    }

    /// Runs a command against this server.
    pub(crate) fn run(&self, args: &[&str]) -> Run {
        self.run_with_input(args, "")
    }

    /// Runs a command with this input.
    pub(crate) fn run_with_input(&self, args: &[&str], input: &str) -> Run {
        feed(tidegate(args).env("TIDEGATE_SERVER", &self.url), input)
    }

    /// Runs a command with a token.
    pub(crate) fn run_with_token(&self, token: &str, args: &[&str]) -> Run {
        feed(tidegate(args).env("TIDEGATE_SERVER", &self.url).env("TIDEGATE_TOKEN", token), "")
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        // The server may have ended already.
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}
