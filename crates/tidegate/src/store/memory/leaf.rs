//! A leaf: up to about five thousand rows in cache lines, and the lock for insertion and eviction.
//!
//! The tag of a row selects its primary line, as a fraction of the number of lines, and an alternate line in the same page.
//! If both are full, the row goes into one of the next few lines. Pages are only added, so lock-free readers never access
//! freed memory.
//!
//! If a new row finds no place, the leaf is *rebuilt*: fresh rows are dropped, the number of pages grows by an eighth if
//! necessary, and all rows are placed again. A full-size leaf splits into eight leaves of the next level. The inserting
//! thread does this work. Therefore the size of a leaf is limited, and smaller if its rows do not fit cells.
//!
//! A reader may miss an existing row during a rebuild. Without the lock a miss counts only if the leaf's count of moves
//! shows that no rebuild began or ran meanwhile ([`Leaf::lacks`]).

#![expect(clippy::inline_always, reason = "these are parts of the quick way, which is one piece of code")]

mod eviction;
mod home_line;
mod placement;
mod preallocate;
mod rebuild;
mod shortcut;

use std::sync::{Arc, PoisonError};

use tidegate_core::{Per, Row, Timestamp};

use super::cache_line::{self, EMPTY, HELD, Line, Look, SLOTS, Tag, WIDE};
use super::leaf_header::Stamp;
use super::memory_budget::Budget;
use super::overflow::{BOARD_BYTES, Shelf};
use super::row_epoch::{Edition, RESERVED};
use super::sync::{AtomicU64, Mutex, MutexGuard, OnceLock, Ordering, fence};
use crate::store::order_path::RowRoom as NoRoom;

pub(super) use home_line::{Elsewhere, Near};
pub use preallocate::Spread;
pub(super) use shortcut::Shortcut;

/// Lines in a page. In a model a leaf grows at its fourth row and splits at its sixth.
pub(super) const PAGE_LINES: usize = if cfg!(tidegate_loom) { 1 } else { 64 };
/// The bits that say which of them.
const PAGE_BITS: u32 = PAGE_LINES.trailing_zeros();
/// Pages in a leaf.
pub(super) const MOST_PAGES: usize = if cfg!(tidegate_loom) { 2 } else { 32 };
/// Leaves that a full leaf becomes.
pub(super) const FAN: usize = 1 << FAN_BITS;
const FAN_BITS: u32 = if cfg!(tidegate_loom) { 1 } else { 3 };
/// How many lines a row may lie after the one it belongs into.
const REACH: usize = if cfg!(tidegate_loom) { 2 } else { 64 };
/// How full a leaf may become, in rows of a hundred places.
const FULLEST: usize = 80;
/// How full it may be after a rebuild that added no pages.
const FULL_ENOUGH: usize = 70;
/// A leaf with more rows than this is not searched for fresh ones at every turn.
const SMALL: usize = 1024;
/// Such a leaf is searched once in as many turns as make this many rows a turn.
const ROWS_A_TURN: usize = 32;

/// How many rows at full width a leaf may have and still grow: they take ten times as long to move.
const MOST_WIDE: usize = 1024;

/// An instant that no row waits for.
const NEVER: Timestamp = Timestamp::from_ticks(u64::MAX);

struct Page([Line; PAGE_LINES]);

/// What a page takes: itself, the count of those who have it, and what the allocator adds so that a line begins where the processor's
/// own lines do.
const PAGE_BYTES: usize = size_of::<Page>() + 2 * align_of::<Page>();

/// What the leaves of a branch take: themselves, and the count of those who have them, which begins where a line does.
const BRANCH_BYTES: usize = FAN * size_of::<Leaf>() + align_of::<Leaf>();

/// Some rows of a table, or the way to them.
///
/// What every decision reads of it is in its first cache line.
#[repr(C, align(64))]
pub(super) struct Leaf {
    /// Of its rows.
    pub(super) stamp: Stamp,
    /// How many pages it has; none before its first row.
    pages_used: AtomicU64,
    /// How often its rows began or ended to move: odd while they do.
    moves: AtomicU64,
    /// How many bits of a tag the levels above have used.
    used_bits: u32,
    /// The level below, once this one was full.
    branch: OnceLock<Branch>,
    pages: [OnceLock<Arc<Page>>; MOST_PAGES],
    inner: Mutex<Inner>,
}

/// What a full leaf becomes: those of the next level.
type Branch = Arc<[Leaf; FAN]>;

