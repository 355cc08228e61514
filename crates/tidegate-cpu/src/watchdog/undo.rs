//! Undo steps and the text records in which they are kept.
//!
//! ```text
//!   9f0c6a5d boot 6b53c7b7-52a1-4687-8d0f-e8eb4cd5891b
//!   1b2c3d4e 1 write /sys/fs/cgroup/a.slice/cpu.max max%20100000
//!   …        2 continue 4711 52346
//!            3 move 4711 52346 /sys/fs/cgroup/user.slice
//!            4 remove /sys/fs/cgroup/tidegate-99 /sys/fs/cgroup/user.slice
//!            2 forget
//!            done
//! ```
//!
//! Every record is a line that begins with a checksum of its rest. A line without its end, or with a wrong checksum, was torn by a crash.
//! It is skipped: the governor changes nothing before the whole line is written, so there is nothing to undo.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::Signal;

use crate::cgroups::{Hierarchy, PROCS, SUBTREE, processes_in};
use crate::processes::{ProcFs, Process};

/// Attempts to empty a cgroup. Processes may be started in it meanwhile.
const MAX_SWEEPS: u32 = 200;
/// Time between two attempts: ending processes need a moment.
const SWEEP_INTERVAL: Duration = Duration::from_millis(2);
/// Maximum depth of nested cgroups that are removed.
const MAX_DEPTH: u32 = 32;

/// How to restore one change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Undo {
    /// Restores the content of a file.
    Write {
        /// Path of the file.
        file: PathBuf,
        /// Earlier content.
        content: String,
    },
    /// Continues a stopped process.
    Continue {
        /// The process.
        process: Process,
    },
    /// Moves a process back to its cgroup.
    Move {
        /// The process.
        process: Process,
        /// Directory of the cgroup.
        to: PathBuf,
    },
    /// Removes a cgroup and moves its processes elsewhere.
    Remove {
        /// Directory of the cgroup.
        cgroup: PathBuf,
        /// Directory of the cgroup that receives the processes.
        target: PathBuf,
    },
}

impl Undo {
    /// Performs the step. A file or process that is gone needs none.
    pub(super) fn perform(&self, proc: &ProcFs) -> io::Result<()> {
        match self {
            Undo::Write { file, content } => match write_if_there(file, content) {
                // Another cgroup uses the controller now.
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy && file.ends_with(SUBTREE) => {
                    Ok(())
                }
                written => ignore_gone(written),
            },
            Undo::Continue { process } => proc.signal(*process, Signal::CONT).map(|_| ()),
            Undo::Move { process, to } => match proc.stat_of(*process)? {
                Some(_) => ignore_gone(write_if_there(&to.join(PROCS), &process.pid.to_string())),
                None => Ok(()),
            },
            Undo::Remove { cgroup, target } => empty_and_remove(cgroup, target),
        }
    }

    /// Whether the step must survive a power failure. Stopped processes do not outlive the machine, and there may be many.
    pub(super) fn is_lasting(&self) -> bool {
        !matches!(self, Undo::Continue { .. })
    }

    fn words(&self) -> String {
        match self {
            Undo::Write { file, content } => {
                format!("write {} {}", of_path(file), escaped(content.as_bytes()))
            }
            Undo::Continue { process } => format!("continue {} {}", process.pid, process.started),
            Undo::Move { process, to } => format!("move {} {} {}", process.pid, process.started, of_path(to)),
            Undo::Remove { cgroup, target } => format!("remove {} {}", of_path(cgroup), of_path(target)),
        }
    }

    fn parse_words(words: &[&str]) -> Option<Undo> {
        let process = |pid: &str, started: &str| {
            Some(Process { pid: pid.parse().ok()?, started: started.parse().ok()? })
        };
        Some(match words {
            ["write", file, content] => {
                Undo::Write { file: to_path(file)?, content: String::from_utf8(unescaped(content)?).ok()? }
            }
            ["continue", pid, started] => Undo::Continue { process: process(pid, started)? },
            ["move", pid, started, to] => Undo::Move { process: process(pid, started)?, to: to_path(to)? },
            ["remove", cgroup, target] => Undo::Remove { cgroup: to_path(cgroup)?, target: to_path(target)? },
            _ => return None,
        })
    }
}

