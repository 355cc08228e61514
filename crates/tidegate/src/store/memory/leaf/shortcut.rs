//! Lookup of a leaf in one step instead of one step per level.
//!
//! A leaf that became a branch stays a branch. Once all leaves of the first levels are branches, the leaves below them are
//! listed, and the list stays valid. Deeper levels are descended one by one.

#![expect(clippy::inline_always, reason = "these functions are parts of a decision of 20 ns")]

use std::sync::Arc;

use super::super::line::Tag;
use super::{Branch, FAN_BITS, Leaf, first_bits};

/// The number of levels that a lookup skips.
const LEVELS: u32 = 3;
/// The bits of a tag that select a branch of the list. The next ones select a leaf of the branch.
const BITS: u32 = (LEVELS - 1) * FAN_BITS;

/// The leaves below the first levels.
pub(in super::super) struct Shortcut(Box<[Branch; 1 << BITS]>);

impl Shortcut {
    /// Its memory.
    pub(in super::super) const BYTES: usize = size_of::<[Branch; 1 << BITS]>();

    /// The shortcut of a table, if it has grown that far.
    pub(in super::super) fn of(root: &Leaf) -> Option<Shortcut> {
        // In a table that is restored in the order of its tags this leaf is the last one.
        let last = Tag { low: u64::MAX, high: 0 };
        if !Shortcut::reaches(root.descend(last)) {
            return None;
        }
        let mut branches = vec![root.branch.get()?];
        for _ in 1..LEVELS {
            let below: Option<Vec<&Branch>> =
                branches.iter().flat_map(|branch| branch.iter()).map(|leaf| leaf.branch.get()).collect();
            branches = below?;
        }
        let branches: Vec<Branch> = branches.into_iter().map(Arc::clone).collect();
        Some(Shortcut(branches.try_into().ok()?))
    }

    /// Whether a leaf is on or below the listed level.
    pub(in super::super) fn reaches(leaf: &Leaf) -> bool {
        leaf.used_bits >= LEVELS * FAN_BITS
    }

    /// The listed leaf of a tag, and the bits of the tag that are left.
    #[inline(always)]
    pub(in super::super) fn leaf(&self, low: u64) -> (&Leaf, u64) {
        let branch = &self.0[first_of(low)];
        (&branch[first_bits(low << BITS)], low << (LEVELS * FAN_BITS))
    }
}

/// The branch of a tag.
#[inline(always)]
fn first_of(bits: u64) -> usize {
    usize::try_from(bits >> (u64::BITS - BITS)).expect("a few bits")
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::collections::HashSet;

    use super::super::Spread;
    use super::*;
    use crate::store::memory::memory_budget::Budget;

    #[test]
    fn shortcut_leads_to_same_leaf_as_levels() {
        let (root, budget) =
            (Leaf::new(0, 1, super::super::super::line::Shape::Narrow), Budget::new(1 << 30));
        let bits = LEVELS * FAN_BITS;
        let mut branches = HashSet::new();
        for leaf in 0..1_u64 << bits {
            // In an order in which the last leaf comes early.
            let low = (leaf.wrapping_mul(0x55) & ((1 << bits) - 1)) ^ ((1 << bits) - 1);
            root.make_ready(Spread { low: low << (u64::BITS - bits), bits, pages: 1 }, &budget);
            branches.insert(low >> FAN_BITS);
            assert_eq!(Shortcut::of(&root).is_some(), branches.len() == 1 << BITS, "after leaf {leaf}");
        }
        let shortcut = Shortcut::of(&root).expect("all are there");
        for step in 0..10_000_u64 {
            let tag = Tag { low: step.wrapping_mul(0x9e37_79b9_7f4a_7c15), high: 0 };
            let (leaf, left) = shortcut.leaf(tag.low);
            assert!(std::ptr::eq(leaf, root.descend(tag)), "{tag:?}");
            assert!(Shortcut::reaches(leaf));
            assert_eq!(left, tag.low << bits);
        }
    }
}
