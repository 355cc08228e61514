//! A segment file: the next segment's room, made ready while the present one is written.
//!
//! ReservedSpace that is only reserved is slow to write to: file systems note in their own journal which of it has been written, and a sync waits for that. So
//! a segment is not only reserved but written, with zeros, and synced, by a thread of its own. It has no name until it is wanted: a crash leaves
//! nothing of it.
//!
//! A segment is made when half of a file of the same length is written, so a store that is little used has none, and there is one at most. If it is
//! not ready when it is wanted, or cannot be made, a file is made as if there were none of this.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, CWD, FallocateFlags, OFlags};

use super::OWNER_ONLY;
use super::direct_io::{self, ALIGNMENT, DirectWrite};

/// Directory that are shorter are made in no time.
const MIN_LENGTH: u64 = 1 << 20;

/// The segment file of a directory.
#[derive(Debug)]
pub(super) struct SegmentPreallocator {
    folder: PathBuf,
    state: Mutex<PreallocationState>,
}

#[derive(Debug)]
enum PreallocationState {
    None,
    InProgress,
    Ready(PreallocatedSegment),
}

/// A file without a name that holds so many zeros, durably.
#[derive(Debug)]
pub(super) struct PreallocatedSegment {
    file: fs::File,
    length: u64,
}

impl PreallocatedSegment {
    /// Gives it a name in a directory.
    pub(super) fn link_as(self, folder: &fs::File, name: &str) -> io::Result<()> {
        Ok(rustix::fs::linkat(CWD, proc_path(&self.file), folder, name, AtFlags::SYMLINK_FOLLOW)?)
    }
}

/// A name of a file that this process has open, whatever other names it has.
pub(super) fn proc_path(file: &fs::File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

impl SegmentPreallocator {
    pub(super) fn of(folder: PathBuf) -> SegmentPreallocator {
        SegmentPreallocator { folder, state: Mutex::new(PreallocationState::None) }
    }

    /// Whether files of this length are made ready at all.
    pub(super) fn supports_length(length: u64) -> bool {
        length >= MIN_LENGTH && length.is_multiple_of(ALIGNMENT as u64)
    }

    /// The segment of this length, if it is ready. One of another length is thrown away.
    pub(super) fn take(&self, length: u64) -> Option<PreallocatedSegment> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, PreallocationState::None) {
            PreallocationState::Ready(segment) => Some(segment).filter(|segment| segment.length == length),
            other => {
                *state = other;
                None
            }
        }
    }

    /// Makes one ready, unless that was begun before.
    pub(super) fn start(self: &Arc<SegmentPreallocator>, length: u64) {
        let mut state = self.lock();
        if !matches!(*state, PreallocationState::None) {
            return;
        }
        let preallocator = Arc::clone(self);
        let thread = std::thread::Builder::new().name("tidegate-prealloc".to_owned());
        // Without a thread there is no segment, and nothing else is wrong.
        if thread.spawn(move || preallocator.fill(length)).is_ok() {
            *state = PreallocationState::InProgress;
        }
    }

    fn fill(&self, length: u64) {
        let created = create_preallocated(&self.folder, length);
        // Whatever went wrong is found, if it is still wrong, by whoever makes a file without a segment.
        *self.lock() = created.map_or(PreallocationState::None, PreallocationState::Ready);
    }

    fn lock(&self) -> MutexGuard<'_, PreallocationState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A segment of this length.
fn create_preallocated(folder: &PathBuf, length: u64) -> io::Result<PreallocatedSegment> {
    let opened = |flags: OFlags| {
        let mut options = OpenOptions::new();
        let flags = (OFlags::TMPFILE | flags).bits().cast_signed();
        options.read(true).write(true).mode(OWNER_ONLY).custom_flags(flags).open(folder)
    };
    for flags in [OFlags::DIRECT, OFlags::empty()] {
        let Ok(file) = opened(flags) else { continue };
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, length)?;
        if direct_io::fill(&file, 0, length)? == DirectWrite::Done {
            file.sync_all()?;
            return Ok(PreallocatedSegment { file, length });
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
        let folder = std::env::temp_dir().join(format!("tidegate-segment-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("there is room");
        let handle = fs::File::open(&folder).expect("it is there");
        let names = || fs::read_dir(&folder).expect("it is there").count();
        let preallocator = SegmentPreallocator::of(folder.clone());
        assert!(preallocator.take(MIN_LENGTH).is_none(), "none was made");
        preallocator.fill(MIN_LENGTH);
        assert_eq!(names(), 0);
        let mut options = OpenOptions::new();
        options.write(true).custom_flags(OFlags::TMPFILE.bits().cast_signed());
        if options.open(&folder).is_err() {
            // A file system without files that have no name.
            assert!(preallocator.take(MIN_LENGTH).is_none());
        } else {
            let segment = preallocator.take(MIN_LENGTH).expect("it was made");
            assert!(preallocator.take(MIN_LENGTH).is_none(), "there is one");
            segment.link_as(&handle, "a").expect("it can be named");
            let file = fs::File::open(folder.join("a")).expect("it has a name");
            let mut bytes = vec![9; usize::try_from(MIN_LENGTH).expect("small")];
            file.read_exact_at(&mut bytes, 0).expect("it is that long");
            assert!(bytes.iter().all(|byte| *byte == 0));
            let found = file.metadata().expect("it is open");
            assert_eq!((found.len(), found.permissions().mode() & 0o777), (MIN_LENGTH, OWNER_ONLY));
            preallocator.fill(MIN_LENGTH);
            assert!(preallocator.take(2 * MIN_LENGTH).is_none(), "of another length");
            assert!(preallocator.take(MIN_LENGTH).is_none(), "it was thrown away");
        }
        fs::remove_dir_all(&folder).expect("it is there");
    }
}
