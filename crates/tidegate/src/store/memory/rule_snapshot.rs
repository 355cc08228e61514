//! Snapshot of a limit's rules that threads read without a lock.
//!
//! If each row of a limit has one item with a policy that fits a cell, decisions do not need the limit itself. The
//! snapshot holds the rules and their expiry, which is the end of the calendar window or of the limit. It is written
//! rarely and read by every decision, so it is a seqlock: readers write nothing and retry if a write occurred meanwhile.
//!
//! The arithmetic is in the core. This module selects the policy and its parameters.

#![expect(clippy::inline_always, reason = "these are parts of the quick way, which is one piece of code")]

mod cell_laws;
mod unit_bucket;

use tidegate_core::decide;
use tidegate_core::law::fixed_window::WindowCount;
use tidegate_core::law::lifetime_total::TotalCount;
use tidegate_core::law::token_bucket::BucketState;
use tidegate_core::law::{FixedWindow, TokenBucket};
use tidegate_core::usage_record::NO_END;
use tidegate_core::{
    Amount, AskTotals, Capacity, Charge, Law, Limit, LimitPhase, Mode, Per, Reading, Span, Timestamp,
    UsageRecord,
};

use super::cell::Shape;
use super::row_epoch::Edition;
use super::shared_rows::Place;
use super::sync::{AtomicU64, Ordering, fence};
use cell_laws::{Bucket, LATEST_BASE, LONGEST, Total, Window};

pub(super) use cell_laws::{AskKind, AskLaw, CellLaw, Drop, Next};
pub(super) use unit_bucket::Unit;

/// The words of one item.
const ITEM_WORDS: usize = 5;
const EDITION: usize = 0;
const FROM: usize = 1;
/// How long it is good from there on.
const LASTS: usize = 2;
const FIRST: usize = 3;
const SECOND: usize = FIRST + ITEM_WORDS;
const ENDS: usize = SECOND + ITEM_WORDS;
const WORDS: usize = ENDS + 1;

/// What is true of a limit as a whole, for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Brief {
    pub(super) edition: u64,
    /// It is good from here,
    pub(super) from: Timestamp,
    /// to before here.
    pub(super) until: Timestamp,
    /// The item that was written first, or the only one.
    pub(super) first: Short,
}

/// A rule in short: how it is kept on the board.
///
/// ```text
///   head    │ column │ item │ units │ time bits │ of the limit: ends, excepts, two items │ unlimited │ charge │ per │ law │
///   then      capacity, the law's first word, the base of its cells, the law's second word
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Short {
    pub(super) head: Head,
    capacity: u64,
    a: u64,
    b: u64,
    base: u64,
}

const NEVER: u64 = 0;
const FIRST_HIT: u64 = 1;
const DURING: u64 = 2;
const CONTINUOUS: u64 = 3;
const LAW: u64 = 3;
const OF_KEY: u64 = 1 << 2;
const BY_ASK: u64 = 1 << 3;
const UNLIMITED: u64 = 1 << 4;
/// There is a second item.
const TWO_ITEMS: u64 = 1 << 5;
/// Keys have exceptions, or may have used something that was not written down.
const EXCEPTS: u64 = 1 << 6;
/// The limit is over one day.
const OVER: u64 = 1 << 7;
const TIME_BITS: u32 = 8;
/// It is a bucket that a unit fits into, of a limit that does not end.
const UNITS: u64 = 1 << 16;
const ITEM: u32 = 32;
const COLUMN: u32 = 48;

/// The first word of a rule in short, and what it says of the limit as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head(u64);

impl Head {
    /// The index of the item in its limit.
    #[inline(always)]
    pub(super) fn item(self) -> usize {
        usize::try_from(self.0 >> ITEM & 0xffff).expect("16 bits")
    }

    /// Where its refusals are counted.
    #[inline(always)]
    pub(super) fn column(self) -> usize {
        usize::try_from(self.0 >> COLUMN).expect("16 bits")
    }

    /// Whether the limit ends, so that what it promises must be looked at twice.
    #[inline(always)]
    pub(super) fn ends(self) -> bool {
        self.0 & OVER != 0
    }

    /// Whether keys have exceptions. Those have rows of full width, so a key without a row may be one of them.
    #[inline(always)]
    pub(super) fn excepts(self) -> bool {
        self.0 & EXCEPTS != 0
    }

