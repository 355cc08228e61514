//! Runs other programs: with live output, and with a time limit.
//!
//! Both output streams of a child share one pipe, so that their order is kept. A child with a time limit gets its own process
//! group, because killing cargo does not kill its test binaries.

use std::io::{BufRead, BufReader, PipeReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::TaskResult;

/// Output and exit of a program.
#[derive(Debug)]
pub(crate) struct CommandOutcome {
    /// Standard output and standard error, in order.
    pub(crate) output: String,
    pub(crate) exit: ExitCause,
}

/// How a program ended.
#[derive(Debug)]
pub(crate) enum ExitCause {
    /// It exited or was ended by a signal.
    Exited(ExitStatus),
    /// It ran into the time limit and was killed.
    TimedOut,
}

impl CommandOutcome {
    pub(crate) fn succeeded(&self) -> bool {
        matches!(self.exit, ExitCause::Exited(status) if status.success())
    }
}

/// Whether a program of this name starts.
pub(crate) fn exists(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

/// Whether the command exits with 0. Its output is discarded.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// Runs a command and shows its output line by line.
pub(crate) fn run_shown(command: Command) -> TaskResult<CommandOutcome> {
    let name = command_line(&command);
    println!("$ {name}");
    let (mut child, reader) = spawn(command)?;
    let mut output = String::new();
    let mut lines = BufReader::new(reader);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(&line)?;
        stdout.flush()?;
        output.push_str(&String::from_utf8_lossy(&line));
        line.clear();
    }
    Ok(CommandOutcome { output, exit: ExitCause::Exited(child.wait()?) })
}

/// Runs a command without showing its output. Kills its process group after `limit`.
pub(crate) fn run_within(mut command: Command, limit: Duration) -> TaskResult<CommandOutcome> {
    command.process_group(0);
    let (mut child, mut reader) = spawn(command)?;
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = reader.read_to_end(&mut bytes).map(|_| String::from_utf8_lossy(&bytes).into_owned());
        // The receiver is gone after a timeout.
        let _ = sender.send(read);
    });
    if let Ok(output) = receiver.recv_timeout(limit) {
        return Ok(CommandOutcome { output: output?, exit: ExitCause::Exited(child.wait()?) });
    }
    kill_group(&child)?;
    child.wait()?;
    Ok(CommandOutcome { output: String::new(), exit: ExitCause::TimedOut })
}

/// The command as typed in a shell.
pub(crate) fn command_line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

fn spawn(mut command: Command) -> TaskResult<(Child, PipeReader)> {
    let (reader, writer) = std::io::pipe()?;
    command.stdout(writer.try_clone()?).stderr(writer);
    let child = command.spawn().map_err(|error| format!("cannot run {}: {error}", command_line(&command)))?;
    // The command holds a writing end of the pipe. Without it the pipe closes when the child exits.
    drop(command);
    Ok((child, reader))
}

/// Kills a child's process group. Uses the shell's builtin `kill`, because a minimal system has no other.
fn kill_group(child: &Child) -> TaskResult {
    let status = Command::new("sh").arg("-c").arg(format!("kill -s KILL -- -{}", child.id())).status()?;
    if status.success() { Ok(()) } else { Err("cannot kill a test that ran into its time limit".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.arg("-c").arg(script);
        command
    }

    #[test]
    fn output_keeps_the_order_of_both_streams() {
        let ended = run_within(sh("echo one; echo two >&2; echo three"), Duration::from_secs(60)).unwrap();
        assert_eq!(ended.output, "one\ntwo\nthree\n");
        assert!(ended.succeeded());
    }

    #[test]
    fn nonzero_exit_is_a_failure() {
        assert!(!run_within(sh("exit 3"), Duration::from_secs(60)).unwrap().succeeded());
    }

    #[test]
    fn timeout_kills_the_whole_process_group() {
        // The grandchild keeps the pipe open. If only the shell were killed, the read would block forever.
        let ended = run_within(sh("sleep 1000 & wait"), Duration::from_millis(50)).unwrap();
        assert!(matches!(ended.exit, ExitCause::TimedOut));
    }

    #[test]
    fn missing_program_is_named_in_the_error() {
        let error = run_within(Command::new("no-such-program"), Duration::from_secs(60)).unwrap_err();
        assert!(error.to_string().contains("no-such-program"), "{error}");
    }
}
