//! The laws whose states fit a cell, asked in words.
//!
//! Whoever asks something of an item is compiled once for each law, so that nothing is decided twice: by [`AskLaw`] if they have the item, by
//! [`AskKind`] if they have yet to read it.

#![expect(clippy::inline_always, reason = "these are parts of the quick way, which is one piece of code")]

use tidegate_core::law::{continuous, never};
use tidegate_core::{Amount, Capacity, Span, Timestamp, Verdict, Wait};

use super::super::line::PAYLOAD;
use super::{CONTINUOUS, DURING, FIRST_HIT, Head, NEVER, Short};

/// A law whose states fit a cell, asked in words. The answers are the core's.
pub(in super::super) trait CellLaw {
    /// Whether it is asked with the item's capacity.
    const HAS_CAPACITY: bool = true;
    /// How many words of its own the law has.
    const WORDS: usize;
    /// How much is asked for when this much is.
    #[inline(always)]
    fn count(asked: Amount) -> Amount {
        asked
    }
    /// The law of an item, which is of this kind.
    fn of(short: Short) -> Self;
    /// Whether an item is of this kind.
    fn is_of(head: Head) -> bool;
    /// The item it is the law of, as far as the law needs it.
    fn short(&self) -> &Short;
    /// The latest instant at which something was charged, as far as the law keeps it.
    #[inline(always)]
    fn latest(&self, _: u64) -> Timestamp {
        Timestamp::EPOCH
    }
    /// Whether `cost` more fits.
    fn judge(&self, payload: u64, cost: Amount, now: Timestamp) -> Verdict;
    /// The payload after spending `cost`, if it fits a cell.
    fn charge(&self, payload: u64, cost: Amount, now: Timestamp) -> Option<u64>;
}

/// Something that is asked of an item, whatever its law: compiled once for each of them.
pub(in super::super) trait AskLaw {
    /// What comes of it.
    type Answer;
    /// Asks.
    fn ask(self, law: &impl CellLaw) -> Self::Answer;
}

/// The same before the item was read.
pub(in super::super) trait AskKind {
    /// What comes of it.
    type Answer;
    /// Asks.
    fn ask<L: CellLaw>(self) -> Self::Answer;
}

/// One unit of a bucket in a limit that does not end, which is what is asked for most. Instants are counted from the base of its cells, so that
/// what cells say need not be carried over and back.
pub(in super::super) struct Drop(Short);
pub(super) struct Bucket(Short);
pub(super) struct Total(Short);
pub(super) struct Window(Short);

impl Drop {
    #[inline(always)]
    fn since_base(&self, now: Timestamp) -> Timestamp {
        Timestamp::from_ticks(now.since(Timestamp::from_ticks(self.0.base)).ticks())
    }
}

impl CellLaw for Drop {
    const HAS_CAPACITY: bool = false;
    const WORDS: usize = 2;

    #[inline(always)]
    fn count(_: Amount) -> Amount {
        1
    }

    #[inline(always)]
    fn of(short: Short) -> Drop {
        Drop(short)
    }

    #[inline(always)]
    fn is_of(head: Head) -> bool {
        head.has_drops()
    }

    #[inline(always)]
    fn short(&self) -> &Short {
        &self.0
    }

    #[inline(always)]
    fn judge(&self, payload: u64, _: Amount, now: Timestamp) -> Verdict {
        let room = Span::from_ticks(self.0.b);
        match continuous::judge_within(room, Timestamp::from_ticks(payload), self.since_base(now)) {
            Verdict::Denied(Wait::Until(at)) => {
                Verdict::Denied(Wait::Until(at.plus(Span::from_ticks(self.0.base))))
            }
            verdict => verdict,
        }
    }

    #[inline(always)]
    fn charge(&self, payload: u64, _: Amount, now: Timestamp) -> Option<u64> {
        let tat = self.0.rate().arrive(Timestamp::from_ticks(payload), 1, self.since_base(now)).ticks();
        (tat <= PAYLOAD).then_some(tat)
    }
}

impl CellLaw for Bucket {
    const WORDS: usize = 1;

    #[inline(always)]
    fn of(short: Short) -> Bucket {
        Bucket(short)
    }

    #[inline(always)]
    fn is_of(head: Head) -> bool {
        head.law() == CONTINUOUS
    }

    #[inline(always)]
    fn short(&self) -> &Short {
        &self.0
    }

    #[inline(always)]
    fn judge(&self, payload: u64, cost: Amount, now: Timestamp) -> Verdict {
        self.0.rate().judge(self.0.capacity(), &self.0.arrival(payload), cost, now)
    }

    #[inline(always)]
    fn charge(&self, payload: u64, cost: Amount, now: Timestamp) -> Option<u64> {
        if cost == 0 {
            return Some(payload);
        }
        let mut arrival = self.0.arrival(payload);
        let _no_refund = self.0.rate().charge(self.0.capacity(), &mut arrival, cost, now);
        self.0.shape().arrival(arrival.tat)
    }
}

impl CellLaw for Total {
    const WORDS: usize = 0;

    #[inline(always)]
    fn of(short: Short) -> Total {
        Total(short)
    }

    #[inline(always)]
    fn is_of(head: Head) -> bool {
        head.law() == NEVER
    }

    #[inline(always)]
    fn short(&self) -> &Short {
        &self.0
    }

    #[inline(always)]
    fn latest(&self, payload: u64) -> Timestamp {
        self.0.shape().split(payload).0
    }

    #[inline(always)]
    fn judge(&self, payload: u64, cost: Amount, _: Timestamp) -> Verdict {
        let capacity = self.0.capacity();
        if capacity == Capacity::Unlimited {
            return Verdict::Granted;
        }
        never::judge(capacity, &self.0.tally(payload), cost)
    }

    #[inline(always)]
    fn charge(&self, payload: u64, cost: Amount, now: Timestamp) -> Option<u64> {
        if cost == 0 {
            return Some(payload);
        }
        let mut tally = self.0.tally(payload);
        let _no_refund = never::charge(&mut tally, cost, now);
        self.0.shape().join(tally.last_time, tally.used)
    }
}

impl CellLaw for Window {
    const WORDS: usize = 2;

    #[inline(always)]
    fn of(short: Short) -> Window {
        Window(short)
    }

    #[inline(always)]
    fn is_of(head: Head) -> bool {
        matches!(head.law(), FIRST_HIT | DURING)
    }

    #[inline(always)]
    fn short(&self) -> &Short {
        &self.0
    }

    #[inline(always)]
    fn latest(&self, payload: u64) -> Timestamp {
        self.0.shape().split(payload).0
    }

    #[inline(always)]
    fn judge(&self, payload: u64, cost: Amount, now: Timestamp) -> Verdict {
        let capacity = self.0.capacity();
        if capacity == Capacity::Unlimited {
            return Verdict::Granted;
        }
        self.0.window().judge(capacity, &self.0.count(payload), cost, now)
    }

    #[inline(always)]
    fn charge(&self, payload: u64, cost: Amount, now: Timestamp) -> Option<u64> {
        if cost == 0 {
            return Some(payload);
        }
        let mut count = self.0.count(payload);
        let _no_refund = self.0.window().charge(&mut count, cost, now);
        self.0.shape().join(count.last_time, count.count)
    }
}