    /// Whether there is a second item.
    #[inline(always)]
    pub(super) fn has_second(self) -> bool {
        self.0 & TWO_ITEMS != 0
    }

    /// Whether it counts each key alone.
    #[inline(always)]
    pub(super) fn is_of_key(self) -> bool {
        self.0 & OF_KEY != 0
    }

    /// Whether the limit counts each key alone and has no other item.
    #[inline(always)]
    pub(super) fn is_only_of_key(self) -> bool {
        self.0 & (OF_KEY | TWO_ITEMS) == OF_KEY
    }

    /// Whether it is a bucket that can be asked for one [`Drop`].
    #[inline(always)]
    pub(super) fn has_drops(self) -> bool {
        self.0 & UNITS != 0
    }

    /// Whether the limit is such a bucket of each key alone, and nothing else.
    #[inline(always)]
    pub(super) fn has_drops_of_key(self) -> bool {
        self.0 & (OF_KEY | TWO_ITEMS | UNITS) == OF_KEY | UNITS
    }

    /// Whether the limit is such a bucket of all keys together, and nothing else.
    #[inline(always)]
    pub(super) fn has_drops_of_all(self) -> bool {
        self.0 & (OF_KEY | TWO_ITEMS | UNITS) == UNITS
    }

    /// Asks something of the item's law, whichever it is.
    #[inline(always)]
    pub(super) fn of_kind<A: AskKind>(self, ask: A) -> A::Answer {
        match self.law() {
            CONTINUOUS => ask.ask::<Bucket>(),
            NEVER => ask.ask::<Total>(),
            _ => ask.ask::<Window>(),
        }
    }

    #[inline(always)]
    fn law(self) -> u64 {
        self.0 & LAW
    }
}

impl Brief {
    /// The brief of an edition at `now`, and its second item, if it can be had.
    fn of(edition: &Edition, now: Timestamp) -> Option<(Brief, Option<Short>)> {
        let limit = &edition.limit;
        if limit.mode() != Mode::Enforce || limit.phase(now) != LimitPhase::Open {
            return None;
        }
        let all = Short::of(edition, Per::All, now).ok()?;
        let key = Short::of(edition, Per::Key, now).ok()?;
        let (first, second) = match (all, key) {
            (Some(all), Some(key)) if key.head.item() < all.head.item() => (key, Some(all)),
            (Some(all), key) => (all, key),
            (None, key) => (key?, None),
        };
        // Nobody comes from before the edition.
        let mut from = limit.starts_at().unwrap_or_default().max(edition.at);
        let mut until = limit.ends_at().unwrap_or(LAST);
        for short in [all, key].into_iter().flatten().filter(|short| short.head.law() == DURING) {
            from = from.max(Timestamp::from_ticks(short.a));
            until = until.min(Timestamp::from_ticks(short.b));
        }
        for short in [all, key].into_iter().flatten().filter(|short| short.head.has_drops()) {
            from = from.max(Timestamp::from_ticks(short.base));
            until = until.min(Timestamp::from_ticks(short.base.saturating_add(LONGEST)));
        }
        let haunted = key.and_then(|_| edition.is_haunted_until(now));
        until = haunted.map_or(until, |end| until.min(end));
        let flag = |is: bool, flag: u64| if is { flag } else { 0 };
        let of_limit = flag(!limit.spec().overrides.is_empty() || haunted.is_some(), EXCEPTS)
            | flag(second.is_some(), TWO_ITEMS)
            | flag(limit.ends_at().is_some(), OVER);
        // What a limit that ends promises is looked at twice.
        let but = flag(limit.ends_at().is_some(), UNITS);
        let told = |short: Short| Short { head: Head((short.head.0 | of_limit) & !but), ..short };
        let brief = Brief { edition: edition.number, from, until, first: told(first) };
        Some((brief, second.map(told)))
    }

    /// Whether it can be gone by at `now`.
    pub(super) fn is_good(&self, now: Timestamp) -> bool {
        self.from <= now && now < self.until
    }
}

/// The end of time.
const LAST: Timestamp = Timestamp::from_ticks(u64::MAX);

