//! Sliding logs packed into one word of a row and at most one slab block.
//!
//! ```text
//!   word    0                          an empty log
//!           00 instant (62 bits)       one unit of an exact log, last charged at that instant
//!           01 block (62 bits)         any other log
//!
//!   block   head, count | total | last time | base | ring of entries
//!   entry   instant - base (high bits) | units (low bits)
//! ```
//!
//! Entries are in order of their instants. An amount that does not fit one entry takes several with the same instant. The
//! width of the units follows from the window. It leaves room for instants up to 8 windows after the base. The base moves
//! when an instant is later than that.
//!
//! [`SlidingWords::judge`] and the readings need no lock. Another thread may change the block while they read, so any value
//! must be safe to read. Their result is valid only if the caller finds the row unchanged afterwards. The other functions
//! need the lock of the row. Its caller must have a release fence between the lock and the first store.

use tidegate_core::law::sliding_window::SlidingLog;
use tidegate_core::{Amount, Capacity, Law, Rule, Timestamp, Wait};

use super::memory_budget::Budget;
use super::slab::{Block, CLASSES, Slab};
use super::sync::{AtomicU64, Ordering};

/// Marks a word that refers to a block.
const IN_BLOCK: u64 = 1 << 62;
/// The instant or the block of a word.
const PAYLOAD: u64 = IN_BLOCK - 1;

/// Words of a block before its ring.
const HEADER: usize = 4;
const HEAD_AND_COUNT: usize = 0;
const TOTAL: usize = 1;
const LAST_TIME: usize = 2;
const BASE: usize = 3;

/// Entries in the largest block.
const MAX_ENTRIES: u64 = (8 << (CLASSES - 1)) - HEADER as u64;
/// The fewest bits for the units of an entry.
const MIN_COUNT_BITS: u32 = 4;
/// Expired entries that one judgement reads.
const MAX_EXPIRED: usize = 64;

/// The answer of [`SlidingWords::judge`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judgement {
    /// The cost fits.
    Granted,
    /// The cost does not fit before the wait is over.
    Denied(Wait),
    /// The last charge was at this later instant. Judge again at it.
    At(Timestamp),
    /// Too many entries have expired. Lock the row, call [`SlidingWords::tidy`] and judge again.
    Tidy,
}

/// A sliding window law for packed logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlidingWords {
    capacity: Capacity,
    /// Ticks.
    window: u64,
    /// Ticks.
    granularity: u64,
}

/// A packed log.
enum Packed<'s> {
    Empty,
    /// One unit at this instant.
    One(u64),
    Ring(Ring<'s>),
}

/// A block and a copy of its header.
#[derive(Clone, Copy)]
struct Ring<'s> {
    header: &'s [AtomicU64],
    slots: &'s [AtomicU64],
    count_bits: u32,
    /// The slot of the first entry, below `slots.len()`.
    head: usize,
    /// The number of entries, at most `slots.len()`.
    count: usize,
    total: Amount,
    last_time: u64,
    base: u64,
}

