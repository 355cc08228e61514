//! A cache line of rows under one control word.
//!
//! ```text
//!   three rows of one word     │ word 0 │ word 1 │ word 2 │ low 0 │ low 1 │ low 2 │ high 0-2 │ control │
//!   two rows of two words      │ row 0: 2 words  │ row 1: 2 words │ low 0 │ low 1 │ high 0-2 │ control │
//!   one row of five words      │ row 0: 5 words                           │ low 0 │ high 0-2 │ control │
//! ```
//!
//! A *tag* is 96 bits of a key's fingerprint. A slot with the tag 0 is empty.
//!
//! The *control word* holds a lock bit, a version and a mark. A writer takes the lock by compare-and-swap from the value it
//! read before it read the rows. So the rows are still what the writer has judged. It releases the lock with the next
//! version. A reader reads the control word before and after the rows and writes nothing.
//!
//! The mark says that a row of this line is stored further on, so a search must continue there.
//!
//! The version has 30 bits. A thread that sleeps between its read and its compare-and-swap for exactly 2^30 writes of the
//! line would not notice them. That takes more than ten seconds of writes to one line, and an exact hit.
//!
//! Alternative refused: a lock bit in each row. A row of two words cannot be taken and written atomically, and tags need a
//! version beside it.

#![expect(clippy::inline_always, reason = "these functions are parts of a decision of 20 ns")]

use std::hint::select_unpredictable;

use super::sync::{AtomicU32, AtomicU64, Ordering, fence, pause};
pub(super) use crate::store::journal::Tag;

/// Words of a line that hold rows and the larger parts of tags.
const LINE_WORDS: usize = 6;
/// The most rows in a line.
pub(super) const MAX_ROWS: usize = 3;
/// The most words in a row.
pub(super) const MAX_ROW_WORDS: usize = 5;

/// The lock bit of a control word.
pub(super) const LOCKED: u32 = 1;
/// A row that belongs into this line is stored further on.
pub(super) const PASSED: u32 = 2;
const VERSION: u32 = 4;

/// The tag of an empty slot. It also stands for the row of all keys.
pub(super) const NO_TAG: Tag = Tag { low: 0, high: 0 };

/// How the rows of a line are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Shape {
    /// Three rows of one word.
    #[default]
    Narrow,
    /// Two rows of two words.
    Pair,
    /// One row of five words.
    Wide,
}

impl Shape {
    /// The narrowest shape with this many words in a row.
    pub(super) const fn for_words(words: usize) -> Option<Shape> {
        match words {
            0 | 1 => Some(Shape::Narrow),
            2 => Some(Shape::Pair),
            3..=MAX_ROW_WORDS => Some(Shape::Wide),
            _ => None,
        }
    }

    /// Rows in a line.
    pub(super) const fn rows(self) -> usize {
        match self {
            Shape::Narrow => 3,
            Shape::Pair => 2,
            Shape::Wide => 1,
        }
    }

    /// Words in a row.
    pub(super) const fn words(self) -> usize {
        match self {
            Shape::Narrow => 1,
            Shape::Pair => 2,
            Shape::Wide => MAX_ROW_WORDS,
        }
    }

    /// The shape with this code.
    pub(super) const fn from_code(code: u64) -> Shape {
        match code {
            0 => Shape::Narrow,
            1 => Shape::Pair,
            _ => Shape::Wide,
        }
    }

    /// A number for this shape.
    pub(super) const fn code(self) -> u64 {
        self as u64
    }
}

/// The words of a row. Rows with fewer words leave the rest zero.
pub(super) type RowWords = [u64; MAX_ROW_WORDS];

/// Rows in a cache line.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct Line {
    words: [AtomicU64; LINE_WORDS],
    high: [AtomicU32; MAX_ROWS],
    control: AtomicU32,
}

impl Line {
    pub(super) fn new() -> Line {
        Line {
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            high: std::array::from_fn(|_| AtomicU32::new(0)),
            control: AtomicU32::new(0),
        }
    }

