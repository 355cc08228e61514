//! Tests of the binary: arguments and input in, output and exit code out.
//!
//! Every test runs the real program. No test sleeps; where a running process is the subject, the test waits for its
//! output.

mod activity;
mod bench;
mod check;
mod clients;
mod completions;
mod cpu;
mod cpu_run;
mod docs;
mod fleet;
mod gateway;
mod pipe;
mod remote;
mod serve;
mod simulate;
mod store;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// Output and exit code of a command.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Run {
    /// The standard output of a successful command.
    #[track_caller]
    fn done(self) -> String {
        assert_eq!((self.code, &*self.err), (Some(0), ""), "{}", self.out);
        self.out
    }

    /// The standard error of a command that failed with this code and printed no result.
    #[track_caller]
    fn failed(self, code: i32) -> String {
        assert_eq!((self.code, &*self.out), (Some(code), ""), "{}", self.err);
        self.err
    }
}

fn tidegate(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command
        .args(args)
        .env_remove("NO_COLOR")
        .env_remove("TIDEGATE_SERVER")
        .env_remove("TIDEGATE_TOKEN")
        .env_remove("PGPASSWORD")
        .env_remove("MAX_CONCURRENT_TASKS")
        .env_remove("SLIDE_WINDOW_QUESTION_COUNT")
        .env_remove("SLIDE_WINDOW_TIME")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs a command with this input.
fn run_bytes(args: &[&str], input: &[u8]) -> Output {
    feed_bytes(&mut tidegate(args), input)
}

fn feed_bytes(command: &mut Command, input: &[u8]) -> Output {
    let mut child = command.spawn().expect("the binary starts");
    let mut stdin = child.stdin.take().expect("it was piped");
    let input = input.to_vec();
    // From another thread, because both pipes may fill up. A process that ends early does not read the rest.
    let feeder = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().expect("it ends");
    feeder.join().expect("feeding does not panic");
    output
}

fn run(args: &[&str], input: &str) -> Run {
    feed(&mut tidegate(args), input)
}

fn feed(command: &mut Command, input: &str) -> Run {
    let Output { status, stdout, stderr } = feed_bytes(command, input.as_bytes());
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Run { code: status.code(), out: text(stdout), err: text(stderr) }
}

/// A temporary directory.
struct Files(TempDir);

impl Files {
    fn new() -> Files {
        Files(TempDir::new().expect("a temporary directory"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: &str) -> String {
        std::fs::write(self.path(name), content).expect("a file");
        self.path(name).display().to_string()
    }
}

fn example(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name).display().to_string()
}

#[test]
fn help_of_every_command_has_an_example() {
    for command in [
        "",
        "check",
        "simulate",
        "pipe",
        "limit",
        "limit add",
        "limit set",
        "limit get",
        "limit list",
        "limit delete",
        "limit reset",
        "acquire",
        "peek",
        "release",
        "renew",
        "settle",
        "bench",
        "cpu",
        "cpu plan",
        "cpu simulate",
        "cpu status",
        "cpu report",
        "gateway",
        "store",
        "store verify",
        "store dump",
        "store backup",
        "token",
        "token new",
        "completions",
    ] {
        let args: Vec<_> = command.split_whitespace().chain(["--help"]).collect();
        let help = run(&args, "").done();
        assert!(help.contains("Example"), "{help}");
        assert!(!help.contains('\u{1b}'), "no color in a pipe: {help}");
    }
    assert!(run(&["--version"], "").done().starts_with("tidegate "));
}

#[test]
fn invalid_arguments_are_bad_input() {
    for args in [
        &[][..],
        &["chekc"],
        &["check"],
        &["check", "--schema", "file.yaml"],
        &["simulate"],
        &["pipe", "--global", "lots"],
        &["pipe", "--per-key", "10/60"],
        &["pipe", "--key", "a..b"],
        &["pipe", "--on-error", "panic"],
        &["pipe", "stray"],
        &["cpu"],
        &["cpu", "simulate"],
        &["cpu", "report"],
        &["store"],
        &["store", "mend", "."],
        &["store", "verify"],
        &["store", "backup", "."],
    ] {
        let run = run(args, "");
        assert_eq!((run.code, &*run.out), (Some(2), ""), "{args:?}");
        assert!(!run.err.is_empty(), "{args:?}");
    }
}
