//! A leaf: up to about five thousand rows in cache lines, and the lock for insertion and eviction.
//!
//! The tag of a row selects its primary line, as a fraction of the number of lines, and an alternate line in the same page.
//! If both are full, the row goes into one of the next few lines. Pages are only added, so lock-free readers never access
//! freed memory.
//!
//! If a new row finds no place, the leaf is *rebuilt*: evictable rows are dropped, the number of pages grows by an eighth if
//! necessary, and all rows are placed again. A full-size leaf splits into eight leaves of the next level. The inserting
//! thread does this work, so the size of a leaf is limited.
//!
//! A reader may miss an existing row during a rebuild. Without the lock a miss counts only if the leaf's count of moves
//! shows that no rebuild began or ran meanwhile ([`Leaf::lacks`]).

#![expect(clippy::inline_always, reason = "these functions are parts of a decision of 20 ns")]

mod eviction;
mod home_lines;
mod placement;
mod preallocate;
mod rebuild;
mod shortcut;

use std::sync::{Arc, PoisonError};

use tidegate_core::{Per, Timestamp};

use super::leaf_header::LeafHeader;
use super::line::{self, Line, NO_TAG, RowWords, Shape, Tag};
use super::memory_budget::Budget;
use super::row_epoch::{RESERVED, RowEpoch, RowStore};
use super::sync::{AtomicU64, Mutex, MutexGuard, OnceLock, Ordering, fence};
use crate::store::order_path::RowRoom;

pub(super) use home_lines::HomeLines;
pub use preallocate::Spread;
pub(super) use rebuild::Rebuilt;
pub(super) use shortcut::Shortcut;

/// Lines in a page. In a model a leaf grows at its fourth row and splits at its sixth.
pub(super) const PAGE_LINES: usize = if cfg!(tidegate_loom) { 1 } else { 64 };
/// The bits that name a line of a page.
const PAGE_BITS: u32 = PAGE_LINES.trailing_zeros();
/// Pages in a leaf.
pub(super) const MOST_PAGES: usize = if cfg!(tidegate_loom) { 2 } else { 32 };
/// The leaves that replace a full leaf.
pub(super) const FAN: usize = 1 << FAN_BITS;
const FAN_BITS: u32 = if cfg!(tidegate_loom) { 1 } else { 3 };
/// The number of lines after its primary line in which a row may be.
const REACH: usize = if cfg!(tidegate_loom) { 2 } else { 64 };
/// The highest fill of a leaf, in percent.
const FULLEST: usize = 80;
/// The highest fill after a rebuild that added no pages, in percent.
const FULL_ENOUGH: usize = 70;
/// A leaf with more rows than this is not searched for evictable rows at each insertion.
const SMALL: usize = 1024;
/// Such a leaf is searched once in as many insertions as make this many rows per insertion.
const ROWS_PER_INSERTION: usize = 32;

/// An instant after all rows' ends.
const NEVER: Timestamp = Timestamp::from_ticks(u64::MAX);

struct Page([Line; PAGE_LINES]);

/// The memory of a page: its lines, its reference count, and what the allocator adds to align it.
const PAGE_BYTES: usize = size_of::<Page>() + 2 * align_of::<Page>();

/// The memory of the leaves below a branch, with their aligned reference count.
const BRANCH_BYTES: usize = FAN * size_of::<Leaf>() + align_of::<Leaf>();

/// Some rows of a table, or the leaves of the next level.
///
/// Each decision reads only the first cache line.
#[repr(C, align(64))]
pub(super) struct Leaf {
    pub(super) header: LeafHeader,
    /// The number of pages. Zero before the first row.
    pages_used: AtomicU64,
    /// How often rows began or ended to move. Odd while they move.
    moves: AtomicU64,
    /// The bits of a tag that the levels above have used.
    used_bits: u32,
    /// The level below, once this leaf was full.
    branch: OnceLock<Branch>,
    pages: [OnceLock<Arc<Page>>; MOST_PAGES],
    state: Mutex<LeafState>,
}

