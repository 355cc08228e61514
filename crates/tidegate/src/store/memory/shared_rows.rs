//! Lines for the rows of all keys.
//!
//! Limits that are put in sequence are often requested together, so their rows of all keys share a cache line. A set of
//! such limits then moves one line between threads instead of one per limit. The line has a control word for all its rows,
//! as every [line](super::line).

#![expect(clippy::inline_always, reason = "these functions are parts of a decision of 20 ns")]

use std::sync::{Arc, PoisonError};

use super::line::MAX_ROW_WORDS;
use super::sync::{AtomicU32, AtomicU64, Mutex};

/// Words of a shared line that hold rows.
const SHARED_WORDS: usize = if cfg!(tidegate_loom) { 2 } else { 7 };

/// A line of rows of all keys.
#[repr(C, align(64))]
#[derive(Debug)]
struct SharedLine {
    words: [AtomicU64; SHARED_WORDS],
    control: AtomicU32,
}

/// The place of one limit's row of all keys. It never moves.
#[derive(Debug, Clone)]
pub(super) struct SharedRow {
    line: Arc<SharedLine>,
    first: usize,
    words: usize,
}

/// The lines of all limits. Rows are given out in sequence.
pub(super) struct SharedLines {
    /// The end of the row that was given out last.
    next: Mutex<(Arc<SharedLine>, usize)>,
}

impl SharedLine {
    fn new() -> Arc<SharedLine> {
        let words = std::array::from_fn(|_| AtomicU64::new(0));
        Arc::new(SharedLine { words, control: AtomicU32::new(0) })
    }
}

impl SharedLines {
    pub(super) fn new() -> SharedLines {
        SharedLines { next: Mutex::new((SharedLine::new(), 0)) }
    }

    /// A row of this many words, at least one and at most [`MAX_ROW_WORDS`].
    pub(super) fn row(&self, words: usize) -> SharedRow {
        let words = words.clamp(1, MAX_ROW_WORDS.min(SHARED_WORDS));
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if next.1 + words > SHARED_WORDS {
            *next = (SharedLine::new(), 0);
        }
        let first = next.1;
        next.1 += words;
        SharedRow { line: Arc::clone(&next.0), first, words }
    }
}

impl SharedRow {
    /// The control word of the row and its neighbors.
    #[inline(always)]
    pub(super) fn control(&self) -> &AtomicU32 {
        &self.line.control
    }

    /// The words of the row.
    #[inline(always)]
    pub(super) fn cells(&self) -> &[AtomicU64] {
        &self.line.words[self.first..self.first + self.words]
    }

    /// The number of words.
    pub(super) fn words(&self) -> usize {
        self.words
    }
}