/// What is under a leaf's lock.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) shelf: Shelf,
    rows: usize,
    /// No row is fresh before this instant.
    fresh_from: Timestamp,
    /// How many new rows found the leaf full since it was last searched.
    turns: usize,
    /// The last search within reach of a tag that found nothing fresh.
    searched: Option<Searched>,
    /// What its shelf was last known to take.
    shelf_bytes: usize,
}

/// A search in vain: whoever is asked for again at the same instant, on the way to a refusal, need not be searched for again.
#[derive(Debug, Clone, Copy)]
struct Searched {
    tag: Tag,
    at: Timestamp,
    /// When the first of the rows there will be fresh.
    next: Timestamp,
}

/// A leaf whose lock is held, with its rows in the present edition.
pub(super) struct Owned<'a> {
    pub(super) leaf: &'a Leaf,
    pub(super) inner: MutexGuard<'a, Inner>,
}

/// A row that was found.
#[derive(Clone, Copy)]
pub(super) struct Spot<'a> {
    pub(super) line: &'a Line,
    /// Its cell,
    pub(super) cell: &'a AtomicU64,
    /// what that said,
    pub(super) word: u64,
    /// and the line's version before.
    pub(super) seen: u32,
}

/// What came of reserving a place.
pub(super) enum Reserved {
    /// There is a blank row now.
    Here,
    /// The leaf's rows have moved a level down; look for the leaf again.
    Below,
    /// There is no place, and this is when there may be one.
    Crowded(NoRoom),
}

/// Where room is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    /// Among the lines there are, if they are not that full.
    Here,
    /// In more lines.
    More,
}

/// Where room is looked for in turn.
const ROOMS: [Room; 6] = [Room::Here, Room::More, Room::More, Room::More, Room::More, Room::More];

/// What came of making room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rebuilt {
    Roomy,
    /// The leaf's rows have moved a level down.
    Split,
    /// There are no means to.
    AsItWas,
}

/// What a leaf needs to know to make room.
#[derive(Clone, Copy)]
pub(super) struct Means<'a> {
    pub(super) edition: &'a Edition,
    pub(super) budget: &'a Budget,
    pub(super) now: Timestamp,
}

impl Leaf {
    pub(super) fn new(used_bits: u32, edition: u64) -> Leaf {
        Leaf {
            stamp: Stamp::new(edition),
            pages_used: AtomicU64::new(0),
            moves: AtomicU64::new(0),
            used_bits,
            branch: OnceLock::new(),
            pages: std::array::from_fn(|_| OnceLock::new()),
            inner: Mutex::new(Inner::default()),
        }
    }

    /// The leaf that a tag belongs to.
    #[inline(always)]
    pub(super) fn descend(&self, tag: Tag) -> &Leaf {
        let mut leaf = self;
        while let Some(branch) = leaf.branch.get() {
            leaf = &branch[leaf.child(tag)];
        }
        leaf
    }

    /// Which leaf of the next level a tag belongs to.
    #[inline(always)]
    fn child(&self, tag: Tag) -> usize {
        first_bits(tag.low.wrapping_shl(self.used_bits))
    }

    /// Whether its rows moved a level down.
    pub(super) fn is_branch(&self) -> bool {
        self.branch.get().is_some()
    }

    /// The level below; none if its rows are here.
    pub(super) fn children(&self) -> &[Leaf] {
        self.branch.get().map_or(&[], |children| &children[..])
    }

    /// Every place for a row, with what it says about whose it is. Only with the lock.
    pub(super) fn each_cell(&self, mut visit: impl FnMut(Tag, &AtomicU64)) {
        for page in self.pages_in_use() {
            page.bring_near();
            for line in &page.0 {
                (0..SLOTS).for_each(|slot| visit(line.tag(slot), line.cell(slot)));
            }
        }
    }

    /// Every leaf below this one that has rows of its own.
    pub(super) fn each(&self, visit: &mut dyn FnMut(&Leaf)) {
        match self.branch.get() {
            Some(branch) => branch.iter().for_each(|leaf| leaf.each(visit)),
            None => visit(self),
        }
    }