impl<'s> Ring<'s> {
    /// The ring of a block. `None` if the value is not a block or the header is from a torn read.
    #[inline]
    fn open(slab: &'s Slab, block: Block, count_bits: u32) -> Option<Ring<'s>> {
        let (header, slots) = slab.words(block).split_at_checked(HEADER)?;
        let load = |index: usize| header[index].load(Ordering::Relaxed);
        let head_and_count = load(HEAD_AND_COUNT);
        let (head, count) = ((head_and_count >> 32) as usize, (head_and_count & 0xffff_ffff) as usize);
        let is_ring = head < slots.len() && 0 < count && count <= slots.len();
        is_ring.then(|| {
            let (total, last_time, base) = (load(TOTAL), load(LAST_TIME), load(BASE));
            Ring { header, slots, count_bits, head, count, total, last_time, base }
        })
    }

    /// A ring without entries in a block.
    fn empty(slab: &'s Slab, block: Block, count_bits: u32, last_time: u64, base: u64) -> Option<Ring<'s>> {
        let (header, slots) = slab.words(block).split_at_checked(HEADER)?;
        Some(Ring { header, slots, count_bits, head: 0, count: 0, total: 0, last_time, base })
    }

    /// The slot of entry `index`, which is below `slots.len()`.
    #[inline]
    fn slot(&self, index: usize) -> &'s AtomicU64 {
        let slot = self.head + index;
        &self.slots[if slot < self.slots.len() { slot } else { slot - self.slots.len() }]
    }

    /// Entry `index` as (instant, units).
    #[inline]
    fn entry(&self, index: usize) -> (u64, Amount) {
        let entry = self.slot(index).load(Ordering::Relaxed);
        (self.base.saturating_add(entry >> self.count_bits), entry & max_units(self.count_bits))
    }

    fn first(&self) -> (u64, Amount) {
        self.entry(0)
    }

    fn last(&self) -> (u64, Amount) {
        self.entry(self.count.saturating_sub(1))
    }

    fn entries(self) -> impl Iterator<Item = (u64, Amount)> {
        (0..self.count).map(move |index| self.entry(index))
    }

    /// Sets entry `index`. The instant is not before the base and not too late for it.
    fn set_entry(&self, index: usize, at: u64, units: Amount) {
        let entry = at.saturating_sub(self.base) << self.count_bits | units;
        self.slot(index).store(entry, Ordering::Relaxed);
    }

    /// Adds entries for an amount at an instant. There is room for them.
    fn append(&mut self, at: u64, amount: Amount) {
        let mut rest = amount;
        while rest > 0 {
            let units = rest.min(max_units(self.count_bits));
            self.set_entry(self.count, at, units);
            self.count += 1;
            rest -= units;
        }
        self.total = self.total.saturating_add(amount);
    }

    /// Removes entries with this many units from the front. Others remain.
    fn drop_front(&mut self, entries: usize, units: Amount) {
        self.head += entries;
        if self.head >= self.slots.len() {
            self.head -= self.slots.len();
        }
        self.count -= entries;
        self.total = self.total.saturating_sub(units);
    }

    /// Changes the base of all entries.
    fn rebase(&mut self, base: u64) {
        let former = *self;
        self.base = base;
        for index in 0..self.count {
            let (at, units) = former.entry(index);
            self.set_entry(index, at, units);
        }
    }

    fn store_header(&self) {
        let store = |index: usize, word: u64| self.header[index].store(word, Ordering::Relaxed);
        store(HEAD_AND_COUNT, (self.head as u64) << 32 | self.count as u64);
        store(TOTAL, self.total);
        store(LAST_TIME, self.last_time);
        store(BASE, self.base);
    }
}

/// The most units of one entry.
#[inline]
const fn max_units(count_bits: u32) -> Amount {
    (1 << count_bits) - 1
}

/// The class of the smallest block for this many entries, if one is large enough.
fn class_for(entries: u64) -> Option<u32> {
    let units = entries.saturating_add(HEADER as u64).div_ceil(8);
    (entries <= MAX_ENTRIES).then(|| units.next_power_of_two().trailing_zeros())
}

/// Whether a block of this class suits so many entries: it has room for all and is not much too large. A log grows to the
/// next class when it is full, and shrinks when it would fill less than half of a smaller class.
fn suits(class: u32, entries: u64) -> bool {
    class_for(entries).is_some_and(|smallest| (smallest..=roomy_class(entries)).contains(&class))
}

/// The class of the smallest block with room for twice as many entries.
fn roomy_class(entries: u64) -> u32 {
    class_for(entries.saturating_mul(2)).unwrap_or(CLASSES - 1)
}

/// The block of a word, or none.
fn block_of(word: u64) -> Block {
    if word & IN_BLOCK == 0 { Block::NONE } else { Block::from_bits(word & PAYLOAD) }
}

fn word_of(block: Block) -> u64 {
    IN_BLOCK | block.bits()
}

impl SlidingWords {
    /// The packed form of a rule. `None` for another law or a window that is too long.
    pub(super) fn of(rule: &Rule) -> Option<SlidingWords> {
        let Law::SlidingWindow(law) = &rule.law else { return None };
        let words = SlidingWords::from_parts(rule.capacity, law.window().ticks(), law.granularity().ticks());
        (words.free_count_bits() >= MIN_COUNT_BITS).then_some(words)
    }

    /// The packed form of a law, from the values of one that [`SlidingWords::of`] accepts. Any values are safe.
    #[inline]
    pub(super) const fn from_parts(capacity: Capacity, window: u64, granularity: u64) -> SlidingWords {
        SlidingWords { capacity, window, granularity }
    }

    /// The length of the window in ticks.
    #[inline]
    pub(super) const fn window(&self) -> u64 {
        self.window
    }

    /// The length of a sub-window in ticks.
    #[inline]
    pub(super) const fn granularity(&self) -> u64 {
        self.granularity
    }

    /// 62 bits less those of two windows.
    #[inline]
    const fn free_count_bits(&self) -> u32 {
        self.window.leading_zeros().saturating_sub(3)
    }

    /// The bits for the units of an entry.
    #[inline]
    fn count_bits(&self) -> u32 {
        self.free_count_bits().max(MIN_COUNT_BITS)
    }

    /// Whether an entry can be at `at` if the base is `base`.
    fn fits(&self, base: u64, at: u64) -> bool {
        at.checked_sub(base).is_some_and(|distance| distance >> (64 - self.count_bits()) == 0)
    }

    fn is_exact(&self) -> bool {
        self.granularity <= 1
    }

    /// The last tick of the sub-window around `now`, where a charge at `now` counts.
    #[inline]
    fn counted_at(&self, now: u64) -> u64 {
        if self.is_exact() {
            return now;
        }
        (now / self.granularity).saturating_mul(self.granularity).saturating_add(self.granularity - 1)
    }

    /// The first instant after a charge counted at `at` has left the window.
    #[inline]
    fn expires_at(&self, at: u64) -> u64 {
        at.saturating_add(self.window).saturating_add(1)
    }

    #[inline]
    fn is_expired(&self, at: u64, now: u64) -> bool {
        self.expires_at(at) <= now
    }

