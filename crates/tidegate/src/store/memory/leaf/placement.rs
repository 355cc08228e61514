//! Placement of a row in a leaf: in its primary line, in its alternate line, or in one of the next lines.

use super::super::cache_line::{self, EMPTY, HELD, Line, SLOTS, Tag};
use super::super::sync::Ordering;
use super::{Means, Owned};

impl Owned<'_> {
    /// Puts a row into an empty place in the line it belongs into, if there is one.
    pub(super) fn place_at_home(&mut self, tag: Tag, word: u64) -> bool {
        let line = self.leaf.within_reach(tag).next();
        let free = line.and_then(|line| Some((line, free_slot(line)?)));
        free.inspect(|(line, slot)| line.place(*slot, tag, word)).is_some()
    }

    /// Puts a row that found no place in the line it belongs into: in the other one, in the place of somebody who makes way, or further on.
    pub(super) fn place_late(&mut self, tag: Tag, word: u64) -> bool {
        let leaf = self.leaf;
        let is_free = |line: &Line| free_slot(line).is_some();
        let has_place = leaf.within_reach(tag).take(2).any(is_free);
        !has_place && self.make_way(tag, word) || self.place(tag, word, None)
    }

    /// Puts a row into one of the lines it belongs into whose places are all taken: somebody there has a place in the other line they belong into, and
    /// goes there. Whether there was one. Only while rows move.
    fn make_way(&mut self, tag: Tag, word: u64) -> bool {
        let (leaf, lines) = (self.leaf, self.leaf.lines());
        let ours = leaf.homes(tag, lines);
        for index in [ours.first, ours.other] {
            let Some(line) = leaf.line(index) else { return false };
            for slot in 0..SLOTS {
                let moved = line.tag(slot);
                let theirs = leaf.homes(moved, lines);
                let elsewhere = if index == theirs.first { theirs.other } else { theirs.first };
                let there = leaf.line(elsewhere).filter(|_| index == theirs.first || index == theirs.other);
                let Some((there, free)) = there.and_then(|there| Some((there, free_slot(there)?))) else {
                    continue;
                };
                // Somebody may be deciding on it; from here on it is found there only.
                let cell = cache_line::take_any(line.cell(slot));
                there.place(free, moved, cell);
                if index == theirs.first {
                    line.set_passed(true);
                }
                if index == ours.other
                    && let Some(first) = leaf.line(ours.first)
                {
                    first.set_passed(true);
                }
                line.place(slot, tag, word);
                return true;
            }
        }
        false
    }

    /// Puts a row into the first place for it, an empty one or, if that may be, a fresh row's.
    pub(super) fn place(&mut self, tag: Tag, word: u64, over_fresh: Option<Means<'_>>) -> bool {
        let leaf = self.leaf;
        for (passed, line) in leaf.within_reach(tag).enumerate() {
            if let Some(slot) = (0..SLOTS).find(|&slot| self.clears(line, slot, over_fresh)) {
                // A row that found no place sends nobody on.
                leaf.within_reach(tag).take(passed).for_each(|line| line.set_passed(true));
                line.place(slot, tag, word);
                return true;
            }
        }
        false
    }

    /// Whether a slot is empty, or its row can be forgotten; then it is, and the cell is ours.
    fn clears(&mut self, line: &Line, slot: usize, over_fresh: Option<Means<'_>>) -> bool {
        let cell = line.cell(slot);
        let found = cell.load(Ordering::Relaxed);
        let may_be_fresh = |means: &Means<'_>| found != EMPTY && self.inner.fresh_from <= means.now;
        let Some(means) = over_fresh.filter(may_be_fresh) else { return found == EMPTY };
        // Rows that are being decided on are not fresh for long.
        if found & HELD != 0 || !self.is_fresh(line.tag(slot), found, means) || !cache_line::take(cell, found)
        {
            return false;
        }
        self.inner.forget(found, means.budget);
        true
    }
}

