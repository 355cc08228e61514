//! Header of a leaf: the epoch of its rows, and the instant from which they may be decided.

#![expect(clippy::inline_always, reason = "these are parts of the quick way, which is one piece of code")]

use tidegate_core::Timestamp;

use super::sync::{AtomicU64, Ordering};

/// Rows are being carried over, or have gone elsewhere.
const NONE: u64 = u64::MAX;

/// What is true of all the rows of a leaf, or of an `all` row.
#[derive(Debug)]
pub(super) struct Stamp {
    edition: AtomicU64,
    /// The latest instant at which somebody with the lock forgot a row, gave something back, or decided. Whoever comes with an earlier
    /// time is decided at this one: what was forgotten then may have mattered before.
    floor: AtomicU64,
}

impl Stamp {
    pub(super) fn new(edition: u64) -> Stamp {
        Stamp { edition: AtomicU64::new(edition), floor: AtomicU64::new(0) }
    }

    /// The edition of the rows.
    #[inline(always)]
    pub(super) fn edition(&self) -> u64 {
        self.edition.load(Ordering::Acquire)
    }

    /// The earliest instant at which the rows may be decided on. It is looked at after a row was read.
    #[inline(always)]
    pub(super) fn floor(&self) -> Timestamp {
        Timestamp::from_ticks(self.floor.load(Ordering::Relaxed))
    }

    /// Nobody is to be decided on at an earlier instant. It is said before a row is changed. Only with the lock.
    pub(super) fn raise(&self, now: Timestamp) {
        if self.floor() < now {
            self.floor.store(now.ticks(), Ordering::Relaxed);
        }
    }

    /// From now on the rows are in no edition, so that nobody begins to judge them. Who began before finds that the board has turned, or that
    /// the row is not in its line any more. Only with the lock.
    pub(super) fn lift(&self) {
        self.edition.store(NONE, Ordering::Release);
    }

    /// All rows are in this edition. Only with the lock.
    pub(super) fn set(&self, edition: u64) {
        self.edition.store(edition, Ordering::Release);
    }
}
