//! Overflow slab of a leaf: rows that do not fit a cell.
//!
//! There are two kinds. A **ring** is a short, packed sliding log: the first instant in full, the others as distances from
//! it. All rings of a limit have the same size, so a freed ring fits the next row. All other rows (several items, overrides,
//! leases or open holds) are stored in the core's form.

use std::sync::Arc;

use tidegate_core::law::sliding_window::SlidingLog;
use tidegate_core::{Amount, Capacity, Law, Row, Rule, Span, State, Timestamp};

use super::cache_line::WIDE;
use super::row_epoch::{Edition, RESERVED};

/// The most units a ring remembers.
const LARGEST_RING: Amount = 32;
/// Rows that are shelved together.
const ROWS_A_BOARD: usize = 32;
/// Words that rings are cut from at a time.
const WORDS_A_BOARD: usize = 512;
/// What the allocator takes for a board beside the board itself, about.
const A_BLOCK: usize = 16;
/// What it takes to shelve the next rows.
pub(super) const BOARD_BYTES: usize = ROWS_A_BOARD * size_of::<Row>() + A_BLOCK;
/// Marks the place of a ring.
const RING: u64 = 1 << 60;

/// How the short logs of one item are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ring {
    /// The most units in one.
    units: usize,
    /// Bytes for the distance between the first unit and another.
    width: usize,
    /// Words for all of it.
    words: usize,
}

impl Ring {
    /// The rings of an item, if its logs are short and to the tick.
    pub(super) fn of(rule: &Rule) -> Option<Ring> {
        let (Law::SlidingWindow(rolling), Capacity::AtMost(limit @ 1..=LARGEST_RING)) =
            (&rule.law, rule.capacity)
        else {
            return None;
        };
        let bits = u64::BITS - rolling.window().ticks().leading_zeros();
        let (units, width) = (usize::try_from(limit).ok()?, bits.div_ceil(8).max(1) as usize);
        let words = (8 + 1 + (units - 1) * width).div_ceil(8);
        rolling.is_exact().then_some(Ring { units, width, words })
    }

    /// Packs a log, if it fits.
    fn pack(&self, runs: &SlidingLog, words: &mut [u64]) -> bool {
        let Some((first, _)) = runs.iter().next() else { return false };
        let units = runs.total();
        let last = runs.latest().map(|(at, _)| at);
        let farthest = last.map_or(0, |last| last.since(first).ticks());
        let short = units <= self.units as Amount && (self.width == 8 || farthest >> (8 * self.width) == 0);
        if !short || runs.last_charge() != last {
            return false;
        }
        words[0] = first.ticks();
        write(words, 8, 1, units);
        let mut place = 9;
        // The first unit is written in full already.
        let mut skip = 1;
        for (at, count) in runs.iter() {
            let since = at.since(first).ticks();
            for _ in skip..count {
                write(words, place, self.width, since);
                place += self.width;
            }
            skip = 0;
        }
        true
    }

    /// The latest unit of a packed log.
    fn last(&self, words: &[u64]) -> Timestamp {
        let others = usize::try_from(words[1] & 0xff).expect("a byte").saturating_sub(1);
        let first = Timestamp::from_ticks(words[0]);
        match others.checked_sub(1) {
            Some(before) => first.plus(Span::from_ticks(read(words, 9 + before * self.width, self.width))),
            None => first,
        }
    }

    /// Every unit of a packed log.
    fn units<'a>(&self, words: &'a [u64]) -> impl Iterator<Item = (Timestamp, Amount)> + use<'a> {
        let (first, width) = (Timestamp::from_ticks(words[0]), self.width);
        let count = words[1] & 0xff;
        let other = move |index: u64| {
            let at = 9 + usize::try_from(index - 1).expect("a byte") * width;
            first.plus(Span::from_ticks(read(words, at, width)))
        };
        (0..count).map(move |index| (if index == 0 { first } else { other(index) }, 1))
    }
}

/// Writes the lowest bytes of a value, into words whose first byte is the lowest.
#[inline]
fn write(words: &mut [u64], at: usize, width: usize, value: u64) {
    let (word, shift, mask) = (at / 8, 8 * (at % 8), mask(width));
    words[word] = words[word] & !(mask << shift) | (value & mask) << shift;
    if at % 8 + width > 8 {
        let rest = 64 - shift;
        words[word + 1] = words[word + 1] & !(mask >> rest) | (value & mask) >> rest;
    }
}

#[inline]
fn read(words: &[u64], at: usize, width: usize) -> u64 {
    let (word, shift) = (at / 8, 8 * (at % 8));
    let low = words[word] >> shift;
    let all = if at % 8 + width > 8 { low | words[word + 1] << (64 - shift) } else { low };
    all & mask(width)
}