/// The leaves of the next level.
type Branch = Arc<[Leaf; FAN]>;

/// The state under a leaf's lock.
#[derive(Debug)]
pub(super) struct LeafState {
    /// The shape of the rows.
    shape: Shape,
    rows: usize,
    /// No row is evictable before this instant.
    evictable_from: Timestamp,
    /// Insertions into the full leaf since it was last searched.
    insertions: usize,
    /// The last search within reach of a tag that found no evictable row.
    searched: Option<FailedSearch>,
}

/// A failed search. A request that is repeated at the same instant need not search again.
#[derive(Debug, Clone, Copy)]
struct FailedSearch {
    tag: Tag,
    at: Timestamp,
    /// When the first of the rows is evictable.
    next: Timestamp,
}

/// A leaf whose lock is held.
pub(super) struct LockedLeaf<'a> {
    pub(super) leaf: &'a Leaf,
    state: MutexGuard<'a, LeafState>,
}

/// The place of a row.
#[derive(Clone, Copy)]
pub(super) struct RowPlace<'a> {
    pub(super) line: &'a Line,
    pub(super) slot: usize,
    /// The control word, read before the tag.
    pub(super) seen: u32,
}

/// The result of a reservation.
pub(super) enum Reservation {
    /// There is a reserved row now.
    Reserved,
    /// The rows have moved to the next level. Find the leaf again.
    Moved,
    /// There is no place, and this is when there may be one.
    NoRoom(RowRoom),
}

/// What changes of a leaf need to know.
#[derive(Clone, Copy)]
pub(super) struct LeafContext<'a> {
    pub(super) epoch: &'a RowEpoch,
    pub(super) rows: &'a RowStore,
    pub(super) budget: &'a Budget,
    pub(super) now: Timestamp,
}

impl Leaf {
    pub(super) fn new(used_bits: u32, epoch: u64, shape: Shape) -> Leaf {
        Leaf {
            header: LeafHeader::new(epoch),
            pages_used: AtomicU64::new(0),
            moves: AtomicU64::new(0),
            used_bits,
            branch: OnceLock::new(),
            pages: std::array::from_fn(|_| OnceLock::new()),
            state: Mutex::new(LeafState {
                shape,
                rows: 0,
                evictable_from: NEVER,
                insertions: 0,
                searched: None,
            }),
        }
    }

    /// The leaf of a tag.
    #[inline(always)]
    pub(super) fn descend(&self, tag: Tag) -> &Leaf {
        let mut leaf = self;
        while let Some(branch) = leaf.branch.get() {
            leaf = &branch[leaf.child(tag)];
        }
        leaf
    }

    /// The index of the next level's leaf of a tag.
    #[inline(always)]
    fn child(&self, tag: Tag) -> usize {
        first_bits(tag.low.wrapping_shl(self.used_bits))
    }

    /// Whether its rows moved to the next level.
    pub(super) fn is_branch(&self) -> bool {
        self.branch.get().is_some()
    }

    /// The next level. Empty if the rows are here.
    pub(super) fn children(&self) -> &[Leaf] {
        self.branch.get().map_or(&[], |children| &children[..])
    }

    /// Every leaf below this one that has rows of its own.
    pub(super) fn each(&self, visit: &mut dyn FnMut(&Leaf)) {
        match self.branch.get() {
            Some(branch) => branch.iter().for_each(|leaf| leaf.each(visit)),
            None => visit(self),
        }
    }

