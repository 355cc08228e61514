//! Placement of a row in a leaf: in its primary line, in its alternate line, or in one of the next lines.

use super::super::line::{self, Line, RowWords, Tag};
use super::eviction::Eviction;
use super::{LeafContext, LockedLeaf};

impl LockedLeaf<'_> {
    /// Puts a row into a free slot of its primary line, if there is one.
    pub(super) fn place_at_home(&mut self, tag: Tag, words: &RowWords) -> bool {
        let home = self.leaf.within_reach(tag).next();
        home.is_some_and(|line| self.place_in(line, tag, words))
    }

    /// Puts a row into a line that has a free slot.
    fn place_in(&self, line: &Line, tag: Tag, words: &RowWords) -> bool {
        let shape = self.state.shape;
        let free = line.free_slot(shape);
        free.inspect(|slot| {
            let seen = line::lock(line.control());
            line.place(shape, *slot, tag, words);
            line::unlock(line.control(), seen);
        })
        .is_some()
    }

    /// Puts a row that found no free slot in its primary line into its alternate line, into the slot of a row that moves to
    /// its own alternate line, or further on.
    pub(super) fn place_late(&mut self, tag: Tag, words: &RowWords) -> bool {
        let (leaf, shape) = (self.leaf, self.state.shape);
        let has_slot = leaf.within_reach(tag).take(2).any(|line| line.free_slot(shape).is_some());
        !has_slot && self.make_way(tag, words) || self.place(tag, words, None)
    }

    /// Puts a row into one of its two lines, both of which are full: a row there moves to the other of its own two lines.
    /// Returns whether there was such a row. Only while rows move.
    fn make_way(&mut self, tag: Tag, words: &RowWords) -> bool {
        let (leaf, shape, lines) = (self.leaf, self.state.shape, self.leaf.lines());
        let ours = leaf.homes(tag, lines);
        for index in [ours.first, ours.other] {
            let Some(line) = leaf.line(index) else { return false };
            for slot in 0..shape.rows() {
                let moved = line.tag(shape, slot);
                let theirs = leaf.homes(moved, lines);
                let target = if index == theirs.first { theirs.other } else { theirs.first };
                let is_home = index == theirs.first || index == theirs.other;
                let Some(target) =
                    leaf.line(target).filter(|line| is_home && line.free_slot(shape).is_some())
                else {
                    continue;
                };
                // A decision may hold the line. It never waits for another line, so this wait ends.
                let seen = line::lock(line.control());
                let moved_words = line.read(shape, slot);
                self.place_in(target, moved, &moved_words);
                line.place(shape, slot, tag, words);
                line::unlock(line.control(), seen);
                if index == theirs.first {
                    line.set_passed();
                }
                if index == ours.other
                    && let Some(first) = leaf.line(ours.first)
                {
                    first.set_passed();
                }
                return true;
            }
        }
        false
    }

    /// Puts a row into the first free slot within its reach. With a context an evictable row gives up its slot.
    pub(super) fn place(&mut self, tag: Tag, words: &RowWords, evict: Option<LeafContext<'_>>) -> bool {
        let leaf = self.leaf;
        for (passed, line) in leaf.within_reach(tag).enumerate() {
            if self.has_free_slot(line, evict) {
                // A line that turns a row away marks it before the row is elsewhere.
                leaf.within_reach(tag).take(passed).for_each(Line::set_passed);
                return self.place_in(line, tag, words);
            }
        }
        false
    }

    /// Whether a line has a free slot, perhaps after an eviction.
    fn has_free_slot(&mut self, line: &Line, evict: Option<LeafContext<'_>>) -> bool {
        let shape = self.state.shape;
        if line.free_slot(shape).is_some() {
            return true;
        }
        let Some(context) = evict.filter(|context| self.state.evictable_from <= context.now) else {
            return false;
        };
        let items = context.epoch.items_at(context.now);
        (0..shape.rows()).any(|slot| self.evict_if_fresh(line, slot, context, &items) == Eviction::Evicted)
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::btree_set;
    use proptest::prelude::*;
    use tidegate_testkit::test_scale::cases;

    use super::super::super::line::Shape;
    use super::super::{Leaf, PAGE_BITS, RowPlace};
    use super::*;

    /// A tag of this primary line of a leaf of one page, and of the alternate line that these bits name.
    fn tag(line: u64, within: u64, number: u64) -> Tag {
        let bits = (line << PAGE_BITS | within) << PAGE_BITS | number;
        Tag { low: bits << (u64::BITS - 3 * PAGE_BITS), high: 7 }
    }

    /// Tags of eight lines, which have room for 24 narrow rows.
    fn tags(most: usize) -> impl Strategy<Value = BTreeSet<Tag>> {
        btree_set(
            (0..8_u64, 0..8_u64, 0..4_u64).prop_map(|(line, within, number)| tag(line, within, number)),
            0..most,
        )
    }

    fn leaf_of_one_page(shape: Shape) -> Leaf {
        let leaf = Leaf::new(0, 1, shape);
        leaf.lock().add_pages(1);
        leaf
    }

    /// The words of the row with this number.
    fn words(number: usize, shape: Shape) -> RowWords {
        let mut words = RowWords::default();
        words[..shape.words()].fill(1 + number as u64);
        words
    }

    fn fill(locked: &mut LockedLeaf<'_>, tags: &BTreeSet<Tag>, shape: Shape) {
        let rows = tags.iter().enumerate().map(|(number, tag)| (*tag, words(number, shape)));
        let late: Vec<_> = rows.filter(|(tag, words)| !locked.place_at_home(*tag, words)).collect();
        for (tag, words) in late {
            assert!(locked.place_late(tag, &words));
        }
    }

    fn shape() -> impl Strategy<Value = Shape> {
        prop_oneof![Just(Shape::Narrow), Just(Shape::Pair), Just(Shape::Wide)]
    }

    fn found(place: Option<RowPlace<'_>>, shape: Shape) -> Option<RowWords> {
        place.map(|place| place.line.read(shape, place.slot))
    }

    proptest! {
        #![proptest_config(cases(2_000))]

        /// However many rows belong near each other, each is found, once, and no other tag is.
        #[test]
        fn displaced_row_is_found(tags in tags(40), others in tags(8), shape in shape()) {
            let leaf = leaf_of_one_page(shape);
            let mut locked = leaf.lock();
            fill(&mut locked, &tags, shape);
            for (number, tag) in tags.iter().enumerate() {
                prop_assert_eq!(found(leaf.find(shape, *tag), shape), Some(words(number, shape)), "{:?}", tag);
                let lines = leaf.home_lines_below(tag.low).expect("a page");
                let place = match shape {
                    Shape::Narrow => lines.find::<3>(*tag),
                    Shape::Pair => lines.find::<2>(*tag),
                    Shape::Wide => lines.find::<1>(*tag),
                };
                prop_assert_eq!(found(place, shape), Some(words(number, shape)), "{:?}", tag);
            }
            for other in others.difference(&tags) {
                prop_assert!(leaf.find(shape, *other).is_none());
            }
            let mut rows = 0;
            locked.each_row(|_, _| rows += 1);
            prop_assert_eq!(rows, tags.len());
        }

        /// What is drained is what was placed.
        #[test]
        fn drained_rows_equal_placed_rows(tags in tags(30), shape in shape()) {
            let leaf = leaf_of_one_page(shape);
            let mut locked = leaf.lock();
            fill(&mut locked, &tags, shape);
            let mut drained = locked.drain();
            drained.sort_unstable();
            let placed: Vec<_> = tags.iter().enumerate().map(|(number, tag)| (*tag, words(number, shape))).collect();
            prop_assert_eq!(drained, placed);
            locked.each_row(|tag, _| panic!("{tag:?} is still there"));
        }
    }
}