impl Short {
    /// The item of a limit's rows of one kind in short: `None` if they have none, an error if it cannot be had.
    fn of(edition: &Edition, per: Per, now: Timestamp) -> Result<Option<Short>, NotShort> {
        let limit: &Limit = &edition.limit;
        if !limit.items().iter().any(|item| item.per() == per) {
            return Ok(None);
        }
        let layout = edition.layout(per).ok_or(NotShort)?;
        let item = &limit.items()[layout.item];
        let (law, a, b) = match &item.rule().law {
            Law::LifetimeTotal => (NEVER, 0, 0),
            Law::TokenBucket(law) => {
                let room = item.rule().capacity.remaining(0).and_then(|burst| law.max_backlog(burst, 1));
                let fits = layout.shape.base.ticks() <= LATEST_BASE;
                match room.filter(|room| fits && room.max(&law.step()).ticks() <= LONGEST) {
                    Some(room) => (CONTINUOUS | UNITS, law.step().ticks(), room.ticks()),
                    None => (CONTINUOUS, law.step().ticks(), 0),
                }
            }
            Law::FixedWindow(law) => match law.resolve(now) {
                FixedWindow::FirstHit { window } => (FIRST_HIT, window.ticks(), 0),
                FixedWindow::Resolved { start, end } => (DURING, start.ticks(), end.ticks()),
                FixedWindow::Calendar(_) => return Err(NotShort),
            },
            Law::SlidingWindow(_) | Law::Concurrency(_) => return Err(NotShort),
        };
        let (unlimited, capacity) = match item.rule().capacity {
            Capacity::Unlimited => (UNLIMITED, 0),
            Capacity::AtMost(limit) => (0, limit),
        };
        let per = if per == Per::Key { OF_KEY } else { 0 };
        let charge = if item.charge() == Charge::Ask { BY_ASK } else { 0 };
        let time_bits = u64::from(layout.shape.time_bits) << TIME_BITS;
        let column = edition.columns.get(layout.item).map_or(0, |&column| column as u64 & 0xffff);
        let head =
            law | per | charge | unlimited | time_bits | (layout.item as u64) << ITEM | column << COLUMN;
        Ok(Some(Short { head: Head(head), capacity, a, b, base: layout.shape.base.ticks() }))
    }

    #[inline(always)]
    pub(super) fn capacity(&self) -> Capacity {
        if self.head.0 & UNLIMITED == 0 { Capacity::AtMost(self.capacity) } else { Capacity::Unlimited }
    }

    #[inline(always)]
    fn shape(&self) -> Shape {
        let time_bits = u32::try_from(self.head.0 >> TIME_BITS & 0xff).expect("a byte");
        Shape { base: Timestamp::from_ticks(self.base), time_bits }
    }

    #[inline(always)]
    fn window(&self) -> FixedWindow {
        if self.head.law() == FIRST_HIT {
            FixedWindow::FirstHit { window: Span::from_ticks(self.a) }
        } else {
            FixedWindow::Resolved { start: Timestamp::from_ticks(self.a), end: Timestamp::from_ticks(self.b) }
        }
    }

    #[inline(always)]
    fn rate(&self) -> TokenBucket {
        TokenBucket::every(Span::from_ticks(self.a))
    }

    /// What a load costs.
    #[inline(always)]
    pub(super) fn cost(&self, load: AskTotals) -> Amount {
        decide::charge_cost(if self.head.0 & BY_ASK == 0 { Charge::Count } else { Charge::Ask }, load)
    }

    /// The item as its law.
    #[inline(always)]
    pub(super) fn of_law<A: AskLaw>(&self, ask: A) -> A::Answer {
        match self.head.law() {
            CONTINUOUS => ask.ask(&Bucket::of(*self)),
            NEVER => ask.ask(&Total::of(*self)),
            _ => ask.ask(&Window::of(*self)),
        }
    }

    /// What the item says about itself; its limit is over at `ends`.
    pub(super) fn reading(&self, payload: u64, ends: Timestamp, now: Timestamp) -> Reading {
        let capacity = self.capacity();
        let (used, empties) = match self.head.law() {
            CONTINUOUS => {
                let (law, arrival) = (self.rate(), self.arrival(payload));
                (law.used(capacity, &arrival, now), law.empty_at(&arrival, now))
            }
            NEVER => (self.tally(payload).used, None),
            _ => {
                let (law, count) = (self.window(), self.count(payload));
                (law.used(&count, now), law.empty_at(&count, now))
            }
        };
        let resets_at = empties.filter(|_| used > 0).map(|at| at.min(ends));
        Reading { capacity, used, remaining: capacity.remaining(used), resets_at }
    }

