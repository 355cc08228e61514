//! The shelf of a leaf: rows that do not fit a cell.
//!
//! There are two kinds. A **ring** is a short sliding log, packed: the first instant in full and the others as their distance from it.
//! All rings of a limit have the same size, so that a freed one fits whoever comes next. Everything else (rows of several items, of
//! keys with exceptions, with leases or open holds) is kept as the core made it.

use tidegate_core::law::rolling::Runs;
use tidegate_core::{Amount, Capacity, Law, Row, Rule, Span, State, Timestamp};

use super::edition::RESERVED;
use super::line::WIDE;

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
        let (Law::Rolling(rolling), Capacity::AtMost(limit @ 1..=LARGEST_RING)) = (&rule.law, rule.capacity)
        else {
            return None;
        };
        let bits = u64::BITS - rolling.window().ticks().leading_zeros();
        let (units, width) = (usize::try_from(limit).ok()?, bits.div_ceil(8).max(1) as usize);
        let words = (8 + 1 + (units - 1) * width).div_ceil(8);
        rolling.is_exact().then_some(Ring { units, width, words })
    }

    /// Packs a log, if it fits.
    fn pack(&self, runs: &Runs, words: &mut [u64]) -> bool {
        let Some((first, _)) = runs.iter().next() else { return false };
        let units: Amount = runs.iter().map(|(_, count)| count).fold(0, Amount::saturating_add);
        let last = runs.iter().last().map(|(at, _)| at);
        let farthest = last.map_or(0, |last| last.since(first).ticks());
        let short = units <= self.units as Amount && (self.width == 8 || farthest >> (8 * self.width) == 0);
        if !short || runs.last_charge() != last {
            return false;
        }
        let mut writer = Bytes { words, at: 0 };
        writer.write(first.ticks(), 8);
        writer.write(units, 1);
        let each = runs.iter().flat_map(|(at, count)| (0..count).map(move |_| at));
        each.skip(1).for_each(|at| writer.write(at.since(first).ticks(), self.width));
        true
    }

    /// Every unit of a packed log.
    fn units<'a>(&self, words: &'a [u64]) -> impl Iterator<Item = (Timestamp, Amount)> + Clone + use<'a> {
        let (first, width) = (Timestamp::from_ticks(words[0]), self.width);
        let count = words[1] & 0xff;
        let other = move |index: u64| {
            let at = 9 + usize::try_from(index - 1).expect("a byte") * width;
            first.plus(Span::from_ticks(read(words, at, width)))
        };
        (0..count).map(move |index| (if index == 0 { first } else { other(index) }, 1))
    }
}

/// Bytes in words, the first byte lowest.
struct Bytes<'a> {
    words: &'a mut [u64],
    at: usize,
}

impl Bytes<'_> {
    fn write(&mut self, value: u64, width: usize) {
        for byte in 0..width {
            let (word, shift) = (self.at / 8, 8 * (self.at % 8));
            let bits = (value >> (8 * byte)) & 0xff;
            self.words[word] = self.words[word] & !(0xff << shift) | bits << shift;
            self.at += 1;
        }
    }
}

fn read(words: &[u64], at: usize, width: usize) -> u64 {
    (0..width).fold(0, |value, byte| {
        let place = at + byte;
        value | ((words[place / 8] >> (8 * (place % 8))) & 0xff) << (8 * byte)
    })
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
}

impl Shelf {
    /// Puts a row on the shelf and says where, as a cell.
    pub(super) fn put(&mut self, row: Row, ring: Option<Ring>) -> u64 {
        if let (Some(ring), Some(State::Rolling(runs))) = (ring, row.only())
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
        self.weight += weight_beside(&row);
        // Whether what is held has lapsed is seen when somebody asks.
        if row.is_held(Timestamp::EPOCH) {
            self.holder = Some(place);
        }
        *self.row(place) = row;
        WIDE | u64::from(place)
    }

    fn put_ring(&mut self, ring: Ring, runs: &Runs) -> Option<u32> {
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

    /// Takes a row off the shelf.
    pub(super) fn take(&mut self, cell: u64, ring: Option<Ring>) -> Row {
        let place = place_of(cell);
        if let (true, Some(ring)) = (cell & RING != 0, ring) {
            let mut row = self.spare.take().unwrap_or_else(|| Row::of(State::Rolling(Runs::default())));
            let units = ring.units(self.ring(ring, place));
            row.refill(units);
            self.free_rings.push(place);
            return row;
        }
        let row = std::mem::take(self.row(place));
        self.weight = self.weight.saturating_sub(weight_beside(&row));
        self.free_rows.push(place);
        row
    }

    /// A row on the shelf; a ring is seen as a log with its last unit in it, which is when it empties.
    pub(super) fn look<T>(&self, cell: u64, ring: Option<Ring>, look: impl FnOnce(&Row) -> T) -> T {
        let place = place_of(cell);
        match ring {
            Some(ring) if cell & RING != 0 => {
                let last = ring.units(self.ring(ring, place)).last();
                let last_time = last.map_or(Timestamp::EPOCH, |(at, _)| at);
                look(&Row::of(State::Rolling(Runs::from_sorted(last, last_time))))
            }
            _ => look(self.at(place)),
        }
    }

    /// Brings the rows of these cells near, for whoever will take them soon: one after the other would be waited for each in turn.
    pub(super) fn bring_near(&self, cells: impl Iterator<Item = u64>) {
        let wide = cells.filter(|cell| cell & (WIDE | RING) == WIDE && *cell != RESERVED);
        std::hint::black_box(wide.fold(0, |all, cell| all ^ self.at(place_of(cell)).glance()));
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
fn weight_beside(row: &Row) -> usize {
    row.weight() - size_of::<Row>()
}

fn place_of(cell: u64) -> u32 {
    u32::try_from(cell & u64::from(u32::MAX)).expect("32 bits")
}
