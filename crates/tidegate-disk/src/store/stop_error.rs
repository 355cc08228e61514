//! Why a store did not stop cleanly.

use std::fmt;

use tidegate::store::Unavailable;

use crate::wal::SnapshotError;

/// Why a store did not stop cleanly. Reported decisions are safe: the next start recovers as after a crash.
#[derive(Debug)]
pub enum StopError {
    /// The exact counts could not be written.
    Snapshot(SnapshotError),
    /// The log could not be stopped.
    Log(Unavailable),
}

impl fmt::Display for StopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StopError::Snapshot(error) => write!(f, "the last snapshot was not written: {error}"),
            StopError::Log(error) => write!(f, "the log was not ended: {error}"),
        }
    }
}

impl std::error::Error for StopError {}
