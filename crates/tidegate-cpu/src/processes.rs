//! Processes as `/proc` describes them.
//!
//! A process number alone does not identify a process: the kernel reuses it. A [`Process`] is therefore a number *and* the tick at which the
//! process started. Before a signal is sent, the process is held by a pidfd and its start tick is checked after that.

mod tree;

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

pub(crate) use tree::{ProcessTree, ScanDepth};

/// Longer than any line of `/proc/N/stat`.
const MAX_STAT_LINE: usize = 2048;
/// The kernel's flag for its own threads.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// Identity of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process {
    /// Process number. The kernel may reuse it later.
    pub pid: u32,
    /// Start time, in ticks after boot.
    pub started: u64,
}

/// State of a process, as far as limits need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessState {
    /// Running or sleeping.
    Living,
    /// Stopped by a signal or a debugger.
    Stopped,
    /// Ended; its parent has not waited for it yet.
    Ended,
}

/// State of a process. Times are in ticks of the kernel's clock; see [`ticks`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcStat {
    /// Identity.
    pub process: Process,
    /// The first fifteen bytes of the program's name.
    pub name: String,
    /// Current state.
    pub state: ProcessState,
    /// Number of the parent, which may be an adopter.
    pub parent: u32,
    /// Process group, named after its leader.
    pub group: u32,
    /// Session, named after its leader.
    pub session: u32,
    /// Whether it is a kernel thread.
    pub is_kernel: bool,
    /// Number of threads.
    pub threads: u64,
    /// CPU time of the process itself.
    pub own: u64,
    /// CPU time of the descendants that it has waited for.
    pub reaped: u64,
}

impl ProcStat {
    /// Parses a line of `/proc/N/stat`. A name may contain anything, including parentheses and spaces.
    fn of(pid: u32, line: &[u8]) -> Option<ProcStat> {
        let open = line.iter().position(|byte| *byte == b'(')?;
        let close = line.iter().rposition(|byte| *byte == b')')?;
        let name = String::from_utf8_lossy(line.get(open + 1..close)?).into_owned();
        let rest = std::str::from_utf8(line.get(close + 1..)?).ok()?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number =
            |at: usize| fields.get(at)?.parse::<i64>().ok().map(|number| number.max(0).unsigned_abs());
        let state = match *fields.first()? {
            "T" | "t" => ProcessState::Stopped,
            "Z" | "X" | "x" => ProcessState::Ended,
            _ => ProcessState::Living,
        };
        Some(ProcStat {
            process: Process { pid, started: number(19)? },
            name,
            state,
            parent: u32::try_from(number(1)?).ok()?,
            group: u32::try_from(number(2)?).ok()?,
            session: u32::try_from(number(3)?).ok()?,
            is_kernel: number(6)? & KERNEL_THREAD != 0,
            threads: number(17)?,
            own: number(11)?.saturating_add(number(12)?),
            reaped: number(13)?.saturating_add(number(14)?),
        })
    }
}

/// Duration of this many ticks.
pub fn ticks(count: u64) -> Duration {
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    let rest = u32::try_from(count % per_second * 1_000_000_000 / per_second);
    Duration::new(count / per_second, rest.unwrap_or_default())
}

/// A procfs directory such as `/proc`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcFs {
    root: PathBuf,
}

impl ProcFs {
    /// The directory at this path.
    pub fn at(root: &Path) -> ProcFs {
        ProcFs { root: root.to_owned() }
    }

    /// Path of the directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether this is a real procfs and not a test directory.
    fn is_real(&self) -> bool {
        rustix::fs::statfs(&self.root).is_ok_and(|found| found.f_type == rustix::fs::PROC_SUPER_MAGIC)
    }

    /// State of the process with this number, or `None` if there is none.
    pub fn stat(&self, pid: u32) -> io::Result<Option<ProcStat>> {
        match self.open(pid)? {
            Some(file) => none_if_gone(self.stat_in(&file, pid)),
            None => Ok(None),
        }
    }

    /// The open `stat` file of a process, or `None` if there is none.
    fn open(&self, pid: u32) -> io::Result<Option<File>> {
        none_if_gone(File::open(self.path_of(pid)))
    }

    /// Reads an open `stat` file. Fails if the process is gone.
    fn stat_in(&self, file: &File, pid: u32) -> io::Result<ProcStat> {
        let mut line = [0; MAX_STAT_LINE];
        let length = read_once(file, &mut line)?;
        let unreadable = || {
            let path = self.path_of(pid);
            io::Error::new(io::ErrorKind::InvalidData, format!("{} has an unexpected format", path.display()))
        };
        ProcStat::of(pid, &line[..length]).ok_or_else(unreadable)
    }