/// The first empty place of a line.
fn free_slot(line: &Line) -> Option<usize> {
    (0..SLOTS).find(|&slot| line.cell(slot).load(Ordering::Relaxed) == EMPTY)
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::btree_set;
    use proptest::prelude::*;
    use tidegate_testkit::test_scale::cases;

    use super::super::super::cache_line::PRESENT;
    use super::super::{Leaf, PAGE_BITS, PAGE_LINES, Spot};
    use super::*;

    /// A tag that belongs into this line of a leaf of one page, or into the other that these bits say.
    fn tag(line: u64, within: u64, number: u64) -> Tag {
        let bits = (line << PAGE_BITS | within) << PAGE_BITS | number;
        Tag { low: bits << (u64::BITS - 3 * PAGE_BITS), high: 7 }
    }

    /// Tags that belong into eight lines, which have room for 24.
    fn tags(most: usize) -> impl Strategy<Value = BTreeSet<Tag>> {
        btree_set(
            (0..8_u64, 0..8_u64, 0..4_u64).prop_map(|(line, within, number)| tag(line, within, number)),
            0..most,
        )
    }

    fn leaf_of_a_page() -> Leaf {
        let leaf = Leaf::new(0, 1);
        leaf.own().add_pages(1);
        leaf
    }

    /// What the row of each number says.
    fn word(number: usize) -> u64 {
        PRESENT | number as u64
    }

    fn fill(owned: &mut Owned<'_>, tags: &BTreeSet<Tag>) {
        let rows = tags.iter().enumerate().map(|(number, tag)| (*tag, word(number)));
        let late: Vec<_> = rows.filter(|(tag, word)| !owned.place_at_home(*tag, *word)).collect();
        for (tag, word) in late {
            assert!(owned.place_late(tag, word));
        }
    }

    fn found(spot: Option<Spot<'_>>) -> Option<u64> {
        spot.map(|spot| spot.word)
    }

    proptest! {
        #![proptest_config(cases(2_000))]

        /// However many belong near each other, and whoever made way for whom: each is found where it is sought, once, and nobody else is.
        #[test]
        fn displaced_row_is_found(tags in tags(40), others in tags(8)) {
            let leaf = leaf_of_a_page();
            let mut owned = leaf.own();
            fill(&mut owned, &tags);
            for (number, tag) in tags.iter().enumerate() {
                prop_assert_eq!(found(leaf.find(*tag)), Some(word(number)), "{:?}", tag);
            }
            for other in others.difference(&tags) {
                prop_assert_eq!(found(leaf.find(*other)), None);
            }
            let mut rows = 0;
            leaf.each_cell(|_, cell| rows += usize::from(cell.load(Ordering::Relaxed) != EMPTY));
            prop_assert_eq!(rows, tags.len());
        }
    }

    /// Three who belong into lines 0 and 1, three into 1 and 0, one of whom could lie in line 2: whoever comes next lies in line 0 all the same.
    #[test]
    fn displacement_precedes_overflow() {
        let leaf = leaf_of_a_page();
        let mut owned = leaf.own();
        let near = (0..3).map(|number| tag(0, 0, number)).chain((0..2).map(|number| tag(1, 0, number)));
        let tags: Vec<Tag> = near.chain([tag(1, 3, 0), tag(0, 0, 3)]).collect();
        for (number, tag) in tags.iter().enumerate() {
            assert!(owned.place_at_home(*tag, word(number)) || owned.place_late(*tag, word(number)));
        }
        let rows_in = |index: usize| {
            let line = leaf.line(index).expect("it is there");
            (0..SLOTS).filter(|slot| line.cell(*slot).load(Ordering::Relaxed) != EMPTY).count()
        };
        let counts: Vec<usize> = (0..PAGE_LINES).map(rows_in).collect();
        assert_eq!(counts[..4], [3, 3, 1, 0]);
        assert_eq!(counts.iter().sum::<usize>(), tags.len());
        assert!(tags.iter().all(|tag| leaf.find(*tag).is_some()));
    }
}
