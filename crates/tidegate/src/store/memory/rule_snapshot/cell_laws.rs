//! Policies whose state fits a cell, with operations on words.
//!
//! Operations on an item are compiled once per policy, so that the policy is selected once. [`AskLaw`] serves callers that
//! have the item, and [`AskKind`] serves callers that have yet to read it.

#![expect(clippy::inline_always, reason = "these are parts of the quick way, which is one piece of code")]

use tidegate_core::law::{lifetime_total, token_bucket};
use tidegate_core::{Amount, Capacity, Timestamp, Verdict, Wait};

use super::super::cache_line::{HELD, PAYLOAD, PRESENT, WIDE};
use super::{CONTINUOUS, DURING, FIRST_HIT, Head, NEVER, Short, UNITS};

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
    /// What comes of asking a cell for so much.
    fn next(&self, word: u64, cost: Amount, now: Timestamp) -> Next;
}

/// What comes of asking a cell.
pub(in super::super) enum Next {
    /// It is granted, and this is what the cell says then.
    Granted(u64),
    Denied(Wait),
    /// The row has seen this instant already.
    At(Timestamp),
    /// The cell cannot say: somebody holds it, or its row is elsewhere, or will have to be.
    Unsaid,
}

/// A law that is asked of what a cell says.
trait Spelled {
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

/// What comes of asking a cell for so much by what it says.
#[inline(always)]
fn spelled(law: &impl Spelled, word: u64, cost: Amount, now: Timestamp) -> Next {
    if word & (HELD | WIDE) != 0 {
        return Next::Unsaid;
    }
    let payload = word & PAYLOAD;
    let latest = law.latest(payload);
    if latest > now {
        return Next::At(latest);
    }
    match law.judge(payload, cost, now) {
        Verdict::Denied(wait) => Next::Denied(wait),
        Verdict::Granted => {
            law.charge(payload, cost, now).map_or(Next::Unsaid, |next| Next::Granted(PRESENT | next))
        }
    }
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
/// what cells say need not be carried over and back, nor the bit that says that there is a row taken off and put on.
///
/// Nothing of that overflows: the brief of such a bucket is good only while instants fit cells, and its step and its room do too.
pub(in super::super) struct Drop(Short);

/// No step, room or age of a base that is longer is reckoned with in cells.
pub(super) const LONGEST: u64 = PRESENT - 1;
/// Nor is a base that cells could count on from beyond the end of time.
pub(super) const LATEST_BASE: u64 = u64::MAX - PRESENT;
pub(super) struct Bucket(Short);
pub(super) struct Total(Short);
pub(super) struct Window(Short);

impl CellLaw for Drop {
    const HAS_CAPACITY: bool = false;
    const WORDS: usize = 2;

    #[inline(always)]
    fn count(_: Amount) -> Amount {
        1
    }

    #[inline(always)]
    fn of(short: Short) -> Drop {
        // What else its head says is not asked here, and need not be kept.
        Drop(Short { head: Head(CONTINUOUS | UNITS), ..short })
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
    fn next(&self, word: u64, _: Amount, now: Timestamp) -> Next {
        let &Short { a: step, b: room, base, .. } = self.short();
        let now = now.ticks().wrapping_sub(base).wrapping_add(PRESENT);
        // Nobody goes by a cell that somebody holds, nor by one that only says where its row is, whatever was read of the rules.
        match token_bucket::charge_one_within(room, step, word, now) {
            Some(next) if word | next <= PRESENT | PAYLOAD => Next::Granted(next),
            None if word <= PRESENT | PAYLOAD => {
                let again = (word & PAYLOAD).wrapping_sub(room).wrapping_add(base);
                Next::Denied(Wait::Until(Timestamp::from_ticks(again)))
            }
            _ => Next::Unsaid,
        }
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
    fn next(&self, word: u64, cost: Amount, now: Timestamp) -> Next {
        spelled(self, word, cost, now)
    }
}

impl Spelled for Bucket {
    #[inline(always)]
    fn judge(&self, payload: u64, cost: Amount, now: Timestamp) -> Verdict {
        self.0.rate().check(self.0.capacity(), &self.0.arrival(payload), cost, now)
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
    fn next(&self, word: u64, cost: Amount, now: Timestamp) -> Next {
        spelled(self, word, cost, now)
    }
}

impl Spelled for Total {
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
        lifetime_total::check(capacity, &self.0.tally(payload), cost)
    }

    #[inline(always)]
    fn charge(&self, payload: u64, cost: Amount, now: Timestamp) -> Option<u64> {
        if cost == 0 {
            return Some(payload);
        }
        let mut tally = self.0.tally(payload);
        let _no_refund = lifetime_total::charge(&mut tally, cost, now);
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
    fn next(&self, word: u64, cost: Amount, now: Timestamp) -> Next {
        spelled(self, word, cost, now)
    }
}

impl Spelled for Window {
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
        self.0.window().check(capacity, &self.0.count(payload), cost, now)
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

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use proptest::prelude::*;
    use tidegate_testkit::test_scale::cases;

    use super::*;

    /// Small numbers, any, and those at the end.
    fn ticks() -> impl Strategy<Value = u64> {
        prop_oneof![0..100_u64, 0..=LONGEST, (0..100_u64).prop_map(|less| LONGEST - less)]
    }

    proptest! {
        #![proptest_config(cases(20_000))]

        /// A drop is one unit of the bucket it is of, whatever its numbers are.
        #[test]
        fn unit_bucket_matches_bucket_of_one(
            step in ticks(),
            beside in 0..1_000_u64,
            base in prop_oneof![ticks(), (0..100_u64).prop_map(|less| LATEST_BASE - less)],
            age in ticks(),
            payload in ticks(),
            flags in prop_oneof![8 => Just(PRESENT), 1 => Just(0), 1 => Just(PRESENT | HELD), 1 => Just(WIDE)],
        ) {
            // As far as the brief of such a bucket is written, and good.
            let (beside, age) = (beside.min(LONGEST / step.max(1)), age.min(LONGEST - 1));
            let room = step * beside;
            let head = Head(CONTINUOUS | UNITS);
            let short = Short { head, capacity: beside + 1, a: step, b: room, base };
            let now = Timestamp::from_ticks(base + age);
            let payload = if flags == 0 { 0 } else { payload };
            let bucket = Bucket::of(short);
            let (verdict, charged) = (bucket.judge(payload, 1, now), bucket.charge(payload, 1, now));
            match Drop::of(short).next(flags | payload, 1, now) {
                Next::Granted(next) => {
                    prop_assert_eq!(verdict, Verdict::Granted);
                    prop_assert_eq!(Some(next), charged.map(|payload| PRESENT | payload));
                    prop_assert_eq!(flags & (HELD | WIDE), 0);
                }
                Next::Denied(wait) => {
                    prop_assert_eq!(verdict, Verdict::Denied(wait));
                    prop_assert_eq!(flags & (HELD | WIDE), 0);
                }
                Next::At(_) => prop_assert!(false, "a bucket does not keep when it was charged"),
                Next::Unsaid => {
                    prop_assert!(flags & (HELD | WIDE) != 0 || verdict == Verdict::Granted && charged.is_none());
                }
            }
        }
    }
}