    /// Finds a row of this shape. Without the leaf's lock a miss proves nothing.
    pub(super) fn find(&self, shape: Shape, tag: Tag) -> Option<RowPlace<'_>> {
        for index in self.reach(tag) {
            let line = self.line(index)?;
            let seen = line.seen();
            if let Some(slot) = line.find_slot(shape, tag) {
                return Some(RowPlace { line, slot, seen });
            }
            if seen & line::PASSED == 0 {
                return None;
            }
        }
        None
    }

    /// The number of lines that a search for a missing tag visits.
    #[cfg(all(test, not(tidegate_loom)))]
    pub(super) fn lines_searched(&self, tag: Tag) -> usize {
        1 + self.within_reach(tag).take_while(|line| line.seen() & line::PASSED != 0).count()
    }

    /// Whether a tag has no row, if that can be told without a lock.
    pub(super) fn lacks(&self, shape: Shape, tag: Tag) -> bool {
        let moves = self.moves.load(Ordering::Acquire);
        let lacks = moves.is_multiple_of(2) && !self.is_branch() && self.find(shape, tag).is_none();
        fence(Ordering::Acquire);
        lacks && self.moves.load(Ordering::Relaxed) == moves
    }

    /// Rows begin or end to move. Only under the lock.
    fn turn_moves(&self) {
        let moves = self.moves.load(Ordering::Relaxed);
        self.moves.store(moves.wrapping_add(1), Ordering::Release);
        // A reader that misses a row sees that rows move.
        fence(Ordering::Release);
    }

    /// Waits for the leaf's lock.
    pub(super) fn lock(&self) -> LockedLeaf<'_> {
        // A panic under the lock is a defect of this crate. It must not make the limiter the outage.
        LockedLeaf { leaf: self, state: self.state.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Takes the leaf's lock if it is free.
    pub(super) fn try_lock(&self) -> Option<LockedLeaf<'_>> {
        self.state.try_lock().ok().map(|state| LockedLeaf { leaf: self, state })
    }

    #[inline(always)]
    fn lines(&self) -> usize {
        usize::try_from(self.pages_used.load(Ordering::Acquire)).expect("few").wrapping_mul(PAGE_LINES)
    }

    /// The lines with rows, page by page. The lines of a page are loaded into the cache before the first is visited.
    fn each_line(&self) -> impl Iterator<Item = &Line> {
        let pages = usize::try_from(self.pages_used.load(Ordering::Acquire)).expect("few");
        self.pages[..pages].iter().flat_map(|page| {
            let page = page.get().expect("pages in use exist");
            page.0.iter().for_each(Line::prefetch);
            &page.0
        })
    }

    #[inline(always)]
    pub(super) fn line(&self, index: usize) -> Option<&Line> {
        let page = self.pages.get(index / PAGE_LINES)?.get()?;
        Some(&page.0[index % PAGE_LINES])
    }

    /// The lines in which the row of a tag may be. Only under the lock.
    fn within_reach(&self, tag: Tag) -> impl Iterator<Item = &Line> {
        self.reach(tag).map(|index| self.line(index).expect("pages in use exist"))
    }

    /// The indices of the lines in which the row of a tag may be: the primary line, the alternate line, and those behind the
    /// primary line.
    #[inline(always)]
    fn reach(&self, tag: Tag) -> impl Iterator<Item = usize> + use<> {
        let lines = self.lines();
        let Homes { first, other } = self.homes(tag, lines);
        let behind =
            move |step: usize| if first + step < lines { first + step } else { first + step - lines };
        (0..REACH.min(lines)).map(move |step| match step {
            0 => first,
            1 => other,
            _ => behind(step - 1),
        })
    }

    /// The primary and the alternate line of a tag among this many lines.
    #[inline(always)]
    fn homes(&self, tag: Tag, lines: usize) -> Homes {
        homes(tag.low.wrapping_shl(self.used_bits), lines)
    }
}

/// The indices of a row's primary and alternate line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Homes {
    first: usize,
    /// In the same page, so that both are loaded at once. For a row whose primary line is this one, `first` is the alternate.
    other: usize,
}

/// Maps the remaining hash bits to a primary line and an alternate line in the same page.
#[inline(always)]
fn homes(bits: u64, lines: usize) -> Homes {
    let product = u128::from(bits) * lines as u128;
    let first = usize::try_from(product >> u64::BITS).expect("below the number of lines");
    let within = usize::try_from(product >> (u64::BITS - PAGE_BITS) & (PAGE_LINES as u128 - 1)).expect("few");
    // The pages of models have one line.
    let other = if PAGE_LINES == 1 { (first + 1) % lines.max(1) } else { first ^ (within | 1) };
    Homes { first, other }
}