    /// Finds a row without a lock. That it is not found means nothing.
    #[inline(always)]
    pub(super) fn find(&self, tag: Tag) -> Option<Spot<'_>> {
        self.near(tag)?.find(tag)
    }

    /// Whether a tag has no row, if that can be told without a lock.
    pub(super) fn lacks(&self, tag: Tag) -> bool {
        let moves = self.moves.load(Ordering::Acquire);
        let lacks = moves.is_multiple_of(2) && !self.is_branch() && self.find(tag).is_none();
        fence(Ordering::Acquire);
        lacks && self.moves.load(Ordering::Relaxed) == moves
    }

    /// Rows begin to move, or have come to rest. Only with the lock.
    fn turn_moves(&self) {
        let moves = self.moves.load(Ordering::Relaxed);
        self.moves.store(moves.wrapping_add(1), Ordering::Release);
        // Whoever sees a row gone sees that they move.
        fence(Ordering::Release);
    }

    /// Finds a row wherever it may lie, slot by slot where it takes that.
    #[cold]
    fn find_closely(&self, tag: Tag) -> Option<Spot<'_>> {
        self.find_from(0, tag)
    }

    /// Finds a row that is not in the line it belongs into.
    #[inline(never)]
    pub(super) fn find_further(&self, tag: Tag) -> Option<Spot<'_>> {
        self.find_from(1, tag)
    }

    #[inline(always)]
    fn find_from(&self, first: usize, tag: Tag) -> Option<Spot<'_>> {
        for index in self.reach(tag).skip(first) {
            let line = self.line(index)?;
            match line.look_closely(tag) {
                Look::Found { slot, word, seen } => {
                    return Some(Spot { line, cell: line.cell(slot), word, seen });
                }
                Look::Absent | Look::Unsure => return None,
                Look::Passed => {}
            }
        }
        None
    }

    /// Waits for the leaf's lock.
    pub(super) fn own(&self) -> Owned<'_> {
        // A panic inside is a defect of ours; it must not make the limiter the outage.
        Owned { leaf: self, inner: self.inner.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Takes the leaf's lock if nobody has it.
    pub(super) fn try_own(&self) -> Option<Owned<'_>> {
        self.inner.try_lock().ok().map(|inner| Owned { leaf: self, inner })
    }

    #[inline(always)]
    fn lines(&self) -> usize {
        usize::try_from(self.pages_used.load(Ordering::Acquire)).expect("few").wrapping_mul(PAGE_LINES)
    }

    /// The pages that have rows.
    fn pages_in_use(&self) -> impl Iterator<Item = &Page> {
        let pages = usize::try_from(self.pages_used.load(Ordering::Acquire)).expect("few");
        self.pages[..pages].iter().map(|page| &**page.get().expect("pages in use exist"))
    }

    #[inline(always)]
    fn line(&self, index: usize) -> Option<&Line> {
        let page = self.pages.get(index / PAGE_LINES)?.get()?;
        Some(&page.0[index % PAGE_LINES])
    }

    /// The lines that the row of a tag may lie in, for whoever has the lock.
    pub(super) fn within_reach(&self, tag: Tag) -> impl Iterator<Item = &Line> {
        self.reach(tag).map(|index| self.line(index).expect("pages in use exist"))
    }

    /// The same, as numbers: the line it belongs into, the other one of that page, and those behind the first.
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

    /// The lines that a tag belongs into, of this many.
    #[inline(always)]
    fn homes(&self, tag: Tag, lines: usize) -> Homes {
        homes(tag.low.wrapping_shl(self.used_bits), lines)
    }
}

/// Where a row belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Homes {
    first: usize,
    /// Where it lies if it finds no place there: a line of the same page, so that both can be asked for at once. For whoever lies there this is
    /// the first.
    other: usize,
}

/// Which of so many lines a tag belongs into of which these bits are left: the first by which part of all lines they say, the other by where in that.
#[inline(always)]
fn homes(bits: u64, lines: usize) -> Homes {
    let product = u128::from(bits) * lines as u128;
    let first = usize::try_from(product >> u64::BITS).expect("below the number of lines");
    let within = usize::try_from(product >> (u64::BITS - PAGE_BITS) & (PAGE_LINES as u128 - 1)).expect("few");
    // The pages of models have one line.
    let other = if PAGE_LINES == 1 { (first + 1) % lines.max(1) } else { first ^ (within | 1) };
    Homes { first, other }
}

/// The bits that say which leaf of the next level a tag belongs to.
#[inline(always)]
fn first_bits(bits: u64) -> usize {
    usize::try_from(bits >> (u64::BITS - FAN_BITS)).expect("a few bits")
}

