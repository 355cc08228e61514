//! Rebuild of a leaf: pages are added, and rows are placed again or moved to the next level. It runs under the leaf's lock
//! with concurrent readers.

use std::cell::Cell;
use std::sync::Arc;

use super::super::line::{self, Line, NO_TAG, PASSED, RowWords, Tag};
use super::{
    BRANCH_BYTES, Branch, Budget, FAN, FAN_BITS, FULL_ENOUGH, Leaf, LockedLeaf, MOST_PAGES, Ordering,
    PAGE_BYTES, Page,
};

/// Rows without a place.
type DrainedRows = Vec<(Tag, RowWords)>;

thread_local! {
    /// The memory for drained rows, kept for the next rebuild.
    static SCRATCH: Cell<DrainedRows> = const { Cell::new(Vec::new()) };
}

/// Keeps the memory of drained rows, unless more of it is kept already.
fn keep_scratch(rows: DrainedRows) {
    let other = SCRATCH.take();
    SCRATCH.set(if other.capacity() > rows.capacity() { other } else { rows });
}

/// The result of a rebuild.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Rebuilt {
    HasRoom,
    /// The rows have moved to the next level.
    Split,
    /// The budget does not allow it.
    Unchanged,
}

/// How a rebuild makes room.
enum Step {
    /// It places the rows again.
    Same,
    /// It adds pages.
    Grow { pages: usize },
    /// It moves the rows to the next level.
    Split,
}

impl LockedLeaf<'_> {
    /// Makes room: among the lines there are, if they are not too full, or with more pages or leaves if it `grows`.
    pub(super) fn rebuild(&mut self, grows: bool, budget: &Budget) -> Rebuilt {
        let Some(step) = self.pay_for(grows, budget) else { return Rebuilt::Unchanged };
        self.leaf.turn_moves();
        let rows = self.drain();
        let rebuilt = match step {
            Step::Same => self.refill(rows, budget),
            Step::Grow { pages } => {
                self.add_pages(pages);
                self.refill(rows, budget)
            }
            Step::Split => self.scatter(rows, budget),
        };
        self.leaf.turn_moves();
        rebuilt
    }

    /// How room will be made, once it is paid for. `None` if the budget does not allow it.
    fn pay_for(&self, grows: bool, budget: &Budget) -> Option<Step> {
        let slots = self.leaf.lines() * self.state.shape.rows();
        if !grows && slots > 0 && self.state.rows * 100 <= slots * FULL_ENOUGH {
            return Some(Step::Same);
        }
        let pages = self.pages();
        if pages == MOST_PAGES {
            // New leaves cost their own size. The pages stay.
            return budget.take(BRANCH_BYTES).then_some(Step::Split);
        }
        let more = (pages / 8).clamp(1, MOST_PAGES - pages);
        budget.take(more * PAGE_BYTES).then_some(Step::Grow { pages: more })
    }

    pub(super) fn pages(&self) -> usize {
        usize::try_from(self.leaf.pages_used.load(Ordering::Relaxed)).expect("few")
    }

    pub(super) fn add_pages(&mut self, more: usize) {
        let pages = self.pages();
        for page in &self.leaf.pages[pages..pages + more] {
            page.get_or_init(|| Arc::new(Page(std::array::from_fn(|_| Line::new()))));
        }
        self.leaf.pages_used.store((pages + more) as u64, Ordering::Release);
    }

    /// Takes every row out of its line.
    pub(super) fn drain(&mut self) -> DrainedRows {
        let shape = self.state.shape;
        let mut rows = SCRATCH.take();
        rows.clear();
        rows.reserve(self.state.rows);
        for line in self.leaf.each_line() {
            let seen = line::lock(line.control());
            for slot in 0..shape.rows() {
                let tag = line.tag(shape, slot);
                if tag != NO_TAG {
                    rows.push((tag, line.read(shape, slot)));
                }
            }
            line.clear();
            line::unlock(line.control(), seen & !PASSED);
        }
        rows
    }

    /// Places drained rows. If one finds no place, pages are added even above the budget: no row is lost for lack of room.
    pub(super) fn refill(&mut self, mut rows: DrainedRows, budget: &Budget) -> Rebuilt {
        if self.pages() == 0 && !rows.is_empty() {
            budget.take_anyway(PAGE_BYTES);
            self.add_pages(1);
        }
        loop {
            // First the rows that fit their primary line, so that no other row takes their slot.
            rows.retain(|(tag, words)| !self.place_at_home(*tag, words));
            let Some(stuck) = rows.iter().position(|(tag, words)| !self.place_late(*tag, words)) else {
                keep_scratch(rows);
                return Rebuilt::HasRoom;
            };
            let rest = rows.split_off(stuck);
            rows = self.drain();
            rows.extend(rest);
            if self.pages() == MOST_PAGES {
                budget.take_anyway(BRANCH_BYTES);
                return self.scatter(rows, budget);
            }
            budget.take_anyway(PAGE_BYTES);
            self.add_pages(1);
        }
    }

    /// Moves drained rows and all pages to the next level.
    fn scatter(&mut self, rows: DrainedRows, budget: &Budget) -> Rebuilt {
        let (leaf, pages) = (self.leaf, self.pages());
        let epoch = leaf.header.epoch();
        // The lines will belong to other leaves: a reader that still finds a row through this leaf must not trust its epoch.
        leaf.header.lift();
        leaf.pages_used.store(0, Ordering::Release);
        let child = |_| Leaf::new(leaf.used_bits + FAN_BITS, epoch, self.state.shape);
        let children: Branch = Arc::new(std::array::from_fn(child));
        children.iter().for_each(|child| child.header.raise(leaf.header.floor()));
        let each = pages / FAN;
        for (child, pages) in children.iter().zip(leaf.pages.chunks(each)) {
            for (own, page) in child.pages.iter().zip(pages) {
                let page = page.get().expect("pages in use exist");
                own.get_or_init(|| Arc::clone(page));
            }
            child.pages_used.store(each as u64, Ordering::Release);
        }
        let mut locked: Vec<LockedLeaf<'_>> = children.iter().map(Leaf::lock).collect();
        let mut late: [DrainedRows; FAN] = [const { Vec::new() }; FAN];
        for &(tag, words) in &rows {
            let index = leaf.child(tag);
            let child = &mut locked[index];
            child.state.rows += 1;
            if !child.place_at_home(tag, &words) {
                late[index].push((tag, words));
            }
        }
        keep_scratch(rows);
        for (child, late) in locked.iter_mut().zip(late) {
            child.state.evictable_from = self.state.evictable_from;
            child.refill(late, budget);
        }
        drop(locked);
        self.state.rows = 0;
        leaf.branch.get_or_init(|| children);
        Rebuilt::Split
    }
}
