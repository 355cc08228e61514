//! The gallery: where the `all` rows of all limits are.

#![expect(clippy::inline_always, reason = "these are parts of the quick way, which is one piece of code")]

use std::sync::{Arc, PoisonError};

use super::leaf::Spot;
use super::line::{Line, SLOTS};
use super::sync::{AtomicU64, Mutex, Ordering};

/// Where an `all` row is: in a line, like any other, but nobody looks for it and it stays there.
pub(super) struct Place {
    line: Arc<Line>,
    slot: usize,
}

/// Where the `all` rows of all limits are. Limits that are put one after the other are often asked together, so their rows share a
/// line: what one thread has to fetch from another for a set of limits is one line, not one for each.
pub(super) struct Gallery {
    next: Mutex<Place>,
}

impl Gallery {
    pub(super) fn new() -> Gallery {
        Gallery { next: Mutex::new(Place { line: Arc::new(Line::new()), slot: 0 }) }
    }

    /// A place for one row more.
    pub(super) fn place(&self) -> Place {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if next.slot == SLOTS {
            *next = Place { line: Arc::new(Line::new()), slot: 0 };
        }
        next.slot += 1;
        Place { line: Arc::clone(&next.line), slot: next.slot - 1 }
    }
}

impl Place {
    /// The row's cell.
    #[inline(always)]
    pub(super) fn cell(&self) -> &AtomicU64 {
        self.line.cell(self.slot)
    }

    /// The row as it is.
    #[inline(always)]
    pub(super) fn spot(&self) -> Spot<'_> {
        let seen = self.line.glance();
        let cell = self.cell();
        Spot { line: &self.line, cell, word: cell.load(Ordering::Acquire), seen }
    }
}
