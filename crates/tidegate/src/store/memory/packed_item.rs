//! The rule of one item in four words, and the states that fit words of a row.
//!
//! ```text
//!   law                      words of the row
//!   bucket                   │ arrival time │
//!   second … year            │ second of the last charge: 33 bits │ count: 30 bits │   for limits below 2^30
//!                            │ last charge │ count │                                   for larger ones
//!   total                    as second … year
//!   interval                 │ start │ count │
//!   sliding                  │ instant, or block of the slab │                         see `sliding_words`
//! ```
//!
//! The highest bit of a row's first word says that the row is stored [in full](super::full_rows). A state that does not fit
//! its words makes its row full: a count past 2^30 after a settlement, an instant after the year 2242, a bucket with
//! refunds. No count below its limit does.
//!
//! The arithmetic is the core's. A function here reads words, calls the law, and writes words. Each law is a type, so that
//! a decision is compiled once for each of them.
//!
//! A calendar window and a total keep the second of the last charge. A window begins at a whole second, so the second is in
//! the same window as the charge. Alternative refused: the instant to the tick beside the count, relative to a base. It
//! left 4 to 20 bits for the count of a long window. Rows with larger counts took 300 ns and 119 bytes.

#![expect(clippy::inline_always, reason = "these functions are parts of a decision of 20 ns")]

mod laws;

use tidegate_core::law::FixedWindow;
use tidegate_core::law::fixed_window::WindowCount;
use tidegate_core::law::lifetime_total::TotalCount;
use tidegate_core::law::token_bucket::BucketState;
use tidegate_core::usage_record::NO_END;
use tidegate_core::{
    Amount, AskTotals, Capacity, Charge, Item, Law, Per, Reading, Rule, Span, State, Tick, Timestamp,
    UsageRecord, Wait, decide,
};

use super::line;
use super::memory_budget::Budget;
use super::slab::Slab;
use super::sliding_words::SlidingWords;
use super::sync::{AtomicU32, AtomicU64, Ordering};
use laws::{long_count, long_total, pack_long, pack_short, short_count};

pub(super) use laws::{Bucket, Interval, LongTotal, LongWindow, PackedLaw, Sliding, Total, Window};

/// The row is stored in full. Only in the first word of a row.
pub(super) const FULL: u64 = 1 << 63;

/// The bits of a count beside a second.
const COUNT_BITS: u32 = 30;
/// The bits of a second beside a count.
const SECOND_BITS: u32 = u64::BITS - 1 - COUNT_BITS;

/// The most words of a packed state.
pub(super) const MAX_ITEM_WORDS: usize = 2;

/// The words of a state. States of one word leave the second zero.
pub(super) type ItemWords = [u64; MAX_ITEM_WORDS];

/// The law of an item and the form of its words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum PackedKind {
    Bucket = 0,
    Window = 1,
    Total = 2,
    Sliding = 3,
    Interval = 4,
    LongWindow = 5,
    LongTotal = 6,
}

impl PackedKind {
    /// The kind of a rule. `None` if its states fit no words.
    pub(super) fn of(rule: &Rule) -> Option<PackedKind> {
        let is_short = matches!(rule.capacity, Capacity::AtMost(limit) if limit >> COUNT_BITS == 0);
        match &rule.law {
            Law::TokenBucket(_) => Some(PackedKind::Bucket),
            Law::LifetimeTotal if is_short => Some(PackedKind::Total),
            Law::LifetimeTotal => Some(PackedKind::LongTotal),
            Law::FixedWindow(FixedWindow::FirstHit { .. }) => Some(PackedKind::Interval),
            Law::FixedWindow(_) if is_short => Some(PackedKind::Window),
            Law::FixedWindow(_) => Some(PackedKind::LongWindow),
            Law::SlidingWindow(_) => SlidingWords::of(rule).map(|_| PackedKind::Sliding),
            Law::Concurrency(_) => None,
        }
    }

    /// The number of words.
    pub(super) const fn words(self) -> usize {
        match self {
            PackedKind::Bucket | PackedKind::Window | PackedKind::Total | PackedKind::Sliding => 1,
            PackedKind::Interval | PackedKind::LongWindow | PackedKind::LongTotal => 2,
        }
    }

    #[inline(always)]
    fn from_code(code: u64) -> PackedKind {
        match code & KIND {
            0 => PackedKind::Bucket,
            1 => PackedKind::Window,
            2 => PackedKind::Total,
            3 => PackedKind::Sliding,
            4 => PackedKind::Interval,
            5 => PackedKind::LongWindow,
            _ => PackedKind::LongTotal,
        }
    }
}

