//! Preallocates the next segment file while the present one is written.
//!
//! Writing to space that is only reserved is slow: file systems journal which parts are initialized, and each
//! sync waits for that. A preallocated segment is therefore reserved, filled with zeros and synced by a
//! thread of its own. It has no name until it is used, so a crash leaves nothing behind.
//!
//! Preallocation starts when half of a file of the same length is written, so a store with little traffic
//! never needs it. There is at most one such file. If it is not ready or cannot be created, a segment is
//! created in the normal way.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, CWD, FallocateFlags, OFlags};

use super::OWNER_ONLY;
use super::direct_io::{self, ALIGNMENT, DirectWrite};

/// Shorter files need no preallocation.
const MIN_LENGTH: u64 = 1 << 20;

/// The preallocated file of a directory.
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

/// An unnamed file of zeros, durable up to its length.
#[derive(Debug)]
pub(super) struct PreallocatedSegment {
    file: fs::File,
    length: u64,
}

impl PreallocatedSegment {
    /// Links the file into a directory under a name.
    pub(super) fn link_as(self, folder: &fs::File, name: &str) -> io::Result<()> {
        Ok(rustix::fs::linkat(CWD, proc_path(&self.file), folder, name, AtFlags::SYMLINK_FOLLOW)?)
    }
}

/// The path of an open file in `/proc`, independent of its names.
pub(super) fn proc_path(file: &fs::File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

impl SegmentPreallocator {
    pub(super) fn of(folder: PathBuf) -> SegmentPreallocator {
        SegmentPreallocator { folder, state: Mutex::new(PreallocationState::None) }
    }

    /// Whether files of this length are preallocated.
    pub(super) fn supports_length(length: u64) -> bool {
        length >= MIN_LENGTH && length.is_multiple_of(ALIGNMENT as u64)
    }

    /// Takes the file if it is ready. A file of another length is discarded.
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

    /// Starts the preallocation unless it has started before.
    pub(super) fn start(self: &Arc<SegmentPreallocator>, length: u64) {
        let mut state = self.lock();
        if !matches!(*state, PreallocationState::None) {
            return;
        }
        let preallocator = Arc::clone(self);
        let thread = std::thread::Builder::new().name("tidegate-prealloc".to_owned());
        // If the thread cannot be started, the next segment is created in the normal way.
        if thread.spawn(move || preallocator.fill(length)).is_ok() {
            *state = PreallocationState::InProgress;
        }
    }

    fn fill(&self, length: u64) {
        let created = create_preallocated(&self.folder, length);
        // On failure there is no file. A persistent error is reported when the segment is created in the
        // normal way.
        *self.lock() = created.map_or(PreallocationState::None, PreallocationState::Ready);
    }

    fn lock(&self) -> MutexGuard<'_, PreallocationState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates an unnamed file of this length.
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
    fn preallocated_segment_is_zeros_and_unnamed_until_linked() {
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
            // The file system does not support unnamed files.
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
