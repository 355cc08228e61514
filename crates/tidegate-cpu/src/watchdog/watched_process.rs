//! A command whose parent is the watchdog.
//!
//! ```text
//!   terminal's group:   governor          command and all that it starts
//!                          │ ▲                ▲
//!        input and outputs │ │ started, ended │ parent, also of orphans
//!   another group:         ╰─▶ watchdog ──────╯
//! ```
//!
//! The kernel sends SIGHUP to a process group with stopped members when the last parent outside the group ends. If the governor were the
//! parent, killing it while its command is stopped would end the command. The watchdog outlives the governor until all processes are
//! continued.
//!
//! The watchdog is a *subreaper*: it adopts orphaned descendants of the command. So no process leaves the tree unseen, however fast it forks
//! and whatever session it starts, and the time of ended processes is counted by their last parent.
//!
//! The governor is a subreaper too. If the watchdog is killed, the governor adopts the command and still learns its exit status.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, setpgid, setsid, wait, waitpid};

use super::{RestoreReport, watch_loop};
use crate::cgroups::FilesystemRoots;
use crate::processes::{ProcFs, own_pid};

/// Waits for SIGCONT and then becomes the command, so that it starts no process before it is limited.
const STOP_AND_EXEC: &str = "kill -STOP $$; exec \"$@\"";
/// Input, output and errors.
const STREAMS: usize = 3;
/// How often to check whether the governor has adopted the command of a killed watchdog, and the time between checks.
const MAX_CHECKS: u32 = 200;
const CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// Longer than any chain of ancestors.
const MAX_ANCESTORS: u32 = 1 << 16;

/// A command that the watchdog started. It waits for SIGCONT.
#[derive(Debug)]
pub struct WatchedProcess {
    pid: u32,
    subreaper: u32,
    reports: BufReader<UnixStream>,
}

impl WatchedProcess {
    /// Lets the watchdog at the other end start its command with our standard streams.
    pub(super) fn begin(stream: &UnixStream, subreaper: u32) -> io::Result<WatchedProcess> {
        // Without it, only the exit status is unknown if the watchdog is killed.
        let _old_kernel = set_child_subreaper(Some(getpid()));
        send_streams(stream)?;
        let mut reports = BufReader::new(stream.try_clone()?);
        match CommandEvent::read(&mut reports) {
            Some(CommandEvent::Started(pid)) => Ok(WatchedProcess { pid, subreaper, reports }),
            Some(CommandEvent::Failed(why)) => Err(io::Error::other(why)),
            Some(CommandEvent::Ended(_)) | None => Err(io::Error::other("it ended during its start")),
        }
    }

    /// Process number of the command.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Process number of its parent, the watchdog.
    pub fn subreaper(&self) -> u32 {
        self.subreaper
    }

    /// Waits for the command and returns its exit status.
    pub fn wait(mut self) -> io::Result<ExitStatus> {
        match CommandEvent::read(&mut self.reports) {
            Some(CommandEvent::Ended(status)) => Ok(ExitStatus::from_raw(status)),
            _ => self.wait_after_adoption(),
        }
    }

    /// The watchdog is gone. We are the parent, or become it in a moment.
    fn wait_after_adoption(&self) -> io::Result<ExitStatus> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        for _ in 0..MAX_CHECKS {
            match retry_on_intr(|| waitpid(pid, WaitOptions::empty())) {
                Ok(Some((_, status))) => return Ok(ExitStatus::from_raw(status.as_raw())),
                Ok(None) | Err(Errno::CHILD) => thread::park_timeout(CHECK_INTERVAL),
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::Error::other("its exit status is unknown: its watchdog was killed at the same time"))
    }
}

/// Main function of a watchdog process with a command. It receives the standard streams, starts the command, reports how the command ends, and watches the governor like [`watch`](super::watch).
///
/// The caller must catch the terminal's signals and not ignore them: a command inherits ignored signals.
pub fn run_command_watchdog(socket: OwnedFd, program: &Path, args: &[OsString]) -> RestoreReport {
    let stream = UnixStream::from(socket);
    match start(&stream, program, args) {
        Ok(pid) => {
            leave_process_group(&FilesystemRoots::default().processes());
            let reporter = stream.try_clone().and_then(|mut reports| {
                CommandEvent::Started(pid.as_raw_nonzero().get().unsigned_abs()).send(&mut reports)?;
                thread::Builder::new().name("ends".to_owned()).spawn(move || reap_children(pid, &mut reports))
            });
            // Without the reporting thread, exit: then the governor adopts the command.
            if reporter.is_err() {
                return RestoreReport::default();
            }
        }
        Err(error) => {
            let mut stream = stream;
            let _sent = CommandEvent::Failed(error.to_string()).send(&mut stream);
            return RestoreReport::default();
        }
    }
    watch_loop::read_and_undo(stream)
}

