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

mod sight;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use sight::{Sight, Taken};

/// How long it is from one look to the next. Two looks must agree, so that an edit acts within two of these, and a bit.
pub const LOOK_EVERY: Duration = Duration::from_millis(500);

/// For how many looks after a change the file is read even if it seems to be the same: clocks of file systems may stand still
/// for two seconds, and an edit within them may not show.
pub const LOOKS_AFTERWARDS: u8 = 6;

/// A file, and what was seen of it.
#[derive(Debug)]
pub struct Looker {
    path: PathBuf,
    /// What was told last, be it of use or not.
    taken: Option<Seen>,
    /// What the last look found, if that is something else.
    candidate: Option<Seen>,
    /// For how many looks more the file is read in any case.
    wary: u8,
}

/// What a look found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    sight: Sight,
    taken: Taken,
}

/// What a look says.
#[derive(Debug)]
pub enum Look {
    /// Nothing is new.
    Same,
    /// Something is, and may not be whole yet.
    Changing,
    /// This is in the file now, or it cannot be read. Of a file that is too large it is one byte more than is allowed.
    Changed(io::Result<Vec<u8>>),
}

impl Looker {
    /// For this file. Nothing is read yet, so that whatever is there is new.
    pub fn new(path: impl Into<PathBuf>) -> Looker {
        Looker { path: path.into(), taken: None, candidate: None, wary: 0 }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file, whether it has changed or not: at the start, and when somebody says so. Of a file that is too large it is
    /// one byte more than is allowed ([`tidegate_config::LARGEST_FILE`]).
    pub fn read_now(&mut self) -> io::Result<Vec<u8>> {
        let sight = Sight::of(&self.path);
        let contents = sight::read(&self.path);
        self.take(Seen { sight, taken: Taken::of(&contents) });
        contents
    }

    /// Looks at the file, and reads it if it has changed and is whole.
    pub fn look(&mut self) -> Look {
        self.look_at(Sight::of(&self.path))
    }

    fn look_at(&mut self, sight: Sight) -> Look {
        let is_as_taken = self.taken.as_ref().is_some_and(|taken| taken.sight == sight);
        if is_as_taken && self.wary == 0 && self.candidate.is_none() {
            return Look::Same;
        }
        let contents = sight::read(&self.path);
        let seen = Seen { sight, taken: Taken::of(&contents) };
        if self.taken.as_ref().is_some_and(|taken| taken.taken == seen.taken) {
            self.wary = self.wary.saturating_sub(1);
            self.candidate = None;
            self.taken = Some(seen);
            return Look::Same;
        }
        if self.candidate == Some(seen) {
            self.take(seen);
            return Look::Changed(contents);
        }
        self.candidate = Some(seen);
        Look::Changing
    }

    fn take(&mut self, seen: Seen) {
        self.taken = Some(seen);
        self.candidate = None;
        self.wary = LOOKS_AFTERWARDS;
    }
}

/// Somebody looks for as long as this is kept.
#[derive(Debug)]
pub struct Watching {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watching {
    /// Does this every half second, on a thread of its own with this name, until what is returned is dropped.
    pub fn start(name: &str, mut look: impl FnMut() + Send + 'static) -> io::Result<Watching> {
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            while stopped.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                look();
            }
        })?;
        Ok(Watching { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Watching {
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
        let mut looker = Looker::new(&scene.path);
        assert!(looker.read_now().is_err(), "there is no file");
        assert!(matches!(looker.look(), Look::Same));
        scene.write("half");
        assert!(matches!(looker.look(), Look::Changing));
        scene.write("half, whole");
        assert!(matches!(looker.look(), Look::Changing), "it was not the same twice");
        assert!(matches!(looker.look(), Look::Changed(Ok(bytes)) if bytes == b"half, whole"));
        assert!(matches!(looker.look(), Look::Same));
        assert_eq!(looker.path(), scene.path);
    }

    #[test]
    fn a_clock_that_stands_still_hides_no_edit_of_its_last_moments() {
        let scene = Scene::new("still");
        let mut looker = Looker::new(&scene.path);
        scene.write("one");
        assert_eq!(looker.read_now().expect("a file"), b"one");
        let sight = Sight::of(&scene.path);

        scene.write("two");
        assert!(matches!(looker.look_at(sight), Look::Changing), "it only seems to be the same");
        assert!(matches!(looker.look_at(sight), Look::Changed(Ok(bytes)) if bytes == b"two"));
        for _ in 0..LOOKS_AFTERWARDS {
            assert!(matches!(looker.look_at(sight), Look::Same));
        }
        // A clock that stands still for longer is no clock; nobody reads the file for nothing for ever.
        scene.write("six");
        assert!(matches!(looker.look_at(sight), Look::Same));
    }

    #[test]
    fn who_watches_stops_when_they_are_dropped() {
        let (say, heard) = mpsc::channel();
        let watching = Watching::start("watching", move || {
            let _nobody_listens = say.send(());
        });
        let watching = watching.expect("a thread");
        heard.recv().expect("a look");
        drop(watching);
        while heard.try_recv().is_ok() {}
        assert_eq!(heard.recv(), Err(mpsc::RecvError), "the thread is gone");
    }
}