/// So many of the lowest bytes, one to eight.
const fn mask(width: usize) -> u64 {
    u64::MAX >> (64 - 8 * width)
}

/// The rows of a leaf that do not fit a cell.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    rows: Vec<Box<[Row]>>,
    free_rows: Vec<u32>,
    rings: Vec<Box<[u64]>>,
    free_rings: Vec<u32>,
    /// What the rows on it point to, about, in bytes.
    weight: usize,
    /// The place of a row that was held, if any was since all of them were looked at.
    holder: Option<u32>,
    /// A row that rings are unpacked into.
    spare: Option<Row>,
    /// What its rows are written in, for whoever has the lock and would not look for it elsewhere.
    edition: Option<Arc<Edition>>,
}

impl Shelf {
    /// Says what its rows are written in.
    pub(super) fn is_in(&mut self, edition: &Arc<Edition>) {
        if !self.edition().is_some_and(|known| Arc::ptr_eq(known, edition)) {
            self.edition = Some(Arc::clone(edition));
        }
    }

    /// What its rows are written in, as far as somebody said so.
    #[inline]
    pub(super) fn edition(&self) -> Option<&Arc<Edition>> {
        self.edition.as_ref()
    }

    /// A row that is [at full width](is_at_full_width), where it lies.
    #[inline]
    pub(super) fn at_full_width(&self, cell: u64) -> &Row {
        self.at(place_of(cell))
    }

