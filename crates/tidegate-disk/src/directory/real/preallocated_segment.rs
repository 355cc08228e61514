//! A spare file: the next segment's room, made ready while the present one is written.
//!
//! Room that is only reserved is slow to write to: file systems note in their own journal which of it has been written, and a sync waits for that. So
//! a spare is not only reserved but written, with zeros, and synced, by a thread of its own. It has no name until it is wanted: a crash leaves
//! nothing of it.
//!
//! A spare is made when half of a file of the same length is written, so a store that is little used has none, and there is one at most. If it is
//! not ready when it is wanted, or cannot be made, a file is made as if there were none of this.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, CWD, FallocateFlags, OFlags};

use super::OWNER_ONLY;
use super::direct_io::{self, PAGE, Written};

/// Files that are shorter are made in no time.
const SHORTEST: u64 = 1 << 20;

/// The spare file of a directory.
#[derive(Debug)]
pub(super) struct Spares {
    folder: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    None,
    InTheMaking,
    Ready(Spare),
}

/// A file without a name that holds so many zeros, durably.
#[derive(Debug)]
pub(super) struct Spare {
    file: fs::File,
    length: u64,
}

impl Spare {
    /// Gives it a name in a directory.
    pub(super) fn name(self, folder: &fs::File, name: &str) -> io::Result<()> {
        Ok(rustix::fs::linkat(CWD, own_path(&self.file), folder, name, AtFlags::SYMLINK_FOLLOW)?)
    }
}

/// A name of a file that this process has open, whatever other names it has.
pub(super) fn own_path(file: &fs::File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

impl Spares {
    pub(super) fn of(folder: PathBuf) -> Spares {
        Spares { folder, state: Mutex::new(State::None) }
    }

    /// Whether files of this length are made ready at all.
    pub(super) fn are_of(length: u64) -> bool {
        length >= SHORTEST && length.is_multiple_of(PAGE as u64)
    }

    /// The spare of this length, if it is ready. One of another length is thrown away.
    pub(super) fn take(&self, length: u64) -> Option<Spare> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::None) {
            State::Ready(spare) => Some(spare).filter(|spare| spare.length == length),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Makes one ready, unless that was begun before.
    pub(super) fn make(self: &Arc<Spares>, length: u64) {
        let mut state = self.lock();
        if !matches!(*state, State::None) {
            return;
        }
        let spares = Arc::clone(self);
        let thread = std::thread::Builder::new().name("tidegate-spare".to_owned());
        // Without a thread there is no spare, and nothing else is wrong.
        if thread.spawn(move || spares.fill(length)).is_ok() {
            *state = State::InTheMaking;
        }
    }

    fn fill(&self, length: u64) {
        let made = made(&self.folder, length);
        // Whatever went wrong is found, if it is still wrong, by whoever makes a file without a spare.
        *self.lock() = made.map_or(State::None, State::Ready);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A spare of this length.
fn made(folder: &PathBuf, length: u64) -> io::Result<Spare> {
    let opened = |flags: OFlags| {
        let mut options = OpenOptions::new();
        let flags = (OFlags::TMPFILE | flags).bits().cast_signed();
        options.read(true).write(true).mode(OWNER_ONLY).custom_flags(flags).open(folder)
    };
    for flags in [OFlags::DIRECT, OFlags::empty()] {
        let Ok(file) = opened(flags) else { continue };
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, length)?;
        if direct_io::fill(&file, 0, length)? == Written::All {
            file.sync_all()?;
            return Ok(Spare { file, length });
        }
    }
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileExt, PermissionsExt};

    #[test]
    fn a_spare_is_zeros_without_a_name_until_it_gets_one() {
        let folder = std::env::temp_dir().join(format!("tidegate-spare-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("there is room");
        let handle = fs::File::open(&folder).expect("it is there");
        let names = || fs::read_dir(&folder).expect("it is there").count();
        let spares = Spares::of(folder.clone());
        assert!(spares.take(SHORTEST).is_none(), "none was made");
        spares.fill(SHORTEST);
        assert_eq!(names(), 0);
        let mut options = OpenOptions::new();
        options.write(true).custom_flags(OFlags::TMPFILE.bits().cast_signed());
        if options.open(&folder).is_err() {
            // A file system without files that have no name.
            assert!(spares.take(SHORTEST).is_none());
        } else {
            let spare = spares.take(SHORTEST).expect("it was made");
            assert!(spares.take(SHORTEST).is_none(), "there is one");
            spare.name(&handle, "a").expect("it can be named");
            let file = fs::File::open(folder.join("a")).expect("it has a name");
            let mut bytes = vec![9; usize::try_from(SHORTEST).expect("small")];
            file.read_exact_at(&mut bytes, 0).expect("it is that long");
            assert!(bytes.iter().all(|byte| *byte == 0));
            let found = file.metadata().expect("it is open");
            assert_eq!((found.len(), found.permissions().mode() & 0o777), (SHORTEST, OWNER_ONLY));
            spares.fill(SHORTEST);
            assert!(spares.take(2 * SHORTEST).is_none(), "of another length");
            assert!(spares.take(SHORTEST).is_none(), "it was thrown away");
        }
        fs::remove_dir_all(&folder).expect("it is there");
    }
}
