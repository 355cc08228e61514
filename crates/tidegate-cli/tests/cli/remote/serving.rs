//! A `tidegate serve` of one test's own, and commands that are sent to it.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command};

use tempfile::TempDir;

use crate::{Run, feed, tidegate};

/// A server that runs until the test is over. Where it runs is its own, so that what it keeps by default is too.
pub(crate) struct Serving {
    child: Child,
    /// Where it runs, if nobody else keeps that.
    place: Option<TempDir>,
    url: String,
    resp: String,
    /// What it said until it was ready.
    said: String,
    /// Not closed: what the server says later must have somewhere to go.
    err: BufReader<ChildStderr>,
}

impl Serving {
    /// With no limits, for everybody.
    pub(crate) fn start() -> Serving {
        Serving::with(&[])
    }

    /// With these limits.
    pub(crate) fn of(limits: &str) -> Serving {
        let serving = Serving::start();
        serving.fed(&["limit", "add", "-"], limits).done();
        serving
    }

    /// With these arguments too.
    pub(crate) fn with(args: &[&str]) -> Serving {
        let place = TempDir::new().expect("a temporary directory");
        let mut serving = Serving::at(place.path(), args);
        serving.place = Some(place);
        serving
    }

    /// In this directory, where another one may have run before.
    pub(crate) fn at(place: &Path, args: &[&str]) -> Serving {
        Serving::in_environment(place, args, &[])
    }

    /// The same, with this in the environment.
    pub(crate) fn in_environment(place: &Path, args: &[&str], variables: &[(&str, &str)]) -> Serving {
        let places = ["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"];
        let mut command = tidegate(&[&places, args].concat());
        command.envs(variables.iter().copied());
        let mut child = command.current_dir(place).spawn().expect("the binary starts");
        let mut err = BufReader::new(child.stderr.take().expect("it was piped"));
        let mut said = String::new();
        let (address, resp) = loop {
            let mut line = String::new();
            let length = err.read_line(&mut line).expect("text");
            assert!(length > 0, "the server ended before it was ready: {said}");
            said.push_str(&line);
            if let Some(rest) = line.strip_prefix("tidegate ready http=") {
                let mut words = rest.split(' ').map(str::to_owned);
                let (http, resp) = (words.next().expect("an address"), words.next().expect("another"));
                break (http, resp.replace("resp=", "redis://"));
            }
        };
        Serving { child, place: None, url: format!("http://{address}"), resp, said, err }
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

    /// Where it speaks RESP.
    pub(crate) fn resp(&self) -> &str {
        &self.resp
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Where it runs, if nobody else keeps that.
    pub(crate) fn place(&self) -> &Path {
        self.place.as_ref().expect("a place of its own").path()
    }

    /// Where it keeps what it counts there, if nobody told it.
    pub(crate) fn folder(&self) -> PathBuf {
        self.place().join("tidegate-data")
    }

    /// What it said until it was ready.
    pub(crate) fn said(&self) -> &str {
        &self.said
    }

    /// Kills it, as a crash does.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it was started");
    }

    /// Tells it to end, and waits until it has; what it said since it was ready.
    pub(crate) fn end(mut self) -> String {
        self.tell_to_end();
        let mut said = String::new();
        self.err.read_to_string(&mut said).expect("text");
        let status = self.child.wait().expect("it was started");
        assert!(status.success(), "{status}: {said}");
        said
    }

    /// Tells it to end, and waits until it has, without reading what it says.
    pub(crate) fn end_unheard(mut self) {
        self.tell_to_end();
        let status = self.child.wait().expect("it was started");
        assert!(status.success(), "{status}");
    }

    fn tell_to_end(&self) {
        let told = Command::new("sh").args(["-c", &format!("kill {}", self.child.id())]).status();
        assert!(told.expect("there is a shell").success());
    }

    /// Sends a command there.
    pub(crate) fn run(&self, args: &[&str]) -> Run {
        self.fed(args, "")
    }

    /// Sends a command there that reads this.
    pub(crate) fn fed(&self, args: &[&str], input: &str) -> Run {
        feed(tidegate(args).env("TIDEGATE_SERVER", &self.url), input)
    }

    /// Sends a command there, with a token.
    pub(crate) fn run_as(&self, token: &str, args: &[&str]) -> Run {
        feed(tidegate(args).env("TIDEGATE_SERVER", &self.url).env("TIDEGATE_TOKEN", token), "")
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // It may have ended by itself, and nobody is left to be told.
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}