    /// The same for whoever will charge it, and what it is written in; or a row that is out, which is written in the same.
    #[inline]
    pub(super) fn open<'r>(
        &'r mut self,
        cell: u64,
        out: Option<&'r mut Row>,
    ) -> (Option<&'r Arc<Edition>>, &'r mut Row) {
        let place = place_of(cell) as usize;
        let row = match out {
            Some(row) => row,
            None => &mut self.rows[place / ROWS_A_BOARD][place % ROWS_A_BOARD],
        };
        (self.edition.as_ref(), row)
    }

    /// A row that lies on it takes this much more than it did, or less, in bytes.
    #[inline]
    pub(super) fn reweigh(&mut self, before: usize, after: usize) {
        self.weight = (self.weight + after).saturating_sub(before);
    }

    /// Puts a row on the shelf and says where, as a cell.
    pub(super) fn put(&mut self, row: Row, ring: Option<Ring>) -> u64 {
        if let (Some(ring), Some(State::SlidingWindow(runs))) = (ring, row.single_state())
            && let Some(place) = self.put_ring(ring, runs)
        {
            self.spare = Some(row);
            return WIDE | RING | u64::from(place);
        }
        if self.free_rows.is_empty() {
            let first = self.rows.len() * ROWS_A_BOARD;
            self.rows.push((0..ROWS_A_BOARD).map(|_| Row::default()).collect());
            self.free_rows.extend((first..first + ROWS_A_BOARD).rev().map(place));
        }
        let place = self.free_rows.pop().expect("there is room by now");
        self.lay(place, row);
        WIDE | u64::from(place)
    }

    /// Puts a row into a place that is its own.
    fn lay(&mut self, place: u32, row: Row) {
        self.weight += weight_beside(&row);
        // Whether what is held has lapsed is seen when somebody asks.
        if row.is_held(Timestamp::EPOCH) {
            self.holder = Some(place);
        }
        *self.row(place) = row;
    }

    fn put_ring(&mut self, ring: Ring, runs: &SlidingLog) -> Option<u32> {
        let a_board = WORDS_A_BOARD / ring.words;
        if self.free_rings.is_empty() {
            let first = self.rings.len() * a_board;
            self.rings.push(vec![0; a_board * ring.words].into());
            self.free_rings.extend((first..first + a_board).rev().map(place));
        }
        let place = self.free_rings.pop()?;
        if ring.pack(runs, self.ring_mut(ring, place)) {
            return Some(place);
        }
        self.free_rings.push(place);
        None
    }

    /// Takes a row off the shelf and keeps its place for it, until one of the next three is called.
    pub(super) fn lend(&mut self, cell: u64, ring: Option<Ring>) -> Row {
        let place = place_of(cell);
        if let (true, Some(ring)) = (cell & RING != 0, ring) {
            let mut row =
                self.spare.take().unwrap_or_else(|| Row::of(State::SlidingWindow(SlidingLog::default())));
            let words = self.ring(ring, place);
            row.replace_entries(ring.units(words), ring.last(words));
            return row;
        }
        let row = std::mem::take(self.row(place));
        self.weight = self.weight.saturating_sub(weight_beside(&row));
        row
    }

    /// Puts a row back that was lent and has not changed.
    pub(super) fn give_back(&mut self, cell: u64, row: Row) {
        if cell & RING == 0 {
            self.lay(place_of(cell), row);
        } else {
            self.spare = Some(row);
        }
    }

    /// Puts a row back that was lent and has changed, where it was if it fits there, and says where that is, as a cell.
    pub(super) fn put_again(&mut self, cell: u64, row: Row, ring: Option<Ring>) -> u64 {
        let place = place_of(cell);
        match (cell & RING != 0, ring, row.single_state()) {
            (true, Some(ring), Some(State::SlidingWindow(runs)))
                if ring.pack(runs, self.ring_mut(ring, place)) =>
            {
                self.spare = Some(row);
                cell
            }
            (false, None, _) => {
                self.lay(place, row);
                cell
            }
            _ => {
                self.let_go(cell);
                self.put(row, ring)
            }
        }
    }

    /// The place of a row that was lent is free.
    pub(super) fn let_go(&mut self, cell: u64) {
        let free = if cell & RING == 0 { &mut self.free_rows } else { &mut self.free_rings };
        free.push(place_of(cell));
    }

    /// A row on the shelf; a ring is seen as a log with its last unit in it, which is when it empties.
    pub(super) fn look<T>(&self, cell: u64, ring: Option<Ring>, look: impl FnOnce(&Row) -> T) -> T {
        let place = place_of(cell);
        match ring {
            Some(ring) if cell & RING != 0 => {
                let last = ring.last(self.ring(ring, place));
                look(&Row::of(State::SlidingWindow(SlidingLog::from_sorted([(last, 1)], last))))
            }
            _ => look(self.at(place)),
        }
    }

    /// Brings the rows of these cells near, for whoever will take them soon: one after the other would be waited for each in turn.
    pub(super) fn bring_near(&self, cells: impl Iterator<Item = u64>) {
        let wide = cells.filter(|cell| is_at_full_width(*cell));
        std::hint::black_box(wide.fold(0, |all, cell| all ^ self.at(place_of(cell)).touch_states()));
    }

    /// How many rows are on it that are not rings.
    pub(super) fn rows(&self) -> usize {
        self.rows.len() * ROWS_A_BOARD - self.free_rows.len()
    }

    /// Whether another row can be put on it without another board.
    pub(super) fn has_place(&self) -> bool {
        !self.free_rows.is_empty()
    }

    /// Whether somebody holds something in a row of it that they could give back. All rows are looked at only after the one that was held
    /// when last asked is not any more.
    pub(super) fn is_held(&mut self, now: Timestamp) -> bool {
        let held =
            |place: u32| self.rows[place as usize / ROWS_A_BOARD][place as usize % ROWS_A_BOARD].is_held(now);
        if self.holder.is_some_and(|place| !held(place)) {
            self.holder = self.rows.iter().flatten().position(|row| row.is_held(now)).map(place);
        }
        self.holder.is_some()
    }

    /// Forgets a row.
    pub(super) fn drop(&mut self, cell: u64) {
        let place = place_of(cell);
        if cell & RING != 0 {
            self.free_rings.push(place);
        } else {
            let row = std::mem::take(self.row(place));
            self.weight = self.weight.saturating_sub(weight_beside(&row));
            self.free_rows.push(place);
        }
    }

    /// Forgets the rings, all of which were taken; the next may have another size.
    pub(super) fn forget_rings(&mut self) {
        self.rings = Vec::new();
        self.free_rings = Vec::new();
        self.spare = None;
    }

    /// About how many bytes it takes.
    pub(super) fn bytes(&self) -> usize {
        // All rings of a shelf have the same size, and so have all of its boards.
        let ring_board = self.rings.first().map_or(0, |board| size_of_val::<[u64]>(board));
        let lists = (self.rows.capacity() + self.rings.capacity()) * size_of::<Box<[Row]>>();
        let free = (self.free_rows.capacity() + self.free_rings.capacity()) * size_of::<u32>();
        self.rows.len() * BOARD_BYTES + self.rings.len() * (ring_board + A_BLOCK) + lists + free + self.weight
    }

    fn at(&self, place: u32) -> &Row {
        let place = place as usize;
        &self.rows[place / ROWS_A_BOARD][place % ROWS_A_BOARD]
    }

    fn row(&mut self, place: u32) -> &mut Row {
        let place = place as usize;
        &mut self.rows[place / ROWS_A_BOARD][place % ROWS_A_BOARD]
    }

    fn ring(&self, ring: Ring, place: u32) -> &[u64] {
        let (a_board, place) = (WORDS_A_BOARD / ring.words, place as usize);
        &self.rings[place / a_board][place % a_board * ring.words..][..ring.words]
    }

    fn ring_mut(&mut self, ring: Ring, place: u32) -> &mut [u64] {
        let (a_board, place) = (WORDS_A_BOARD / ring.words, place as usize);
        &mut self.rings[place / a_board][place % a_board * ring.words..][..ring.words]
    }
}