    #[inline]
    fn open<'s>(&self, slab: &'s Slab, word: u64) -> Packed<'s> {
        match (word & IN_BLOCK, word & PAYLOAD) {
            (0, 0) => Packed::Empty,
            (0, at) => Packed::One(at),
            (_, block) => {
                let ring = Ring::open(slab, Block::from_bits(block), self.count_bits());
                ring.map_or(Packed::Empty, Packed::Ring)
            }
        }
    }

    /// Whether `cost` more units fit at `now`, and if not, when they will. The same as the core's `SlidingWindow::check`.
    #[inline]
    pub(super) fn judge(&self, slab: &Slab, word: u64, cost: Amount, now: Timestamp) -> Judgement {
        let now_ticks = now.ticks();
        let packed = self.open(slab, word);
        let last_time = match &packed {
            Packed::Empty => 0,
            Packed::One(at) => *at,
            Packed::Ring(ring) => ring.last_time,
        };
        if last_time > now_ticks {
            return Judgement::At(Timestamp::from_ticks(last_time));
        }
        let Capacity::AtMost(limit) = self.capacity else { return Judgement::Granted };
        // As many units may be in use before the charge.
        let Some(room) = limit.checked_sub(cost) else { return Judgement::Denied(Wait::Never) };
        match packed {
            Packed::One(at) if room == 0 => self.judge_by(at, now_ticks),
            Packed::Empty | Packed::One(_) => Judgement::Granted,
            Packed::Ring(ring) if ring.total <= room => Judgement::Granted,
            Packed::Ring(ring) => self.judge_ring(&ring, ring.total - room, now_ticks),
        }
    }

    /// The answer if the units of an entry must leave the window first.
    #[inline]
    fn judge_by(&self, at: u64, now: u64) -> Judgement {
        if self.is_expired(at, now) {
            return Judgement::Granted;
        }
        Judgement::Denied(Wait::Until(Timestamp::from_ticks(self.expires_at(at))))
    }

    /// The answer if `excess` units of a ring must leave the window first.
    #[inline]
    fn judge_ring(&self, ring: &Ring<'_>, excess: Amount, now: u64) -> Judgement {
        // If each entry has one unit, then the entry is known.
        let start = if ring.total == ring.count as u64 { excess - 1 } else { 0 };
        let mut gone: Amount = start;
        for index in usize::try_from(start).unwrap_or(usize::MAX)..ring.count {
            let (at, units) = ring.entry(index);
            gone = gone.saturating_add(units);
            if gone >= excess {
                return self.judge_by(at, now);
            }
            if index >= MAX_EXPIRED && self.is_expired(at, now) {
                return Judgement::Tidy;
            }
        }
        // Only a torn read has less in its entries than in its total.
        Judgement::Granted
    }

    /// Whether [`SlidingWords::charge`] certainly succeeds. Callers that charge several rows ask before the first charge.
    pub(super) fn can_charge(&self, slab: &Slab, word: u64, cost: Amount, now: Timestamp) -> bool {
        let (entries, total) = match self.open(slab, word) {
            Packed::Empty => (0, 0),
            Packed::One(_) => (1, 1),
            Packed::Ring(ring) => (ring.count as u64, ring.total),
        };
        let more = cost.div_ceil(max_units(self.count_bits()));
        now.ticks() < PAYLOAD - self.granularity
            && entries.saturating_add(more) < MAX_ENTRIES
            && total.checked_add(cost).is_some()
    }

    /// Charges `cost` at `now` and returns the next word. The same as the core's `Rule::charge`. `None` if the log cannot
    /// be packed any more; then nothing has changed.
    pub(super) fn charge(
        &self,
        slab: &Slab,
        budget: &Budget,
        word: u64,
        cost: Amount,
        now: Timestamp,
    ) -> Option<u64> {
        if cost == 0 {
            return Some(word);
        }
        let now = now.ticks();
        let counted_at = self.counted_at(now);
        match self.open(slab, word) {
            Packed::One(first) if !self.is_expired(first, now) => {
                let last_time = first.max(now);
                let at = first.max(counted_at);
                if at == first {
                    self.pack(slab, budget, word, || [(at, cost.saturating_add(1))].into_iter(), last_time)
                } else {
                    self.pack(slab, budget, word, || [(first, 1), (at, cost)].into_iter(), last_time)
                }
            }
            Packed::Ring(mut ring) if !self.is_expired(ring.last().0, now) => {
                self.drop_expired(&mut ring, now);
                self.append(slab, budget, word, ring, cost, counted_at, now)
            }
            _ => self.pack(slab, budget, word, || [(counted_at, cost)].into_iter(), now),
        }
    }

    /// Adds a charge to a ring without expired entries.
    #[expect(clippy::too_many_arguments, reason = "a part of charge")]
    fn append(
        &self,
        slab: &Slab,
        budget: &Budget,
        word: u64,
        ring: Ring<'_>,
        cost: Amount,
        counted_at: u64,
        now: u64,
    ) -> Option<u64> {
        let (last_at, last_units) = ring.last();
        let at = last_at.max(counted_at);
        ring.total.checked_add(cost)?;
        let max_units = max_units(self.count_bits());
        let joined = if at == last_at { cost.min(max_units - last_units) } else { 0 };
        let rest = cost - joined;
        let entries = (ring.count as u64).saturating_add(rest.div_ceil(max_units));
        let (word, mut ring) = self.fit(slab, budget, word, ring, entries, at)?;
        if joined > 0 {
            ring.set_entry(ring.count - 1, at, last_units + joined);
            ring.total += joined;
        }
        ring.append(at, rest);
        ring.last_time = ring.last_time.max(now);
        ring.store_header();
        Some(word)
    }

    /// Moves a ring to another block or base if so many entries until `at` need it. The header is stored by the caller.
    fn fit<'s>(
        &self,
        slab: &'s Slab,
        budget: &Budget,
        word: u64,
        ring: Ring<'s>,
        entries: u64,
        at: u64,
    ) -> Option<(u64, Ring<'s>)> {
        let base = if self.fits(ring.base, at) { ring.base } else { ring.first().0 };
        let smallest = class_for(entries)?;
        if !self.fits(base, at) {
            return None;
        }
        let block = block_of(word);
        if !suits(block.class(), entries) {
            let grows = block.class() < smallest;
            let next = slab.alloc(if grows { smallest } else { roomy_class(entries) }, budget);
            if let Some(mut moved) = Ring::empty(slab, next, ring.count_bits, ring.last_time, base) {
                for (at, units) in ring.entries() {
                    moved.append(at, units);
                }
                slab.free(block, budget);
                return Some((word_of(next), moved));
            }
            if grows {
                return None;
            }
        }
        let mut ring = ring;
        if base != ring.base {
            ring.rebase(base);
        }
        Some((word, ring))
    }

    /// The entries at the front that have expired, and their units.
    fn expired(&self, ring: &Ring<'_>, now: u64) -> (usize, Amount) {
        let mut units: Amount = 0;
        for (index, (at, amount)) in ring.entries().enumerate() {
            if !self.is_expired(at, now) {
                return (index, units);
            }
            units = units.saturating_add(amount);
        }
        (ring.count, units)
    }

    fn drop_expired(&self, ring: &mut Ring<'_>, now: u64) {
        let (entries, units) = self.expired(ring, now);
        ring.drop_front(entries, units);
    }

    /// Packs entries in place of a former word. `None` if they cannot be packed; then nothing has changed.
    fn pack<I: Iterator<Item = (u64, Amount)>>(
        &self,
        slab: &Slab,
        budget: &Budget,
        former: u64,
        entries: impl Fn() -> I,
        last_time: u64,
    ) -> Option<u64> {
        let Some((first, _)) = entries().next() else {
            self.free(slab, budget, former);
            return Some(0);
        };
        let max_units = max_units(self.count_bits());
        let (mut count, mut total, mut last): (u64, Amount, u64) = (0, 0, first);
        for (at, amount) in entries() {
            if amount == 0 || at < last || !self.fits(first, at) {
                return None;
            }
            count = count.saturating_add(amount.div_ceil(max_units));
            total = total.checked_add(amount)?;
            last = at;
        }
        if let Some(word) = self.pack_unit(total, first, last_time) {
            self.free(slab, budget, former);
            return Some(word);
        }
        let smallest = class_for(count)?;
        let former_block = block_of(former);
        let reused = !slab.words(former_block).is_empty() && suits(former_block.class(), count);
        let block = if reused { former_block } else { slab.alloc(smallest, budget) };
        let mut ring = Ring::empty(slab, block, self.count_bits(), last_time, first)?;
        for (at, amount) in entries() {
            ring.append(at, amount);
        }
        ring.store_header();
        if !reused {
            slab.free(former_block, budget);
        }
        Some(word_of(block))
    }

    /// The word of a log without a block, if it has this form.
    fn pack_unit(&self, total: Amount, at: u64, last_time: u64) -> Option<u64> {
        (self.is_exact() && total == 1 && at == last_time && 0 < at && at <= PAYLOAD).then_some(at)
    }

    /// Drops expired entries and returns the next word.
    pub(super) fn tidy(&self, slab: &Slab, budget: &Budget, word: u64, now: Timestamp) -> u64 {
        let now = now.ticks();
        match self.open(slab, word) {
            Packed::One(at) if !self.is_expired(at, now) => word,
            Packed::Ring(mut ring) if !self.is_expired(ring.last().0, now) => {
                self.drop_expired(&mut ring, now);
                let (last_at, _) = ring.last();
                if let Some(word_of_unit) = self.pack_unit(ring.total, last_at, ring.last_time) {
                    self.free(slab, budget, word);
                    return word_of_unit;
                }
                let entries = ring.count as u64;
                let (word, ring) =
                    self.fit(slab, budget, word, ring, entries, last_at).unwrap_or((word, ring));
                ring.store_header();
                word
            }
            _ => {
                self.free(slab, budget, word);
                0
            }
        }
    }

    /// The log in the core's form.
    pub(super) fn read(&self, slab: &Slab, word: u64) -> SlidingLog {
        let entry = |(at, units)| (Timestamp::from_ticks(at), units);
        match self.open(slab, word) {
            Packed::Empty => SlidingLog::default(),
            Packed::One(at) => SlidingLog::from_sorted([entry((at, 1))], Timestamp::from_ticks(at)),
            Packed::Ring(ring) => {
                SlidingLog::from_sorted(ring.entries().map(entry), Timestamp::from_ticks(ring.last_time))
            }
        }
    }

    /// Packs a log in place of a former word and returns the next word. `None` if it cannot be packed. The block of the
    /// former word is reused or freed in any case.
    pub(super) fn write(&self, slab: &Slab, budget: &Budget, former: u64, log: &SlidingLog) -> Option<u64> {
        let entries = || log.iter().map(|(at, amount)| (at.ticks(), amount));
        let last_time = log.last_charge().unwrap_or_default().ticks();
        let word = self.pack(slab, budget, former, entries, last_time);
        if word.is_none() {
            self.free(slab, budget, former);
        }
        word
    }

    /// Frees the block of a word. The word must not be used any more.
    #[expect(clippy::unused_self, reason = "like the other functions")]
    pub(super) fn free(&self, slab: &Slab, budget: &Budget, word: u64) {
        slab.free(block_of(word), budget);
    }

    /// The units spent in the window that ends at `now`.
    pub(super) fn used(&self, slab: &Slab, word: u64, now: Timestamp) -> Amount {
        match self.open(slab, word) {
            Packed::One(at) => Amount::from(!self.is_expired(at, now.ticks())),
            Packed::Ring(ring) if !self.is_expired(ring.last().0, now.ticks()) => {
                ring.total.saturating_sub(self.expired(&ring, now.ticks()).1)
            }
            _ => 0,
        }
    }

    /// When the last entry leaves the window. `None` if it has.
    pub(super) fn empty_at(&self, slab: &Slab, word: u64, now: Timestamp) -> Option<Timestamp> {
        let last = match self.open(slab, word) {
            Packed::Empty => return None,
            Packed::One(at) => at,
            Packed::Ring(ring) => ring.last().0,
        };
        Some(Timestamp::from_ticks(self.expires_at(last))).filter(|&at| at > now)
    }

    /// When dropping the log changes no decision. `now` if nothing is in use.
    pub(super) fn evictable_at(&self, slab: &Slab, word: u64, now: Timestamp) -> Timestamp {
        self.empty_at(slab, word, now).unwrap_or(now)
    }

    /// The last entry as (instant, amount) and the time of the last charge.
    pub(super) fn latest(&self, slab: &Slab, word: u64) -> Option<(Timestamp, Amount, Timestamp)> {
        let (at, amount, last_time) = match self.open(slab, word) {
            Packed::Empty => return None,
            Packed::One(at) => (at, 1, at),
            Packed::Ring(ring) => {
                let (last, _) = ring.last();
                let parts = (0..ring.count).rev().map(|index| ring.entry(index));
                let same = parts.take_while(|&(at, _)| at == last);
                (last, same.fold(0, |sum: Amount, (_, units)| sum.saturating_add(units)), ring.last_time)
            }
        };
        Some((Timestamp::from_ticks(at), amount, Timestamp::from_ticks(last_time)))
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use proptest::prelude::*;
    use tidegate_core::law::SlidingWindow;
    use tidegate_core::{Receipt, Span, State, Verdict};
    use tidegate_testkit::test_scale::cases;

    use super::*;

    fn at(ticks: u64) -> Timestamp {
        Timestamp::from_ticks(ticks)
    }

    /// A packed log and the core's log that it must equal.
    struct Pair {
        rule: Rule,
        law: SlidingWords,
        slab: Slab,
        budget: Budget,
        word: u64,
        state: State,
    }

    impl Pair {
        fn new(capacity: Capacity, window: u64, is_exact: bool) -> Pair {
            let window = Span::from_ticks(window);
            let law = if is_exact { SlidingWindow::exact(window) } else { SlidingWindow::bucketed(window) };
            let rule = Rule { capacity, law: Law::SlidingWindow(law) };
            Pair {
                law: SlidingWords::of(&rule).expect("short enough"),
                state: State::blank(&rule.law),
                rule,
                slab: Slab::new(),
                budget: Budget::new(usize::MAX),
                word: 0,
            }
        }

        fn log(&self) -> &SlidingLog {
            let State::SlidingWindow(log) = &self.state else { unreachable!("a sliding rule") };
            log
        }

        fn judge(&self, cost: Amount, now: Timestamp) -> Judgement {
            self.law.judge(&self.slab, self.word, cost, now)
        }

        /// Judges until there is a verdict, and compares it.
        fn check(&mut self, cost: Amount, now: Timestamp) {
            let last_charge = self.log().last_charge().unwrap_or_default();
            let mut now = now;
            if last_charge > now {
                assert_eq!(self.judge(cost, now), Judgement::At(last_charge));
                now = last_charge;
            }
            let expected = self.rule.check(&self.state, cost, now);
            let mut judgement = self.judge(cost, now);
            if judgement == Judgement::Tidy {
                self.tidy(now);
                judgement = self.judge(cost, now);
            }
            let verdict = match judgement {
                Judgement::Granted => Verdict::Granted,
                Judgement::Denied(wait) => Verdict::Denied(wait),
                other => panic!("{other:?} after tidy"),
            };
            assert_eq!(verdict, expected, "{cost} at {now:?} of {:?}", self.state);
        }

        /// Charges both. If the packed log cannot take it, neither is changed.
        fn charge(&mut self, cost: Amount, now: Timestamp) -> bool {
            let mut next = self.state.clone();
            self.rule.charge(&mut next, cost, None, now);
            let word = self.law.charge(&self.slab, &self.budget, self.word, cost, now);
            if let Some(word) = word {
                self.word = word;
                self.state = next;
            } else {
                assert!(!self.can_pack(cost, now), "{cost} at {now:?} fits {:?}", self.state);
            }
            self.compare(now);
            word.is_some()
        }

        /// Whether a log with another charge can be packed.
        fn can_pack(&self, cost: Amount, now: Timestamp) -> bool {
            let max_units = max_units(self.law.count_bits());
            let live = self.live(now);
            let entries = live.iter().map(|&(_, amount)| amount.div_ceil(max_units)).sum::<u64>();
            let total = live.iter().map(|entry| entry.1).sum::<u64>();
            entries + cost.div_ceil(max_units) <= MAX_ENTRIES && total.checked_add(cost).is_some()
        }

        fn live(&self, now: Timestamp) -> Vec<(Timestamp, Amount)> {
            self.log().iter().filter(|(at, _)| !self.law.is_expired(at.ticks(), now.ticks())).collect()
        }

        fn tidy(&mut self, now: Timestamp) {
            self.word = self.law.tidy(&self.slab, &self.budget, self.word, now);
            let live = self.live(now);
            let last_charge = self.log().last_charge().filter(|_| !live.is_empty());
            self.state = State::SlidingWindow(SlidingLog::from_sorted(live, last_charge.unwrap_or_default()));
            self.compare(now);
            assert_eq!(self.word == 0, self.log().is_empty());
        }

        /// Gives back units of an entry and packs the log again.
        fn refund(&mut self, entry: prop::sample::Index, amount: Amount, now: Timestamp) {
            let mut state = State::SlidingWindow(self.law.read(&self.slab, self.word));
            let count = self.log().len();
            if count > 0 {
                let (at, _) = self.log().iter().nth(entry.index(count)).expect("below the count");
                self.rule.refund(&mut state, Receipt::At(at), amount, now);
                self.rule.refund(&mut self.state, Receipt::At(at), amount, now);
            }
            let State::SlidingWindow(log) = &state else { unreachable!("a sliding rule") };
            self.word = self.law.write(&self.slab, &self.budget, self.word, log).expect("it was packed");
            self.compare(now);
        }

        /// Everything that can be read is equal, and the budget counts one block at most.
        fn compare(&self, now: Timestamp) {
            let (law, slab, word) = (&self.law, &self.slab, self.word);
            let log = law.read(slab, word);
            assert_eq!(&log, self.log());
            let used = self.rule.used(&self.state, now);
            let empty_at = self.rule.empty_at(&self.state, now);
            assert_eq!(law.used(slab, word, now), used);
            assert_eq!(law.empty_at(slab, word, now), empty_at);
            assert_eq!(law.evictable_at(slab, word, now) == now, used == 0);
            assert_eq!(law.evictable_at(slab, word, now), empty_at.unwrap_or(now));
            let latest = log.latest().map(|(at, amount)| (at, amount, log.last_charge().unwrap_or_default()));
            assert_eq!(law.latest(slab, word), latest);
            assert_eq!(word >> 63, 0);
            assert_eq!(self.budget.taken(), self.block_words() * 8);
        }

        fn block_words(&self) -> usize {
            self.slab.words(block_of(self.word)).len()
        }

        fn free(self) {
            self.law.free(&self.slab, &self.budget, self.word);
            assert_eq!(self.budget.taken(), 0);
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        /// Checks and charges of this cost, with this part of the window between two.
        Charges {
            count: u32,
            cost: Amount,
            gap: f64,
        },
        /// Moves the clock by a part of the window. Negative is back.
        Move {
            by: f64,
        },
        Tick {
            by: i64,
        },
        Check {
            cost: Amount,
        },
        Refund {
            entry: prop::sample::Index,
            amount: Amount,
        },
        Tidy,
    }

    fn costs() -> impl Strategy<Value = Amount> {
        prop_oneof![
            4 => Just(1),
            4 => 0u64..8,
            2 => 8u64..200,
            1 => 200u64..10_000,
            1 => prop::sample::select(vec![1 << 20, 1 << 40, 1 << 63, u64::MAX - 1, u64::MAX]),
        ]
    }

    fn steps() -> impl Strategy<Value = Step> {
        let parts = prop_oneof![Just(0.0), 0.0..0.03, 0.0..0.5];
        prop_oneof![
            4 => (1u32..200, costs(), parts).prop_map(|(count, cost, gap)| Step::Charges { count, cost, gap }),
            2 => (1u32..4, costs(), 0.0..1.5).prop_map(|(count, cost, gap)| Step::Charges { count, cost, gap }),
            2 => (-0.5..1.5).prop_map(|by| Step::Move { by }),
            1 => (1.0..20.0).prop_map(|by| Step::Move { by }),
            2 => (-2i64..3).prop_map(|by| Step::Tick { by }),
            3 => costs().prop_map(|cost| Step::Check { cost }),
            2 => (any::<prop::sample::Index>(), costs())
                .prop_map(|(entry, amount)| Step::Refund { entry, amount }),
            1 => Just(Step::Tidy),
        ]
    }

    fn windows() -> impl Strategy<Value = u64> {
        prop_oneof![1u64..300, Just(60_000_000_000), Just(31 * 86_400_000_000_000), Just((1 << 57) - 1)]
    }

    fn capacities() -> impl Strategy<Value = Capacity> {
        let limits = prop_oneof![0u64..6, 6u64..300, 300u64..100_000, Just(i64::MAX as u64), Just(u64::MAX)];
        prop_oneof![1 => Just(Capacity::Unlimited), 8 => limits.prop_map(Capacity::AtMost)]
    }

    fn starts() -> impl Strategy<Value = u64> {
        prop::sample::select(vec![0, 1, 1_790_000_000_000_000_000, PAYLOAD - 1, PAYLOAD, u64::MAX - 5])
    }

    /// A part of the window in ticks.
    #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "about so many")]
    fn part(window: u64, by: f64) -> i64 {
        (window as f64 * by) as i64
    }

    proptest! {
        #![proptest_config(cases(300))]

        /// Random operations on a packed log have the same results as on the core's log.
        #[test]
        fn packed_log_equals_sliding_log(
            capacity in capacities(),
            window in windows(),
            is_exact in any::<bool>(),
            start in starts(),
            steps in prop::collection::vec(steps(), 1..40),
        ) {
            let mut pair = Pair::new(capacity, window, is_exact);
            let mut now = start;
            for step in steps {
                match step {
                    Step::Charges { count, cost, gap } => {
                        for index in 0..count {
                            if index > 0 {
                                now = now.saturating_add_signed(part(window, gap));
                            }
                            pair.check(cost, at(now));
                            if !pair.charge(cost, at(now)) {
                                break;
                            }
                        }
                    }
                    Step::Move { by } => now = now.saturating_add_signed(part(window, by)),
                    Step::Tick { by } => now = now.saturating_add_signed(by),
                    Step::Check { cost } => pair.check(cost, at(now)),
                    Step::Refund { entry, amount } => pair.refund(entry, amount, at(now)),
                    Step::Tidy => pair.tidy(at(now)),
                }
                pair.check(1, at(now));
                pair.compare(at(now));
            }
            pair.free();
        }

        /// Reads of any words end without a panic.
        #[test]
        fn garbage_never_panics(
            class in 0u32..5,
            words in prop::collection::vec(garbage(), 128),
            head in 0u64..140,
            count in 0u64..140,
            sets_header in any::<bool>(),
            word in prop_oneof![Just(None), any::<u64>().prop_map(Some)],
            capacity in capacities(),
            window in prop_oneof![windows(), any::<u64>()],
            granularity in prop_oneof![Just(0), Just(1), any::<u64>()],
            cost in costs(),
            now in garbage(),
        ) {
            let (slab, budget) = (Slab::new(), Budget::new(usize::MAX));
            let block = slab.alloc(class, &budget);
            for (target, word) in slab.words(block).iter().zip(words) {
                target.store(word, Ordering::Relaxed);
            }
            if sets_header {
                slab.words(block)[HEAD_AND_COUNT].store(head << 32 | count, Ordering::Relaxed);
            }
            let word = word.unwrap_or(word_of(block));
            let law = SlidingWords::from_parts(capacity, window, granularity);
            law.judge(&slab, word, cost, at(now));
            law.used(&slab, word, at(now));
            law.empty_at(&slab, word, at(now));
            law.evictable_at(&slab, word, at(now));
            law.latest(&slab, word);
            law.read(&slab, word);
        }
    }

    fn garbage() -> impl Strategy<Value = u64> {
        prop_oneof![
            any::<u64>(),
            0u64..200,
            any::<u64>().prop_map(|word| word | u64::MAX << 50),
            Just(u64::MAX)
        ]
    }

    #[test]
    fn unit_of_exact_log_needs_no_block() {
        let mut pair = Pair::new(Capacity::AtMost(5), 15, true);
        assert!(pair.charge(1, at(100)));
        assert_eq!((pair.word, pair.budget.taken()), (100, 0));
        // The unit has expired, so that the next one takes its word.
        assert!(pair.charge(1, at(116)));
        assert_eq!((pair.word, pair.budget.taken()), (116, 0));
        assert!(pair.charge(1, at(117)));
        assert_eq!(pair.budget.taken(), 64);
        pair.tidy(at(132));
        assert_eq!((pair.word, pair.budget.taken()), (117, 0));
        pair.tidy(at(133));
        assert_eq!(pair.word, 0);
    }

    #[test]
    fn instant_that_is_no_word_needs_a_block() {
        for now in [0, IN_BLOCK, u64::MAX - 1_000] {
            let mut pair = Pair::new(Capacity::AtMost(5), 15, true);
            assert!(pair.charge(1, at(now)));
            assert_eq!(pair.budget.taken(), 64, "at {now}");
            pair.free();
        }
    }

    #[test]
    fn unit_of_bucketed_log_needs_a_block() {
        let mut pair = Pair::new(Capacity::AtMost(5), 640, false);
        // The last tick of a sub-window, where the charge counts.
        assert!(pair.charge(1, at(1_009)));
        assert_eq!(pair.budget.taken(), 64);
        pair.free();
    }

    #[test]
    fn charges_of_one_instant_share_an_entry() {
        let mut pair = Pair::new(Capacity::Unlimited, 60_000_000_000, true);
        for _ in 0..1_000 {
            assert!(pair.charge(2, at(1_000)));
        }
        assert_eq!(pair.block_words(), 8);
        pair.free();
    }

    #[test]
    fn smallest_blocks_have_4_and_12_entries() {
        let mut pair = Pair::new(Capacity::AtMost(50), 1_000, true);
        let mut sizes = Vec::new();
        for index in 0..13 {
            assert!(pair.charge(1, at(100 + index)));
            sizes.push(pair.block_words());
        }
        assert_eq!(sizes, [0, 8, 8, 8, 16, 16, 16, 16, 16, 16, 16, 16, 32]);
    }

    #[test]
    fn short_log_shrinks_its_block() {
        let mut pair = Pair::new(Capacity::AtMost(5_000), 1_000, true);
        for index in 0..1_000 {
            assert!(pair.charge(1, at(1_000 + index)));
        }
        assert_eq!(pair.block_words(), 1_024);
        assert!(pair.charge(1, at(2_999)));
        assert_eq!(pair.block_words(), 8);
        pair.free();
    }

    #[test]
    fn steady_charges_keep_their_block() {
        let mut pair = Pair::new(Capacity::AtMost(100), 1_000, true);
        let mut former = 0;
        for index in 0..2_000 {
            assert!(pair.charge(2, at(10_000 + index * 20)));
            if index > 100 {
                assert_eq!(pair.word, former, "after {index} charges");
            }
            former = pair.word;
        }
        pair.free();
    }

    #[test]
    fn many_expired_entries_need_tidy() {
        let mut pair = Pair::new(Capacity::AtMost(400), 1_000, true);
        for index in 0..200 {
            assert!(pair.charge(2, at(1_000 + index)));
        }
        // The answer is within the first 64 entries.
        assert_eq!(pair.judge(128, at(2_500)), Judgement::Granted);
        assert_eq!(pair.judge(131, at(2_500)), Judgement::Tidy);
        // The scan ends at the first entry that has not expired.
        assert_eq!(pair.judge(130, at(2_010)), Judgement::Denied(Wait::Until(at(2_065))));
        pair.check(131, at(2_500));
        assert_eq!(pair.judge(400, at(2_500)), Judgement::Granted);
    }

    #[test]
    fn earlier_clock_is_judged_at_the_last_charge() {
        for capacity in [Capacity::AtMost(5), Capacity::Unlimited] {
            let mut pair = Pair::new(capacity, 640, false);
            assert!(pair.charge(1, at(1_000)));
            assert_eq!(pair.judge(1, at(999)), Judgement::At(at(1_000)));
            assert_eq!(pair.judge(1, at(1_000)), Judgement::Granted);
        }
    }

    #[test]
    fn log_that_cannot_be_packed_frees_its_block() {
        let mut pair = Pair::new(Capacity::Unlimited, (1 << 57) - 1, true);
        assert!(pair.charge(15 * MAX_ENTRIES, at(1_000)));
        assert_eq!(pair.budget.taken(), 1 << 20);
        assert!(!pair.charge(1, at(1_000)));
        pair.compare(at(1_000));
        for (at_first, amount) in [(1_000, 1 << 30), (1_000, 0)] {
            let (slab, budget) = (&pair.slab, &pair.budget);
            let log = SlidingLog::from_sorted([(at(at_first), amount)], at(at_first));
            assert_eq!(pair.law.write(slab, budget, pair.word, &log), None);
            assert_eq!(budget.taken(), 0);
            pair.word = 0;
        }
        // Entries of a longer window.
        let law = SlidingWords::from_parts(Capacity::Unlimited, 10, 1);
        let log = SlidingLog::from_sorted([(at(1), 1), (at(1_000), 1)], at(1_000));
        assert_eq!(law.write(&pair.slab, &pair.budget, 0, &log), None);
        assert_eq!(pair.budget.taken(), 0);
    }

    #[test]
    fn long_window_or_other_law_is_not_packed() {
        let rule = |law| Rule { capacity: Capacity::AtMost(5), law };
        let window = |ticks| Law::SlidingWindow(SlidingWindow::exact(Span::from_ticks(ticks)));
        assert_eq!(SlidingWords::of(&rule(Law::LifetimeTotal)), None);
        assert_eq!(SlidingWords::of(&rule(window(1 << 57))), None);
        let longest = (1 << 57) - 1;
        let law = SlidingWords::of(&rule(window(longest))).expect("short enough");
        assert_eq!((law.capacity, law.window(), law.granularity()), (Capacity::AtMost(5), longest, 1));
        assert_eq!(law.count_bits(), 4);
        let minute = SlidingWords::of(&rule(window(60_000_000_000))).expect("short enough");
        assert_eq!(minute.count_bits(), 62 - (120_000_000_000_u64.ilog2() + 1));
    }
}