    /// What a log keeps of the item's state; `None` if there is nothing to keep.
    pub(super) fn trace(&self, payload: u64) -> Option<UsageRecord> {
        match self.head.law() {
            CONTINUOUS if self.capacity() == Capacity::Unlimited => None,
            CONTINUOUS => {
                let BucketState { tat, step, credits } = self.arrival(payload);
                Some(UsageRecord::Bucket { tat, step, credits })
            }
            NEVER => {
                let TotalCount { used, last_time } = self.tally(payload);
                Some(UsageRecord::Count { count: used, last_time, until: NO_END })
            }
            law => {
                let WindowCount { count, last_time } = self.count(payload);
                let until = if law == FIRST_HIT {
                    last_time.plus(Span::from_ticks(self.a))
                } else {
                    Timestamp::from_ticks(self.b)
                };
                Some(UsageRecord::Count { count, last_time, until })
            }
        }
    }

    #[inline(always)]
    fn arrival(&self, payload: u64) -> BucketState {
        BucketState { tat: self.shape().tat(payload), step: Span::from_ticks(self.a), credits: Span::ZERO }
    }

    #[inline(always)]
    fn tally(&self, payload: u64) -> TotalCount {
        let (last_time, used) = self.shape().split(payload);
        TotalCount { used, last_time }
    }

    #[inline(always)]
    fn count(&self, payload: u64) -> WindowCount {
        let (last_time, count) = self.shape().split(payload);
        WindowCount { count, last_time }
    }

    fn words(&self) -> [u64; ITEM_WORDS] {
        [self.head.0, self.capacity, self.a, self.base, self.b]
    }
}

/// An item whose rules do not fit in short.
struct NotShort;

/// What is written on a board, read word by word. It is to be believed if it still [stands](Sheet::stands) afterwards; until then
/// its words may be of different briefs, and nothing that follows from them may be done.
#[derive(Clone, Copy)]
pub(super) struct Sheet<'a> {
    board: &'a Board,
    turn: u64,
}

impl Sheet<'_> {
    /// The board's turn when this was first looked at.
    #[inline(always)]
    pub(super) fn turn(&self) -> u64 {
        self.turn
    }

    /// Whether this is still what is written, and was when it was first looked at. Whoever holds what they judged by it and finds so
    /// comes before the next edit, and before the instant of it.
    #[inline(always)]
    pub(super) fn stands(&self) -> bool {
        // Orders the loads of the words before this one.
        fence(Ordering::Acquire);
        // A turn that was odd is over and does not come again.
        self.board.turn.load(Ordering::Relaxed) == self.turn & !1
    }

    /// Whether there is a brief and it can be gone by at `now`.
    #[inline(always)]
    pub(super) fn is_good(&self, now: Timestamp) -> bool {
        now.ticks().wrapping_sub(self.word(FROM)) < self.word(LASTS)
    }

    /// From when to before when the brief can be gone by.
    pub(super) fn good(&self) -> (Timestamp, Timestamp) {
        let from = self.word(FROM);
        (Timestamp::from_ticks(from), Timestamp::from_ticks(from.wrapping_add(self.word(LASTS))))
    }

    #[inline(always)]
    pub(super) fn edition(&self) -> u64 {
        self.word(EDITION)
    }

    /// The first word of the first item.
    #[inline(always)]
    pub(super) fn head(&self) -> Head {
        Head(self.word(FIRST))
    }

    /// The item that was written first, or the only one.
    #[inline(always)]
    pub(super) fn first(&self) -> Short {
        self.short(FIRST)
    }

    /// The same with this head, which says what its law is, and no more than that needs: a word that was read is not forgotten, so
    /// reading less keeps less.
    #[inline(always)]
    pub(super) fn first_of<L: CellLaw>(&self, head: Head) -> L {
        let own = |place: usize, index: usize| if place < L::WORDS { self.word(index) } else { 0 };
        L::of(Short {
            head,
            capacity: if L::HAS_CAPACITY { self.word(FIRST + 1) } else { 0 },
            a: own(0, FIRST + 2),
            base: self.word(FIRST + 3),
            b: own(1, FIRST + 4),
        })
    }

    #[inline(always)]
    pub(super) fn second(&self) -> Short {
        self.short(SECOND)
    }

    /// When the limit is over, or the end of time.
    pub(super) fn ends(&self) -> Timestamp {
        Timestamp::from_ticks(self.word(ENDS))
    }

    #[inline(always)]
    fn word(&self, index: usize) -> u64 {
        self.board.words[index].load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn short(&self, first: usize) -> Short {
        Short {
            head: Head(self.word(first)),
            capacity: self.word(first + 1),
            a: self.word(first + 2),
            base: self.word(first + 3),
            b: self.word(first + 4),
        }
    }
}