/// A place in a leaf: there are far fewer than 32 bits' worth.
fn place(index: usize) -> u32 {
    u32::try_from(index).expect("a leaf has some thousands of rows at most")
}

/// What a row points to, about, in bytes.
#[inline]
fn weight_beside(row: &Row) -> usize {
    row.memory_bytes() - size_of::<Row>()
}

/// Whether a cell says where a row lies that is no ring.
#[inline]
pub(super) fn is_at_full_width(cell: u64) -> bool {
    cell & (WIDE | RING) == WIDE && cell != RESERVED
}

#[inline]
fn place_of(cell: u64) -> u32 {
    u32::try_from(cell & u64::from(u32::MAX)).expect("32 bits")
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use tidegate_core::law::SlidingWindow;

    use super::*;

    fn log(units: u64, step: u64) -> SlidingLog {
        let at = |unit: u64| Timestamp::from_ticks(1_000_000 + unit * step);
        SlidingLog::from_sorted((0..units).map(|unit| (at(unit), 1)), at(units - 1))
    }

    /// Windows whose distances take one byte to eight, rings of every size: what is packed is unpacked, and neighbours are left alone.
    #[test]
    fn ring_equals_sliding_log() {
        for bytes in 1..=8 {
            let window = u64::MAX >> (64 - 8 * bytes);
            for most in 1..=LARGEST_RING {
                let law = Law::SlidingWindow(SlidingWindow::exact(Span::from_ticks(window)));
                let rule = Rule { capacity: Capacity::AtMost(most), law };
                let ring = Ring::of(&rule).expect("a short log to the tick");
                for units in 1..=most {
                    let runs = log(units, (window / 64).max(1));
                    let mut words = vec![u64::MAX; ring.words];
                    assert!(ring.pack(&runs, &mut words), "{units} of {most} within {window}");
                    let unpacked: Vec<_> = ring.units(&words).collect();
                    assert_eq!(
                        unpacked,
                        runs.iter().collect::<Vec<_>>(),
                        "{units} of {most} within {window}"
                    );
                    assert_eq!(Some(ring.last(&words)), runs.last_charge());
                }
                let mut words = vec![0; ring.words];
                assert!(!ring.pack(&log(most + 1, 1), &mut words), "more than {most} were packed");
            }
        }
    }

    /// A row that is lent comes back to its own place, whatever became of it, and nothing is lost on the way.
    #[test]
    fn lent_row_keeps_its_slot() {
        let law = Law::SlidingWindow(SlidingWindow::exact(Span::from_ticks(1_000)));
        let ring = Ring::of(&Rule { capacity: Capacity::AtMost(4), law });
        let mut shelf = Shelf::default();
        let row = |units| Row::of(State::SlidingWindow(log(units, 10)));
        let (short, long) = (shelf.put(row(3), ring), shelf.put(row(6), ring));
        assert_eq!((short & RING, long & RING), (RING, 0));
        let weight = shelf.weight;
        for cell in [short, long] {
            let lent = shelf.lend(cell, ring);
            shelf.give_back(cell, lent);
            assert_eq!(shelf.weight, weight);
            let lent = shelf.lend(cell, ring);
            assert_eq!(lent, row(if cell == short { 3 } else { 6 }));
            assert_eq!(shelf.put_again(cell, lent, ring), cell);
        }
        // One becomes too long for its ring, the other short enough for one.
        shelf.lend(short, ring);
        let longer = shelf.put_again(short, row(5), ring);
        shelf.lend(long, ring);
        let shorter = shelf.put_again(long, row(2), ring);
        assert_eq!((longer & RING, shorter & RING), (0, RING));
        assert_eq!(shelf.lend(longer, ring), row(5));
        assert_eq!(shelf.lend(shorter, ring), row(2));
        shelf.let_go(longer);
        shelf.let_go(shorter);
        assert_eq!((shelf.rows(), shelf.weight), (0, 0));
        assert_eq!(shelf.free_rings.len(), WORDS_A_BOARD / ring.expect("it is one").words);
    }
}
