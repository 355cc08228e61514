//! A file that is read again when it has changed.
//!
//! ```text
//!   every half second: stat ──▶ as before? ──▶ Same
//!                                 │ no
//!                                 ▼
//!                               read ──▶ the same twice in a row? ──▶ Changed
//!                                              │ no
//!                                              ▼
//!                                           Changing
//! ```
//!
//! Decided: looking instead of being told by the system. Editors write in place or rename, Kubernetes swaps a symbolic link two
//! directories above, network file systems tell nobody anything; all of it shows in what `stat` says about the path. The reasons are
//! in `docs/decisions/0010-files-are-looked-at.md`.
//!
//! Decided: a file is told when two looks in a row found the same, so that half a file is not taken for a whole one. What was
//! told is remembered by its hash; a file that was only touched is not told again, and one that is of no use is told once.

mod file_stat;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use file_stat::{FileStat, ContentHash};

/// How long it is from one look to the next. Two looks must agree, so that an edit acts within two of these, and a bit.
pub const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// For how many looks after a change the file is read even if it seems to be the same: clocks of file systems may stand still
/// for two seconds, and an edit within them may not show.
pub const EXTRA_READS: u8 = 6;

/// A file, and what was observation of it.
#[derive(Debug)]
pub struct FileWatcher {
    path: PathBuf,
    /// What was told last, be it of use or not.
    accepted: Option<FileObservation>,
    /// What the last look found, if that is something else.
    candidate: Option<FileObservation>,
    /// For how many looks more the file is read in any case.
    extra_reads: u8,
}

/// What a look found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileObservation {
    stat: FileStat,
    hash: ContentHash,
}

/// What a look says.
#[derive(Debug)]
pub enum FilePoll {
    /// Nothing is new.
    Unchanged,
    /// Something is, and may not be whole yet.
    Unsettled,
    /// This is in the file now, or it cannot be read. Of a file that is too large it is one byte more than is allowed.
    Changed(io::Result<Vec<u8>>),
}

impl FileWatcher {
    /// For this file. Nothing is read yet, so that whatever is there is new.
    pub fn new(path: impl Into<PathBuf>) -> FileWatcher {
        FileWatcher { path: path.into(), accepted: None, candidate: None, extra_reads: 0 }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file, whether it has changed or not: at the start, and when somebody says so. Of a file that is too large it is
    /// one byte more than is allowed ([`tidegate::file::LARGEST_FILE`]).
    pub fn read_now(&mut self) -> io::Result<Vec<u8>> {
        let stat = FileStat::of(&self.path);
        let contents = file_stat::read_bounded(&self.path);
        self.accept(FileObservation { stat, hash: ContentHash::of(&contents) });
        contents
    }

    /// Looks at the file, and reads it if it has changed and is whole.
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

/// Somebody looks for as long as this is kept.
#[derive(Debug)]
pub struct PollThread {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl PollThread {
    /// Does this every half second, on a thread of its own with this name, until what is returned is dropped.
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
            // A thread that panicked has stopped looking too.
            let _over = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of this test's own, gone at its end.
    struct Scene {
        path: PathBuf,
    }

    impl Scene {
        fn new(name: &str) -> Scene {
            let path = std::env::temp_dir().join(format!("tidegate-looking-{name}-{}", std::process::id()));
            Scene { path }
        }

        fn write(&self, text: &str) {
            std::fs::write(&self.path, text).expect("a file");
        }
    }

    impl Drop for Scene {
        fn drop(&mut self) {
            let _may_be_gone = std::fs::remove_file(&self.path);
        }
    }

    #[test]
    fn what_is_there_is_told_once_and_when_it_is_whole() {
        let scene = Scene::new("whole");
        let mut watcher = FileWatcher::new(&scene.path);
        assert!(watcher.read_now().is_err(), "there is no file");
        assert!(matches!(watcher.poll(), FilePoll::Unchanged));
        scene.write("half");
        assert!(matches!(watcher.poll(), FilePoll::Unsettled));
        scene.write("half, whole");
        assert!(matches!(watcher.poll(), FilePoll::Unsettled), "it was not the same twice");
        assert!(matches!(watcher.poll(), FilePoll::Changed(Ok(bytes)) if bytes == b"half, whole"));
        assert!(matches!(watcher.poll(), FilePoll::Unchanged));
        assert_eq!(watcher.path(), scene.path);
    }

    #[test]
    fn a_clock_that_stands_still_hides_no_edit_of_its_last_moments() {
        let scene = Scene::new("still");
        let mut watcher = FileWatcher::new(&scene.path);
        scene.write("one");
        assert_eq!(watcher.read_now().expect("a file"), b"one");
        let stat = FileStat::of(&scene.path);

        scene.write("two");
        assert!(matches!(watcher.poll_with_stat(stat), FilePoll::Unsettled), "it only seems to be the same");
        assert!(matches!(watcher.poll_with_stat(stat), FilePoll::Changed(Ok(bytes)) if bytes == b"two"));
        for _ in 0..EXTRA_READS {
            assert!(matches!(watcher.poll_with_stat(stat), FilePoll::Unchanged));
        }
        // A clock that stands still for longer is no clock; nobody reads the file for nothing for ever.
        scene.write("six");
        assert!(matches!(watcher.poll_with_stat(stat), FilePoll::Unchanged));
    }

    #[test]
    fn who_watches_stops_when_they_are_dropped() {
        let (say, heard) = mpsc::channel();
        let watching = PollThread::start("watching", move || {
            let _nobody_listens = say.send(());
        });
        let watching = watching.expect("a thread");
        heard.recv().expect("a look");
        drop(watching);
        while heard.try_recv().is_ok() {}
        assert_eq!(heard.recv(), Err(mpsc::RecvError), "the thread is gone");
    }
}