const KIND: u64 = 0b111;
const BY_ASK: u64 = 1 << 4;
const UNLIMITED: u64 = 1 << 5;
const OF_KEY: u64 = 1 << 6;
const OFFSET: u32 = 8;
const TICK: u32 = 12;
const ITEM: u32 = 32;
const COLUMN: u32 = 48;

/// The first word of a [`PackedItem`].
///
/// ```text
///   │ column: 16 │ item: 16 │ the limit's flags: 16 │ tick: 2 │ offset: 3 │ of key, unlimited, by ask │ kind: 3 │
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ItemHead(pub(super) u64);

impl ItemHead {
    #[inline(always)]
    pub(super) fn kind(self) -> PackedKind {
        PackedKind::from_code(self.0)
    }

    /// Whether the item counts each key alone.
    #[inline(always)]
    pub(super) fn is_of_key(self) -> bool {
        self.0 & OF_KEY != 0
    }

    /// The first word of its state in the row.
    #[inline(always)]
    pub(super) fn offset(self) -> usize {
        (self.0 >> OFFSET & 0b111) as usize
    }

    /// The index of the item in its limit.
    #[inline(always)]
    pub(super) fn item(self) -> usize {
        (self.0 >> ITEM & 0xffff) as usize
    }

    /// The column in which its refusals are counted.
    #[inline(always)]
    pub(super) fn column(self) -> usize {
        (self.0 >> COLUMN) as usize
    }

    /// The units that the ask costs.
    #[inline(always)]
    pub(super) fn cost(self, totals: AskTotals) -> Amount {
        decide::charge_cost(if self.0 & BY_ASK == 0 { Charge::Count } else { Charge::Ask }, totals)
    }

    #[inline(always)]
    fn second_of(self, at: Timestamp) -> u64 {
        // Divisions by constants take a multiplication each.
        match self.0 >> TICK & 0b11 {
            0 => Tick::NANOSECOND.second_of(at),
            1 => Tick::MICROSECOND.second_of(at),
            _ => Tick::MILLISECOND.second_of(at),
        }
    }

    #[inline(always)]
    fn at_second(self, second: u64) -> Timestamp {
        match self.0 >> TICK & 0b11 {
            0 => Tick::NANOSECOND.at_second(second),
            1 => Tick::MICROSECOND.at_second(second),
            _ => Tick::MILLISECOND.at_second(second),
        }
    }
}

/// The rule of an item at some instant: its calendar window is looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PackedItem {
    pub(super) head: ItemHead,
    capacity: u64,
    a: u64,
    b: u64,
}

/// The words of a [`PackedItem`].
pub(super) const PACKED_ITEM_WORDS: usize = 4;

/// The result of a check of words that another thread may be changing. It is valid only if nothing has changed since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judged {
    /// It fits, and these are the words after the charge. Sliding words are charged under the lock instead.
    Granted(ItemWords),
    Denied(Wait),
    /// The row has seen this later instant.
    At(Timestamp),
    /// The words cannot tell, or the charge does not fit them.
    Locked,
    /// Many entries of a sliding log have expired. They are [dropped](PackedItem::tidy) before the next attempt.
    Tidy,
}

impl PackedItem {
    /// The item of a limit at `now`, with its state at this offset of the row.
    pub(super) fn of(
        item: &Item,
        index: usize,
        column: usize,
        offset: usize,
        tick: Tick,
        now: Timestamp,
    ) -> Option<PackedItem> {
        let rule = item.rule();
        let kind = PackedKind::of(rule)?;
        let (a, b) = match &rule.law {
            Law::TokenBucket(law) => (law.step().ticks(), 0),
            Law::LifetimeTotal => (0, 0),
            Law::SlidingWindow(_) => {
                let packed = SlidingWords::of(rule)?;
                (packed.window(), packed.granularity())
            }
            Law::FixedWindow(law) => match law.resolve(now) {
                FixedWindow::FirstHit { window } => (window.ticks(), 0),
                FixedWindow::Resolved { start, end } => (start.ticks(), end.ticks()),
                FixedWindow::Calendar(_) => return None,
            },
            Law::Concurrency(_) => return None,
        };
        let (unlimited, capacity) = match rule.capacity {
            Capacity::Unlimited => (UNLIMITED, 0),
            Capacity::AtMost(limit) => (0, limit),
        };
        let tick = match tick {
            Tick::NANOSECOND => 0,
            Tick::MICROSECOND => 1,
            Tick::MILLISECOND => 2,
            _ => return None,
        };
        let of_key = if item.per() == Per::Key { OF_KEY } else { 0 };
        let by_ask = if item.charge() == Charge::Ask { BY_ASK } else { 0 };
        let places =
            (offset as u64) << OFFSET | tick << TICK | (index as u64) << ITEM | (column as u64) << COLUMN;
        let head = ItemHead(kind as u64 | unlimited | of_key | by_ask | places);
        Some(PackedItem { head, capacity, a, b })
    }

