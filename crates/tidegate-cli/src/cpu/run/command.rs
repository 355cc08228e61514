//! The governed command: started paused by the watchdog, resumed once the limit is in force.

use std::ffi::OsStr;
use std::io::{self, IsTerminal};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::mpsc::Sender;
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::SIGINT;
use tidegate_cpu::watchdog::WatchedProcess;

use super::RunEvent;
use crate::{Failure, print_message};

/// Exit code base for signals, as in shells.
pub(super) const ENDED_BY_SIGNAL: i32 = 128;

/// A started command.
pub(super) struct GovernedCommand {
    pid: u32,
    subreaper: u32,
    /// Taken when the command resumes.
    watched: Option<WatchedProcess>,
}

/// Finds the program as a shell does.
#[expect(clippy::disallowed_methods, reason = "programs are found on the PATH")]
pub(super) fn find(program: &OsStr) -> Result<PathBuf, Failure> {
    let written = Path::new(program);
    if written.components().count() > 1 || written.is_absolute() {
        return if is_program(written) {
            Ok(written.to_owned())
        } else {
            Err(Failure::BadInput(format!("{} is not a program that can be run", written.display())))
        };
    }
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths).map(|path| path.join(written)).find(|path| is_program(path));
    found.ok_or_else(|| Failure::BadInput(format!("there is no program '{}' on PATH", written.display())))
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

impl GovernedCommand {
    /// A paused command.
    pub(super) fn new(watched: WatchedProcess) -> GovernedCommand {
        GovernedCommand { pid: watched.pid(), subreaper: watched.subreaper(), watched: Some(watched) }
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// The process id of the parent, which adopts orphans.
    pub(super) fn subreaper(&self) -> u32 {
        self.subreaper
    }

    /// Resumes the command and reports its end as an event.
    pub(super) fn resume(&mut self, events: Sender<RunEvent>) -> Result<(), Failure> {
        let failed = |error: io::Error| Failure::Failed(format!("cannot resume the command: {error}"));
        let Some(watched) = self.watched.take() else { return Ok(()) };
        self.send(Signal::CONT);
        let wait = move || {
            let _closed = events.send(RunEvent::Ended(end(watched)));
        };
        thread::Builder::new().name("command".to_owned()).spawn(wait).map_err(failed)?;
        Ok(())
    }

    /// Forwards a stop signal. A terminal sends SIGINT to the command itself.
    pub(super) fn forward_signal(&self, signal: i32) {
        if signal == SIGINT && io::stdin().is_terminal() {
            return;
        }
        if let Some(signal) = Signal::from_named_raw(signal) {
            self.send(signal);
            // A stopped process handles no signals.
            self.send(Signal::CONT);
        }
    }

    /// Kills a command that was never resumed.
    pub(super) fn kill_waiting(&mut self) {
        if let Some(watched) = self.watched.take() {
            self.send(Signal::KILL);
            let _code = end(watched);
        }
    }

    fn send(&self, signal: Signal) {
        if let Some(pid) = number(self.pid) {
            // The process may have ended.
            let _gone = kill_process(pid, signal);
        }
    }
}

fn number(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

/// The exit code of the command.
fn end(watched: WatchedProcess) -> u8 {
    match watched.wait() {
        Ok(status) => code(status),
        Err(error) => {
            print_message(&error.to_string());
            1
        }
    }
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| ENDED_BY_SIGNAL + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
