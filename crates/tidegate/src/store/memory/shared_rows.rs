//! Shared lines: storage of the `all` rows of all limits.
//!
//! Limits that are put in sequence are often requested together, so their rows share a cache line. A set of limits then
//! moves one line between threads instead of one per limit. The line has one **guard** for all its rows: a count of changes
//! and a held bit. A thread reads the guard before the rows. If it then takes the guard unchanged, no row has changed
//! since. One compare-and-swap covers all rows.
//!
//! ```text
//!   word     0     1 … 7
//!          ┌─────┬──────────────────┐
//!          │guard│ a cell for a row │   64 bytes
//!          └─────┴──────────────────┘
//! ```
//!
//! The guard is held for a few instructions. A thread that needs a row for longer holds the row's cell, as in any [cache
//! line](super::cache_line), and the guard only while it takes the cell. So an operation never waits for another limit's.

#![expect(clippy::inline_always, reason = "these are parts of the quick way, which is one piece of code")]

use std::sync::{Arc, PoisonError};

use super::cache_line::{self, HELD};
use super::sync::{AtomicU64, Mutex, Ordering, pause};

/// Rows that share a line.
const ROWS: usize = if cfg!(tidegate_loom) { 2 } else { 7 };
/// The rows and their guard.
const WORDS: usize = ROWS + 1;
const GUARD: usize = 0;

/// A line of `all` rows.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct Bench {
    /// The guard, and the cells.
    words: [AtomicU64; WORDS],
    /// How often the boards of the limits whose rows lie here were written.
    written: AtomicU64,
}

/// Where an `all` row is. It stays there.
#[derive(Debug, Clone)]
pub(super) struct Place {
    bench: Arc<Bench>,
    /// Which of its words.
    index: usize,
}

/// Where the `all` rows of all limits are.
pub(super) struct Gallery {
    next: Mutex<Place>,
}

impl Gallery {
    pub(super) fn new() -> Gallery {
        Gallery { next: Mutex::new(Place { bench: Arc::new(Bench::new()), index: GUARD }) }
    }

    /// A place for one row more.
    pub(super) fn place(&self) -> Place {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if next.index == ROWS {
            *next = Place { bench: Arc::new(Bench::new()), index: GUARD };
        }
        next.index += 1;
        Place { bench: Arc::clone(&next.bench), index: next.index }
    }
}

impl Bench {
    fn new() -> Bench {
        Bench { words: std::array::from_fn(|_| AtomicU64::new(0)), written: AtomicU64::new(0) }
    }

    /// The guard of all its rows. It is looked at before a row.
    #[inline(always)]
    pub(super) fn guard(&self) -> &AtomicU64 {
        &self.words[GUARD]
    }

    /// How often the boards of the limits whose rows lie here were written. Whoever sees one as it was written sees that it was.
    #[inline(always)]
    pub(super) fn written(&self) -> &AtomicU64 {
        &self.written
    }

    /// The cell of a row that lies here.
    #[inline(always)]
    pub(super) fn cell(&self, place: &Place) -> &AtomicU64 {
        &self.words[place.index % WORDS]
    }
}

impl Place {
    /// The row's cell.
    #[inline(always)]
    pub(super) fn cell(&self) -> &AtomicU64 {
        self.bench.cell(self)
    }

    /// The row's line.
    #[inline(always)]
    pub(super) fn bench(&self) -> &Bench {
        &self.bench
    }

    /// The guard of the row and its neighbours. It is looked at before the row.
    #[inline(always)]
    pub(super) fn guard(&self) -> &AtomicU64 {
        self.bench.guard()
    }

    /// Holds the row's cell, waiting for whoever does. Returns what it said.
    pub(super) fn hold(&self) -> u64 {
        let (guard, cell) = (self.guard(), self.cell());
        let mut turn = 0;
        loop {
            let seen = guard.load(Ordering::Relaxed);
            if seen & HELD == 0 && cell.load(Ordering::Relaxed) & HELD == 0 && cache_line::take(guard, seen) {
                // Only now is it certain: with the guard taken nobody else takes the cell.
                let word = cell.load(Ordering::Relaxed);
                if word & HELD == 0 {
                    cell.store(word | HELD, Ordering::Relaxed);
                }
                open(guard, seen);
                if word & HELD == 0 {
                    return word;
                }
            }
            pause(&mut turn);
        }
    }
}

/// Gives a guard back that was taken when it said `seen`: something was done.
#[inline(always)]
pub(super) fn open(guard: &AtomicU64, seen: u64) {
    cache_line::give_back(guard, (seen + 1) & !HELD);
}