/// Writes into an existing file. It never creates one: kernel files cannot be created.
pub(crate) fn write_if_there(file: &Path, content: &str) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).truncate(true).open(file)?;
    // One write call: the kernel handles every write as a separate command.
    io::Write::write_all(&mut file, content.as_bytes())
}

/// Moves all processes out of a cgroup and its descendants, and removes it.
fn empty_and_remove(cgroup: &Path, target: &Path) -> io::Result<()> {
    let mut sweeps = 0;
    loop {
        match sweep(cgroup, target, MAX_DEPTH) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) if sweeps == MAX_SWEEPS => return Err(error),
            Err(_) => {}
        }
        sweeps += 1;
        thread::park_timeout(SWEEP_INTERVAL);
    }
}

fn sweep(cgroup: &Path, target: &Path, depth: u32) -> io::Result<()> {
    for inner in Hierarchy::below(cgroup)? {
        if depth > 0 {
            sweep(&inner, target, depth - 1)?;
        }
    }
    // If the target is gone, use its nearest existing ancestor.
    let target = target.ancestors().find(|path| path.join(PROCS).is_file()).unwrap_or(target);
    for pid in processes_in(cgroup)? {
        ignore_gone(write_if_there(&target.join(PROCS), &pid.to_string()))?;
    }
    fs::remove_dir(cgroup)
}

fn ignore_gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::SRCH | Errno::NODEV)) => Ok(()),
        other => other,
    }
}

/// One record of the journal and of the pipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum UndoRecord {
    /// The boot to which the records belong.
    Boot { name: String },
    /// Path of the journal, for the watchdog process.
    File { path: PathBuf },
    /// A change is about to be made.
    Add { number: u64, undo: Undo },
    /// The step is not needed any more.
    Forget { number: u64 },
    /// Nothing is left to watch.
    Done,
}

impl UndoRecord {
    /// The line, including its newline.
    pub(super) fn line(&self) -> String {
        let words = match self {
            UndoRecord::Boot { name } => format!("boot {name}"),
            UndoRecord::File { path } => format!("file {}", of_path(path)),
            UndoRecord::Add { number, undo } => format!("{number} {}", undo.words()),
            UndoRecord::Forget { number } => format!("{number} forget"),
            UndoRecord::Done => "done".to_owned(),
        };
        format!("{:08x} {words}\n", fingerprint(&words))
    }

    /// Parses a line without its newline. Returns `None` if it is torn or unknown.
    pub(super) fn parse_line(line: &[u8]) -> Option<UndoRecord> {
        let (hash, words) = std::str::from_utf8(line).ok()?.split_once(' ')?;
        if hash.len() != 8 || u32::from_str_radix(hash, 16).ok()? != fingerprint(words) {
            return None;
        }
        let words: Vec<&str> = words.split(' ').collect();
        Some(match words[..] {
            ["boot", name] => UndoRecord::Boot { name: name.to_owned() },
            ["file", path] => UndoRecord::File { path: to_path(path)? },
            ["done"] => UndoRecord::Done,
            [number, "forget"] => UndoRecord::Forget { number: number.parse().ok()? },
            [number, ref undo @ ..] => {
                UndoRecord::Add { number: number.parse().ok()?, undo: Undo::parse_words(undo)? }
            }
            [] => return None,
        })
    }
}

/// State after a sequence of records.
#[derive(Debug, Default)]
pub(super) struct UndoRecords {
    pub(super) boot: Option<String>,
    pub(super) file: Option<PathBuf>,
    pub(super) open: BTreeMap<u64, Undo>,
    pub(super) is_done: bool,
}

impl UndoRecords {
    pub(super) fn apply(&mut self, record: UndoRecord) {
        match record {
            UndoRecord::Boot { name } => self.boot = Some(name),
            UndoRecord::File { path } => self.file = Some(path),
            UndoRecord::Add { number, undo } => drop(self.open.insert(number, undo)),
            UndoRecord::Forget { number } => drop(self.open.remove(&number)),
            UndoRecord::Done => self.is_done = true,
        }
    }
}

