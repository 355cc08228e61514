//! Decisions on one row: that of a key, or that of all keys.
//!
//! This is [the decision on several rows](super::several_rows) for one row, compiled for one law and for several. On a hot
//! key of a bucket it takes 15 ns, and the general decision takes 35.

#![expect(
    clippy::inline_always,
    reason = "the engine is one piece of code, a few hundred instructions in all"
)]

use arrayvec::ArrayVec;
use tidegate_core::{Amount, AskTotals, Timestamp, Wait};

use super::super::leaf::HomeLines;
use super::super::leaf_header::LeafHeader;
use super::super::limit_table::LimitTable;
use super::super::line::{self, LOCKED, MAX_ROW_WORDS, Shape, Tag};
use super::super::memory_budget::Budget;
use super::super::packed_item::{
    Bucket, FULL, Interval, ItemHead, ItemWords, Judged, LongTotal, LongWindow, PackedItem, PackedKind,
    PackedLaw, Sliding, Total, Window,
};
use super::super::rule_snapshot::{LimitHead, SnapshotReader};
use super::super::slab::Slab;
use super::super::sync::{AtomicU32, AtomicU64, Ordering};
use super::Setback;

/// The answer of a decision on one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum RowDecision {
    Granted,
    /// The wait, and the item with the longest wait.
    Refused(Wait, ItemHead),
}

/// One attempt to decide.
#[derive(Clone, Copy)]
pub(in super::super) struct Attempt<'a> {
    pub(in super::super) table: &'a LimitTable,
    pub(in super::super) reader: SnapshotReader<'a>,
    pub(in super::super) head: LimitHead,
    pub(in super::super) count: Amount,
    pub(in super::super) now: Timestamp,
}

/// A row that was found.
struct FoundRow<'a, const W: usize> {
    header: &'a LeafHeader,
    control: &'a AtomicU32,
    seen: u32,
    cells: &'a [AtomicU64; W],
}

impl<'a> Attempt<'a> {
    /// Decides on the row of a key. The limit has no items that count all keys together.
    #[inline(always)]
    pub(in super::super) fn decide_key(self, lines: HomeLines<'a>, tag: Tag) -> Result<RowDecision, Setback> {
        if self.head.items() > 1 {
            return self.decide_items_of_key(lines, tag);
        }
        let item = self.reader.item(0);
        match self.head.first().kind() {
            PackedKind::Bucket => self.of_key::<3, 1>(lines, tag, &One(item, Bucket::of(&item))),
            PackedKind::Window => self.of_key::<3, 1>(lines, tag, &One(item, Window::of(&item))),
            PackedKind::Total => self.of_key::<3, 1>(lines, tag, &One(item, Total::of(&item))),
            PackedKind::Sliding => self.of_key::<3, 1>(lines, tag, &One(item, Sliding::of(&item))),
            PackedKind::Interval => self.of_key::<2, 2>(lines, tag, &One(item, Interval::of(&item))),
            PackedKind::LongWindow => self.of_key::<2, 2>(lines, tag, &One(item, LongWindow::of(&item))),
            PackedKind::LongTotal => self.of_key::<2, 2>(lines, tag, &One(item, LongTotal::of(&item))),
        }
    }

    #[inline(never)]
    fn decide_items_of_key(self, lines: HomeLines<'a>, tag: Tag) -> Result<RowDecision, Setback> {
        let items = Several { reader: self.reader, count: self.head.items() };
        match self.head.shape() {
            Shape::Narrow => self.of_key::<3, 1>(lines, tag, &items),
            Shape::Pair => self.of_key::<2, 2>(lines, tag, &items),
            Shape::Wide => self.of_key::<1, 5>(lines, tag, &items),
        }
    }

    /// Decides on the row of all keys. The limit has no items that count each key alone.
    #[inline(never)]
    pub(in super::super) fn decide_all(self) -> Result<RowDecision, Setback> {
        let items = Several { reader: self.reader, count: self.head.items() };
        let (all, item) = (&self.table.all, self.reader.item(0));
        let cells = all.place.cells();
        if let (1, Some(cells), PackedKind::Bucket) = (items.count, cells.first_chunk(), item.head.kind()) {
            return self.of_all::<1>(cells, &One(item, Bucket::of(&item)));
        }
        match cells.len() {
            1 => self.of_all::<1>(cells.first_chunk().ok_or(Setback::Locked)?, &items),
            2 => self.of_all::<2>(cells.first_chunk().ok_or(Setback::Locked)?, &items),
            3 => self.of_all::<3>(cells.first_chunk().ok_or(Setback::Locked)?, &items),
            4 => self.of_all::<4>(cells.first_chunk().ok_or(Setback::Locked)?, &items),
            _ => self.of_all::<5>(cells.first_chunk().ok_or(Setback::Locked)?, &items),
        }
    }