impl Page {
    /// Brings all lines near. Who takes a row waits for everything before it, so that one line would come after the other.
    fn bring_near(&self) {
        self.0.iter().for_each(Line::fetch);
    }
}

impl Default for Inner {
    fn default() -> Inner {
        let shelf = Shelf::default();
        Inner { shelf, rows: 0, fresh_from: NEVER, turns: 0, searched: None, shelf_bytes: 0 }
    }
}

impl<'a> Owned<'a> {
    /// Finds a row and waits until nobody else holds it, then holds it.
    pub(super) fn hold(&self, tag: Tag) -> Option<Spot<'a>> {
        let mut spot = self.leaf.find(tag)?;
        spot.word = cache_line::take_any(spot.cell);
        // Rows only go away under the lock, and we have it.
        debug_assert!(spot.word != EMPTY);
        Some(spot)
    }

    /// Takes note of what the shelf takes.
    pub(super) fn weigh(&mut self, budget: &Budget) {
        let bytes = self.inner.shelf.bytes();
        budget.correct(self.inner.shelf_bytes, bytes);
        self.inner.shelf_bytes = bytes;
    }

    /// Carries every row over to the last of these editions; the first is the one they are in.
    pub(super) fn adopt(&mut self, editions: &[Arc<Edition>]) {
        let (Some(first), Some(last)) = (editions.first(), editions.last()) else { return };
        self.leaf.stamp.lift();
        self.leaf.stamp.raise(last.at);
        let leaf = self.leaf;
        let mut taken: Vec<(&AtomicU64, Tag, Row)> = Vec::new();
        for index in 0..leaf.lines() {
            let Some(line) = leaf.line(index) else { continue };
            for slot in 0..SLOTS {
                let cell = line.cell(slot);
                if cell.load(Ordering::Relaxed) == EMPTY {
                    continue;
                }
                let word = cache_line::take_any(cell);
                let tag = line.tag(slot);
                let mut row = first.unpack(Per::Key, word, &mut self.inner.shelf);
                for pair in editions.windows(2) {
                    pair[1].adopt(&pair[0], Per::Key, tag, &mut row);
                }
                taken.push((cell, tag, row));
            }
        }
        self.inner.shelf.forget_rings();
        for (cell, tag, row) in taken {
            let word = last.pack(Per::Key, tag, row, &mut self.inner.shelf);
            cache_line::give_back(cell, word);
        }
        self.inner.may_be_fresh_from(Timestamp::EPOCH);
        leaf.stamp.set(last.number);
    }

    /// Makes a place for a row that is not there: a blank row that is not forgotten, and that only the leaf's owner decides on.
    pub(super) fn reserve(&mut self, tag: Tag, means: Means<'_>) -> Reserved {
        // Fresh rows may be forgotten on the way.
        self.leaf.stamp.raise(means.now);
        // Between the question and the taking somebody else may take the last one.
        while !means.budget.take_row() {
            if !self.may_have_rows(1, tag, means) {
                return Reserved::Crowded(self.no_room(tag, means.now));
            }
        }
        let reserved = self.make_place(tag, means);
        match reserved {
            Reserved::Here => self.inner.rows += 1,
            Reserved::Below | Reserved::Crowded(_) => means.budget.give_row(),
        }
        reserved
    }

    /// Whether the limit may have this many rows more, perhaps after fresh ones were forgotten here.
    pub(super) fn may_have_rows(&mut self, more: u64, tag: Tag, means: Means<'_>) -> bool {
        if !means.budget.has_rows_for(more) {
            self.drop_fresh_if_due(means);
        }
        while !means.budget.has_rows_for(more) && self.drop_fresh_near(tag, means) {}
        means.budget.has_rows_for(more)
    }

    /// Finds a place for a row, or makes one. A leaf that cannot grow is no fuller for that: where rows are packed to the last place,
    /// whoever looks for one that is not there walks far.
    fn make_place(&mut self, tag: Tag, means: Means<'_>) -> Reserved {
        if self.may_be_fuller(means) && self.place(tag, RESERVED, Some(means)) {
            return Reserved::Here;
        }
        self.drop_fresh_if_due(means);
        // Now and then so many rows belong near each other that more lines do not help at once; that they never help does not happen.
        let rooms = if self.affords_width(means) { &ROOMS[..] } else { &[] };
        for room in rooms {
            match self.rebuild(*room, means) {
                Rebuilt::Split => return Reserved::Below,
                Rebuilt::Roomy if self.place(tag, RESERVED, Some(means)) => return Reserved::Here,
                Rebuilt::Roomy => {}
                Rebuilt::AsItWas => break,
            }
        }
        // A fresh row's place is as good, however full the leaf is.
        let may_be = self.drop_fresh_near(tag, means) || self.may_be_fuller(means);
        if may_be && self.place(tag, RESERVED, Some(means)) {
            return Reserved::Here;
        }
        Reserved::Crowded(self.no_room(tag, means.now))
    }

    /// Whether one more row does not make too many of them.
    fn may_be_fuller(&self, means: Means<'_>) -> bool {
        !self.is_full() && self.affords_width(means)
    }

    /// Whether a new row can be paid for. Its line is; but where no row fits a cell it takes more than that.
    fn affords_width(&self, Means { edition, budget, .. }: Means<'_>) -> bool {
        edition.layout(Per::Key).is_some() || self.inner.shelf.has_place() || budget.has(BOARD_BYTES)
    }

    /// Whether there are as many rows as there should be in so many lines.
    fn is_full(&self) -> bool {
        self.inner.rows >= self.leaf.lines() * SLOTS * FULLEST / 100
    }

    /// Makes an ordinary blank row of a reserved one, to be used or forgotten by whoever comes next.
    pub(super) fn open(&mut self, tag: Tag, means: Means<'_>) {
        if let Some(spot) = self.leaf.find(tag)
            && spot.word == RESERVED
        {
            let row = means.edition.newcomer();
            let word = means.edition.pack(Per::Key, tag, row, &mut self.inner.shelf);
            cache_line::give_back(spot.cell, word);
            self.inner.may_be_fresh_from(means.now);
        }
    }

    /// Writes the first charge of a reserved row down.
    pub(super) fn begin(&mut self, tag: Tag, word: u64, means: Means<'_>) {
        if let Some(spot) = self.leaf.find(tag) {
            let freshens = means.edition.freshens(tag, word, &self.inner.shelf, means.now);
            self.inner.may_be_fresh_from(freshens.unwrap_or(NEVER));
            cache_line::give_back(spot.cell, word);
        }
    }

    /// Forgets a row that is held and has nothing on the shelf.
    pub(super) fn vacate(&mut self, spot: &Spot<'_>, budget: &Budget) {
        cache_line::give_back(spot.cell, EMPTY);
        self.inner.rows -= 1;
        budget.give_row();
    }

    /// Writes a held row down that was borrowed when its cell said what the spot says.
    pub(super) fn settle_again(&mut self, spot: &Spot<'_>, tag: Tag, row: Row, means: Means<'_>) {
        let word = means.edition.repack(Per::Key, tag, spot.word, row, &mut self.inner.shelf);
        let freshens = means.edition.freshens(tag, word, &self.inner.shelf, means.now);
        self.inner.may_be_fresh_from(freshens.unwrap_or(NEVER));
        cache_line::give_back(spot.cell, word);
    }

    /// Puts a held row back that was borrowed and has not changed.
    pub(super) fn leave(&mut self, spot: &Spot<'_>, row: Row) {
        Edition::restore(spot.word, row, &mut self.inner.shelf);
        cache_line::give_back(spot.cell, spot.word);
    }

    /// Writes a held row down.
    pub(super) fn settle(&mut self, spot: &Spot<'_>, tag: Tag, row: Row, means: Means<'_>) {
        let word = means.edition.pack(Per::Key, tag, row, &mut self.inner.shelf);
        let freshens = means.edition.freshens(tag, word, &self.inner.shelf, means.now);
        self.inner.may_be_fresh_from(freshens.unwrap_or(NEVER));
        cache_line::give_back(spot.cell, word);
    }

    fn is_fresh(&self, tag: Tag, word: u64, means: Means<'_>) -> bool {
        means.edition.freshens(tag, word, &self.inner.shelf, means.now).is_some_and(|at| at <= means.now)
    }
}

impl Inner {
    /// Something may be fresh from this instant on.
    fn may_be_fresh_from(&mut self, at: Timestamp) {
        self.fresh_from = self.fresh_from.min(at);
        self.searched = None;
    }

    fn forget(&mut self, word: u64, budget: &Budget) {
        if word & WIDE != 0 {
            self.shelf.drop(word);
        }
        self.rows -= 1;
        budget.give_row();
    }
}