    #[inline(always)]
    pub(super) fn from_words([head, capacity, a, b]: [u64; PACKED_ITEM_WORDS]) -> PackedItem {
        PackedItem { head: ItemHead(head), capacity, a, b }
    }

    pub(super) fn words(&self) -> [u64; PACKED_ITEM_WORDS] {
        [self.head.0, self.capacity, self.a, self.b]
    }

    /// The window in which a calendar item was looked up.
    pub(super) fn window(&self) -> Option<(Timestamp, Timestamp)> {
        matches!(self.head.kind(), PackedKind::Window | PackedKind::LongWindow)
            .then(|| (Timestamp::from_ticks(self.a), Timestamp::from_ticks(self.b)))
    }

    #[inline(always)]
    pub(super) fn capacity(&self) -> Capacity {
        if self.head.0 & UNLIMITED == 0 { Capacity::AtMost(self.capacity) } else { Capacity::Unlimited }
    }

    /// The words of this item in a row.
    #[inline(always)]
    pub(super) fn words_of(&self, row: &[u64]) -> ItemWords {
        let (offset, mut words) = (self.head.offset(), [0; MAX_ITEM_WORDS]);
        words[0] = row.get(offset).copied().unwrap_or_default();
        if self.head.kind().words() > 1 {
            words[1] = row.get(offset + 1).copied().unwrap_or_default();
        }
        words
    }

    /// Stores the words of this item in a row.
    #[inline(always)]
    pub(super) fn put_words(&self, row: &mut [u64], words: ItemWords) {
        let offset = self.head.offset();
        if let Some(first) = row.get_mut(offset) {
            *first = words[0];
        }
        if self.head.kind().words() > 1
            && let Some(second) = row.get_mut(offset + 1)
        {
            *second = words[1];
        }
    }

    /// Whether `cost` fits these words, and the words after the charge.
    #[inline(always)]
    pub(super) fn judge(&self, words: ItemWords, cost: Amount, now: Timestamp, slab: &Slab) -> Judged {
        match self.head.kind() {
            PackedKind::Bucket => Bucket::of(self).judge(words, cost, now, slab),
            PackedKind::Window => Window::of(self).judge(words, cost, now, slab),
            PackedKind::Total => Total::of(self).judge(words, cost, now, slab),
            PackedKind::Sliding => Sliding::of(self).judge(words, cost, now, slab),
            PackedKind::Interval => Interval::of(self).judge(words, cost, now, slab),
            PackedKind::LongWindow => LongWindow::of(self).judge(words, cost, now, slab),
            PackedKind::LongTotal => LongTotal::of(self).judge(words, cost, now, slab),
        }
    }

    /// The state of these words. A sliding state is copied out of the slab.
    pub(super) fn state(&self, words: ItemWords, slab: &Slab) -> State {
        match self.head.kind() {
            PackedKind::Bucket => State::TokenBucket(Bucket::of(self).state(words)),
            PackedKind::Sliding => State::SlidingWindow(self.sliding().read(slab, words[0])),
            PackedKind::Window => State::FixedWindow(Window::of(self).count(words)),
            PackedKind::LongWindow | PackedKind::Interval => State::FixedWindow(long_count(words)),
            PackedKind::Total => {
                let WindowCount { count, last_time } = short_count(self.head, words);
                State::LifetimeTotal(TotalCount { used: count, last_time })
            }
            PackedKind::LongTotal => State::LifetimeTotal(long_total(words)),
        }
    }

    /// The words of a state that is not a sliding one. `None` if it does not fit.
    pub(super) fn pack(&self, state: &State) -> Option<ItemWords> {
        match (self.head.kind(), state) {
            (PackedKind::Bucket, State::TokenBucket(bucket)) => {
                let is_plain = bucket.step.ticks() == self.a && bucket.credits == Span::ZERO;
                Some([bucket.tat.ticks(), 0]).filter(|words| is_plain && words[0] & FULL == 0)
            }
            (PackedKind::Window, State::FixedWindow(count)) => pack_short(self.head, *count),
            (PackedKind::LongWindow | PackedKind::Interval, State::FixedWindow(count)) => pack_long(*count),
            (PackedKind::Total, State::LifetimeTotal(TotalCount { used, last_time })) => {
                pack_short(self.head, WindowCount { count: *used, last_time: *last_time })
            }
            (PackedKind::LongTotal, State::LifetimeTotal(TotalCount { used, last_time })) => {
                pack_long(WindowCount { count: *used, last_time: *last_time })
            }
            _ => None,
        }
    }