    #[inline(always)]
    fn of_key<const R: usize, const W: usize>(
        self,
        lines: HomeLines<'a>,
        tag: Tag,
        law: &impl RowLaw<W>,
    ) -> Result<RowDecision, Setback> {
        let header = &lines.leaf.header;
        if !self.reader.is_valid_at(self.now) {
            return Err(Setback::Locked);
        }
        let Some(place) = lines.find::<R>(tag) else { return Err(Setback::Absent { ask: 0 }) };
        let (cells, control) = (place.line.row::<W>(place.slot), place.line.control());
        self.decide(&FoundRow { header, control, seen: place.seen, cells }, law)
    }

    #[inline(always)]
    fn of_all<const W: usize>(
        self,
        cells: &'a [AtomicU64; W],
        law: &impl RowLaw<W>,
    ) -> Result<RowDecision, Setback> {
        let all = &self.table.all;
        if !self.reader.is_valid_at(self.now) {
            return Err(Setback::Locked);
        }
        let control = all.place.control();
        let seen = control.load(Ordering::Acquire);
        self.decide(&FoundRow { header: &all.header, control, seen, cells }, law)
    }

    #[inline(always)]
    fn decide<const W: usize>(
        self,
        row: &FoundRow<'_, W>,
        law: &impl RowLaw<W>,
    ) -> Result<RowDecision, Setback> {
        let Attempt { table, reader, head, count, now } = self;
        let FoundRow { header, control, seen, cells } = *row;
        if seen & LOCKED != 0 {
            return Err(Setback::Again);
        }
        let words: [u64; W] = std::array::from_fn(|word| cells[word].load(Ordering::Relaxed));
        // After the row: if the leaf was split before, the row has the floor of another leaf.
        if header.epoch() != reader.epoch() {
            return Err(Setback::Locked);
        }
        if header.floor() > now {
            return Err(Setback::At(header.floor()));
        }
        if words[0] & FULL != 0 {
            return Err(Setback::Locked);
        }
        let (slab, totals, mine) = (&table.rows.slab, AskTotals::of(count), table.counts.mine());
        match law.judge(&words, totals, now, slab) {
            RowJudged::Granted(next) => {
                if !line::try_lock(control, seen) {
                    return Err(Setback::Again);
                }
                let memory = (slab, &table.budget);
                let next = match law.charge_locked(next, totals, now, memory, || reader.is_current()) {
                    Ok(next) => next,
                    Err(setback) => {
                        line::unlock_unchanged(control, seen);
                        return Err(setback);
                    }
                };
                for (cell, word) in cells.iter().zip(next) {
                    cell.store(word, Ordering::Relaxed);
                }
                line::unlock(control, seen);
                mine.granted();
                Ok(RowDecision::Granted)
            }
            // The promised instant of a limit that ends is checked a second time.
            RowJudged::Denied(..) if head.has_end() => Err(Setback::Locked),
            RowJudged::Denied(wait, item) => {
                if !line::is_unchanged(control, seen) || !reader.is_current() {
                    return Err(Setback::Again);
                }
                mine.refused(item.column(), 1);
                Ok(RowDecision::Refused(wait, item))
            }
            RowJudged::At(_) if !line::is_unchanged(control, seen) || !reader.is_current() => {
                Err(Setback::Again)
            }
            RowJudged::At(later) => Err(Setback::At(later)),
            RowJudged::Locked => Err(Setback::Locked),
            RowJudged::Tidy(item) => {
                // A thread with an earlier time must not miss the entries that are dropped.
                header.raise(now);
                item.tidy(cells, (control, seen), || reader.is_current(), now, (slab, &table.budget));
                Err(Setback::Again)
            }
        }
    }
}

/// The result of a check of a row. It is valid only if nothing has changed since.
enum RowJudged<const W: usize> {
    Granted([u64; W]),
    Denied(Wait, ItemHead),
    At(Timestamp),
    Locked,
    Tidy(PackedItem),
}

/// The laws of a row.
trait RowLaw<const W: usize> {
    fn judge(&self, words: &[u64; W], totals: AskTotals, now: Timestamp, slab: &Slab) -> RowJudged<W>;

