//! Running other programs: shown while they run, read when they are done, ended when they take too long.
//!
//! Both streams of a child go into one pipe, so what is read is in the order it was written. A child gets a process
//! group of its own when it may have to be ended, because cargo does not take its test binaries with it.

use std::io::{BufRead, BufReader, PipeReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::Outcome;

/// What a program said and how it ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Everything it wrote to either stream.
    pub(crate) output: String,
    pub(crate) how: How,
}

/// How a program ended.
#[derive(Debug)]
pub(crate) enum How {
    /// By itself.
    Exited(ExitStatus),
    /// It was still running when its time was over, and was ended.
    OutOfTime,
}

impl Ended {
    pub(crate) fn succeeded(&self) -> bool {
        matches!(self.how, How::Exited(status) if status.success())
    }
}

/// Whether a program by this name can be run.
pub(crate) fn exists(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

/// Whether this command runs and succeeds; what it says is nobody's business.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// Runs a command to its end, showing every line as it comes.
pub(crate) fn run_shown(command: Command) -> Outcome<Ended> {
    let name = spoken(&command);
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
    Ok(Ended { output, how: How::Exited(child.wait()?) })
}

/// Runs a command silently and ends it, with everything it started, if it takes longer than `at_most`.
pub(crate) fn run_within(mut command: Command, at_most: Duration) -> Outcome<Ended> {
    command.process_group(0);
    let (mut child, mut reader) = spawn(command)?;
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = reader.read_to_end(&mut bytes).map(|_| String::from_utf8_lossy(&bytes).into_owned());
        // Nobody listens any more if time was over first.
        let _ = sender.send(read);
    });
    if let Ok(output) = receiver.recv_timeout(at_most) {
        return Ok(Ended { output: output?, how: How::Exited(child.wait()?) });
    }
    end_group(&child)?;
    child.wait()?;
    Ok(Ended { output: String::new(), how: How::OutOfTime })
}

/// The command as somebody would type it.
pub(crate) fn spoken(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

fn spawn(mut command: Command) -> Outcome<(Child, PipeReader)> {
    let (reader, writer) = std::io::pipe()?;
    command.stdout(writer.try_clone()?).stderr(writer);
    let child = command.spawn().map_err(|error| format!("cannot run {}: {error}", spoken(&command)))?;
    // The command holds the writing end; with it gone, the pipe ends when the child does.
    drop(command);
    Ok((child, reader))
}

/// Ends a child and all it started. The shell's own `kill` is used because a small machine has no other.
fn end_group(child: &Child) -> Outcome {
    let status = Command::new("sh").arg("-c").arg(format!("kill -s KILL -- -{}", child.id())).status()?;
    if status.success() { Ok(()) } else { Err("cannot end a test that took too long".into()) }
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
    fn both_streams_are_read_in_order() {
        let ended = run_within(sh("echo one; echo two >&2; echo three"), Duration::from_secs(60)).unwrap();
        assert_eq!(ended.output, "one\ntwo\nthree\n");
        assert!(ended.succeeded());
    }

    #[test]
    fn a_failure_is_seen() {
        assert!(!run_within(sh("exit 3"), Duration::from_secs(60)).unwrap().succeeded());
    }

    #[test]
    fn what_takes_too_long_is_ended_with_its_children() {
        // The grandchild keeps the pipe open: if only the shell were ended, nothing would ever notice.
        let ended = run_within(sh("sleep 1000 & wait"), Duration::from_millis(50)).unwrap();
        assert!(matches!(ended.how, How::OutOfTime));
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = run_within(Command::new("no-such-program"), Duration::from_secs(60)).unwrap_err();
        assert!(error.to_string().contains("no-such-program"), "{error}");
    }
}
