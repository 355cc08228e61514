//! A cache line of three rows, and the protocol for concurrent access.
//!
//! ```text
//!   byte   0      8      16     24     32     40     48     52     56     60
//!        ┌──────┬──────┬──────┬──────┬──────┬──────┬──────┬──────┬──────┬───────┐
//!        │cell 0│cell 1│cell 2│low 0 │low 1 │low 2 │high 0│high 1│high 2│version│   64 bytes
//!        └──────┴──────┴──────┴──────┴──────┴──────┴──────┴──────┴──────┴───────┘
//!          counts               tags: 96 bits of the key's fingerprint       + passed
//! ```
//!
//! - A **cell** is a row, or the position of the row. A writer *holds* a cell: it sets [`HELD`] by compare-and-swap and ends
//!   with a store of the next word. A cell is held for a few instructions, and other writers spin.
//! - A **tag** changes only while its cell is held or empty, and only under the lock of the leaf. The **version** increases
//!   before the change and again before the new cell is stored. If it is equal before the tag was compared and after the
//!   cell was read or taken, cell and tag belong together ([`Line::unchanged`]). Readers take and write nothing.
//! - **passed** means that a row of this line is in a later line, so a search must continue.

#![expect(clippy::inline_always, reason = "these are parts of the quick way, which is one piece of code")]

use std::hint::select_unpredictable;

use super::sync::{AtomicU32, AtomicU64, Ordering, fence};
pub(super) use crate::store::journal::Tag;

/// Rows in a line.
pub(super) const SLOTS: usize = 3;

/// No row. The tag beside an empty cell means nothing.
pub(super) const EMPTY: u64 = 0;
/// Somebody is deciding on this row.
pub(super) const HELD: u64 = 1 << 63;
/// The row does not fit a cell; the payload says where it is.
pub(super) const WIDE: u64 = 1 << 62;
/// There is a row.
pub(super) const PRESENT: u64 = 1 << 61;
/// What is left for the row itself.
pub(super) const PAYLOAD: u64 = PRESENT - 1;
/// How many bits that is.
pub(super) const PAYLOAD_BITS: u32 = 61;

const PASSED: u32 = 1;
const ONE_VERSION: u32 = 2;

/// What a search found in a line.
#[derive(Debug, Clone, Copy)]
pub(super) enum Look {
    /// What the row's cell said, and the line's version before that.
    Found { slot: usize, word: u64, seen: u32 },
    /// It is not here, but may be in the next line.
    Passed,
    /// It is not here, nor further on.
    Absent,
    /// There is a tag that is nearly this one, or one beside an empty cell: it takes a closer look.
    Unsure,
}

/// Three rows.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct Line {
    cells: [AtomicU64; SLOTS],
    lows: [AtomicU64; SLOTS],
    highs: [AtomicU32; SLOTS],
    /// The version, and whether rows that belong here lie further on.
    meta: AtomicU32,
}

impl Line {
    pub(super) fn new() -> Line {
        Line {
            cells: std::array::from_fn(|_| AtomicU64::new(EMPTY)),
            lows: std::array::from_fn(|_| AtomicU64::new(0)),
            highs: std::array::from_fn(|_| AtomicU32::new(0)),
            meta: AtomicU32::new(0),
        }
    }

    /// Looks for a tag, without taking anything. Which of the slots it is in nobody can foresee, so it is reckoned and not tried.
    #[inline(always)]
    pub(super) fn look(&self, tag: Tag) -> Look {
        let seen = self.version();
        let low = |slot: usize| self.lows[slot].load(Ordering::Relaxed);
        let slot = select_unpredictable(low(2) == tag.low, 2, usize::from(low(1) == tag.low));
        if low(slot) != tag.low {
            return if seen & PASSED == 0 { Look::Absent } else { Look::Passed };
        }
        let word = self.cells[slot].load(Ordering::Acquire);
        if self.high(slot) == tag.high && word != EMPTY {
            return Look::Found { slot, word, seen };
        }
        Look::Unsure
    }

