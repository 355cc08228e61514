//! Detects changes of a file by polling `stat`.
//!
//! ```text
//!   every 500 ms: stat ──▶ as before? ──▶ Unchanged
//!                            │ no
//!                            ▼
//!                          read ──▶ same contents as in the last poll? ──▶ Changed
//!                                         │ no
//!                                         ▼
//!                                      Unsettled
//! ```
//!
//! Polling sees every kind of edit. Editors write in place or rename, Kubernetes swaps a symbolic link two directories above, and
//! network file systems send no inotify events. All of it shows in `stat` of the path. See
//! `docs/decisions/0010-files-are-polled.md`.
//!
//! A change is reported when two polls in a row read the same contents, so that a half-written file is not used. Reported
//! contents are remembered by their SHA-256: a file that was only touched is not reported again.

mod file_stat;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use file_stat::{ContentHash, FileStat};

/// Time between two polls. Two polls must agree, so an edit is reported after about twice this time.
pub const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// How many polls after a change read the file even if `stat` is unchanged. Timestamps of some file systems stand still for two
/// seconds, so an edit within that time may not show.
pub const EXTRA_READS: u8 = 6;

/// Watches one file; [`FileWatcher::poll`] reports changes.
#[derive(Debug)]
pub struct FileWatcher {
    path: PathBuf,
    /// What was reported last, valid or not.
    accepted: Option<FileObservation>,
    /// What the last poll found, if it differs from that.
    candidate: Option<FileObservation>,
    /// How many more polls read the file even if `stat` is unchanged.
    extra_reads: u8,
}

/// What one poll found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileObservation {
    stat: FileStat,
    hash: ContentHash,
}

/// The result of a poll.
#[derive(Debug)]
pub enum FilePoll {
    /// The contents are those that were reported last.
    Unchanged,
    /// The contents have changed and may not be complete yet.
    Unsettled,
    /// The new contents, or why the file cannot be read. A file that is too large is cut one byte after the allowed size.
    Changed(io::Result<Vec<u8>>),
}

impl FileWatcher {
    /// Watches this file. Nothing is read yet, so the first contents count as a change.
    pub fn new(path: impl Into<PathBuf>) -> FileWatcher {
        FileWatcher { path: path.into(), accepted: None, candidate: None, extra_reads: 0 }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file whether it has changed or not. A file that is too large is cut one byte after the allowed size
    /// ([`tidegate_config::MAX_FILE_BYTES`]).
    pub fn read_now(&mut self) -> io::Result<Vec<u8>> {
        let stat = FileStat::of(&self.path);
        let contents = file_stat::read_bounded(&self.path);
        self.accept(FileObservation { stat, hash: ContentHash::of(&contents) });
        contents
    }

    /// Checks the file, and reads it if it has changed.
    pub fn poll(&mut self) -> FilePoll {
        self.poll_with_stat(FileStat::of(&self.path))
    }

    fn poll_with_stat(&mut self, stat: FileStat) -> FilePoll {
        let is_unchanged = self.accepted.as_ref().is_some_and(|accepted| accepted.stat == stat);
        if is_unchanged && self.extra_reads == 0 && self.candidate.is_none() {
            return FilePoll::Unchanged;
        }
        let contents = file_stat::read_bounded(&self.path);
        let observation = FileObservation { stat, hash: ContentHash::of(&contents) };
        if self.accepted.as_ref().is_some_and(|accepted| accepted.hash == observation.hash) {
            self.extra_reads = self.extra_reads.saturating_sub(1);
            self.candidate = None;
            self.accepted = Some(observation);
            return FilePoll::Unchanged;
        }
        if self.candidate == Some(observation) {
            self.accept(observation);
            return FilePoll::Changed(contents);
        }
        self.candidate = Some(observation);
        FilePoll::Unsettled
    }

    fn accept(&mut self, observation: FileObservation) {
        self.accepted = Some(observation);
        self.candidate = None;
        self.extra_reads = EXTRA_READS;
    }
}

/// A thread that polls until this is dropped.
#[derive(Debug)]
pub struct PollThread {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl PollThread {
    /// Calls `poll` every [`POLL_INTERVAL`] on a thread of this name, until the returned value is dropped.
    pub fn start(name: &str, mut poll: impl FnMut() + Send + 'static) -> io::Result<PollThread> {
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            while stopped.recv_timeout(POLL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                poll();
            }
        })?;
        Ok(PollThread { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for PollThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has stopped as well.
            let _joined = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A temporary file, removed on drop.
    struct TempFile {
        path: PathBuf,
    }

    impl TempFile {
        fn new(name: &str) -> TempFile {
            let path =
                std::env::temp_dir().join(format!("tidegate-file-watcher-{name}-{}", std::process::id()));
            TempFile { path }
        }

        fn write(&self, text: &str) {
            std::fs::write(&self.path, text).expect("a file");
        }
    }

    impl Drop for TempFile {
        fn drop(&mut self) {
            let _may_be_gone = std::fs::remove_file(&self.path);
        }
    }

    #[test]
    fn poll_reports_new_contents_once_they_are_stable() {
        let file = TempFile::new("whole");
        let mut watcher = FileWatcher::new(&file.path);
        assert!(watcher.read_now().is_err(), "there is no file");
        assert!(matches!(watcher.poll(), FilePoll::Unchanged));
        file.write("half");
        assert!(matches!(watcher.poll(), FilePoll::Unsettled));
        file.write("half, whole");
        assert!(matches!(watcher.poll(), FilePoll::Unsettled), "the contents changed between two polls");
        assert!(matches!(watcher.poll(), FilePoll::Changed(Ok(bytes)) if bytes == b"half, whole"));
        assert!(matches!(watcher.poll(), FilePoll::Unchanged));
        assert_eq!(watcher.path(), file.path);
    }

    #[test]
    fn poll_with_unchanged_stat_still_reads_shortly_after_a_change() {
        let file = TempFile::new("still");
        let mut watcher = FileWatcher::new(&file.path);
        file.write("one");
        assert_eq!(watcher.read_now().expect("a file"), b"one");
        let stat = FileStat::of(&file.path);

        file.write("two");
        assert!(matches!(watcher.poll_with_stat(stat), FilePoll::Unsettled), "only stat is unchanged");
        assert!(matches!(watcher.poll_with_stat(stat), FilePoll::Changed(Ok(bytes)) if bytes == b"two"));
        for _ in 0..EXTRA_READS {
            assert!(matches!(watcher.poll_with_stat(stat), FilePoll::Unchanged));
        }
        // After the extra reads an unchanged stat is trusted.
        file.write("six");
        assert!(matches!(watcher.poll_with_stat(stat), FilePoll::Unchanged));
    }

    #[test]
    fn dropping_the_poll_thread_stops_it() {
        let (report, polls) = mpsc::channel();
        let thread = PollThread::start("test-poll", move || {
            let _receiver_gone = report.send(());
        });
        let thread = thread.expect("a thread");
        polls.recv().expect("a poll");
        drop(thread);
        while polls.try_recv().is_ok() {}
        assert_eq!(polls.recv(), Err(mpsc::RecvError), "the thread is gone");
    }
}
