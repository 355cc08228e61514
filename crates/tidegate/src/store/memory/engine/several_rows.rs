//! Decisions on any number of rows: all rows are judged, then charged together or not at all.

#![expect(
    clippy::inline_always,
    reason = "the engine is one piece of code, a few hundred instructions in all"
)]

mod observation;

use arrayvec::ArrayVec;
use tidegate_core::{AskTotals, Denial, Intent, ItemPosition, Timestamp, Wait};

use super::super::counters;
use super::super::leaf::{HomeLines, Reservation};
use super::super::leaf_header::LeafHeader;
use super::super::limit_table::LimitTable;
use super::super::line::{self, LOCKED, MAX_ROW_WORDS, Shape, Tag};
use super::super::packed_item::{FULL, Judged, PackedItem, PackedKind};
use super::super::rule_snapshot::{LimitHead, MAX_SNAPSHOT_ITEMS, SnapshotReader};
use super::super::sync::{AtomicU32, AtomicU64, Ordering, pause};
use super::{MOST_ASKS, ResolvedAsk, Setback, TRIES, admit};

pub(in super::super) use observation::{ObservedItem, Observer};

/// The most rows of an order: each ask has a row of its key and one of all keys.
const MOST_ROWS: usize = 2 * MOST_ASKS;
/// The most items of an order.
const MOST_ITEMS: usize = MOST_ASKS * MAX_SNAPSHOT_ITEMS;
/// The number of new rows that are created before the locked path.
const ADMISSIONS: u32 = if cfg!(tidegate_loom) { 1 } else { 16 };

/// The answer to an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum RowsDecision {
    /// Granted at this instant.
    Granted(Timestamp),
    /// Refused at this instant.
    Refused(Refusal, Timestamp),
}

/// A refusal. Its positions are (ask, item).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Refusal {
    pub(in super::super) denial: Denial,
    column: usize,
    /// The epochs of the binding item and of the first one.
    pub(in super::super) epochs: [u64; 2],
}

/// A row of the order, of at most `W` words.
struct RowLeg<'a, const W: usize> {
    control: &'a AtomicU32,
    seen: u32,
    /// Empty if the key has no row.
    cells: &'a [AtomicU64],
    /// The words as they were read.
    words: [u64; W],
    /// The words after a grant.
    next: [u64; W],
}

/// An ask of the order, and its rows.
struct AskLegs<'a> {
    reader: SnapshotReader<'a>,
    head: LimitHead,
    epoch: u64,
    /// The end of the limit, if it is needed after the decision.
    ends_at: Timestamp,
    totals: AskTotals,
    key: u8,
    all: u8,
}

/// No row.
const NONE: u8 = u8::MAX;

/// Everything that an attempt has found.
struct Attempt<'a, const W: usize> {
    rows: ArrayVec<RowLeg<'a, W>, MOST_ROWS>,
    asks: ArrayVec<AskLegs<'a>, MOST_ASKS>,
    refusal: Option<Refusal>,
    /// The asks whose keys have no row, as bits.
    absent: u32,
    /// Whether a limit ends.
    has_end: bool,
    /// Whether a state is in a block of the slab.
    has_blocks: bool,
    /// The items of all asks, if they are needed after the decision.
    items: ArrayVec<PackedItem, MOST_ITEMS>,
}