/// Where the brief of a limit is read and written. Most decisions read its first cache line only.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct Board {
    /// Odd while somebody writes.
    turn: AtomicU64,
    words: [AtomicU64; WORDS],
    /// Where the limit's `all` row is, and those of limits that are often asked with it.
    place: Place,
}

impl Board {
    pub(super) fn new(place: Place) -> Board {
        Board { turn: AtomicU64::new(0), words: std::array::from_fn(|_| AtomicU64::new(0)), place }
    }

    /// The first word of the first item, as somebody thinks who only looks.
    #[inline(always)]
    pub(super) fn head(&self) -> Head {
        Head(self.words[FIRST].load(Ordering::Relaxed))
    }

    /// How often it was written, twice; odd while somebody does.
    #[inline(always)]
    pub(super) fn turn(&self) -> u64 {
        self.turn.load(Ordering::Relaxed)
    }

    /// What is written here now, to be read word by word.
    #[inline(always)]
    pub(super) fn sheet(&self) -> Sheet<'_> {
        Sheet { board: self, turn: self.turn.load(Ordering::Acquire) }
    }

    /// The brief, if there is one and nobody is writing it.
    pub(super) fn read(&self) -> Option<Brief> {
        let sheet = self.sheet();
        let (from, until) = sheet.good();
        let brief = Brief { edition: sheet.edition(), from, until, first: sheet.first() };
        (sheet.stands() && brief.edition != 0).then_some(brief)
    }

    /// Whether there can be a brief of this edition, and what is written is not it.
    pub(super) fn is_behind(&self, edition: &Edition, now: Timestamp) -> bool {
        let good = self.read().is_some_and(|brief| brief.is_good(now) && brief.edition == edition.number);
        !good && Brief::of(edition, now).is_some()
    }

    /// Writes the brief of an edition, if it can be had. Only one thread at a time may.
    pub(super) fn show(&self, edition: &Edition, now: Timestamp) {
        let mut words = [0; WORDS];
        if let Some((brief, second)) = Brief::of(edition, now) {
            words[EDITION] = brief.edition;
            words[FROM] = brief.from.ticks();
            words[LASTS] = brief.until.since(brief.from).ticks();
            words[FIRST..SECOND].copy_from_slice(&brief.first.words());
            words[SECOND..ENDS].copy_from_slice(&second.map_or([0; ITEM_WORDS], |second| second.words()));
            words[ENDS] = edition.limit.ends_at().unwrap_or(LAST).ticks();
        }
        self.write(words);
    }

    /// Writes that there is none. Only one thread at a time may.
    pub(super) fn clear(&self) {
        let mut words = self.words.each_ref().map(|word| word.load(Ordering::Relaxed));
        // Nobody can go by it at any time.
        (words[EDITION], words[LASTS]) = (0, 0);
        self.write(words);
    }

    fn write(&self, words: [u64; WORDS]) {
        let turn = self.turn.load(Ordering::Relaxed);
        self.turn.store(turn.wrapping_add(1), Ordering::Relaxed);
        // Whoever sees a new word sees that the turn is another.
        fence(Ordering::Release);
        for (place, word) in self.words.iter().zip(words) {
            if place.load(Ordering::Relaxed) != word {
                place.store(word, Ordering::Relaxed);
            }
        }
        // Before it stands: whoever goes by it knows that what was planned by the former one is over.
        self.place.bench().written().fetch_add(1, Ordering::Release);
        self.turn.store(turn.wrapping_add(2), Ordering::Release);
    }
}