    fn path_of(&self, pid: u32) -> PathBuf {
        self.root.join(format!("{pid}/stat"))
    }

    /// State of exactly this process, or `None` if it is gone.
    pub fn stat_of(&self, process: Process) -> io::Result<Option<ProcStat>> {
        Ok(self.stat(process.pid)?.filter(|stat| stat.process == process))
    }

    /// Numbers of all processes.
    pub fn all(&self) -> io::Result<Vec<u32>> {
        let mut pids = Vec::new();
        for entry in fs::read_dir(&self.root)? {
            pids.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
        }
        Ok(pids)
    }

    /// Process numbers of the children, or `None` if this kernel does not list them.
    pub(crate) fn children(&self, stat: &ProcStat) -> io::Result<Option<Vec<u32>>> {
        let mut threads = vec![stat.process.pid];
        if stat.threads > 1 {
            let tasks = self.root.join(format!("{}/task", stat.process.pid));
            let Some(entries) = none_if_gone(fs::read_dir(tasks))? else { return Ok(Some(Vec::new())) };
            let names = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
            threads = names.collect();
        }
        let mut children = Vec::new();
        for thread in threads {
            match self.open_children(stat.process.pid, thread)? {
                Some(file) => children.extend(none_if_gone(children_in(&file))?.unwrap_or_default()),
                // The process exists but the file does not: the kernel was built without it.
                None if stat.threads == 1 && self.stat_of(stat.process)?.is_some() => return Ok(None),
                None => {}
            }
        }
        Ok(Some(children))
    }

    /// The open `children` file of a thread, or `None` if there is none.
    fn open_children(&self, pid: u32, thread: u32) -> io::Result<Option<File>> {
        none_if_gone(File::open(self.root.join(format!("{pid}/task/{thread}/children"))))
    }

    /// Name of the executable file of a process. `None` if it is not readable or there is none.
    pub(crate) fn program(&self, pid: u32) -> Option<String> {
        let path = fs::read_link(self.root.join(format!("{pid}/exe"))).ok()?;
        let name = path.file_name()?.to_string_lossy().into_owned();
        // The file was replaced after the start.
        Some(name.strip_suffix(" (deleted)").map_or_else(|| name.clone(), str::to_owned))
    }

    /// Text of `/proc/N/cgroup`, or `None` if there is no such process.
    pub(crate) fn cgroups(&self, pid: u32) -> io::Result<Option<String>> {
        none_if_gone(fs::read_to_string(self.root.join(format!("{pid}/cgroup"))))
    }

    /// Time since boot, including suspended time.
    pub(crate) fn uptime(&self) -> io::Result<Duration> {
        let path = self.root.join("uptime");
        let text = fs::read_to_string(&path)?;
        let first = text.split_ascii_whitespace().next().unwrap_or_default();
        let (seconds, hundredths) = first.split_once('.').unwrap_or((first, "0"));
        match (seconds.parse(), hundredths.parse::<u64>()) {
            (Ok(seconds), Ok(hundredths)) => {
                Ok(Duration::from_secs(seconds) + Duration::from_millis(hundredths * 10))
            }
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{} has an unexpected format", path.display()),
            )),
        }
    }

    /// The unique name of this boot.
    pub(crate) fn boot(&self) -> io::Result<String> {
        Ok(fs::read_to_string(self.root.join("sys/kernel/random/boot_id"))?.trim().to_owned())
    }

    /// Holds a process. Returns `None` if it is gone or its number belongs to another process.
    pub(crate) fn open_pidfd(&self, process: Process) -> io::Result<Option<PidHandle>> {
        let Some(pid) = i32::try_from(process.pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
        let descriptor = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => Some(descriptor),
            Err(Errno::SRCH) => return Ok(None),
            // Old kernels have no pidfd, and the number of open files is limited. Then the check right before the signal must do.
            Err(_) => None,
        };
        // Check after the pidfd was opened: the identity seen now belongs to the pidfd.
        Ok(self.stat_of(process)?.map(|_| PidHandle { process, pid, descriptor }))
    }

    /// Sends a signal. Returns `false` if the process is gone.
    pub(crate) fn signal(&self, process: Process, signal: Signal) -> io::Result<bool> {
        match self.open_pidfd(process)? {
            Some(open_pidfd) => open_pidfd.signal(self, signal),
            None => Ok(false),
        }
    }
}

/// A held process. The pidfd keeps referring to it after its number is reused.
#[derive(Debug)]
pub(crate) struct PidHandle {
    process: Process,
    pid: Pid,
    descriptor: Option<OwnedFd>,
}

