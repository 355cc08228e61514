//! The server, the directory and the shell of one document's commands.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::document::{Directives, Example, ExampleKind};
use super::root;
use crate::fleet::postgres_store;
use crate::remote::TestServer;

/// The addresses that documents show: the ones that `tidegate serve` listens on by default.
const SHOWN_HTTP: &str = "127.0.0.1:7700";
const SHOWN_RESP: &str = "127.0.0.1:7701";

/// Runs the commands of one document.
pub(super) struct Session {
    /// The arguments of the server that runs unless the document starts one.
    args: Vec<String>,
    server: Option<TestServer>,
    /// The directory of the server, and of temporary files.
    scratch: TempDir,
    /// The working directory of commands.
    directory: PathBuf,
    /// The store of the server.
    data: PathBuf,
}

impl Session {
    pub(super) fn new(directives: &Directives) -> Session {
        let mut args = Vec::new();
        if directives.has_postgres {
            args.extend(["--store".to_owned(), postgres_store()]);
        }
        if let Some(config) = &directives.config {
            args.extend(["--config".to_owned(), config.clone()]);
        }
        let scratch = TempDir::new().expect("a temporary directory");
        let directory = scratch.path().join("work");
        std::fs::create_dir(&directory).expect("a directory");
        let directory = if directives.has_empty_directory { directory } else { root() };
        let data = scratch.path().join("tidegate-data");
        Session { args, server: None, scratch, directory, data }
    }

    /// Runs an example and returns what it prints.
    pub(super) fn run(&mut self, example: &Example) -> String {
        let printed = match example.kind {
            ExampleKind::Shell => self.run_in_shell(&example.command),
            ExampleKind::Server => self.start_server(&example.command),
        };
        let server = self.server.as_ref().expect("every example starts one");
        printed.replace(server.http_address(), SHOWN_HTTP).replace(server.resp_address(), SHOWN_RESP)
    }

    fn run_in_shell(&mut self, command: &str) -> String {
        let server = self.server.get_or_insert_with(|| {
            let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
            TestServer::at(self.scratch.path(), &args)
        });
        let (http, resp) = (server.http_address(), server.resp_address());
        let command = command.replace(SHOWN_HTTP, http).replace(SHOWN_RESP, resp);
        let command = command.replace("localhost:7700", http).replace("localhost:7701", resp);
        let binary = Path::new(env!("CARGO_BIN_EXE_tidegate"));
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}", binary.parent().expect("a binary is in a folder").display());
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("exec 2>&1; {command}")]).current_dir(&self.directory);
        shell.env("PATH", path).env("TIDEGATE_SERVER", server.url()).env_remove("TIDEGATE_TOKEN");
        shell.env("TIDEGATE_DATA", &self.data).env("TMPDIR", self.scratch.path());
        let output = shell.output().expect("there is a shell");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Starts the server that a document shows in place of the one before. Returns what it prints until it is ready.
    fn start_server(&mut self, command: &str) -> String {
        let args = command.strip_prefix("tidegate serve").expect("a `console server` block starts a server");
        let mut args: Vec<&str> = args.split_whitespace().collect();
        for address in ["--http", "--resp"] {
            if let Some(index) = args.iter().position(|arg| *arg == address) {
                args.drain(index..index + 2);
            }
        }
        self.server = None;
        self.data = self.directory.join("tidegate-data");
        self.server.insert(TestServer::at(&self.directory, &args)).startup_output().to_owned()
    }
}
