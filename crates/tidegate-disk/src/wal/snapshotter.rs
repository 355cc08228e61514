//! Taking a snapshot while the log goes on.

use std::fmt;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{TryLockError, mpsc};

use tidegate::store::Unavailable;

use super::Log;
use super::append_queue::{Health, Rolled};
use super::file_names::{self, Survey};
use super::snapshot_file::{Snapshot, remove_if_there};

/// Why there is no snapshot. The log is as it was, and goes on.
#[derive(Debug)]
pub enum SnapshotError {
    /// Another one is being taken.
    Busy,
    /// The log cannot be written.
    Unavailable(Unavailable),
    /// Whoever was to write it gave up.
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

impl Log {
    /// Takes a snapshot: everything that was appended before this call, and is known to whoever writes it, is in it; the log then only has to
    /// remember what was appended since. One at a time. Blocks for as long as it takes; appends go on meanwhile.
    ///
    /// The log is split before `write` is called, so what is appended while it runs is replayed on top of the snapshot. How many bytes of
    /// payload it has.
    pub fn snapshot(
        &self,
        write: impl FnOnce(&mut Snapshot) -> Result<(), SnapshotError>,
    ) -> Result<u64, SnapshotError> {
        self.snapshot_while(|| (), write)
    }

    /// The same, with something held while the log is split: for whoever appends before they act, so that nobody is in between.
    pub fn snapshot_while<G>(
        &self,
        hold: impl FnOnce() -> G,
        write: impl FnOnce(&mut Snapshot) -> Result<(), SnapshotError>,
    ) -> Result<u64, SnapshotError> {
        let _only = match self.snapshotting.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(SnapshotError::Busy),
        };
        let held = hold();
        let rolled = self.split().map_err(SnapshotError::Unavailable)?;
        drop(held);
        let name = file_names::snapshot(rolled.header.segment);
        let bytes = self.write_snapshot(&rolled, write).inspect_err(|_| {
            // It may be what fills the disk; if it cannot be removed, the next opening does it.
            let _ = remove_if_there(&*self.files, &file_names::unfinished(&name));
        })?;
        self.files.sync_names()?;
        self.shared.superseded.store(rolled.written, Ordering::Release);
        self.shared.begins.store(rolled.header.segment, Ordering::Release);
        // What cannot be removed now is removed when the log is opened again.
        let _ = self.remove_superseded(rolled.header.segment);
        Ok(bytes)
    }

    /// Begins another segment.
    fn split(&self) -> Result<Rolled, Unavailable> {
        let (answer, answered) = mpsc::channel();
        self.shared.desk.roll(answer)?;
        answered.recv().unwrap_or_else(|_| {
            let refusal = self.health().refusal();
            Err(refusal.unwrap_or_else(|| Health::Stopped.refusal().expect("a stopped log refuses")))
        })
    }

    fn write_snapshot(
        &self,
        rolled: &Rolled,
        write: impl FnOnce(&mut Snapshot) -> Result<(), SnapshotError>,
    ) -> Result<u64, SnapshotError> {
        let mut snapshot = Snapshot::begin(&*self.files, &rolled.header, &self.store)?;
        write(&mut snapshot)?;
        let bytes = snapshot.bytes();
        snapshot.finish()?;
        let name = file_names::snapshot(rolled.header.segment);
        self.files.rename(&file_names::unfinished(&name), &name)?;
        Ok(bytes)
    }

    fn remove_superseded(&self, begins: u64) -> io::Result<()> {
        let survey = Survey::of(&*self.files)?;
        for number in survey.snapshots.iter().filter(|number| **number < begins) {
            self.files.remove(&file_names::snapshot(*number))?;
        }
        for number in survey.segments.iter().filter(|number| **number < begins) {
            self.files.remove(&file_names::segment(*number))?;
        }
        self.files.sync_names()
    }
}
