//! The watchdog: no stopped process and no changed limit is left behind, however the governor ends.
//!
//! Before a change, the governor registers how to undo it. The undo step is kept twice: in a file, and by a small process at the other end
//! of a pipe.
//!
//! ```text
//!   governor ──add──▶ file `undo` ──────────────▶ the next start: restore_left_behind
//!      │ ╰────add──▶ pipe ──▶ watchdog ──pipe closes──▶ undoes everything, at once
//!      ╰─ then, and only then, the change itself
//! ```
//!
//! The kernel closes the governor's end of the pipe, however the governor ends. The file covers the case that both are killed. It names the
//! boot in which it was written: after a reboot nothing is stopped or limited, and the same names mean other things.
//!
//! The watchdog starts a governed command and is its parent ([`WatchedProcess`]). A killed watchdog is replaced as soon as the governor
//! notices ([`CpuWatchdog::restart_if_exited`]).
//!
//! A parent-death signal for every stopped process is no alternative: `exec` of a privileged program clears it, and it cannot undo a limit.

mod undo;
mod undo_journal;
mod undo_list;
mod watch_loop;
mod watched_process;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use undo::Undo;
use undo::UndoRecord;
pub(crate) use undo::write_if_there;
use undo_journal::UndoJournal;
pub(crate) use undo_list::UndoList;
pub use watch_loop::watch;
pub use watched_process::{WatchedProcess, run_command_watchdog};

use crate::cgroups::FilesystemRoots;

/// Name of the undo journal in the governor's state directory.
const FILE: &str = "undo";
/// Starts a program that ignores the signals of a terminal: those are meant for the governor.
const IGNORE_SIGNALS_AND_EXEC: &str = "trap '' HUP INT TERM; exec \"$@\"";

/// Keeps the undo steps. Clones share the same state.
#[derive(Debug, Clone)]
pub struct CpuWatchdog {
    state: Arc<Mutex<WatchdogState>>,
}

#[derive(Debug)]
struct WatchdogState {
    file: PathBuf,
    journal: UndoJournal,
    /// How to start a watchdog process, if there is one.
    command_line: Option<WatchdogCommand>,
    watchdog: Option<WatchdogChild>,
    next_number: u64,
    pending: BTreeMap<u64, Undo>,
}

/// Program and arguments of the watchdog process.
#[derive(Debug, Clone)]
struct WatchdogCommand {
    program: PathBuf,
    args: Vec<OsString>,
}

#[derive(Debug)]
struct WatchdogChild {
    child: Child,
    pipe: Option<UnixStream>,
    /// Process number of the command that it started.
    command_pid: Option<u32>,
}

impl CpuWatchdog {
    /// A watchdog with only the file: the next start undoes what is left behind. The directory must exist. Call [`restore_left_behind`]
    /// before, because the file is overwritten.
    pub fn journal_only(folder: &Path) -> Result<CpuWatchdog, WatchdogError> {
        let file = folder.join(FILE);
        let boot = boot()?;
        let journal =
            UndoJournal::begin(&file, &boot).map_err(|error| WatchdogError::of("write", &file, error))?;
        let state = WatchdogState {
            file,
            journal,
            command_line: None,
            watchdog: None,
            next_number: 1,
            pending: BTreeMap::new(),
        };
        Ok(CpuWatchdog { state: Arc::new(Mutex::new(state)) })
    }

    /// A watchdog with a process: this program with these arguments. The program must call [`watch`] with its standard input.
    pub fn spawn(folder: &Path, program: &Path, args: &[&OsStr]) -> Result<CpuWatchdog, WatchdogError> {
        let handle = CpuWatchdog::journal_only(folder)?;
        let command_line = WatchdogCommand::of(program, args);
        handle.state().command_line = Some(command_line);
        let started = handle.state().start_watchdog();
        handle.remove_file_on_error(started).map(|(handle, ())| handle)
    }

    /// Like [`CpuWatchdog::spawn`], and the watchdog process also starts a command as its child. It gets `--` and the command as
    /// additional arguments, and must call [`run_command_watchdog`] with its standard input and that command. The command waits for
    /// SIGCONT.
    pub fn spawn_with(
        folder: &Path,
        program: &Path,
        args: &[&OsStr],
        command: &[OsString],
    ) -> Result<(CpuWatchdog, WatchedProcess), WatchdogError> {
        let handle = CpuWatchdog::journal_only(folder)?;
        let command_line = WatchdogCommand::of(program, args);
        handle.state().command_line = Some(command_line);
        let mut watchdog = Command::new(program);
        watchdog.args(args).arg("--").args(command);
        let started = handle.state().start_with_command(watchdog, command.first().map_or(program, Path::new));
        handle.remove_file_on_error(started)
    }

