//! Header of a leaf: the epoch of its rows, and the earliest instant at which they may be decided.

#![expect(clippy::inline_always, reason = "these functions are parts of a decision of 20 ns")]

use tidegate_core::Timestamp;

use super::sync::{AtomicU64, Ordering};

/// The rows are being converted, or have moved.
const NO_EPOCH: u64 = u64::MAX;

/// The state that all rows of a leaf share, or that of a row of all keys.
#[derive(Debug)]
pub(super) struct LeafHeader {
    epoch: AtomicU64,
    /// The latest instant at which a thread with the leaf's lock dropped a row, gave units back, or decided. A thread with an
    /// earlier time decides at this one: a dropped row may have mattered before.
    floor: AtomicU64,
}

impl LeafHeader {
    pub(super) fn new(epoch: u64) -> LeafHeader {
        LeafHeader { epoch: AtomicU64::new(epoch), floor: AtomicU64::new(0) }
    }

    /// The epoch of the rows.
    #[inline(always)]
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// The earliest instant at which the rows may be decided. Read it after the row.
    #[inline(always)]
    pub(super) fn floor(&self) -> Timestamp {
        Timestamp::from_ticks(self.floor.load(Ordering::Relaxed))
    }

    /// Raises the floor before a row is changed. Threads with different row locks may raise it at once.
    pub(super) fn raise(&self, now: Timestamp) {
        if self.floor() < now {
            self.floor.fetch_max(now.ticks(), Ordering::Relaxed);
        }
    }

    /// From now on the rows are in no epoch, so that no decision on them begins. Only under the lock.
    pub(super) fn lift(&self) {
        self.epoch.store(NO_EPOCH, Ordering::Release);
    }

    /// All rows are in this epoch. Only under the lock.
    pub(super) fn set_epoch(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::Release);
    }
}
