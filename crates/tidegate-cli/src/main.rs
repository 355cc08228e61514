//! The `tidegate` binary: connects protocols and stores.
//!
//! Only this crate reads the environment and exits the process. Results go to standard output, messages to standard
//! error, and the exit code has the outcome; see [`Failure`].

mod args;
mod bench;
mod check;
mod completions;
mod cpu;
mod exit_code;
mod file_kind;
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

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use tidegate_config::text;
use tidegate_config::{Color, MAX_FILE_BYTES};

use args::{CliArgs, CliCommand};
use exit_code::{Failure, INVALID_ARGUMENTS};

fn main() -> ExitCode {
    let args = match CliArgs::try_parse() {
        Ok(args) => args,
        Err(error) if error.exit_code() == 0 => {
            // Nothing can be reported if the stream is closed.
            let _unread = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            print_message(&without_passwords_of_arguments(error.render().to_string()));
            return ExitCode::from(INVALID_ARGUMENTS);
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
        Err(failure @ (Failure::Refused | Failure::Ended(_))) => failure.exit_code(),
        Err(failure) => {
            print_message(&without_passwords_of_arguments(failure.to_string()));
            failure.exit_code()
        }
    }
}

/// Removes passwords in arguments from a message.
fn without_passwords_of_arguments(mut text: String) -> String {
    let mut before = String::new();
    for arg in std::env::args_os() {
        let arg = arg.to_string_lossy().into_owned();
        let (name, value) = arg.split_once('=').filter(|_| arg.starts_with("--")).unwrap_or((&before, &arg));
        let is_store = name == "--store";
        let concealed =
            if is_store { text::without_store_passwords(value) } else { text::without_passwords(value) };
        if concealed != value {
            text = text.replace(value, &concealed);
        }
        before = arg;
    }
    text
}

/// Prints a message to standard error. Errors are ignored.
pub(crate) fn print_message(text: &str) {
    let _unheard = writeln!(io::stderr().lock(), "{}", text.trim_end());
}

/// Prints a result to standard output. A closed pipe is no failure: `tidegate … | head -1` succeeds.
pub(crate) fn print_result(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(unwritable(&error)),
        _ => Ok(()),
    }
}

/// A read error: bad input if the path is a directory, otherwise a failure.
pub(crate) fn unreadable(name: &str, error: &io::Error) -> Failure {
    let why = format!("cannot read {name}: {error}");
    if error.kind() == io::ErrorKind::IsADirectory { Failure::BadInput(why) } else { Failure::Failed(why) }
}

/// A write error of standard output.
pub(crate) fn unwritable(error: &io::Error) -> Failure {
    Failure::Failed(format!("cannot write to standard output: {error}"))
}

/// Reads a settings file, or standard input for `-`, with its name for messages. Reads at most one byte more than the
/// size limit.
pub(crate) fn read_whole(path: &Path) -> Result<(String, Vec<u8>), Failure> {
    let name = if path == Path::new("-") { "stdin".to_owned() } else { path.display().to_string() };
    let most = MAX_FILE_BYTES as u64 + 1;
    let mut bytes = Vec::new();
    let read = if path == Path::new("-") {
        io::stdin().lock().take(most).read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes))
    };
    read.map(|_| (name.clone(), bytes))
        .map_err(|error| Failure::BadInput(format!("cannot read {name}: {error}")))
}

/// Reads the settings file of a server. It must be a regular file, because it is read again on reload.
pub(crate) fn read_settings(path: &Path) -> Result<(String, Vec<u8>), Failure> {
    if std::fs::metadata(path).is_ok_and(|it| !it.is_file()) {
        return Err(Failure::BadInput(format!("cannot read {}: it is not a file", path.display())));
    }
    read_whole(path)
}

/// Color for terminals, unless `NO_COLOR` is set.
#[expect(clippy::disallowed_methods, reason = "this is the crate that reads the environment")]
pub(crate) fn color_of_stderr() -> Color {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if io::stderr().is_terminal() && !refused { Color::Ansi } else { Color::Plain }
}
