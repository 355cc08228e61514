//! The primary line of a key and the lookup of its row.

#![expect(clippy::inline_always, reason = "these are parts of the quick way, which is one piece of code")]

use super::super::cache_line::{Line, Look, Tag};
use super::{FAN_BITS, Homes, Leaf, MOST_PAGES, PAGE_LINES, Spot, first_bits, homes};

/// The line that a key belongs into, before anybody has looked there.
#[derive(Clone, Copy)]
pub(in super::super) struct Near<'a> {
    pub(in super::super) leaf: &'a Leaf,
    line: &'a Line,
    /// Where nearly all rows are that found no place there.
    other: &'a Line,
}

/// Where a row is that is not in the line it belongs into.
pub(in super::super) enum Elsewhere {
    /// Perhaps in one of the next lines.
    Further,
    /// It takes a closer look.
    Unsure,
    /// Nowhere.
    Nowhere,
}

impl Leaf {
    /// The line that a tag belongs into; none before the first row.
    #[inline(always)]
    pub(in super::super) fn near(&self, tag: Tag) -> Option<Near<'_>> {
        self.near_at(tag.low.wrapping_shl(self.used_bits))
    }

    /// The same in whichever leaf below this one a tag belongs to of which these bits are left. On the way down they are used up as
    /// leaves use them, so that none of the leaves is asked how many.
    #[inline(always)]
    pub(in super::super) fn near_below(&self, bits: u64) -> Option<Near<'_>> {
        let (mut leaf, mut bits) = (self, bits);
        while let Some(branch) = leaf.branch.get() {
            leaf = &branch[first_bits(bits)];
            bits <<= FAN_BITS;
        }
        leaf.near_at(bits)
    }

    /// The line for a tag of which these bits are left.
    #[inline(always)]
    fn near_at(&self, bits: u64) -> Option<Near<'_>> {
        let lines = self.lines();
        if lines == 0 {
            return None;
        }
        let Homes { first, other } = homes(bits, lines);
        let page = self.pages[first / PAGE_LINES % MOST_PAGES].get()?;
        Some(Near { leaf: self, line: &page.0[first % PAGE_LINES], other: &page.0[other % PAGE_LINES] })
    }
}

impl<'a> Near<'a> {
    /// Asks for both, and does not wait for them.
    #[inline(always)]
    pub(in super::super) fn fetch(&self) {
        self.line.fetch();
        self.other.fetch();
    }

    /// Finds a row without a lock. That it is not found means nothing.
    #[inline(always)]
    pub(in super::super) fn find(&self, tag: Tag) -> Option<Spot<'a>> {
        match self.look(tag) {
            Ok(spot) => Some(spot),
            Err(Elsewhere::Further) => self.leaf.find_further(tag),
            Err(Elsewhere::Unsure) => self.leaf.find_closely(tag),
            Err(Elsewhere::Nowhere) => None,
        }
    }

    /// Finds a row in these two lines only, at a glance.
    #[inline(always)]
    pub(in super::super) fn look(&self, tag: Tag) -> Result<Spot<'a>, Elsewhere> {
        let Near { line, other, .. } = *self;
        match line.look(tag) {
            Look::Found { slot, word, seen } => Ok(Spot { line, cell: line.cell(slot), word, seen }),
            Look::Passed => match other.look(tag) {
                Look::Found { slot, word, seen } => {
                    Ok(Spot { line: other, cell: other.cell(slot), word, seen })
                }
                _ => Err(Elsewhere::Further),
            },
            Look::Absent => Err(Elsewhere::Nowhere),
            Look::Unsure => Err(Elsewhere::Unsure),
        }
    }
}
