//! The command: started so that it waits, and goes on when the limit is in force.
//!
//! A command that runs before it is limited could start others that never are. So a shell stops itself first, and becomes the command when
//! it is continued; its number stays the same.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::Sender;
use std::thread;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use signal_hook::consts::SIGINT;

use super::Event;
use crate::Failure;

/// Waits to be continued, and becomes the command.
const WAITING: &str = "kill -STOP $$; exec \"$@\"";

/// What a shell says of a program that was ended by a signal.
const ENDED_BY_SIGNAL: i32 = 128;

/// A command that was started.
pub(super) struct Started {
    pid: u32,
    child: Option<Child>,
}

/// The program that is meant, as a shell would find it.
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

/// Starts it. It waits.
pub(super) fn start(program: &Path, args: &[OsString]) -> Result<Started, Failure> {
    let failed =
        |error: io::Error| Failure::Failed(format!("{} cannot be started: {error}", program.display()));
    let child = Command::new("/bin/sh")
        .args(["-c", WAITING, "sh"])
        .arg(program)
        .args(args)
        .spawn()
        .map_err(failed)?;
    let pid = child.id();
    let stopped = waitpid(number(pid), WaitOptions::UNTRACED).map_err(|error| failed(error.into()))?;
    if stopped.is_none_or(|(_, status)| !status.stopped()) {
        return Err(Failure::Failed(format!("{} ended before it began", program.display())));
    }
    Ok(Started { pid, child: Some(child) })
}

impl Started {
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Lets it run; its end is told.
    pub(super) fn go_on(&mut self, events: Sender<Event>) -> Result<(), Failure> {
        let failed = |error: io::Error| Failure::Failed(format!("the command cannot be continued: {error}"));
        let Some(mut child) = self.child.take() else { return Ok(()) };
        self.send(Signal::CONT);
        let wait = move || {
            let code = child.wait().map_or(1, code);
            let _nobody_waits = events.send(Event::Ended(code));
        };
        thread::Builder::new().name("command".to_owned()).spawn(wait).map_err(failed)?;
        Ok(())
    }

    /// Somebody says stop. A terminal tells the command by itself.
    pub(super) fn tell(&self, signal: i32) {
        if signal == SIGINT && io::stdin().is_terminal() {
            return;
        }
        if let Some(signal) = Signal::from_named_raw(signal) {
            self.send(signal);
            // Who is stopped hears nothing.
            self.send(Signal::CONT);
        }
    }

    /// It will not be governed, and so it is not run.
    pub(super) fn give_up(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ended = child.kill();
            let _code = child.wait();
        }
    }

    fn send(&self, signal: Signal) {
        if let Some(pid) = number(self.pid) {
            // It may have ended just now.
            let _gone = kill_process(pid, signal);
        }
    }
}

fn number(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| ENDED_BY_SIGNAL + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
