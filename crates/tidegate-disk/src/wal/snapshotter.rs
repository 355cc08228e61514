//! Takes a snapshot while the log continues to accept appends.

use std::fmt;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{TryLockError, mpsc};

use tidegate::store::Unavailable;

use super::WriteAheadLog;
use super::file_names::{self, DirectoryListing};
use super::group_commit::{LogHealth, SegmentRoll};
use super::snapshot_file::{SnapshotWriter, remove_if_exists};

/// Why no snapshot was taken. The log is unchanged and continues.
#[derive(Debug)]
pub enum SnapshotError {
    /// Another snapshot is in progress.
    Busy,
    /// The log cannot be written.
    Unavailable(Unavailable),
    /// The caller gave up.
    Abandoned(String),
    /// The disk failed.
    Disk(io::Error),
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SnapshotError::Busy => write!(f, "another snapshot is being taken; wait for that one"),
            SnapshotError::Unavailable(unavailable) => write!(f, "no snapshot: {unavailable}"),
            SnapshotError::Abandoned(reason) => write!(f, "the snapshot was given up: {reason}"),
            SnapshotError::Disk(error) => {
                write!(f, "the snapshot could not be written: {error}; the log goes on without it")
            }
        }
    }
}

impl std::error::Error for SnapshotError {}

impl From<io::Error> for SnapshotError {
    fn from(error: io::Error) -> SnapshotError {
        SnapshotError::Disk(error)
    }
}

impl WriteAheadLog {
    /// Takes a snapshot and returns its payload length. It contains everything that was appended before this
    /// call, as far as `write` records it. Afterwards the log only keeps what was appended since. One
    /// snapshot runs at a time. The call blocks, and appends continue meanwhile.
    ///
    /// A new segment starts before `write` is called. Appends during the call are replayed on top of the
    /// snapshot.
    pub fn snapshot(
        &self,
        write: impl FnOnce(&mut SnapshotWriter) -> Result<(), SnapshotError>,
    ) -> Result<u64, SnapshotError> {
        self.snapshot_holding(|| (), write)
    }

    /// Takes a snapshot while a guard from `hold` is alive during the change of segments. A caller that
    /// appends a change before it applies it uses the guard to exclude changes between the two steps.
    pub fn snapshot_holding<G>(
        &self,
        hold: impl FnOnce() -> G,
        write: impl FnOnce(&mut SnapshotWriter) -> Result<(), SnapshotError>,
    ) -> Result<u64, SnapshotError> {
        let _only = match self.snapshot_lock.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(SnapshotError::Busy),
        };
        let held = hold();
        let roll = self.roll_segment().map_err(SnapshotError::Unavailable)?;
        drop(held);
        let name = file_names::snapshot_name(roll.header.segment);
        let bytes = self.write_snapshot(&roll, write).inspect_err(|_| {
            // The file may be what fills the disk. If it cannot be removed now, the next opening removes it.
            let _ = remove_if_exists(&*self.directory, &file_names::unfinished_name(&name));
        })?;
        self.directory.sync_names()?;
        self.shared.superseded_bytes.store(roll.written_bytes, Ordering::Release);
        self.shared.first_segment.store(roll.header.segment, Ordering::Release);
        // Files that cannot be removed now are removed when the log is opened again.
        let _ = self.remove_superseded(roll.header.segment);
        Ok(bytes)
    }

    /// Starts a new segment.
    fn roll_segment(&self) -> Result<SegmentRoll, Unavailable> {
        let (answer, answered) = mpsc::channel();
        self.shared.queue.roll(answer)?;
        answered.recv().unwrap_or_else(|_| {
            let refusal = self.health().refusal();
            Err(refusal.unwrap_or_else(|| LogHealth::Stopped.refusal().expect("a stopped log refuses")))
        })
    }

    fn write_snapshot(
        &self,
        roll: &SegmentRoll,
        write: impl FnOnce(&mut SnapshotWriter) -> Result<(), SnapshotError>,
    ) -> Result<u64, SnapshotError> {
        let mut snapshot = SnapshotWriter::begin(&*self.directory, &roll.header, &self.store)?;
        write(&mut snapshot)?;
        let bytes = snapshot.bytes();
        snapshot.finish()?;
        let name = file_names::snapshot_name(roll.header.segment);
        self.directory.rename(&file_names::unfinished_name(&name), &name)?;
        Ok(bytes)
    }

    fn remove_superseded(&self, first_segment: u64) -> io::Result<()> {
        let listing = DirectoryListing::read(&*self.directory)?;
        for number in listing.snapshots.iter().filter(|number| **number < first_segment) {
            self.directory.remove(&file_names::snapshot_name(*number))?;
        }
        for number in listing.segments.iter().filter(|number| **number < first_segment) {
            self.directory.remove(&file_names::segment_name(*number))?;
        }
        self.directory.sync_names()
    }
}