/// The bits that name a leaf of the next level.
#[inline(always)]
fn first_bits(bits: u64) -> usize {
    usize::try_from(bits >> (u64::BITS - FAN_BITS)).expect("a few bits")
}

impl<'a> LockedLeaf<'a> {
    /// Finds a row.
    pub(super) fn find(&self, tag: Tag) -> Option<RowPlace<'a>> {
        self.leaf.find(self.state.shape, tag)
    }

    /// Finds a row and locks its line. Returns its place and its words.
    pub(super) fn lock_row(&self, tag: Tag) -> Option<(RowPlace<'a>, RowWords)> {
        let mut place = self.find(tag)?;
        // Rows appear and move only under the leaf's lock.
        place.seen = line::lock(place.line.control());
        Some((place, place.line.read(self.state.shape, place.slot)))
    }

    /// The shape of the rows.
    pub(super) fn shape(&self) -> Shape {
        self.state.shape
    }

    /// Visits every row under the lock of its line.
    pub(super) fn each_row(&self, mut visit: impl FnMut(Tag, &RowWords)) {
        let shape = self.state.shape;
        for line in self.leaf.each_line() {
            let seen = line::lock(line.control());
            for slot in 0..shape.rows() {
                let tag = line.tag(shape, slot);
                if tag != NO_TAG {
                    visit(tag, &line.read(shape, slot));
                }
            }
            line::unlock_unchanged(line.control(), seen);
        }
    }

    /// Converts every row to the last of these epochs. The first is their present one.
    ///
    /// If rows become wider, the leaf may need more pages, or split: then its rows are in its children.
    pub(super) fn convert(&mut self, epochs: &[Arc<RowEpoch>], rows: &RowStore, budget: &Budget) {
        let (Some(first), Some(last)) = (epochs.first(), epochs.last()) else { return };
        let leaf = self.leaf;
        leaf.header.lift();
        leaf.header.raise(last.at);
        let convert = |tag: Tag, words: &RowWords| {
            let mut row = first.take(Per::Key, words, rows, budget);
            first.free(Per::Key, words, rows, budget);
            for pair in epochs.windows(2) {
                pair[1].convert(&pair[0], Per::Key, tag, &mut row);
            }
            last.store_new(Per::Key, tag, row, rows, budget)
        };
        self.state.may_be_evictable_from(Timestamp::EPOCH);
        let shape = last.key_shape();
        if shape == self.state.shape {
            for line in leaf.each_line() {
                let seen = line::lock(line.control());
                for slot in 0..shape.rows() {
                    let tag = line.tag(shape, slot);
                    if tag != NO_TAG {
                        line.write(shape, slot, &convert(tag, &line.read(shape, slot)));
                    }
                }
                line::unlock(line.control(), seen);
            }
            leaf.header.set_epoch(last.number);
            return;
        }
        leaf.turn_moves();
        let mut drained = self.drain();
        for (tag, words) in &mut drained {
            *words = convert(*tag, words);
        }
        self.state.shape = shape;
        leaf.header.set_epoch(last.number);
        self.refill(drained, budget);
        leaf.turn_moves();
    }

    /// Reserves a place for a row that is not there. Only threads with the leaf's lock decide on it.
    pub(super) fn reserve(&mut self, tag: Tag, context: LeafContext<'_>) -> Reservation {
        // Rows may be evicted on the way.
        self.leaf.header.raise(context.now);
        // Between the check and the reservation another leaf may take the last row of the budget.
        while !context.budget.take_row() {
            if !self.may_have_rows(1, tag, context) {
                return Reservation::NoRoom(self.no_room(tag, context));
            }
        }
        let reserved = self.make_place(tag, context);
        match reserved {
            Reservation::Reserved => self.state.rows += 1,
            Reservation::Moved | Reservation::NoRoom(_) => context.budget.give_row(),
        }
        reserved
    }

    /// Whether the limit may have this many more rows, perhaps after an eviction here.
    fn may_have_rows(&mut self, more: u64, tag: Tag, context: LeafContext<'_>) -> bool {
        if !context.budget.has_rows_for(more) {
            self.evict_if_due(context);
        }
        while !context.budget.has_rows_for(more) && self.evict_near(tag, context) {}
        context.budget.has_rows_for(more)
    }

    /// Finds or makes a place for a row. A leaf that cannot grow is not filled further: where rows are packed to the last
    /// place, a search for a row that is not there visits many lines.
    fn make_place(&mut self, tag: Tag, context: LeafContext<'_>) -> Reservation {
        /// The rebuilds to try in turn. Several rows may belong near each other, so more lines do not always help at once.
        const REBUILDS: [bool; 6] = [false, true, true, true, true, true];
        let mut words = RowWords::default();
        words[0] = RESERVED;
        if self.may_be_fuller(context) && self.place(tag, &words, Some(context)) {
            return Reservation::Reserved;
        }
        self.evict_if_due(context);
        let rebuilds = if can_pay_row(context) { &REBUILDS[..] } else { &[] };
        for grows in rebuilds {
            match self.rebuild(*grows, context.budget) {
                Rebuilt::Split => return Reservation::Moved,
                Rebuilt::HasRoom if self.place(tag, &words, Some(context)) => return Reservation::Reserved,
                Rebuilt::HasRoom => {}
                Rebuilt::Unchanged => break,
            }
        }
        // The place of an evictable row will do, however full the leaf is.
        let may_be = self.evict_near(tag, context) || self.may_be_fuller(context);
        if may_be && self.place(tag, &words, Some(context)) {
            return Reservation::Reserved;
        }
        Reservation::NoRoom(self.no_room(tag, context))
    }

    /// Whether the leaf may have one more row without more lines.
    fn may_be_fuller(&self, context: LeafContext<'_>) -> bool {
        !self.is_full() && can_pay_row(context)
    }

    fn is_full(&self) -> bool {
        self.state.rows >= self.leaf.lines() * self.state.shape.rows() * FULLEST / 100
    }

    /// Makes a reserved row an ordinary new row. It may be used or evicted from now on.
    pub(super) fn open(&mut self, tag: Tag, context: LeafContext<'_>) {
        if let Some((place, words)) = self.lock_row(tag) {
            if words[0] == RESERVED {
                let LeafContext { epoch, rows, budget, now } = context;
                let words = epoch.store_new(Per::Key, tag, epoch.new_row(), rows, budget);
                place.line.write(self.state.shape, place.slot, &words);
                self.state.may_be_evictable_from(now);
            }
            line::unlock(place.line.control(), place.seen);
        }
    }

    /// Empties the place of a row. Its line is locked, and stays so.
    pub(super) fn vacate(&mut self, place: &RowPlace<'_>, budget: &Budget) {
        place.line.place(self.state.shape, place.slot, NO_TAG, &RowWords::default());
        self.state.rows -= 1;
        budget.give_row();
    }

    /// Stores the words of a row. Its line is locked, and stays so.
    pub(super) fn write(
        &mut self,
        place: &RowPlace<'_>,
        tag: Tag,
        words: &RowWords,
        context: LeafContext<'_>,
    ) {
        let LeafContext { epoch, rows, now, .. } = context;
        let evictable_at = epoch.evictable_at(tag, words, rows, now);
        self.state.may_be_evictable_from(evictable_at.unwrap_or(NEVER));
        place.line.write(self.state.shape, place.slot, words);
    }
}

/// Whether the budget allows a new row. Its line is paid for, but a full row takes more than that.
fn can_pay_row(LeafContext { epoch, rows, budget, .. }: LeafContext<'_>) -> bool {
    epoch.layout(Per::Key).is_packed()
        || rows.full.has_free_slot()
        || budget.has(super::full_rows::CHUNK_BYTES)
}

impl LeafState {
    /// A row may be evictable from this instant on.
    fn may_be_evictable_from(&mut self, at: Timestamp) {
        self.evictable_from = self.evictable_from.min(at);
        self.searched = None;
    }
}