/// Decides the asks of one order together. They are [of different limits](are_distinct). `None` if only the locked path can
/// decide.
pub(in super::super) fn decide_rows(
    asks: &[ResolvedAsk<'_>],
    intent: Intent,
    now: Timestamp,
    observer: &mut Observer<'_>,
) -> Option<RowsDecision> {
    let (mut turn, mut at, mut admissions) = (0, now, 0);
    for _ in 0..TRIES + ADMISSIONS {
        // Most rows have one word.
        let result = if asks.iter().all(|ask| ask.table.snapshot.read().head().has_narrow_rows()) {
            attempt::<1>(asks, intent, at, observer)
        } else {
            attempt::<MAX_ROW_WORDS>(asks, intent, at, observer)
        };
        match result {
            Ok(decision) => return Some(decision),
            Err(Setback::Locked) => return None,
            Err(Setback::Again) => pause(&mut turn),
            Err(Setback::At(later)) => at = later,
            Err(Setback::Absent { ask }) => {
                if let [only] = asks
                    && let Some(decision) = insert_charged(only, at, observer)
                {
                    return Some(decision);
                }
                admissions += 1;
                if admissions > ADMISSIONS || !admit(asks[ask].table, asks[ask].tag()?, at) {
                    return None;
                }
            }
        }
    }
    None
}

/// Creates the row of a new key with its first charge. `None` if that is not possible; then nothing has changed.
#[inline(never)]
fn insert_charged<'a>(
    ask: &'a ResolvedAsk<'a>,
    now: Timestamp,
    observer: &mut Observer<'_>,
) -> Option<RowsDecision> {
    let (table, tag) = (ask.table, ask.tag()?);
    loop {
        let (mut locked, epoch) = table.lock_leaf(tag);
        let now = now.max(locked.leaf.header.floor());
        let reader = table.snapshot.read();
        let head = reader.head();
        let is_simple = reader.is_valid_at(now)
            && reader.epoch() == epoch.number
            && !head.counts_all()
            && !head.has_exceptions();
        if !is_simple || locked.find(tag).is_some() {
            return None;
        }
        let totals = AskTotals::of(ask.count);
        let ends_at = reader.ends_at();
        let legs = AskLegs { reader, head, epoch: epoch.number, ends_at, totals, key: 0, all: NONE };
        let (words, cells) = ([0; MAX_ROW_WORDS], &[][..]);
        let row = RowLeg { control: table.all.place.control(), seen: 0, cells, words, next: words };
        let mut attempt = Attempt::<MAX_ROW_WORDS> {
            rows: ArrayVec::from_iter([row]),
            asks: ArrayVec::from_iter([legs]),
            refusal: None,
            absent: 0,
            has_end: false,
            has_blocks: false,
            items: ArrayVec::new(),
        };
        for number in 0..head.items() {
            let item = reader.item(number);
            attempt.has_blocks |= item.head.kind() == PackedKind::Sliding;
            let judged = item.judge(item.words_of(&words), item.head.cost(totals), now, &table.rows.slab);
            let Judged::Granted(next) = judged else { return None };
            item.put_words(&mut attempt.rows[0].next, next);
        }
        if attempt.has_blocks || observer.is_some() {
            attempt.keep_items();
        }
        let context = table.context(&epoch, now);
        match locked.reserve(tag, context) {
            Reservation::Reserved => {}
            Reservation::Moved => continue,
            Reservation::NoRoom(_) => return None,
        }
        let (place, _reserved) = locked.lock_row(tag)?;
        let asks = std::slice::from_ref(ask);
        let is_charged = reader.is_current() && (!attempt.has_blocks || attempt.charge_blocks(asks, now));
        if is_charged {
            locked.write(&place, tag, &attempt.rows[0].next, context);
            attempt.observe(asks, now, true, observer);
        } else {
            locked.vacate(&place, &table.budget);
        }
        line::unlock(place.line.control(), place.seen);
        if !is_charged {
            return None;
        }
        table.counts.granted();
        return Some(RowsDecision::Granted(now));
    }
}

/// Whether there are few enough asks, and no limit is asked twice: the second ask would be judged without the first.
#[inline]
pub(in super::super) fn are_distinct<'a, T>(asked: &'a [T], table: impl Fn(&'a T) -> &'a LimitTable) -> bool {
    let is_first =
        |(ask, one): (usize, &'a T)| asked[..ask].iter().all(|other| !std::ptr::eq(table(other), table(one)));
    asked.len() <= MOST_ASKS && asked.iter().enumerate().all(is_first)
}

#[inline(always)]
fn attempt<'a, const W: usize>(
    asks: &'a [ResolvedAsk<'a>],
    intent: Intent,
    now: Timestamp,
    observer: &mut Observer<'_>,
) -> Result<RowsDecision, Setback> {
    let mut tags: ArrayVec<Option<(Tag, Option<HomeLines<'a>>)>, MOST_ASKS> = ArrayVec::new();
    for ask in asks {
        // A key is often given to limits that count all keys together.
        let counts_keys = ask.table.snapshot.read().head().counts_keys();
        let tag = if counts_keys { ask.tag() } else { None };
        let lines = tag.map(|tag| (tag, ask.table.home_lines(tag)));
        if asks.len() > 1
            && let Some((_, Some(lines))) = &lines
        {
            lines.prefetch();
        }
        tags.push(lines);
    }
    let mut attempt = Attempt::<W> {
        rows: ArrayVec::new(),
        asks: ArrayVec::new(),
        refusal: None,
        absent: 0,
        has_end: false,
        has_blocks: false,
        items: ArrayVec::new(),
    };
    for (index, (ask, found)) in asks.iter().zip(&tags).enumerate() {
        attempt.judge(index, ask, *found, now)?;
    }
    if attempt.refusal.is_none() && attempt.absent == 0 && intent == Intent::Acquire {
        attempt.charge(asks, now, observer)?;
        let stripe = counters::own();
        for ask in asks {
            ask.table.counts.granted_on(stripe, 1);
        }
        return Ok(RowsDecision::Granted(now));
    }
    attempt.finish(asks, intent, now, observer)
}

/// Finds the row of a key.
#[inline(always)]
fn find_row<'a>(
    lines: &HomeLines<'a>,
    shape: Shape,
    tag: Tag,
) -> Option<(&'a AtomicU32, u32, &'a [AtomicU64])> {
    let place = match shape {
        Shape::Narrow => lines.find::<3>(tag),
        Shape::Pair => lines.find::<2>(tag),
        Shape::Wide => lines.find::<1>(tag),
    }?;
    let cells = place.line.cells(shape, place.slot);
    Some((place.line.control(), place.seen, cells))
}

