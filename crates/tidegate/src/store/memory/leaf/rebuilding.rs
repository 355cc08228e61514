//! Rebuilding: fresh rows forgotten, pages added, rows placed anew or handed a level down. All of it under the leaf's lock, while
//! others go on looking.

use std::cell::Cell;
use std::sync::Arc;

use tidegate_core::Per;

use super::{
    Budget, EMPTY, FAN, FAN_BITS, FULL_ENOUGH, Inner, Leaf, Line, MOST_PAGES, Means, NEVER, Ordering, Owned,
    PAGE_BYTES, Page, Rebuilt, Room, SLOTS, Shelf, Tag, WIDE, line,
};

thread_local! {
    /// Where rows are while a leaf is rebuilt, kept for the next time.
    static SCRATCH: Cell<Vec<(Tag, u64)>> = const { Cell::new(Vec::new()) };
}

/// How room is made.
enum Step {
    /// By placing the rows better.
    Anew,
    /// By more pages.
    Grow { pages: usize },
    /// By handing them a level down.
    Split,
}

impl Owned<'_> {
    /// Makes room: by placing the rows better, by more pages, or a level further down.
    pub(super) fn rebuild(&mut self, room: Room, means: Means<'_>) -> Rebuilt {
        let Some(step) = self.pay_for(room, means.budget) else { return Rebuilt::AsItWas };
        self.leaf.turn_moves();
        let rows = self.drain();
        let rebuilt = match step {
            Step::Anew => self.arrange(rows, means),
            Step::Grow { pages } => {
                self.add_pages(pages);
                self.arrange(rows, means)
            }
            Step::Split => self.scatter(rows, means),
        };
        self.leaf.turn_moves();
        rebuilt
    }

    /// How room will be made, once it is paid for. `None` if it cannot be; then nothing has moved.
    fn pay_for(&self, room: Room, budget: &Budget) -> Option<Step> {
        let places = self.leaf.lines() * SLOTS;
        if room == Room::Here && places > 0 && self.inner.rows * 100 <= places * FULL_ENOUGH {
            return Some(Step::Anew);
        }
        let pages = self.pages();
        if pages == MOST_PAGES {
            // New leaves cost their own size; the pages are the same.
            return budget.take(FAN * size_of::<Leaf>()).then_some(Step::Split);
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

    /// Forgets every fresh row, and learns when the next will be.
    pub(in crate::store::memory) fn drop_fresh(&mut self, means: Means<'_>) {
        self.inner.turns = 0;
        let mut next = NEVER;
        self.each_row(|inner, tag, word| {
            let freshens = means.edition.freshens(tag, word, &inner.shelf, means.now);
            match freshens {
                Some(at) if at <= means.now => {
                    inner.forget(word, means.budget);
                    EMPTY
                }
                _ => {
                    next = next.min(freshens.unwrap_or(NEVER));
                    word
                }
            }
        });
        self.inner.fresh_from = next;
    }

    /// Holds every row in turn, and leaves in its cell what is said. The caller holds none yet.
    pub(super) fn each_row(&mut self, mut change: impl FnMut(&mut Inner, Tag, u64) -> u64) {
        let leaf = self.leaf;
        for index in 0..leaf.lines() {
            let Some(line) = leaf.line(index) else { continue };
            for slot in 0..SLOTS {
                let cell = line.cell(slot);
                if cell.load(Ordering::Relaxed) != EMPTY {
                    let word = line::take_any(cell);
                    line::give_back(cell, change(&mut self.inner, line.tag(slot), word));
                }
            }
        }
    }

    /// Takes every row out of its line.
    pub(super) fn drain(&mut self) -> Vec<(Tag, u64)> {
        let mut rows = SCRATCH.take();
        rows.clear();
        rows.reserve(self.inner.rows);
        self.each_row(|_, tag, word| {
            rows.push((tag, word));
            EMPTY
        });
        for index in 0..self.leaf.lines() {
            self.leaf.line(index).expect("pages in use exist").set_passed(false);
        }
        rows
    }

    /// Places drained rows. If one finds no place there are more pages, even above the budget: no row is forgotten for want of room.
    pub(super) fn arrange(&mut self, mut rows: Vec<(Tag, u64)>, means: Means<'_>) -> Rebuilt {
        loop {
            let Some(stuck) = rows.iter().position(|&(tag, word)| !self.place(tag, word, None)) else {
                SCRATCH.set(rows);
                return Rebuilt::Roomy;
            };
            let rest = rows.split_off(stuck);
            rows = self.drain();
            rows.extend(rest);
            if self.pages() == MOST_PAGES {
                means.budget.take_anyway(FAN * size_of::<Leaf>());
                return self.scatter(rows, means);
            }
            means.budget.take_anyway(PAGE_BYTES);
            self.add_pages(1);
        }
    }

    /// Hands drained rows and all pages to the level below.
    pub(super) fn scatter(&mut self, rows: Vec<(Tag, u64)>, means: Means<'_>) -> Rebuilt {
        let leaf = self.leaf;
        let edition = leaf.stamp.edition();
        // The lines will be others' lines: whoever still finds a row through this leaf must not believe its edition.
        leaf.stamp.lift();
        leaf.pages_used.store(0, Ordering::Release);
        let children: Box<[Leaf]> = (0..FAN).map(|_| Leaf::new(leaf.used_bits + FAN_BITS, edition)).collect();
        children.iter().for_each(|child| child.stamp.raise(leaf.stamp.floor()));
        let each = MOST_PAGES / FAN;
        for (child, pages) in children.iter().zip(leaf.pages.chunks(each)) {
            for (own, page) in child.pages.iter().zip(pages) {
                let page = page.get().expect("a full leaf has all its pages");
                own.get_or_init(|| Arc::clone(page));
            }
            child.pages_used.store(each as u64, Ordering::Release);
        }
        let mut shares: Vec<Vec<(Tag, u64)>> =
            (0..FAN).map(|_| Vec::with_capacity(rows.len() / FAN * 5 / 4)).collect();
        for (tag, word) in rows {
            shares[leaf.child(tag)].push((tag, word));
        }
        for (child, mut share) in children.iter().zip(shares) {
            let mut child = child.own();
            for (tag, word) in share.iter_mut().filter(|(_, word)| *word & WIDE != 0) {
                let row = means.edition.unpack(Per::Key, *word, &mut self.inner.shelf);
                *word = means.edition.pack(Per::Key, *tag, row, &mut child.inner.shelf);
            }
            child.inner.rows = share.len();
            child.inner.fresh_from = self.inner.fresh_from;
            child.arrange(share, means);
            child.weigh(means.budget);
        }
        self.inner.shelf = Shelf::default();
        self.inner.rows = 0;
        self.weigh(means.budget);
        leaf.branch.get_or_init(|| children);
        Rebuilt::Split
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::time::Duration;

    use tidegate_core::{Intent, ItemSpec, Limit, LimitSpec, Policy, Tick, Timestamp};

    use super::super::super::gallery::Gallery;
    use super::super::super::quick::{self, Plea, Quick};
    use super::super::super::rows::begin;
    use super::super::super::tenant::Tenant;
    use super::*;

    const START: Timestamp = Timestamp::from_ticks(1_000_000_000_000);

    fn tenant(item: ItemSpec) -> Tenant {
        let limit = Limit::new(LimitSpec::named("one").with(item), Tick::NANOSECOND).expect("it makes sense");
        let whole = Arc::new(Budget::new(1 << 20));
        Tenant::new(&Arc::new(limit), 1, 0, [1, 2], &whole, Gallery::new().place(), START)
    }

    fn once_in(seconds: u64) -> ItemSpec {
        ItemSpec::of(Policy::Interval { window: Duration::from_secs(seconds) }, 1)
    }

    /// A row that must wait for an hour is on its way to another line while an order is refused by a row that must wait for a minute. The
    /// order must not be told a minute.
    #[test]
    fn a_row_that_is_missed_is_not_taken_for_blank() {
        let (keyed, shared) = (tenant(once_in(3_600).per_key()), tenant(once_in(60)));
        let tag = Tag { low: 1, high: 1 };
        let of_key = Plea { tenant: &keyed, key: None, tag: Some(tag), count: 1 };
        let of_all = Plea { tenant: &shared, key: None, tag: None, count: 1 };
        assert!(begin(&of_key, tag, START).is_some());
        let decide = |pleas: &[Plea<'_>]| quick::decide(pleas, Intent::Acquire, START, &mut None);
        assert_eq!(decide(&[of_all]), Quick::Granted(START));
        let mut owned = keyed.leaf(tag).expect("there is a row").own();
        owned.leaf.turn_moves();
        assert_eq!(owned.drain().len(), 1);
        assert_eq!(decide(&[of_key, of_all]), Quick::Otherwise);
    }
}