    /// The words after a granted charge, with the row locked. An error if the rules have changed since they were read, or
    /// if the charge does not fit words. Then nothing has changed.
    fn charge_locked(
        &self,
        judged: [u64; W],
        totals: AskTotals,
        now: Timestamp,
        memory: (&Slab, &Budget),
        is_current: impl FnOnce() -> bool,
    ) -> Result<[u64; W], Setback>;
}

/// One item, with its law.
struct One<L>(PackedItem, L);

impl<L: PackedLaw, const W: usize> RowLaw<W> for One<L> {
    #[inline(always)]
    fn judge(&self, words: &[u64; W], totals: AskTotals, now: Timestamp, slab: &Slab) -> RowJudged<W> {
        match self.1.judge(first_words(words), self.0.head.cost(totals), now, slab) {
            Judged::Granted(next) => RowJudged::Granted(row_words(next)),
            Judged::Denied(wait) => RowJudged::Denied(wait, self.0.head),
            Judged::At(later) => RowJudged::At(later),
            Judged::Locked => RowJudged::Locked,
            Judged::Tidy => RowJudged::Tidy(self.0),
        }
    }

    #[inline(always)]
    fn charge_locked(
        &self,
        judged: [u64; W],
        totals: AskTotals,
        now: Timestamp,
        (slab, budget): (&Slab, &Budget),
        is_current: impl FnOnce() -> bool,
    ) -> Result<[u64; W], Setback> {
        if !is_current() {
            return Err(Setback::Again);
        }
        let cost = self.0.head.cost(totals);
        let next = self.1.charge_locked(first_words(&judged), cost, now, slab, budget);
        next.map(row_words).ok_or(Setback::Locked)
    }
}

#[inline(always)]
fn first_words<const W: usize>(row: &[u64; W]) -> ItemWords {
    std::array::from_fn(|word| row.get(word).copied().unwrap_or_default())
}

#[inline(always)]
fn row_words<const W: usize>(words: ItemWords) -> [u64; W] {
    std::array::from_fn(|word| words.get(word).copied().unwrap_or_default())
}

/// Several items of one row, in written order.
struct Several<'a> {
    reader: SnapshotReader<'a>,
    count: usize,
}

impl<const W: usize> RowLaw<W> for Several<'_> {
    #[inline(always)]
    fn judge(&self, words: &[u64; W], totals: AskTotals, now: Timestamp, slab: &Slab) -> RowJudged<W> {
        let (mut next, mut denied) = (*words, None);
        for number in 0..self.count {
            let item = self.reader.item(number);
            match item.judge(item.words_of(words), item.head.cost(totals), now, slab) {
                Judged::Granted(own) => item.put_words(&mut next, own),
                Judged::Denied(wait) => {
                    // The longest wait; of equal ones the first in written order.
                    if denied.is_none_or(|(longest, _)| wait > longest) {
                        denied = Some((wait, item.head));
                    }
                }
                Judged::At(later) => return RowJudged::At(later),
                Judged::Locked => return RowJudged::Locked,
                Judged::Tidy => return RowJudged::Tidy(item),
            }
        }
        match denied {
            None => RowJudged::Granted(next),
            Some((wait, item)) => RowJudged::Denied(wait, item),
        }
    }

    #[inline(always)]
    fn charge_locked(
        &self,
        mut judged: [u64; W],
        totals: AskTotals,
        now: Timestamp,
        (slab, budget): (&Slab, &Budget),
        is_current: impl FnOnce() -> bool,
    ) -> Result<[u64; W], Setback> {
        // An edit may begin after the check, so the rules are read before it.
        let mut logs: ArrayVec<PackedItem, MAX_ROW_WORDS> = ArrayVec::new();
        for item in (0..self.count).map(|number| self.reader.item(number)) {
            if item.head.kind() == PackedKind::Sliding && logs.try_push(item).is_err() {
                return Err(Setback::Again);
            }
        }
        if !is_current() {
            return Err(Setback::Again);
        }
        for charges in [false, true] {
            for item in &logs {
                let (law, word, cost) = (item.sliding(), item.words_of(&judged)[0], item.head.cost(totals));
                if charges {
                    let word = law.charge(slab, budget, word, cost, now).unwrap_or(word);
                    item.put_words(&mut judged, [word, 0]);
                } else if !law.can_charge(slab, word, cost, now) {
                    return Err(Setback::Locked);
                }
            }
        }
        Ok(judged)
    }
}