/// Parses records and skips torn lines.
pub(super) fn parse_records(bytes: &[u8]) -> UndoRecords {
    let mut records = UndoRecords::default();
    let whole = bytes.split_inclusive(|byte| *byte == b'\n').filter_map(|line| line.strip_suffix(b"\n"));
    whole.filter_map(UndoRecord::parse_line).for_each(|record| records.apply(record));
    records
}

/// FNV-1a.
fn fingerprint(words: &str) -> u32 {
    words.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

fn of_path(path: &Path) -> String {
    escaped(path.as_os_str().as_bytes())
}

fn to_path(word: &str) -> Option<PathBuf> {
    Some(OsStr::from_bytes(&unescaped(word)?).into())
}

/// Encodes bytes as one word: every byte that is not a visible ASCII character becomes `%` and two hex digits.
fn escaped(bytes: &[u8]) -> String {
    let mut word = String::with_capacity(bytes.len());
    for byte in bytes {
        if byte.is_ascii_graphic() && *byte != b'%' {
            word.push(char::from(*byte));
        } else {
            // Writing into a string cannot fail.
            let _written = write!(word, "%{byte:02x}");
        }
    }
    word
}

fn unescaped(word: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examples() -> Vec<Undo> {
        let process = Process { pid: 4711, started: 52346 };
        vec![
            Undo::Write { file: "/a b/100%".into(), content: "max 100000\n".to_owned() },
            Undo::Write { file: OsStr::from_bytes(b"/\xff\n").into(), content: String::new() },
            Undo::Continue { process },
            Undo::Move { process, to: "/sys/fs/cgroup/a.slice".into() },
            Undo::Remove { cgroup: "/c".into(), target: "/".into() },
        ]
    }

    #[test]
    fn encoded_record_parses_to_the_same_record() {
        let undos = (1..).zip(examples()).map(|(number, undo)| UndoRecord::Add { number, undo });
        let others = [
            UndoRecord::Boot { name: "6b53".to_owned() },
            UndoRecord::File { path: "/var/lib/a b".into() },
            UndoRecord::Forget { number: 2 },
            UndoRecord::Done,
        ];
        for record in undos.chain(others) {
            let line = record.line();
            assert_eq!(line.matches('\n').count(), 1, "{line}");
            assert_eq!(UndoRecord::parse_line(line.trim_end_matches('\n').as_bytes()), Some(record));
        }
    }

    #[test]
    fn torn_line_is_skipped_and_others_are_parsed() {
        let lines: Vec<String> =
            (1..).zip(examples()).map(|(number, undo)| UndoRecord::Add { number, undo }.line()).collect();
        let whole = lines.concat();
        for length in 0..whole.len() {
            let mut ends = 0;
            let complete = lines.iter().take_while(|line| {
                ends += line.len();
                ends <= length
            });
            assert_eq!(parse_records(&whole.as_bytes()[..length]).open.len(), complete.count(), "{length}");
        }
        // Another writer continued after a torn line.
        let torn = format!("{}{}", &lines[0][..20], whole);
        assert_eq!(parse_records(torn.as_bytes()).open.len(), lines.len() - 1);
    }

    #[test]
    fn changed_byte_fails_the_checksum() {
        let line = UndoRecord::Forget { number: 12 }.line();
        let changed = line.replace("12", "13");
        assert_eq!(UndoRecord::parse_line(changed.trim_end().as_bytes()), None);
    }

    #[test]
    fn forgotten_step_is_not_pending() {
        let mut lines: String =
            (1..).zip(examples()).map(|(number, undo)| UndoRecord::Add { number, undo }.line()).collect();
        lines += &UndoRecord::Forget { number: 1 }.line();
        assert_eq!(parse_records(lines.as_bytes()).open.into_values().collect::<Vec<_>>(), examples()[1..]);
    }
}
