//! Rebuild of a leaf: pages are added, and rows are placed again or moved to the next level. It runs under the leaf's lock
//! with concurrent readers.

use std::cell::Cell;
use std::sync::Arc;

use tidegate_core::Per;

use super::super::LOOK_AHEAD;
use super::{
    BRANCH_BYTES, Branch, Budget, EMPTY, Edition, FAN, FAN_BITS, FULL_ENOUGH, Leaf, Line, MOST_PAGES,
    MOST_WIDE, Means, Ordering, Owned, PAGE_BYTES, Page, Rebuilt, Room, SLOTS, Shelf, Tag, WIDE, cache_line,
};

thread_local! {
    /// Where rows are while a leaf is rebuilt, kept for the next time.
    static SCRATCH: Cell<Vec<(Tag, u64)>> = const { Cell::new(Vec::new()) };
}

/// Keeps room for rows, unless there is more of it already.
fn keep_scratch(rows: Vec<(Tag, u64)>) {
    let other = SCRATCH.take();
    SCRATCH.set(if other.capacity() > rows.capacity() { other } else { rows });
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
        if self.is_largest() {
            // New leaves cost their own size; the pages are the same.
            return budget.take(BRANCH_BYTES).then_some(Step::Split);
        }
        let more = (pages / 8).clamp(1, MOST_PAGES - pages);
        budget.take(more * PAGE_BYTES).then_some(Step::Grow { pages: more })
    }

    /// Whether it has all the pages it may have. Rows at full width take longer to hand down, so it may not have as many of them. The leaves of
    /// the next level get as many pages each.
    fn is_largest(&self) -> bool {
        let pages = self.pages();
        pages == MOST_PAGES || pages > 0 && pages.is_multiple_of(FAN) && self.inner.shelf.rows() > MOST_WIDE
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
    pub(super) fn drain(&mut self) -> Vec<(Tag, u64)> {
        let mut rows = SCRATCH.take();
        rows.clear();
        rows.reserve(self.inner.rows);
        for page in self.leaf.pages_in_use() {
            page.bring_near();
            for line in &page.0 {
                for slot in 0..SLOTS {
                    let cell = line.cell(slot);
                    if cell.load(Ordering::Relaxed) != EMPTY {
                        rows.push((line.tag(slot), cache_line::take_any(cell)));
                        cache_line::give_back(cell, EMPTY);
                    }
                }
                line.set_passed(false);
            }
        }
        rows
    }

    /// Places drained rows. If one finds no place there are more pages, even above the budget: no row is forgotten for want of room.
    pub(super) fn arrange(&mut self, mut rows: Vec<(Tag, u64)>, means: Means<'_>) -> Rebuilt {
        loop {
            // Those first that find a place in the line they belong into, so that nobody who belongs elsewhere takes it from them.
            rows.retain(|&(tag, word)| !self.place_at_home(tag, word));
            let Some(stuck) = rows.iter().position(|&(tag, word)| !self.place_late(tag, word)) else {
                keep_scratch(rows);
                return Rebuilt::Roomy;
            };
            let rest = rows.split_off(stuck);
            rows = self.drain();
            rows.extend(rest);
            if self.is_largest() {
                means.budget.take_anyway(BRANCH_BYTES);
                return self.scatter(rows, means);
            }
            means.budget.take_anyway(PAGE_BYTES);
            self.add_pages(1);
        }
    }

    /// Hands drained rows and all pages to the level below.
    pub(super) fn scatter(&mut self, rows: Vec<(Tag, u64)>, means: Means<'_>) -> Rebuilt {
        let (leaf, pages) = (self.leaf, self.pages());
        let edition = leaf.stamp.edition();
        // The lines will be others' lines: whoever still finds a row through this leaf must not believe its edition.
        leaf.stamp.lift();
        leaf.pages_used.store(0, Ordering::Release);
        let children: Branch =
            Arc::new(std::array::from_fn(|_| Leaf::new(leaf.used_bits + FAN_BITS, edition)));
        children.iter().for_each(|child| child.stamp.raise(leaf.stamp.floor()));
        let each = pages / FAN;
        for (child, pages) in children.iter().zip(leaf.pages.chunks(each)) {
            for (own, page) in child.pages.iter().zip(pages) {
                let page = page.get().expect("pages in use exist");
                own.get_or_init(|| Arc::clone(page));
            }
            child.pages_used.store(each as u64, Ordering::Release);
        }
        let mut owned: Vec<Owned<'_>> = children.iter().map(Leaf::own).collect();
        // Those that find no place where they belong.
        let mut late: [Vec<(Tag, u64)>; FAN] = [const { Vec::new() }; FAN];
        for some in rows.chunks(LOOK_AHEAD) {
            self.inner.shelf.bring_near(some.iter().map(|(_, word)| *word));
            for &(tag, word) in some {
                let index = leaf.child(tag);
                let child = &mut owned[index];
                let word = self.hand_down(tag, word, child, means.edition);
                if !child.place_at_home(tag, word) {
                    late[index].push((tag, word));
                }
            }
        }
        keep_scratch(rows);
        for (child, late) in owned.iter_mut().zip(late) {
            child.inner.fresh_from = self.inner.fresh_from;
            child.arrange(late, means);
            child.weigh(means.budget);
        }
        drop(owned);
        self.inner.shelf = Shelf::default();
        self.inner.rows = 0;
        self.weigh(means.budget);
        leaf.branch.get_or_init(|| children);
        Rebuilt::Split
    }

    /// Gives a row to a leaf of the next level, from shelf to shelf if it is on one. What its cell says from then on.
    fn hand_down(&mut self, tag: Tag, word: u64, child: &mut Owned<'_>, edition: &Edition) -> u64 {
        child.inner.rows += 1;
        if word & WIDE == 0 {
            return word;
        }
        let row = edition.unpack(Per::Key, word, &mut self.inner.shelf);
        edition.pack(Per::Key, tag, row, &mut child.inner.shelf)
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::time::Duration;

    use tidegate_core::{Intent, ItemSpec, Limit, LimitSpec, Policy, Tick, Timestamp};

    use super::super::super::fingerprint::Secret;
    use super::super::super::insert::begin;
    use super::super::super::limit_table::Tenant;
    use super::super::super::lockfree::{self, Plea, Quick};
    use super::super::super::shared_rows::Gallery;
    use super::super::PAGE_LINES;
    use super::*;

    const START: Timestamp = Timestamp::from_ticks(1_000_000_000_000);

    fn tenant(item: ItemSpec) -> Tenant {
        let limit = Limit::new(LimitSpec::named("one").with(item), Tick::NANOSECOND).expect("it makes sense");
        let whole = Arc::new(Budget::new(1 << 20));
        Tenant::new(&Arc::new(limit), 1, 0, Secret::of([1, 2]), &whole, Gallery::new().place(), START)
    }

    fn once_in(seconds: u64) -> ItemSpec {
        ItemSpec::of(Policy::Interval { window: Duration::from_secs(seconds) }, 1)
    }

    /// A row that must wait for an hour is on its way to another line while an order is refused by a row that must wait for a minute. The
    /// order must not be told a minute.
    #[test]
    fn missed_row_is_not_treated_as_blank() {
        let (keyed, shared) = (tenant(once_in(3_600).per_key()), tenant(once_in(60)));
        let tag = Tag { low: 1, high: 1 };
        let of_key = Plea { tenant: &keyed, key: None, tag: Some(tag), count: 1 };
        let of_all = Plea { tenant: &shared, key: None, tag: None, count: 1 };
        assert!(begin(&of_key, tag, START).is_some());
        let decide = |pleas: &[Plea<'_>]| lockfree::decide(pleas, Intent::Acquire, START, &mut None);
        assert_eq!(decide(&[of_all]), Quick::Granted(START));
        let mut owned = keyed.leaf(tag).expect("there is a row").own();
        owned.leaf.turn_moves();
        assert_eq!(owned.drain().len(), 1);
        assert_eq!(decide(&[of_key, of_all]), Quick::Otherwise);
    }

    /// More rows belong to the first leaf of the next level than its pages have room for: they lay among its neighbour's.
    #[test]
    fn overfull_leaf_grows_at_once() {
        const CROWD: u64 = 790;
        const OTHERS: u64 = 4_600;
        let tenant = tenant(once_in(3_600).per_key());
        let eighth = u64::MAX / FAN as u64;
        let crowd = (0..CROWD).map(|number| number * (eighth / CROWD));
        let others = (0..OTHERS).map(|number| eighth + number * ((u64::MAX - eighth) / OTHERS));
        let mut lows: Vec<u64> = crowd.chain(others).collect();
        // From everywhere in turn, as keys come.
        lows.sort_unstable_by_key(|low| low.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let plea = |low: u64| Plea { tenant: &tenant, key: None, tag: Some(Tag { low, high: 7 }), count: 1 };
        for low in &lows {
            assert!(begin(&plea(*low), Tag { low: *low, high: 7 }, START).is_some());
        }
        let mut leaves = Vec::new();
        tenant.each_leaf(&mut |leaf| {
            let owned = leaf.own();
            leaves.push((owned.inner.rows, owned.pages()));
        });
        assert_eq!(leaves.len(), FAN);
        assert!(leaves[0].0 > MOST_PAGES / FAN * PAGE_LINES * SLOTS, "{leaves:?}");
        assert_eq!(tenant.budget.rows(), CROWD + OTHERS);
        for low in lows {
            let again = lockfree::decide(&[plea(low)], Intent::Acquire, START, &mut None);
            assert!(matches!(again, Quick::Refused(..)), "{low}: {again:?}");
        }
    }
}