    /// The sliding law of this item.
    #[inline(always)]
    pub(super) fn sliding(&self) -> SlidingWords {
        SlidingWords::from_parts(self.capacity(), self.a, self.b)
    }

    /// Drops expired entries of the sliding log in these cells, if their row is still as `seen` and the rules are current.
    #[cold]
    #[inline(never)]
    pub(super) fn tidy(
        &self,
        cells: &[AtomicU64],
        (control, seen): (&AtomicU32, u32),
        is_current: impl FnOnce() -> bool,
        now: Timestamp,
        (slab, budget): (&Slab, &Budget),
    ) {
        if let Some(cell) = cells.get(self.head.offset())
            && line::try_lock(control, seen)
        {
            if is_current() {
                let word = self.sliding().tidy(slab, budget, cell.load(Ordering::Relaxed), now);
                cell.store(word, Ordering::Relaxed);
            }
            line::unlock(control, seen);
        }
    }

    fn fixed_window(&self) -> FixedWindow {
        if self.head.kind() == PackedKind::Interval {
            FixedWindow::FirstHit { window: Span::from_ticks(self.a) }
        } else {
            FixedWindow::Resolved { start: Timestamp::from_ticks(self.a), end: Timestamp::from_ticks(self.b) }
        }
    }

    /// The usage at `now`. The limit ends at `ends`.
    pub(super) fn reading(&self, words: ItemWords, ends: Timestamp, now: Timestamp, slab: &Slab) -> Reading {
        let capacity = self.capacity();
        let (used, empty_at) = match self.head.kind() {
            PackedKind::Bucket => {
                let (law, state) = (Bucket::of(self).law(), Bucket::of(self).state(words));
                (law.used(capacity, &state, now), law.empty_at(&state, now))
            }
            PackedKind::Total => (short_count(self.head, words).count, None),
            PackedKind::LongTotal => (words[1], None),
            PackedKind::Sliding => {
                let law = self.sliding();
                (law.used(slab, words[0], now), law.empty_at(slab, words[0], now))
            }
            kind => {
                let count = if kind == PackedKind::Window {
                    short_count(self.head, words)
                } else {
                    long_count(words)
                };
                let law = self.fixed_window();
                (law.used(&count, now), law.empty_at(&count, now))
            }
        };
        let resets_at = empty_at.filter(|_| used > 0).map(|at| at.min(ends));
        Reading { capacity, used, remaining: capacity.remaining(used), resets_at }
    }

    /// When dropping these words changes no decision. `None` if time alone does not suffice.
    pub(super) fn evictable_at(&self, words: ItemWords, now: Timestamp, slab: &Slab) -> Option<Timestamp> {
        match self.head.kind() {
            // A fraction of a unit in use still matters.
            PackedKind::Bucket => {
                let law = Bucket::of(self);
                Some(law.law().empty_at(&law.state(words), now).unwrap_or(now))
            }
            PackedKind::Sliding => Some(self.sliding().evictable_at(slab, words[0], now)),
            PackedKind::Total => (short_count(self.head, words).count == 0).then_some(now),
            PackedKind::LongTotal => (words[1] == 0).then_some(now),
            kind => {
                let is_short = kind == PackedKind::Window;
                let count = if is_short { short_count(self.head, words) } else { long_count(words) };
                Some(self.fixed_window().empty_at(&count, now).unwrap_or(now))
            }
        }
    }

    /// The record of these words for a log. `None` if there is nothing to record.
    pub(super) fn record(&self, words: ItemWords, slab: &Slab) -> Option<UsageRecord> {
        match self.head.kind() {
            PackedKind::Bucket if self.capacity() == Capacity::Unlimited => None,
            PackedKind::Bucket => {
                let BucketState { tat, step, credits } = Bucket::of(self).state(words);
                Some(UsageRecord::Bucket { tat, step, credits })
            }
            PackedKind::Sliding => {
                let (at, count, last_time) = self.sliding().latest(slab, words[0])?;
                Some(UsageRecord::Sliding { at, count, last_time })
            }
            kind @ (PackedKind::Total | PackedKind::Window) => {
                let WindowCount { count, last_time } = short_count(self.head, words);
                let until = if kind == PackedKind::Total { NO_END } else { Timestamp::from_ticks(self.b) };
                (count > 0).then_some(UsageRecord::Count { count, last_time, until })
            }
            kind => {
                let WindowCount { count, last_time } = long_count(words);
                let until = match kind {
                    PackedKind::LongTotal => NO_END,
                    PackedKind::Interval => last_time.plus(Span::from_ticks(self.a)),
                    _ => Timestamp::from_ticks(self.b),
                };
                (count > 0).then_some(UsageRecord::Count { count, last_time, until })
            }
        }
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests;
