//! Preallocation of a leaf for restored rows.
//!
//! A snapshot stores rows in the order of their places, which is the order of their tags. Inserted one by one into an
//! empty leaf, they would all belong to its first lines, however much it grows. Therefore a snapshot records the size of
//! each leaf, and a restore creates the leaf first.

use std::sync::Arc;

use super::{
    BRANCH_BYTES, Budget, FAN_BITS, FULL_ENOUGH, Leaf, LockedLeaf, MOST_PAGES, Ordering, PAGE_BYTES,
    PAGE_LINES, Tag,
};

/// The size of a leaf. It is a hint: a store with another layout uses what it can.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spread {
    /// The larger part of the tag of one of its rows.
    pub low: u64,
    /// The number of leading bits that the tags of its rows share.
    pub bits: u32,
    /// The number of pages of 64 lines that the rows need.
    pub pages: usize,
}

impl Leaf {
    /// The size of this leaf with so many rows, one of which has this tag.
    pub(in crate::store::memory) fn spread(&self, tag: Tag, rows: usize) -> Spread {
        let pages = usize::try_from(self.pages_used.load(Ordering::Relaxed)).expect("few");
        let slots = PAGE_LINES * self.lock().shape().rows();
        let needed = (rows * 100).div_ceil(slots * FULL_ENOUGH);
        Spread { low: tag.low, bits: self.used_bits, pages: needed.min(pages) }
    }

    /// Creates the leaf of this size below this one. If there are rows already, or the budget does not allow it, nothing
    /// changes, and rows are placed one by one.
    pub(in crate::store::memory) fn make_ready(&self, spread: Spread, budget: &Budget) {
        let mut leaf = self;
        while leaf.used_bits < spread.bits && leaf.used_bits + FAN_BITS < u64::BITS {
            if !leaf.lock().is_split(budget) {
                return;
            }
            leaf = &leaf.children()[leaf.child(Tag { low: spread.low, high: 0 })];
        }
        let mut locked = leaf.lock();
        let pages = spread.pages.min(MOST_PAGES);
        if locked.is_untouched() && budget.take(pages * PAGE_BYTES) {
            locked.add_pages(pages);
        }
    }
}

impl LockedLeaf<'_> {
    /// Whether the leaf never had a row.
    fn is_untouched(&self) -> bool {
        !self.leaf.is_branch() && self.pages() == 0
    }

    /// Whether the leaf is a branch now.
    fn is_split(&mut self, budget: &Budget) -> bool {
        let leaf = self.leaf;
        if self.is_untouched() && budget.take(BRANCH_BYTES) {
            let epoch = leaf.header.epoch();
            let child = |_| Leaf::new(leaf.used_bits + FAN_BITS, epoch, self.state.shape);
            let children = Arc::new(std::array::from_fn(child));
            leaf.header.lift();
            leaf.branch.get_or_init(|| children);
        }
        leaf.is_branch()
    }
}
