//! Preallocation of a leaf for restored rows.
//!
//! A snapshot stores rows in the order of their places, which is the order of their tags. Inserted one by one into an
//! empty leaf, they would all fall into its first lines, however much it grows. Therefore a snapshot records the shape of
//! each leaf, and a restore creates the leaf first.

use std::sync::Arc;

use super::{
    BRANCH_BYTES, Budget, FAN_BITS, FULL_ENOUGH, Leaf, MOST_PAGES, Ordering, Owned, PAGE_BYTES, PAGE_LINES,
    SLOTS, Tag,
};

/// How some rows lay together. It is a hint: a store that lays its rows out in another way makes of it what it can.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spread {
    /// The tag of one of them.
    pub low: u64,
    /// How many leading bits of their tags they have in common.
    pub bits: u32,
    /// How many pages of 64 lines they need.
    pub pages: usize,
}

impl Leaf {
    /// How so many rows of this leaf lie, one of which has this tag.
    pub(in crate::store::memory) fn spread(&self, tag: Tag, rows: usize) -> Spread {
        let pages = usize::try_from(self.pages_used.load(Ordering::Relaxed)).expect("few");
        let needed = (rows * 100).div_ceil(PAGE_LINES * SLOTS * FULL_ENOUGH);
        Spread { low: tag.low, bits: self.used_bits, pages: needed.min(pages) }
    }

    /// Makes the leaf that rows lay in, below this one. Where rows are already, or where it cannot be paid for, everything stays as it is, and
    /// rows find their places one by one.
    pub(in crate::store::memory) fn make_ready(&self, spread: Spread, budget: &Budget) {
        let mut leaf = self;
        while leaf.used_bits < spread.bits && leaf.used_bits + FAN_BITS < u64::BITS {
            if !leaf.own().is_split(budget) {
                return;
            }
            leaf = &leaf.children()[leaf.child(Tag { low: spread.low, high: 0 })];
        }
        let mut owned = leaf.own();
        let pages = spread.pages.min(MOST_PAGES);
        if owned.is_untouched() && budget.take(pages * PAGE_BYTES) {
            owned.add_pages(pages);
        }
    }
}

impl Owned<'_> {
    /// Whether nothing was ever here.
    fn is_untouched(&self) -> bool {
        !self.leaf.is_branch() && self.pages() == 0
    }

    /// Whether it is a branch by now.
    fn is_split(&mut self, budget: &Budget) -> bool {
        let leaf = self.leaf;
        if self.is_untouched() && budget.take(BRANCH_BYTES) {
            let edition = leaf.stamp.edition();
            let children = Arc::new(std::array::from_fn(|_| Leaf::new(leaf.used_bits + FAN_BITS, edition)));
            leaf.stamp.lift();
            leaf.branch.get_or_init(|| children);
        }
        leaf.is_branch()
    }
}