    /// Removes the file if the start failed.
    fn remove_file_on_error<T>(
        self,
        result: Result<T, WatchdogError>,
    ) -> Result<(CpuWatchdog, T), WatchdogError> {
        match result {
            Ok(result) => Ok((self, result)),
            Err(error) => {
                let _removed = self.finish();
                Err(error)
            }
        }
    }

    /// Replaces a watchdog process that has ended. Returns whether it did.
    pub fn restart_if_exited(&self) -> Result<bool, WatchdogError> {
        if self.is_watched() {
            return Ok(false);
        }
        let mut state = self.state();
        state.close_and_wait();
        state.start_watchdog()?;
        Ok(state.watchdog.is_some())
    }

    /// The watchdog's process number, if the watchdog is the parent of this process.
    pub(crate) fn subreaper_of(&self, pid: u32) -> Option<u32> {
        let state = self.state();
        let watchdog = state.watchdog.as_ref()?;
        (watchdog.command_pid == Some(pid)).then(|| watchdog.child.id())
    }

    /// Whether the watchdog process is known to run. Without it, undo steps wait for the next start.
    pub fn is_watched(&self) -> bool {
        match &mut self.state().watchdog {
            Some(watchdog) => watchdog.pipe.is_some() && matches!(watchdog.child.try_wait(), Ok(None)),
            None => false,
        }
    }

    /// Process number of the watchdog.
    pub fn process_id(&self) -> Option<u32> {
        self.state().watchdog.as_ref().map(|watchdog| watchdog.child.id())
    }

    /// All pending undo steps, the oldest first.
    pub fn pending_undos(&self) -> Vec<Undo> {
        self.state().pending.values().cloned().collect()
    }

    /// Registers undo steps before their changes are made. The changes may be made when this returns.
    pub fn register(&self, undos: &[Undo]) -> Result<Vec<u64>, WatchdogError> {
        let mut state = self.state();
        let first = state.next_number;
        let numbered: Vec<(u64, Undo)> = (first..).zip(undos.iter().cloned()).collect();
        let lines: String = numbered
            .iter()
            .map(|(number, undo)| UndoRecord::Add { number: *number, undo: undo.clone() }.line())
            .collect();
        state.write(&lines)?;
        state.next_number += numbered.len() as u64;
        let numbers = numbered.iter().map(|(number, _)| *number).collect();
        state.pending.extend(numbered);
        Ok(numbers)
    }

    /// Removes undo steps that are not needed any more.
    pub fn release(&self, numbers: &[u64]) -> Result<(), WatchdogError> {
        let mut state = self.state();
        let known: Vec<u64> =
            numbers.iter().copied().filter(|number| state.pending.remove(number).is_some()).collect();
        let lines: String =
            known.iter().map(|number| UndoRecord::Forget { number: *number }.line()).collect();
        if lines.is_empty() { Ok(()) } else { state.write(&lines) }
    }

    /// Ends the watchdog after everything is undone. The watchdog or the next start undoes what is left.
    pub fn finish(self) -> Result<(), WatchdogError> {
        let mut state = self.state();
        if !state.pending.is_empty() {
            state.close_and_wait();
            return Ok(());
        }
        state.send(&UndoRecord::Done.line());
        state.close_and_wait();
        state.journal.remove()
    }

    fn state(&self) -> MutexGuard<'_, WatchdogState> {
        // A panic leaves either the step registered or nothing changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WatchdogState {
    fn write(&mut self, lines: &str) -> Result<(), WatchdogError> {
        self.send(lines);
        self.journal.append(lines)?;
        self.journal.compact(&self.pending)
    }

    /// Sends records to the watchdog process. A failure is not an error: the file has them, and the governor checks `is_watched`.
    fn send(&mut self, lines: &str) {
        if let Some(watchdog) = &mut self.watchdog {
            let sent = watchdog.pipe.as_mut().map(|pipe| pipe.write_all(lines.as_bytes()));
            if sent.is_some_and(|sent| sent.is_err()) {
                watchdog.pipe = None;
            }
        }
    }

    /// Starts a watchdog process, if configured, and sends it all pending steps.
    fn start_watchdog(&mut self) -> Result<(), WatchdogError> {
        let Some(WatchdogCommand { program, args }) = &self.command_line else { return Ok(()) };
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", IGNORE_SIGNALS_AND_EXEC, "sh"]).arg(program).args(args);
        let watchdog = WatchdogChild::start(shell)
            .map_err(|error| WatchdogError::of("start the watchdog", program, error))?;
        self.watchdog = Some(watchdog);
        self.send_all();
        Ok(())
    }

    /// Starts a watchdog process that starts a command.
    fn start_with_command(
        &mut self,
        watchdog: Command,
        command: &Path,
    ) -> Result<WatchedProcess, WatchdogError> {
        let failed = |error| WatchdogError::of("start", command, error);
        let mut watchdog = WatchdogChild::start(watchdog).map_err(failed)?;
        let process = watchdog.start_command().map_err(failed)?;
        self.watchdog = Some(watchdog);
        self.send_all();
        Ok(process)
    }

