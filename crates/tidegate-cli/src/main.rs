//! The `tidegate` binary: where doors and stores are put together.
//!
//! Alone in the workspace it reads the environment and ends the process. Results go to standard output, words for
//! people to standard error, and the exit code says which of five things happened; see [`Failure`].

mod activity;
mod args;
mod bench;
mod check;
mod completions;
mod cpu;
mod decision;
mod gateway;
mod instant;
mod json;
mod lines;
mod log;
mod open_store;
mod pipe;
mod remote;
mod serve;
mod simulate;
mod stoppable_input;
mod store;
mod svg;
mod token;

use std::fmt;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use tidegate::file::{Color, LARGEST_FILE};
use tidegate::text;

use args::{CliArgs, CliCommand};

/// Why a command did not do what it was asked. Success is 0; refused and unreachable belong to the commands that talk to a
/// server.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something went wrong that the input is not to blame for: exit code 1.
    Failed(String),
    /// The input, a file or an argument makes no sense: exit code 2.
    BadInput(String),
    /// A server said no, and that is an answer, which was told: exit code 3.
    Refused,
    /// A server gave no answer: exit code 4.
    Unreachable(String),
    /// A command that was run has ended with a code of its own, and said what it had to say.
    Ended(u8),
}

impl Failure {
    fn code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Failed(_) => 1,
            Failure::BadInput(_) => 2,
            Failure::Refused => 3,
            Failure::Unreachable(_) => 4,
            Failure::Ended(code) => *code,
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Failed(why) | Failure::BadInput(why) | Failure::Unreachable(why) => f.write_str(why),
            Failure::Refused => f.write_str("refused"),
            Failure::Ended(code) => write!(f, "the command ended with exit code {code}"),
        }
    }
}

fn main() -> ExitCode {
    let args = match CliArgs::try_parse() {
        Ok(args) => args,
        Err(error) if error.exit_code() == 0 => {
            // Nothing can be done for somebody who has closed the stream that would tell them.
            let _unread = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            print_message(&without_passwords_of_arguments(error.render().to_string()));
            return ExitCode::from(2);
        }
    };
    let done = match args.command {
        CliCommand::Serve(args) => serve::run(&args),
        CliCommand::Gateway(args) => gateway::run(&args),
        CliCommand::Check(args) => check::run(&args),
        CliCommand::Simulate(args) => simulate::run(&args),
        CliCommand::Pipe(args) => pipe::run(&args),
        CliCommand::Limit(args) => remote::limit(&args),
        CliCommand::Acquire(args) => remote::acquire(&args),
        CliCommand::Peek(args) => remote::peek(&args),
        CliCommand::Release(args) => remote::release(&args),
        CliCommand::Renew(args) => remote::renew(&args),
        CliCommand::Settle(args) => remote::settle(&args),
        CliCommand::Bench(args) => bench::run(&args),
        CliCommand::Cpu(args) => cpu::run(&args),
        CliCommand::Store(args) => store::run(&args),
        CliCommand::Token(args) => token::run(&args),
        CliCommand::Completions(args) => completions::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure @ (Failure::Refused | Failure::Ended(_))) => failure.code(),
        Err(failure) => {
            print_message(&without_passwords_of_arguments(failure.to_string()));
            failure.code()
        }
    }
}

/// What is told about arguments, without the passwords in them, wherever they were put.
fn without_passwords_of_arguments(mut text: String) -> String {
    let mut before = String::new();
    for arg in std::env::args_os() {
        let arg = arg.to_string_lossy().into_owned();
        let (name, value) = arg.split_once('=').filter(|_| arg.starts_with("--")).unwrap_or((&before, &arg));
        let is_store = name == "--store";
        let shown =
            if is_store { text::without_store_passwords(value) } else { text::without_passwords(value) };
        if shown != value {
            text = text.replace(value, &shown);
        }
        before = arg;
    }
    text
}

/// Says something to people. If nobody listens, so be it.
pub(crate) fn print_message(text: &str) {
    let _unheard = writeln!(io::stderr().lock(), "{}", text.trim_end());
}

/// Writes a result. A reader that has seen enough is no failure: `tidegate … | head -1` ends well.
pub(crate) fn print_result(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(unwritable(&error)),
        _ => Ok(()),
    }
}

/// The input cannot be read: if it is no input at all, the one who named it can help.
pub(crate) fn unreadable(name: &str, error: &io::Error) -> Failure {
    let why = format!("cannot read {name}: {error}");
    if error.kind() == io::ErrorKind::IsADirectory { Failure::BadInput(why) } else { Failure::Failed(why) }
}

/// Standard output cannot be written to.
pub(crate) fn unwritable(error: &io::Error) -> Failure {
    Failure::Failed(format!("cannot write to standard output: {error}"))
}

/// The whole of a settings file, or of standard input for `-`, and its name in messages. Of one that is too large no more
/// is read than it takes to know.
pub(crate) fn read_whole(path: &Path) -> Result<(String, Vec<u8>), Failure> {
    let name = if path == Path::new("-") { "stdin".to_owned() } else { path.display().to_string() };
    let most = LARGEST_FILE as u64 + 1;
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        io::stdin().lock().take(most).read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes))
    };
    read.map(|_| (name.clone(), bytes))
        .map_err(|error| Failure::BadInput(format!("cannot read {name}: {error}")))
}

/// Reads the settings of something that runs on: a file, so that it can be read again. A pipe would be waited for.
pub(crate) fn read_settings(path: &Path) -> Result<(String, Vec<u8>), Failure> {
    if std::fs::metadata(path).is_ok_and(|it| !it.is_file()) {
        return Err(Failure::BadInput(format!("cannot read {}: it is not a file", path.display())));
    }
    read_whole(path)
}

/// Colour for people who look at a terminal and have not asked for none.
#[expect(clippy::disallowed_methods, reason = "this is the crate that reads the environment")]
pub(crate) fn color_of_stderr() -> Color {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if io::stderr().is_terminal() && !refused { Color::Ansi } else { Color::Plain }
}