/// Starts the command and waits until it has stopped itself.
fn start(stream: &UnixStream, program: &Path, args: &[OsString]) -> io::Result<Pid> {
    let [input, output, errors] = receive_streams(stream)?;
    let _old_kernel = set_child_subreaper(Some(getpid()));
    let child = Command::new("/bin/sh")
        .args(["-c", STOP_AND_EXEC, "sh"])
        .arg(program)
        .args(args)
        .stdin(Stdio::from(input))
        .stdout(Stdio::from(output))
        .stderr(Stdio::from(errors))
        .spawn()?;
    let pid = Pid::from_child(&child);
    match retry_on_intr(|| waitpid(Some(pid), WaitOptions::UNTRACED))? {
        Some((_, status)) if status.stopped() => Ok(pid),
        _ => Err(io::Error::other("it ended during its start")),
    }
}

/// Leaves the process group of the command, so that a signal to that group does not end the watchdog.
///
/// The watchdog stays in the session if the group already has a parent there, as below a shell with job control. Only a parent in the
/// same session keeps the group from SIGHUP. Otherwise it starts its own session. Then the group is orphaned as before, and the terminal
/// cannot stop a group that nothing could continue.
fn leave_process_group(proc: &ProcFs) {
    // A group leader need not leave.
    let _left =
        if has_parent_in_session(proc).unwrap_or(false) { setpgid(None, None) } else { setsid().map(|_| ()) };
}

/// Whether an ancestor is in another group of the same session. `None` if it cannot be determined.
fn has_parent_in_session(proc: &ProcFs) -> Option<bool> {
    let own = proc.stat(own_pid()).ok()??;
    let mut parent = own.parent;
    for _ in 0..MAX_ANCESTORS {
        let stat = proc.stat(parent).ok()??;
        if stat.group != own.group {
            return Some(stat.session == own.session);
        }
        parent = stat.parent;
    }
    None
}

/// Waits for all children and reports the end of the command.
fn reap_children(command: Pid, governor: &mut UnixStream) {
    loop {
        match retry_on_intr(|| wait(WaitOptions::empty())) {
            Ok(Some((pid, status))) if pid == command => {
                let _sent = CommandEvent::Ended(status.as_raw()).send(governor);
            }
            Ok(_) => {}
            // No children are left, and so no descendants.
            Err(_) => return,
        }
    }
}

/// Sends our standard streams to the watchdog.
fn send_streams(stream: &UnixStream) -> io::Result<()> {
    let (input, output, errors) = (io::stdin(), io::stdout(), io::stderr());
    let streams = [input.as_fd(), output.as_fd(), errors.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STREAMS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&streams)) {
        return Err(io::Error::other("the control buffer is too small for three descriptors"));
    }
    // Descriptors need at least one byte of data.
    sendmsg(stream, &[IoSlice::new(b"\n")], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives the streams that [`send_streams`] sends.
fn receive_streams(stream: &UnixStream) -> io::Result<[OwnedFd; STREAMS]> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STREAMS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    retry_on_intr(|| {
        recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut streams = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            streams.extend(descriptors);
        }
    }
    streams.try_into().map_err(|_| io::Error::other("the governor sent no standard streams"))
}

/// A report of the watchdog about its command, one line each.
#[derive(Debug, Clone, PartialEq, Eq)]
enum CommandEvent {
    /// The command waits and has this process number.
    Started(u32),
    /// The command could not be started.
    Failed(String),
    /// The command has ended with this wait status.
    Ended(i32),
}

impl CommandEvent {
    fn send(&self, to: &mut impl Write) -> io::Result<()> {
        let line = match self {
            CommandEvent::Started(pid) => format!("started {pid}\n"),
            CommandEvent::Failed(why) => format!("failed {}\n", why.replace('\n', " ")),
            CommandEvent::Ended(status) => format!("ended {status}\n"),
        };
        to.write_all(line.as_bytes())
    }

    /// Reads the next report. Returns `None` at the end of the stream or for an unknown line.
    fn read(from: &mut impl BufRead) -> Option<CommandEvent> {
        let mut line = String::new();
        from.read_line(&mut line).ok()?;
        match line.strip_suffix('\n')?.split_once(' ')? {
            ("started", pid) => pid.parse().ok().map(CommandEvent::Started),
            ("failed", why) => Some(CommandEvent::Failed(why.to_owned())),
            ("ended", status) => status.parse().ok().map(CommandEvent::Ended),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_command_events_parse_to_the_same_events() {
        let all = [
            CommandEvent::Started(4711),
            CommandEvent::Failed("no such file".to_owned()),
            CommandEvent::Ended(7 << 8),
        ];
        let mut lines = Vec::new();
        for report in &all {
            report.send(&mut lines).expect("there is room");
        }
        let mut from = lines.as_slice();
        for report in all {
            assert_eq!(CommandEvent::read(&mut from), Some(report));
        }
        assert_eq!(CommandEvent::read(&mut from), None, "the end");
        assert_eq!(CommandEvent::read(&mut &b"ended 7"[..]), None, "a line that was cut");
    }
}
