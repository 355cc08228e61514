//! The brief of a limit: its rules in a few words that anybody can read without a lock.
//!
//! A limit whose rows have one item each, of a law that fits a cell, can be decided without looking at the limit itself. The brief
//! holds what that takes, and for how long it is good: until the calendar's window ends, or the limit does. It is written rarely and
//! read by every decision, so it is a sequence lock: readers write nothing, and read again if somebody wrote meanwhile.
//!
//! The arithmetic is the core's. What is here is only which of its laws to ask, and with what.

use tidegate_core::decide;
use tidegate_core::law::continuous::Arrival;
use tidegate_core::law::never::{self, Tally};
use tidegate_core::law::windowed::Count;
use tidegate_core::law::{Continuous, Windowed};
use tidegate_core::{
    Amount, Capacity, Charge, Law, Limit, Load, Mode, Per, Reading, Season, Span, Timestamp, Verdict,
};

use super::cell::Shape;
use super::edition::Edition;
use super::sync::{AtomicU64, Ordering, fence};

/// The words of one item.
const ITEM_WORDS: usize = 5;
const EXCEPTS: usize = 4;
const ALL: usize = 5;
const KEY: usize = ALL + ITEM_WORDS;
const WORDS: usize = KEY + ITEM_WORDS;

/// A limit, for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Brief {
    pub(super) edition: u64,
    /// It is good from here,
    from: Timestamp,
    /// to before here.
    until: Timestamp,
    /// When the limit is over, or the end of time.
    ends: Timestamp,
    /// Whether keys have exceptions; those have rows of full width, so a key without a row may be one of them.
    pub(super) excepts: bool,
    pub(super) all: Option<Short>,
    pub(super) key: Option<Short>,
}

/// A rule in short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Short {
    /// The index of the item in its limit.
    pub(super) item: usize,
    law: ShortLaw,
    capacity: Capacity,
    charge: Charge,
    shape: Shape,
}

/// A law that fits a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShortLaw {
    Never,
    FirstHit(Span),
    During(Timestamp, Timestamp),
    Continuous(Span),
}

impl Brief {
    /// The brief of an edition at `now`, if it can be had.
    pub(super) fn of(edition: &Edition, now: Timestamp) -> Option<Brief> {
        let limit = &edition.limit;
        if limit.mode() != Mode::Enforce || limit.season(now) != Season::Open {
            return None;
        }
        let all = Short::of(edition, Per::All, now).ok()?;
        let key = Short::of(edition, Per::Key, now).ok()?;
        let (mut from, mut until) = (limit.starts_at().unwrap_or_default(), limit.ends_at().unwrap_or(LAST));
        for short in [all, key].into_iter().flatten() {
            if let ShortLaw::During(start, end) = short.law {
                (from, until) = (from.max(start), until.min(end));
            }
        }
        (all.is_some() || key.is_some()).then(|| Brief {
            edition: edition.number,
            from,
            until,
            ends: limit.ends_at().unwrap_or(LAST),
            excepts: !limit.spec().overrides.is_empty(),
            all,
            key,
        })
    }

    /// The items in the order they were written.
    #[inline]
    pub(super) fn in_order(&self) -> [Option<&Short>; 2] {
        match (&self.all, &self.key) {
            (Some(all), Some(key)) if key.item < all.item => [Some(key), Some(all)],
            (all, key) => [all.as_ref(), key.as_ref()],
        }
    }

    /// Whether it can be gone by at `now`.
    #[inline]
    pub(super) fn is_good(&self, now: Timestamp) -> bool {
        self.from <= now && now < self.until
    }

    /// Whether the limit ends, so that what it promises must be looked at twice.
    #[inline]
    pub(super) fn ends(&self) -> bool {
        self.ends != LAST
    }

