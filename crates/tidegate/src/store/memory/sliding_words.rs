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

mod ring;

use tidegate_core::law::sliding_window::SlidingLog;
use tidegate_core::{Amount, Capacity, Law, Rule, Timestamp, Wait};

use super::memory_budget::Budget;
use super::slab::{Block, Slab};
use ring::{MAX_ENTRIES, Ring, block_of, class_for, max_units, roomy_class, suits, word_of};

/// Marks a word that refers to a block.
const IN_BLOCK: u64 = 1 << 62;
/// The instant or the block of a word.
const PAYLOAD: u64 = IN_BLOCK - 1;

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
mod tests;
