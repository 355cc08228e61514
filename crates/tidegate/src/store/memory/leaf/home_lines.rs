//! The primary and the alternate line of a key, and the lookup of its row.

#![expect(clippy::inline_always, reason = "these functions are parts of a decision of 20 ns")]

use super::super::line::{self, Line, Shape, Tag};
use super::{FAN_BITS, Homes, Leaf, MOST_PAGES, PAGE_LINES, RowPlace, first_bits, homes};

/// The lines of a key, not read yet.
#[derive(Clone, Copy)]
pub(in super::super) struct HomeLines<'a> {
    pub(in super::super) leaf: &'a Leaf,
    first: &'a Line,
    other: &'a Line,
}

impl Leaf {
    /// The lines of a tag in the leaf below this one. `bits` are the bits of the tag that the levels above have not used.
    /// `None` before the first row.
    #[inline(always)]
    pub(in super::super) fn home_lines_below(&self, bits: u64) -> Option<HomeLines<'_>> {
        let (mut leaf, mut bits) = (self, bits);
        while let Some(branch) = leaf.branch.get() {
            leaf = &branch[first_bits(bits)];
            bits <<= FAN_BITS;
        }
        let lines = leaf.lines();
        if lines == 0 {
            return None;
        }
        let Homes { first, other } = homes(bits, lines);
        let page = leaf.pages[first / PAGE_LINES % MOST_PAGES].get()?;
        // The pages of models have one line.
        let other = if PAGE_LINES == 1 { leaf.line(other)? } else { &page.0[other % PAGE_LINES] };
        Some(HomeLines { leaf, first: &page.0[first % PAGE_LINES], other })
    }
}

impl<'a> HomeLines<'a> {
    /// Loads both lines into the cache without waiting for them.
    #[inline(always)]
    pub(in super::super) fn prefetch(&self) {
        self.first.prefetch();
        self.other.prefetch();
    }

    /// Finds a row among `R` rows of a line. Without the leaf's lock a miss proves nothing.
    #[inline(always)]
    pub(in super::super) fn find<const R: usize>(&self, tag: Tag) -> Option<RowPlace<'a>> {
        let HomeLines { leaf, first, other } = *self;
        let seen = first.seen();
        if let Some(slot) = first.find::<R>(tag) {
            return Some(RowPlace { line: first, slot, seen });
        }
        if seen & line::PASSED != 0 {
            let seen = other.seen();
            if let Some(slot) = other.find::<R>(tag) {
                return Some(RowPlace { line: other, slot, seen });
            }
            return leaf.find(shape_of::<R>(), tag);
        }
        // Two rows of a line with the same larger part of the tag: the later one hides the earlier one.
        if R > 1 { find_hidden(first, shape_of::<R>(), tag) } else { None }
    }
}

/// The shape with this many rows in a line.
const fn shape_of<const R: usize>() -> Shape {
    match R {
        3 => Shape::Narrow,
        2 => Shape::Pair,
        _ => Shape::Wide,
    }
}

#[cold]
#[inline(never)]
fn find_hidden(line: &Line, shape: Shape, tag: Tag) -> Option<RowPlace<'_>> {
    let seen = line.seen();
    line.find_slot(shape, tag).map(|slot| RowPlace { line, slot, seen })
}