    /// Sends the state to a new watchdog process.
    fn send_all(&mut self) {
        let path = std::path::absolute(&self.file).unwrap_or_else(|_| self.file.clone());
        let mut lines = UndoRecord::File { path }.line();
        for (number, undo) in &self.pending {
            lines += &UndoRecord::Add { number: *number, undo: undo.clone() }.line();
        }
        self.send(&lines);
    }

    /// Closes the pipe and waits until the watchdog process has ended.
    fn close_and_wait(&mut self) {
        if let Some(mut watchdog) = self.watchdog.take() {
            watchdog.close_and_wait();
        }
    }
}

impl WatchdogCommand {
    fn of(program: &Path, args: &[&OsStr]) -> WatchdogCommand {
        WatchdogCommand { program: program.to_owned(), args: args.iter().map(OsString::from).collect() }
    }
}

impl WatchdogChild {
    fn start(mut command: Command) -> io::Result<WatchdogChild> {
        let (ours, theirs) = UnixStream::pair()?;
        command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(WatchdogChild { child: command.spawn()?, pipe: Some(ours), command_pid: None })
    }

    /// Lets the watchdog process start its command.
    fn start_command(&mut self) -> io::Result<WatchedProcess> {
        let Some(pipe) = &self.pipe else { return Err(io::ErrorKind::BrokenPipe.into()) };
        let started = WatchedProcess::begin(pipe, self.child.id());
        match &started {
            Ok(process) => self.command_pid = Some(process.pid()),
            Err(_) => self.close_and_wait(),
        }
        started
    }

    fn close_and_wait(&mut self) {
        if let Some(pipe) = self.pipe.take() {
            // Another process may hold a copy of the socket. Shutdown closes it for all of them.
            let _closed = pipe.shutdown(Shutdown::Both);
        }
        // It ends by itself. Its exit status does not matter.
        let _ended = self.child.wait();
    }
}

impl Drop for WatchdogState {
    fn drop(&mut self) {
        self.close_and_wait();
    }
}

/// Result of [`restore_left_behind`].
#[derive(Debug, Default)]
pub struct RestoreReport {
    /// Steps that were undone.
    pub undone: Vec<Undo>,
    /// Steps that failed, with their errors. The next start tries them again.
    pub failed: Vec<(Undo, io::Error)>,
}

/// Undoes what a governor with this directory left behind. It may be called repeatedly and when nothing is left.
pub fn restore_left_behind(folder: &Path) -> Result<RestoreReport, WatchdogError> {
    let file = folder.join(FILE);
    let records = match std::fs::read(&file) {
        Ok(bytes) => undo::parse_records(&bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(RestoreReport::default()),
        Err(error) => return Err(WatchdogError::of("read", &file, error)),
    };
    let boot = boot()?;
    let pending = if records.boot.as_ref() == Some(&boot) { records.open } else { BTreeMap::new() };
    let restored = undo_all(pending.into_values().collect());
    if restored.failed.is_empty() {
        undo_journal::remove(&file)?;
    } else {
        let left = (1..).zip(restored.failed.iter().rev().map(|(undo, _)| undo.clone())).collect();
        UndoJournal::begin(&file, &boot)
            .map_err(|error| WatchdogError::of("write", &file, error))?
            .rewrite(&left)?;
    }
    Ok(restored)
}

/// Undoes all steps, the latest first.
fn undo_all(undos: Vec<Undo>) -> RestoreReport {
    let proc = FilesystemRoots::default().processes();
    let mut restored = RestoreReport::default();
    for undo in undos.into_iter().rev() {
        match undo.perform(&proc) {
            Ok(()) => restored.undone.push(undo),
            Err(error) => restored.failed.push((undo, error)),
        }
    }
    restored
}

fn boot() -> Result<String, WatchdogError> {
    let proc = FilesystemRoots::default().processes();
    proc.boot().map_err(|error| WatchdogError::of("read the boot id in", proc.root(), error))
}

/// An undo step cannot be kept. Then nothing may be changed.
#[derive(Debug)]
pub struct WatchdogError {
    operation: &'static str,
    path: PathBuf,
    error: io::Error,
}

impl WatchdogError {
    fn of(operation: &'static str, path: &Path, error: io::Error) -> WatchdogError {
        WatchdogError { operation, path: path.to_owned(), error }
    }
}

impl fmt::Display for WatchdogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WatchdogError { operation, path, error } = self;
        write!(f, "cannot {operation} {}: {error}; no change is made that cannot be undone", path.display())
    }
}

impl std::error::Error for WatchdogError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