    /// What an item says about itself.
    pub(super) fn reading(&self, short: &Short, payload: u64, now: Timestamp) -> Reading {
        let (used, empties) = short.used(payload, now);
        Reading {
            capacity: short.capacity,
            used,
            remaining: short.capacity.remaining(used),
            resets_at: empties.filter(|_| used > 0).map(|at| at.min(self.ends)),
        }
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
        let law = match &item.rule().law {
            Law::Never => ShortLaw::Never,
            Law::Continuous(law) => ShortLaw::Continuous(law.step()),
            Law::Windowed(law) => match law.at(now) {
                Windowed::FirstHit { window } => ShortLaw::FirstHit(window),
                Windowed::During { start, end } => ShortLaw::During(start, end),
                Windowed::Civil(_) => return Err(NotShort),
            },
            Law::Rolling(_) | Law::OnRelease(_) => return Err(NotShort),
        };
        let capacity = item.rule().capacity;
        Ok(Some(Short { item: layout.item, law, capacity, charge: item.charge(), shape: layout.shape }))
    }

    /// What a load costs.
    #[inline]
    pub(super) fn cost(&self, load: Load) -> Amount {
        decide::cost_of(self.charge, load)
    }

    /// The latest instant at which something was charged, as far as the law keeps it.
    #[inline]
    pub(super) fn latest(&self, payload: u64) -> Timestamp {
        match self.law {
            ShortLaw::Continuous(_) => Timestamp::EPOCH,
            _ => self.shape.split(payload).0,
        }
    }

    /// Whether `cost` more fits.
    #[inline]
    pub(super) fn judge(&self, payload: u64, cost: Amount, now: Timestamp) -> Verdict {
        if self.capacity == Capacity::Unlimited {
            return Verdict::Granted;
        }
        match self.law {
            ShortLaw::Continuous(step) => {
                Continuous::every(step).judge(self.capacity, &self.arrival(step, payload), cost, now)
            }
            ShortLaw::Never => never::judge(self.capacity, &self.tally(payload), cost),
            ShortLaw::FirstHit(window) => {
                Windowed::FirstHit { window }.judge(self.capacity, &self.count(payload), cost, now)
            }
            ShortLaw::During(start, end) => {
                Windowed::During { start, end }.judge(self.capacity, &self.count(payload), cost, now)
            }
        }
    }

    /// The payload after spending `cost`, if it fits a cell.
    #[inline]
    pub(super) fn charge(&self, payload: u64, cost: Amount, now: Timestamp) -> Option<u64> {
        if cost == 0 {
            return Some(payload);
        }
        match self.law {
            ShortLaw::Continuous(step) => {
                let mut arrival = self.arrival(step, payload);
                let _no_refund = Continuous::every(step).charge(self.capacity, &mut arrival, cost, now);
                self.shape.arrival(arrival.tat)
            }
            ShortLaw::Never => {
                let mut tally = self.tally(payload);
                let _no_refund = never::charge(&mut tally, cost, now);
                self.shape.join(tally.last_time, tally.used)
            }
            ShortLaw::FirstHit(window) => {
                self.charge_window(&Windowed::FirstHit { window }, payload, cost, now)
            }
            ShortLaw::During(start, end) => {
                self.charge_window(&Windowed::During { start, end }, payload, cost, now)
            }
        }
    }

    #[inline]
    fn charge_window(&self, law: &Windowed, payload: u64, cost: Amount, now: Timestamp) -> Option<u64> {
        let mut count = self.count(payload);
        let _no_refund = law.charge(&mut count, cost, now);
        self.shape.join(count.last_time, count.count)
    }

    /// How much is in use, and when it will not be.
    fn used(&self, payload: u64, now: Timestamp) -> (Amount, Option<Timestamp>) {
        match self.law {
            ShortLaw::Continuous(step) => {
                let (law, arrival) = (Continuous::every(step), self.arrival(step, payload));
                (law.used(self.capacity, &arrival, now), law.empties(&arrival, now))
            }
            ShortLaw::Never => (self.tally(payload).used, None),
            ShortLaw::FirstHit(window) => {
                let (law, count) = (Windowed::FirstHit { window }, self.count(payload));
                (law.used(&count, now), law.empties(&count, now))
            }
            ShortLaw::During(start, end) => {
                let (law, count) = (Windowed::During { start, end }, self.count(payload));
                (law.used(&count, now), law.empties(&count, now))
            }
        }
    }

    #[inline]
    fn arrival(&self, step: Span, payload: u64) -> Arrival {
        Arrival { tat: self.shape.tat(payload), step, credits: Span::ZERO }
    }