    /// Loads the line into the cache without waiting for it, where the processor can do that.
    #[inline(always)]
    pub(super) fn prefetch(&self) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        safe_arch::prefetch_t0(self);
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        std::hint::black_box(self.seen());
    }

    /// The control word.
    #[inline(always)]
    pub(super) fn control(&self) -> &AtomicU32 {
        &self.control
    }

    /// The value of the control word, read before the rows.
    #[inline(always)]
    pub(super) fn seen(&self) -> u32 {
        self.control.load(Ordering::Acquire)
    }

    /// The slot of a tag among `R` rows. The slot is computed without branches, because no branch predictor can foresee it.
    ///
    /// If two slots have the same larger part, the later one is compared. Such a pair is missed and found by
    /// [`Line::find_slot`].
    #[inline(always)]
    pub(super) fn find<const R: usize>(&self, tag: Tag) -> Option<usize> {
        let mut slot = 0;
        for other in 1..R {
            slot = select_unpredictable(self.low(R, other) == tag.low, other, slot);
        }
        (self.low(R, slot) == tag.low && self.high[slot].load(Ordering::Relaxed) == tag.high).then_some(slot)
    }

    /// The slot of a tag, compared slot by slot.
    pub(super) fn find_slot(&self, shape: Shape, tag: Tag) -> Option<usize> {
        (0..shape.rows()).find(|slot| self.tag(shape, *slot) == tag)
    }

    /// The first empty slot.
    pub(super) fn free_slot(&self, shape: Shape) -> Option<usize> {
        self.find_slot(shape, NO_TAG)
    }

    #[inline(always)]
    fn low(&self, rows: usize, slot: usize) -> u64 {
        self.words[LINE_WORDS - rows + slot].load(Ordering::Relaxed)
    }

    /// The tag in a slot. It is meaningful under the lock of the line or of the leaf.
    pub(super) fn tag(&self, shape: Shape, slot: usize) -> Tag {
        Tag { low: self.low(shape.rows(), slot), high: self.high[slot].load(Ordering::Relaxed) }
    }

    /// The words of a row.
    #[inline(always)]
    pub(super) fn row<const W: usize>(&self, slot: usize) -> &[AtomicU64; W] {
        self.words[slot * W..].first_chunk().expect("rows lie in their line")
    }

    /// The words of a row of this shape.
    #[inline(always)]
    pub(super) fn cells(&self, shape: Shape, slot: usize) -> &[AtomicU64] {
        let words = shape.words();
        &self.words[slot * words..][..words]
    }

    /// Reads a row.
    pub(super) fn read(&self, shape: Shape, slot: usize) -> RowWords {
        read_words(self.cells(shape, slot))
    }

    /// Stores a row. Only under the lock of the line.
    pub(super) fn write(&self, shape: Shape, slot: usize, row: &RowWords) {
        write_words(self.cells(shape, slot), row);
    }

    /// Stores a row and its tag. Only under the locks of the leaf and of the line.
    pub(super) fn place(&self, shape: Shape, slot: usize, tag: Tag, row: &RowWords) {
        self.write(shape, slot, row);
        self.words[LINE_WORDS - shape.rows() + slot].store(tag.low, Ordering::Relaxed);
        self.high[slot].store(tag.high, Ordering::Relaxed);
    }

    /// Empties the line, whatever its shape was. Only under the locks of the leaf and of the line.
    pub(super) fn clear(&self) {
        self.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.high.iter().for_each(|high| high.store(0, Ordering::Relaxed));
    }

    /// Marks that a row of this line is stored further on. Only under the lock of the leaf.
    pub(super) fn set_passed(&self) {
        if self.control.load(Ordering::Relaxed) & PASSED == 0 {
            let seen = lock(&self.control);
            unlock(&self.control, seen | PASSED);
        }
    }
}

/// Reads the words of a row.
#[inline(always)]
pub(super) fn read_words(cells: &[AtomicU64]) -> RowWords {
    let mut row = [0; MAX_ROW_WORDS];
    for (word, cell) in row.iter_mut().zip(cells) {
        *word = cell.load(Ordering::Relaxed);
    }
    row
}

/// Stores the words of a row.
#[inline(always)]
pub(super) fn write_words(cells: &[AtomicU64], row: &RowWords) {
    for (cell, word) in cells.iter().zip(row) {
        cell.store(*word, Ordering::Relaxed);
    }
}

/// Whether nothing was written under this control word since it was `seen`.
#[inline(always)]
pub(super) fn is_unchanged(control: &AtomicU32, seen: u32) -> bool {
    // Orders the loads of the rows before this one.
    fence(Ordering::Acquire);
    control.load(Ordering::Relaxed) == seen
}

/// Takes the lock if the control word is still as `seen`, which must not be locked.
#[inline(always)]
pub(super) fn try_lock(control: &AtomicU32, seen: u32) -> bool {
    let taken = control.compare_exchange(seen, seen | LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok();
    // A reader that sees a new row sees that the line is locked or has a new version.
    fence(Ordering::Release);
    taken
}

/// Takes the lock and waits for it. Returns the control word before.
pub(super) fn lock(control: &AtomicU32) -> u32 {
    let mut turn = 0;
    loop {
        let seen = control.load(Ordering::Relaxed);
        if seen & LOCKED == 0 && try_lock(control, seen) {
            return seen;
        }
        pause(&mut turn);
    }
}

/// Releases the lock after a write.
#[inline(always)]
pub(super) fn unlock(control: &AtomicU32, seen: u32) {
    control.store(seen.wrapping_add(VERSION), Ordering::Release);
}

/// Releases the lock. Nothing was written.
#[inline(always)]
pub(super) fn unlock_unchanged(control: &AtomicU32, seen: u32) {
    control.store(seen, Ordering::Release);
}