/// Reads a row. `None` if it has more words, because the limit was edited.
#[inline(always)]
fn read_cells<const W: usize>(cells: &[AtomicU64]) -> Option<[u64; W]> {
    if W == 1 {
        let [cell] = cells else { return None };
        return Some([cell.load(Ordering::Relaxed); W]);
    }
    let mut words = [0; W];
    for (word, cell) in words.iter_mut().zip(cells) {
        *word = cell.load(Ordering::Relaxed);
    }
    (cells.len() <= W).then_some(words)
}

/// Whether rows that were read are in this epoch and may be decided now. A row that was read after its leaf was split has
/// the floor of another leaf, so this follows the read.
#[inline(always)]
fn check_header(header: &LeafHeader, epoch: u64, now: Timestamp) -> Result<(), Setback> {
    if header.epoch() != epoch {
        return Err(Setback::Locked);
    }
    check_floor(header, now)
}

/// A decision is not earlier than the last change of its rows.
#[inline(always)]
fn check_floor(header: &LeafHeader, now: Timestamp) -> Result<(), Setback> {
    if header.floor() > now { Err(Setback::At(header.floor())) } else { Ok(()) }
}

impl<'a, const W: usize> Attempt<'a, W> {
    /// Finds the rows of an ask and judges its items.
    #[inline(always)]
    fn judge(
        &mut self,
        index: usize,
        ask: &'a ResolvedAsk<'a>,
        found: Option<(Tag, Option<HomeLines<'a>>)>,
        now: Timestamp,
    ) -> Result<(), Setback> {
        let reader = ask.table.snapshot.read();
        let head = reader.head();
        if !reader.is_valid_at(now) {
            return Err(Setback::Locked);
        }
        self.has_end |= head.has_end();
        let (epoch, totals) = (reader.epoch(), AskTotals::of(ask.count));
        let mut legs =
            AskLegs { reader, head, epoch, ends_at: Timestamp::EPOCH, totals, key: NONE, all: NONE };
        if head.counts_keys() {
            let (tag, lines) = found.ok_or(Setback::Locked)?;
            let mut row = None;
            if let Some(lines) = lines {
                row = match find_row(&lines, head.shape(), tag) {
                    Some((control, seen, cells)) => {
                        Some((control, seen, cells, read_cells(cells).ok_or(Setback::Again)?))
                    }
                    None => None,
                };
                check_header(&lines.leaf.header, epoch, now)?;
            }
            legs.key = match row {
                Some((control, seen, cells, words)) => self.add_row(control, seen, cells, words)?,
                None if head.has_exceptions() => return Err(Setback::Locked),
                None => {
                    self.absent |= 1 << index;
                    // A missing row is a blank one. It is charged once it exists.
                    self.add_row(ask.table.all.place.control(), 0, &[], [0; W])?
                }
            };
        }
        if head.counts_all() {
            let all = &ask.table.all;
            let seen = all.place.control().load(Ordering::Acquire);
            let words = read_cells(all.place.cells()).ok_or(Setback::Again)?;
            check_header(&all.header, epoch, now)?;
            legs.all = self.add_row(all.place.control(), seen, all.place.cells(), words)?;
        }
        for number in 0..head.items() {
            let item = reader.item(number);
            let cost = item.head.cost(totals);
            self.has_blocks |= item.head.kind() == PackedKind::Sliding;
            let leg = if item.head.is_of_key() { legs.key } else { legs.all };
            // Without a row, the items are those of two epochs.
            let Some(leg) = self.rows.get_mut(usize::from(leg)) else { return Err(Setback::Again) };
            match item.judge(item.words_of(&leg.words), cost, now, &ask.table.rows.slab) {
                Judged::Granted(next) => item.put_words(&mut leg.next, next),
                Judged::Denied(wait) => self.refuse(index, reader, &item, wait),
                Judged::At(_) if !line::is_unchanged(leg.control, leg.seen) || !reader.is_current() => {
                    return Err(Setback::Again);
                }
                Judged::At(later) => return Err(Setback::At(later)),
                Judged::Locked => return Err(Setback::Locked),
                Judged::Tidy => {
                    // A thread with an earlier time must not miss the entries that are dropped.
                    let leaf = found.and_then(|(_, lines)| Some(&lines?.leaf.header));
                    leaf.filter(|_| item.head.is_of_key()).unwrap_or(&ask.table.all.header).raise(now);
                    let memory = (&ask.table.rows.slab, &ask.table.budget);
                    item.tidy(leg.cells, (leg.control, leg.seen), || reader.is_current(), now, memory);
                    return Err(Setback::Again);
                }
            }
        }
        self.asks.push(legs);
        Ok(())
    }

    #[inline(always)]
    fn add_row(
        &mut self,
        control: &'a AtomicU32,
        seen: u32,
        cells: &'a [AtomicU64],
        words: [u64; W],
    ) -> Result<u8, Setback> {
        if seen & LOCKED != 0 {
            return Err(Setback::Again);
        }
        if words[0] & FULL != 0 {
            return Err(Setback::Locked);
        }
        let index = u8::try_from(self.rows.len()).expect("at most 16 rows");
        self.rows.push(RowLeg { control, seen, cells, words, next: words });
        Ok(index)
    }

    /// Keeps the longest wait; of equal ones the first in written order.
    #[cold]
    fn refuse(&mut self, ask: usize, reader: SnapshotReader<'a>, item: &PackedItem, wait: Wait) {
        let position = ItemPosition { row: ask, item: item.head.item() };
        let (column, epoch) = (item.head.column(), reader.epoch());
        match &mut self.refusal {
            None => {
                let denial = Denial { binding: position, wait, first: position };
                self.refusal = Some(Refusal { denial, column, epochs: [epoch; 2] });
            }
            Some(worst) if wait > worst.denial.wait => {
                (worst.denial.binding, worst.denial.wait) = (position, wait);
                (worst.column, worst.epochs[0]) = (column, epoch);
            }
            Some(_) => {}
        }
    }

    /// Locks every row, if it is still as it was judged, charges all of them, and releases them.
    #[inline(always)]
    fn charge(
        &mut self,
        asks: &[ResolvedAsk<'_>],
        now: Timestamp,
        observer: &mut Observer<'_>,
    ) -> Result<(), Setback> {
        if self.has_blocks || observer.is_some() {
            self.keep_items();
        }
        let mut locked: ArrayVec<usize, MOST_ROWS> = ArrayVec::new();
        // The last first: the rows of keys, then those of all keys, which more threads want and which are held for less.
        for index in (0..self.rows.len()).rev() {
            let row = &self.rows[index];
            let same = locked.iter().find(|other| std::ptr::eq(self.rows[**other].control, row.control));
            let is_ours = match same {
                Some(other) => self.rows[*other].seen == row.seen,
                None => {
                    line::try_lock(row.control, row.seen) && {
                        locked.push(index);
                        true
                    }
                }
            };
            if !is_ours {
                self.release_unchanged(&locked);
                return Err(Setback::Again);
            }
        }
        if !self.asks.iter().all(|legs| legs.reader.is_current()) {
            self.release_unchanged(&locked);
            return Err(Setback::Again);
        }
        if self.has_blocks && !self.charge_blocks(asks, now) {
            self.release_unchanged(&locked);
            return Err(Setback::Locked);
        }
        for row in &self.rows {
            for (cell, word) in row.cells.iter().zip(row.next) {
                cell.store(word, Ordering::Relaxed);
            }
        }
        // Blocks can be read only under the lock.
        if self.has_blocks {
            self.observe(asks, now, true, observer);
        }
        for index in &locked {
            line::unlock(self.rows[*index].control, self.rows[*index].seen);
        }
        if !self.has_blocks {
            self.observe(asks, now, true, observer);
        }
        Ok(())
    }

    /// Reads the rules again, for use after the last check that they are current: an edit may begin after it.
    #[inline(never)]
    fn keep_items(&mut self) {
        let Attempt { asks, items, .. } = self;
        for legs in asks {
            legs.ends_at = legs.reader.ends_at();
            items.extend(
                (0..legs.head.items().min(MAX_SNAPSHOT_ITEMS)).map(|number| legs.reader.item(number)),
            );
        }
    }

    fn release_unchanged(&self, locked: &[usize]) {
        for index in locked {
            line::unlock_unchanged(self.rows[*index].control, self.rows[*index].seen);
        }
    }

    /// Charges the items whose state is in a block of the slab. Returns `false` if one of them does not fit; then none is
    /// charged.
    #[inline(never)]
    fn charge_blocks(&mut self, asks: &[ResolvedAsk<'_>], now: Timestamp) -> bool {
        for charges in [false, true] {
            let mut items = self.items.iter();
            for (ask, legs) in asks.iter().zip(&self.asks) {
                for item in items.by_ref().take(legs.head.items()) {
                    let cost = item.head.cost(legs.totals);
                    if item.head.kind() != PackedKind::Sliding || cost == 0 {
                        continue;
                    }
                    let leg = if item.head.is_of_key() { legs.key } else { legs.all };
                    let (table, row) = (ask.table, &mut self.rows[usize::from(leg)]);
                    let (law, word) = (item.sliding(), item.words_of(&row.words)[0]);
                    if !charges {
                        if !law.can_charge(&table.rows.slab, word, cost, now) {
                            return false;
                        }
                    } else if let Some(word) = law.charge(&table.rows.slab, &table.budget, word, cost, now) {
                        item.put_words(&mut row.next, [word, 0]);
                    }
                }
            }
        }
        true
    }

    /// An attempt that does not charge.
    #[inline(never)]
    fn finish(
        &mut self,
        asks: &[ResolvedAsk<'_>],
        intent: Intent,
        now: Timestamp,
        observer: &mut Observer<'_>,
    ) -> Result<RowsDecision, Setback> {
        if let Some(refusal) = self.refusal {
            // The promised instant of a limit that ends is checked a second time, unless the first item says never.
            let is_final =
                refusal.denial.wait == Wait::Never && refusal.denial.binding == refusal.denial.first;
            if (self.has_end && !is_final) || (observer.is_some() && self.absent != 0) {
                return Err(Setback::Locked);
            }
            self.check_absent(asks, now)?;
            self.observe_unchanged(asks, now, observer)?;
            if intent == Intent::Acquire {
                asks[refusal.denial.binding.row].table.counts.refused(refusal.column);
            }
            return Ok(RowsDecision::Refused(refusal, now));
        }
        match intent {
            Intent::Acquire => {
                let ask = usize::try_from(self.absent.trailing_zeros()).expect("below 32");
                // An ask of zero units creates no row.
                Err(if asks[ask].count == 0 { Setback::Locked } else { Setback::Absent { ask } })
            }
            // Without a lock a missing row proves nothing.
            Intent::Peek if self.absent != 0 => Err(Setback::Locked),
            Intent::Peek => {
                self.observe_unchanged(asks, now, observer)?;
                Ok(RowsDecision::Granted(now))
            }
        }
    }

    /// Whether the rows that were not found do not exist: one of them might refuse for longer.
    fn check_absent(&self, asks: &[ResolvedAsk<'_>], now: Timestamp) -> Result<(), Setback> {
        for (index, (ask, legs)) in asks.iter().zip(&self.asks).enumerate() {
            if self.absent >> index & 1 == 0 {
                continue;
            }
            let tag = ask.tag().ok_or(Setback::Locked)?;
            if let Some(leaf) = ask.table.leaf(tag) {
                if leaf.header.epoch() != legs.reader.epoch() || !leaf.lacks(legs.head.shape(), tag) {
                    return Err(Setback::Locked);
                }
                check_floor(&leaf.header, now)?;
            }
        }
        Ok(())
    }

    /// Whether no row and no rule has changed since it was read.
    fn check_unchanged(&self) -> Result<(), Setback> {
        let mut rows = self.rows.iter().filter(|row| !row.cells.is_empty());
        let is_unchanged = rows.all(|row| line::is_unchanged(row.control, row.seen))
            && self.asks.iter().all(|legs| legs.reader.is_current());
        if is_unchanged { Ok(()) } else { Err(Setback::Again) }
    }
}