impl PidHandle {
    /// Sends a signal. Returns `false` if the process is gone.
    pub(crate) fn signal(&self, proc: &ProcFs, signal: Signal) -> io::Result<bool> {
        let sent = match &self.descriptor {
            Some(descriptor) => pidfd_send_signal(descriptor, signal),
            None if proc.stat_of(self.process)?.is_none() => return Ok(false),
            None => kill_process(self.pid, signal),
        };
        match sent {
            Ok(()) => Ok(true),
            Err(Errno::SRCH) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// The last number that the kernel assigned to a process or a thread.
#[derive(Debug)]
struct LastPid {
    /// The `loadavg` file, if there is one.
    file: Option<File>,
    /// The last field at the previous read.
    last: Vec<u8>,
}

impl LastPid {
    fn of(proc: &ProcFs) -> LastPid {
        LastPid { file: File::open(proc.root.join("loadavg")).ok(), last: Vec::new() }
    }

    /// Whether a number was assigned since the previous call. Returns `true` if that is unknown.
    fn has_changed(&mut self) -> bool {
        let mut line = [0; MAX_STAT_LINE];
        let Some(file) = &self.file else { return true };
        let Ok(length) = read_once(file, &mut line) else { return true };
        let last = line[..length].trim_ascii_end().rsplit(|byte| *byte == b' ').next().unwrap_or_default();
        let is_same = !last.is_empty() && self.last == last;
        if !is_same {
            self.last = last.to_vec();
        }
        !is_same
    }
}

/// Number of this process.
pub(crate) fn own_pid() -> u32 {
    std::process::id()
}

/// Turns the error of a process that ended meanwhile into `None`.
fn none_if_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || Errno::from_io_error(error) == Some(Errno::SRCH)
}

/// Process numbers in a `children` file.
fn children_in(file: &File) -> io::Result<Vec<u32>> {
    let mut buffer = [0; MAX_STAT_LINE];
    let mut text = Vec::new();
    loop {
        let length = read_at(file, &mut buffer, text.len() as u64)?;
        text.extend_from_slice(&buffer[..length]);
        // The kernel fills the buffer up to a number that does not fit.
        if length < MAX_STAT_LINE / 2 {
            break;
        }
    }
    let numbers = text.split(|byte| *byte == b' ').filter_map(|word| std::str::from_utf8(word).ok());
    Ok(numbers.filter_map(|number| number.parse().ok()).collect())
}

/// Reads a whole kernel file with one call and returns its length.
fn read_once(file: &File, buffer: &mut [u8]) -> io::Result<usize> {
    read_at(file, buffer, 0)
}

fn read_at(file: &File, buffer: &mut [u8], from: u64) -> io::Result<usize> {
    loop {
        match file.read_at(buffer, from) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "7 (a) (b c) T 3 7 6 0 -1 2097152 1 2 3 4 100 20 30 -4 20 0 2 0 5000 1 2 3";

    #[test]
    fn stat_line_with_parentheses_in_the_name_is_parsed() {
        let stat = ProcStat::of(7, LINE.as_bytes()).expect("it parses");
        assert_eq!(stat.process, Process { pid: 7, started: 5000 });
        assert_eq!(
            (stat.name.as_str(), stat.state, stat.parent, stat.group, stat.session),
            ("a) (b c", ProcessState::Stopped, 3, 7, 6)
        );
        assert_eq!((stat.is_kernel, stat.threads, stat.own, stat.reaped), (true, 2, 120, 30));
    }

    #[test]
    fn truncated_stat_line_returns_none() {
        for length in 0..LINE.len() - "5000 1 2 3".len() {
            assert_eq!(ProcStat::of(7, &LINE.as_bytes()[..length]), None, "{length}");
        }
    }

    #[test]
    fn ticks_convert_to_a_duration() {
        let second = rustix::param::clock_ticks_per_second();
        assert_eq!(ticks(second * 3), Duration::from_secs(3));
        assert_eq!(ticks(second / 2), Duration::from_millis(500));
        assert!(ticks(u64::MAX) > ticks(u64::MAX / 2));
    }

    #[test]
    fn process_with_wrong_start_time_is_not_found() {
        let proc = ProcFs::at(Path::new("/proc"));
        let own = proc.stat(own_pid()).expect("it can be read").expect("it is there").process;
        assert!(proc.open_pidfd(own).expect("it can be held").is_some());
        let another = Process { started: own.started + 1, ..own };
        assert!(proc.open_pidfd(another).expect("it can be read").is_none());
        assert!(!proc.signal(another, Signal::KILL).expect("it is not sent"));
    }
}