    /// Asks for the line, and does not wait for it where processors have a word for that. Elsewhere it is looked at.
    #[inline(always)]
    pub(super) fn fetch(&self) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        safe_arch::prefetch_t0(self);
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        std::hint::black_box(self.version());
    }

    /// The version, for whoever will look.
    #[inline(always)]
    pub(super) fn version(&self) -> u32 {
        self.meta.load(Ordering::Acquire)
    }

    /// Looks for a tag until it is sure.
    #[inline(always)]
    pub(super) fn look_closely(&self, tag: Tag) -> Look {
        match self.look(tag) {
            Look::Unsure => self.look_since(tag, self.version()),
            look => look,
        }
    }

    /// The same, slot by slot, by somebody who has seen this version.
    #[inline(always)]
    pub(super) fn look_since(&self, tag: Tag, seen: u32) -> Look {
        for slot in 0..SLOTS {
            if self.lows[slot].load(Ordering::Relaxed) == tag.low && self.high(slot) == tag.high {
                let word = self.cells[slot].load(Ordering::Acquire);
                if word != EMPTY {
                    return Look::Found { slot, word, seen };
                }
            }
        }
        if seen & PASSED == 0 { Look::Absent } else { Look::Passed }
    }

    /// Whether every tag is still what it was when the line was looked at.
    #[inline(always)]
    pub(super) fn unchanged(&self, seen: u32) -> bool {
        // Orders the loads of tag and cell before this one.
        fence(Ordering::Acquire);
        self.meta.load(Ordering::Relaxed) == seen
    }

    #[inline(always)]
    fn high(&self, slot: usize) -> u32 {
        self.highs[slot].load(Ordering::Relaxed)
    }

    /// The tag in a slot; it means something while the cell is held, or the leaf is owned.
    #[inline(always)]
    pub(super) fn tag(&self, slot: usize) -> Tag {
        Tag { low: self.lows[slot].load(Ordering::Relaxed), high: self.high(slot) }
    }

    /// The cell in a slot.
    #[inline(always)]
    pub(super) fn cell(&self, slot: usize) -> &AtomicU64 {
        &self.cells[slot]
    }

    /// Whether rows that belong here lie further on.
    pub(super) fn set_passed(&self, passed: bool) {
        let meta = self.meta.load(Ordering::Relaxed);
        let meta = if passed { meta | PASSED } else { meta & !PASSED };
        // Whoever sees a version from here sees its tags, as if from where it was made.
        self.meta.store(meta, Ordering::Release);
    }

    /// Puts a row into a slot whose cell is empty or held by the caller, who owns the leaf.
    pub(super) fn place(&self, slot: usize, tag: Tag, cell: u64) {
        let meta = self.meta.load(Ordering::Relaxed).wrapping_add(ONE_VERSION);
        // Whoever sees the new version sees that the former row is gone.
        self.meta.store(meta, Ordering::Release);
        // Whoever sees a new tag sees the new version too.
        fence(Ordering::Release);
        self.lows[slot].store(tag.low, Ordering::Relaxed);
        self.highs[slot].store(tag.high, Ordering::Relaxed);
        let meta = meta.wrapping_add(ONE_VERSION);
        // Whoever saw the version before this one may have seen the former tag; with the new cell they see this version.
        self.meta.store(meta, Ordering::Release);
        self.cells[slot].store(cell, Ordering::Release);
    }
}

/// Takes a cell that still says `seen`.
#[inline(always)]
pub(super) fn take(cell: &AtomicU64, seen: u64) -> bool {
    cell.compare_exchange(seen, seen | HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Gives a cell back with what it says from now on.
#[inline(always)]
pub(super) fn give_back(cell: &AtomicU64, next: u64) {
    cell.store(next, Ordering::Release);
}

/// Takes a cell whatever it says, waiting for whoever holds it. Returns what it said.
pub(super) fn take_any(cell: &AtomicU64) -> u64 {
    let mut turn = 0;
    loop {
        let seen = cell.load(Ordering::Relaxed);
        if seen & HELD == 0 && take(cell, seen) {
            return seen;
        }
        super::sync::pause(&mut turn);
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use tidegate_testkit::test_scale::cases;

    use super::*;

    /// Few tags, so that they come twice, and are nearly the same.
    fn tag() -> impl Strategy<Value = Tag> {
        (0..3_u64, 0..2_u32).prop_map(|(low, high)| Tag { low, high })
    }

    proptest! {
        #![proptest_config(cases(2_000))]

        /// Rows that come and go, and tags that stay behind beside empty cells.
        #[test]
        fn parallel_tag_match_equals_slot_by_slot_match(
            rows in vec((0..SLOTS, tag(), 0..3_u64), 0..12),
            passed: bool,
            sought in tag(),
        ) {
            let line = Line::new();
            line.set_passed(passed);
            for (slot, tag, cell) in rows {
                line.place(slot, tag, cell);
            }
            let (reckoned, found) = (line.look_closely(sought), line.look_since(sought, line.version()));
            // Which of two that are alike is nobody's concern; there are no two with the leaf's lock.
            match (reckoned, found) {
                (Look::Found { slot, word, seen }, Look::Found { seen: other, .. }) => {
                    prop_assert_eq!((line.tag(slot), seen), (sought, other));
                    prop_assert_eq!(word, line.cell(slot).load(Ordering::Relaxed));
                    prop_assert!(word != EMPTY);
                }
                (Look::Passed, Look::Passed) | (Look::Absent, Look::Absent) => {}
                (reckoned, found) => prop_assert!(false, "{reckoned:?}, not {found:?}"),
            }
        }
    }
}
