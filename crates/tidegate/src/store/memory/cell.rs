//! Encoding of a small row state in a cell of one word.
//!
//! ```text
//!   bucket               the arrival time, in ticks since the shape's base                      61 bits
//!   window, total        │ time since the base │ count │    and a sliding window with one run in it
//! ```
//!
//! A state that does not fit is stored in full in the overflow slab ([`super::overflow`]). Examples are a large count, a
//! time before the base, and credits of open holds. The width of the fields affects memory use, never results.

#![expect(clippy::inline_always, reason = "these are parts of the quick way, which is one piece of code")]

use tidegate_core::law::fixed_window::WindowCount;
use tidegate_core::law::lifetime_total::TotalCount;
use tidegate_core::law::sliding_window::SlidingLog;
use tidegate_core::law::{FixedWindow, token_bucket::BucketState};
use tidegate_core::{Amount, Capacity, Law, Per, Rule, Span, State, Timestamp};

use super::cache_line::{PAYLOAD, PAYLOAD_BITS};

/// The fewest bits for a count.
const FEWEST_COUNT_BITS: u32 = 4;
/// Counts without a limit get this many.
const UNLIMITED_COUNT_BITS: u32 = 20;
/// Times of laws without a window reach this far: 52 days of nanoseconds.
const WINDOWLESS_TIME_BITS: u32 = 52;
/// Times of a row of all keys reach this far at least, where its counts need the bits: 17 seconds of nanoseconds. There is one such row, so
/// that it costs nothing to begin anew every so often.
const LEAST_SHARED_TIME_BITS: u32 = 34;

/// How the states of one item are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// No time before this can be written.
    pub(super) base: Timestamp,
    pub(super) time_bits: u32,
}

impl Shape {
    /// The shape for an item's rule from `now` on, or `None` if its states never fit.
    pub(super) fn of(rule: &Rule, per: Per, now: Timestamp) -> Option<Shape> {
        let window = match &rule.law {
            Law::Concurrency(_) => return None,
            Law::TokenBucket(_) => return Some(Shape { base: now, time_bits: PAYLOAD_BITS }),
            Law::LifetimeTotal => 1 << WINDOWLESS_TIME_BITS,
            Law::FixedWindow(FixedWindow::FirstHit { window }) => window.ticks(),
            Law::FixedWindow(FixedWindow::Calendar(calendar)) => calendar.longest().ticks(),
            Law::FixedWindow(FixedWindow::Resolved { start, end }) => end.since(*start).ticks(),
            Law::SlidingWindow(rolling) => rolling.window().ticks(),
        };
        let count_bits = match rule.capacity {
            Capacity::Unlimited => UNLIMITED_COUNT_BITS,
            Capacity::AtMost(limit) => bits(limit) + 1,
        };
        // Everything that is remembered lies within a window of now, and the base may be a window old.
        let mut least_time_bits = (bits(window) + 2).min(PAYLOAD_BITS - FEWEST_COUNT_BITS);
        let mut window = window;
        // The latest charge of a busy row is not old, whatever its window; where an interval began may be.
        let keeps_latest =
            matches!(rule.law, Law::LifetimeTotal | Law::FixedWindow(FixedWindow::Calendar(_)));
        if per == Per::All && keeps_latest && count_bits > PAYLOAD_BITS - least_time_bits {
            least_time_bits = LEAST_SHARED_TIME_BITS.max(PAYLOAD_BITS.saturating_sub(count_bits));
            window = 1 << (least_time_bits - 2);
        }
        let count_bits = count_bits.clamp(FEWEST_COUNT_BITS, PAYLOAD_BITS - least_time_bits);
        // What a state may remember from before was charged within a window of now, if at all.
        let base = now.minus(Span::from_ticks(window.min(now.ticks() / 2)));
        Some(Shape { base, time_bits: PAYLOAD_BITS - count_bits })
    }

    /// Whether times from `now` on will soon not fit any more.
    pub(super) fn is_worn_out(&self, now: Timestamp) -> bool {
        now.since(self.base).ticks() >> (self.time_bits - 1) != 0
    }

    /// A time and a count in a word.
    #[inline(always)]
    pub(super) fn join(&self, time: Timestamp, count: Amount) -> Option<u64> {
        let since = time.since(self.base).ticks();
        let fits = time >= self.base && since >> self.time_bits == 0;
        let count_bits = PAYLOAD_BITS - self.time_bits;
        if count == 0 {
            return Some(0);
        }
        (fits && count >> count_bits == 0).then(|| since << count_bits | count)
    }

    /// The time and the count of a word.
    #[inline(always)]
    pub(super) fn split(&self, payload: u64) -> (Timestamp, Amount) {
        let count_bits = PAYLOAD_BITS - self.time_bits;
        let count = payload & ((1 << count_bits) - 1);
        let time = if count == 0 {
            Timestamp::EPOCH
        } else {
            self.base.plus(Span::from_ticks(payload >> count_bits))
        };
        (time, count)
    }

    /// A bucket's arrival time in a word. Arrivals before the base are over and all alike.
    #[inline(always)]
    pub(super) fn arrival(&self, tat: Timestamp) -> Option<u64> {
        let since = tat.since(self.base).ticks();
        (since <= PAYLOAD).then_some(since)
    }

    /// The arrival time of a word.
    #[inline(always)]
    pub(super) fn tat(&self, payload: u64) -> Timestamp {
        self.base.plus(Span::from_ticks(payload))
    }

    /// A state in a word, if it fits. Nobody may have a claim to settle against it.
    pub(super) fn write(&self, rule: &Rule, state: &State) -> Option<u64> {
        match (&rule.law, state) {
            (_, State::LifetimeTotal(tally)) => self.join(tally.last_time, tally.used),
            (_, State::FixedWindow(count)) => self.join(count.last_time, count.count),
            (Law::TokenBucket(law), State::TokenBucket(arrival)) => {
                (arrival.step == law.step()).then(|| self.arrival(arrival.tat)).flatten()
            }
            (_, State::SlidingWindow(runs)) if runs.len() > 1 => None,
            (_, State::SlidingWindow(runs)) => match (runs.latest(), runs.last_charge()) {
                (None, _) => Some(0),
                (Some((at, count)), Some(last)) if at == last => self.join(at, count),
                _ => None,
            },
            _ => None,
        }
    }

    /// The state of a word.
    pub(super) fn read(&self, rule: &Rule, payload: u64) -> State {
        let (time, count) = self.split(payload);
        match &rule.law {
            Law::LifetimeTotal => State::LifetimeTotal(TotalCount { used: count, last_time: time }),
            Law::FixedWindow(_) => State::FixedWindow(WindowCount { count, last_time: time }),
            Law::SlidingWindow(_) if count == 0 => State::SlidingWindow(SlidingLog::default()),
            Law::SlidingWindow(_) => State::SlidingWindow(SlidingLog::from_sorted([(time, count)], time)),
            Law::TokenBucket(law) => State::TokenBucket(BucketState {
                tat: self.tat(payload),
                step: law.step(),
                credits: Span::ZERO,
            }),
            Law::Concurrency(_) => State::blank(&rule.law),
        }
    }
}

/// How many bits a number needs.
fn bits(number: u64) -> u32 {
    u64::BITS - number.leading_zeros()
}