    #[inline]
    fn tally(&self, payload: u64) -> Tally {
        let (last_time, used) = self.shape.split(payload);
        Tally { used, last_time }
    }

    #[inline]
    fn count(&self, payload: u64) -> Count {
        let (last_time, count) = self.shape.split(payload);
        Count { count, last_time }
    }

    fn words(&self) -> [u64; ITEM_WORDS] {
        let (kind, a, b) = match self.law {
            ShortLaw::Never => (1, 0, 0),
            ShortLaw::FirstHit(window) => (2, window.ticks(), 0),
            ShortLaw::During(start, end) => (3, start.ticks(), end.ticks()),
            ShortLaw::Continuous(step) => (4, step.ticks(), 0),
        };
        let (unlimited, capacity) = match self.capacity {
            Capacity::Unlimited => (1, 0),
            Capacity::AtMost(limit) => (0, limit),
        };
        let charge = u64::from(self.charge == Charge::Ask);
        let head = kind
            | charge << 3
            | unlimited << 4
            | u64::from(self.shape.time_bits) << 8
            | (self.item as u64) << 32;
        [head, capacity, a, b, self.shape.base.ticks()]
    }

    #[inline]
    fn from_words(words: [u64; ITEM_WORDS]) -> Option<Short> {
        let [head, capacity, a, b, base] = words;
        let law = match head & 7 {
            1 => ShortLaw::Never,
            2 => ShortLaw::FirstHit(Span::from_ticks(a)),
            3 => ShortLaw::During(Timestamp::from_ticks(a), Timestamp::from_ticks(b)),
            4 => ShortLaw::Continuous(Span::from_ticks(a)),
            _ => return None,
        };
        Some(Short {
            item: usize::try_from(head >> 32).unwrap_or_default(),
            law,
            capacity: if head & 16 == 0 { Capacity::AtMost(capacity) } else { Capacity::Unlimited },
            charge: if head & 8 == 0 { Charge::Count } else { Charge::Ask },
            shape: Shape {
                base: Timestamp::from_ticks(base),
                time_bits: u32::try_from(head >> 8 & 0xff).unwrap_or_default(),
            },
        })
    }
}

/// An item whose rules do not fit in short.
struct NotShort;

/// Where the brief of a limit is read and written.
#[repr(align(64))]
#[derive(Debug)]
pub(super) struct Board {
    /// Odd while somebody writes.
    turn: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl Board {
    pub(super) fn new() -> Board {
        Board { turn: AtomicU64::new(0), words: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// The brief, if there is one and nobody is writing it.
    #[inline]
    pub(super) fn read(&self) -> Option<Brief> {
        let turn = self.turn.load(Ordering::Acquire);
        let word = |index: usize| self.words[index].load(Ordering::Relaxed);
        let time = |index: usize| Timestamp::from_ticks(word(index));
        let item = |first: usize| Short::from_words(std::array::from_fn(|offset| word(first + offset)));
        let edition = word(0);
        let brief = Brief {
            edition,
            from: time(1),
            until: time(2),
            ends: time(3),
            excepts: word(EXCEPTS) != 0,
            all: item(ALL),
            key: item(KEY),
        };
        fence(Ordering::Acquire);
        let whole = turn & 1 == 0 && self.turn.load(Ordering::Relaxed) == turn;
        (whole && edition != 0).then_some(brief)
    }

    /// Writes a brief, or that there is none. Only one thread at a time may.
    pub(super) fn write(&self, brief: Option<Brief>) {
        let turn = self.turn.load(Ordering::Relaxed);
        self.turn.store(turn.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        let mut words = [0; WORDS];
        if let Some(brief) = brief {
            words[0] = brief.edition;
            words[1] = brief.from.ticks();
            words[2] = brief.until.ticks();
            words[3] = brief.ends.ticks();
            words[EXCEPTS] = u64::from(brief.excepts);
            for (first, short) in [(ALL, brief.all), (KEY, brief.key)] {
                words[first..first + ITEM_WORDS]
                    .copy_from_slice(&short.map_or([0; ITEM_WORDS], |short| short.words()));
            }
        }
        for (place, word) in self.words.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        self.turn.store(turn.wrapping_add(2), Ordering::Release);
    }
}
