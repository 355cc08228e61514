//! Sliding windows: each unit comes back one window after it was spent.
//!
//! ```text
//!   sliding 5 per 15s         t=0 1 2 3 4                    15        15 + one tick
//!                               ● ● ● ● ●    x  x  x          x         ●
//!                               └─────── closed: exactly 15s old still counts ──────┘
//! ```
//!
//! The state is a sorted list of *runs*: everything spent at one instant. Each run carries the sum of all
//! spending up to and including it, so that "how much is in the window" and "when will enough have left it"
//! are both one binary search, and a refusal, which may not tidy up, costs the same as a grant.
//!
//! `bucketed` is the same law with a coarser ruler. Time is cut into 64 sub-windows, and what is spent anywhere
//! in one counts as spent at its last tick:
//!
//! ```text
//!          ├────────┼────────┼────────┤        spent at ●, counted at ▌: never earlier than the truth,
//!             ●  ●  ▌      ●  ▌                so never more than the limit in any window
//! ```
//!
//! Exact is the ruler with one tick per mark. There is no second algorithm.

mod entry_list;

use crate::amount::{Amount, Capacity};
use crate::law::Receipt;
use crate::time::{Span, Timestamp};
use crate::verdict::{Verdict, Wait};

use entry_list::List;

/// Into how many parts `bucketed` divides its window.
pub const SUB_WINDOWS: u64 = 64;

/// A window and the ruler that its spending is measured with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlidingWindow {
    window: Span,
    grain: Span,
}

/// Spending at one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Run {
    at: Timestamp,
    /// All spending up to and including this run, since `SlidingLog::base`.
    sum: Amount,
}

/// What was spent and when, oldest first.
#[derive(Debug, Clone, Default)]
pub struct SlidingLog {
    /// The sum before the first run.
    base: Amount,
    runs: List,
    /// When something was last spent, as the clock said, for people to read.
    last_time: Timestamp,
}

impl SlidingLog {
    /// When something was last spent; `None` if nothing is remembered.
    #[inline]
    pub fn last_charge(&self) -> Option<Timestamp> {
        (!self.runs.is_empty()).then_some(self.last_time)
    }

    /// How many instants are remembered.
    #[inline]
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether nothing is remembered.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The remembered spending, oldest first, as (instant, amount).
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (Timestamp, Amount)> {
        self.runs.iter().enumerate().map(|(index, run)| (run.at, run.sum - self.sum_before(index)))
    }

    /// The runs of a sorted list of (instant, amount) and the time of the last charge.
    pub fn from_sorted(
        list: impl IntoIterator<Item = (Timestamp, Amount)>,
        last_time: Timestamp,
    ) -> SlidingLog {
        let mut runs = SlidingLog { last_time, ..SlidingLog::default() };
        for (at, amount) in list {
            runs.push(at, amount);
        }
        runs
    }

    /// Forgets everything and remembers this instead, where it was remembered before.
    pub fn replace_entries(
        &mut self,
        list: impl IntoIterator<Item = (Timestamp, Amount)>,
        last_time: Timestamp,
    ) {
        self.base = 0;
        self.runs.clear();
        self.last_time = last_time;
        let mut sum: Amount = 0;
        for (at, amount) in list {
            sum = sum.saturating_add(amount);
            match self.runs.last_mut() {
                Some(last) if last.at == at => last.sum = sum,
                _ => self.runs.push(Run { at, sum }),
            }
        }
    }

    /// How much is remembered.
    #[inline]
    pub fn total(&self) -> Amount {
        self.sum() - self.base
    }

    /// What was spent last, as (instant, amount).
    pub fn latest(&self) -> Option<(Timestamp, Amount)> {
        let last = self.runs.last()?;
        Some((last.at, last.sum - self.sum_before(self.runs.len() - 1)))
    }

    /// Takes the only run of another list over, if it is no earlier than the last one here; of the same instant, the higher amount.
    pub(crate) fn append(&mut self, other: &SlidingLog, last_time: Timestamp) -> bool {
        let Some((at, amount)) = other.iter().next() else { return false };
        match self.latest() {
            Some((last, _)) if at < last => return false,
            Some((last, own)) if at == last => self.push(at, amount.saturating_sub(own)),
            _ => self.push(at, amount),
        }
        self.last_time = last_time;
        true
    }

    /// Everything ever added, up to the last run.
    #[inline]
    fn sum(&self) -> Amount {
        self.runs.last().map_or(self.base, |run| run.sum)
    }

    /// The sum before run `index`.
    #[inline]
    fn sum_before(&self, index: usize) -> Amount {
        if index == 0 { self.base } else { self.runs[index - 1].sum }
    }

    /// Adds spending no earlier than the last run.
    fn push(&mut self, at: Timestamp, amount: Amount) {
        if self.sum().checked_add(amount).is_none() {
            self.rebase();
        }
        let sum = self.sum().saturating_add(amount);
        match self.runs.last_mut() {
            // Where there are no bits left to count with, what is counted stays for longer instead.
            Some(last) if last.at == at || last.sum == sum => *last = Run { at, sum },
            _ => self.runs.push(Run { at, sum }),
        }
    }

    /// Starts the sums anew, before they run out of bits.
    fn rebase(&mut self) {
        let base = std::mem::take(&mut self.base);
        for run in self.runs.iter_mut() {
            run.sum -= base;
        }
    }

    #[inline]
    fn drop_front(&mut self, count: usize) {
        if count > 0 {
            self.base = self.sum_before(count);
            self.runs.drop_front(count);
        }
        self.forget_if_empty();
    }

    #[inline]
    fn forget_if_empty(&mut self) {
        if self.runs.is_empty() {
            *self = SlidingLog::default();
        }
    }
}

/// Equal if they remember the same; where their sums begin does not matter.
impl PartialEq for SlidingLog {
    fn eq(&self, other: &SlidingLog) -> bool {
        self.last_time == other.last_time && self.iter().eq(other.iter())
    }
}

impl Eq for SlidingLog {}

impl SlidingWindow {
    /// A window measured to the tick.
    pub const fn exact(window: Span) -> SlidingWindow {
        SlidingWindow { window, grain: Span::ONE_TICK }
    }

    /// A window measured in 64 parts.
    pub const fn bucketed(window: Span) -> SlidingWindow {
        SlidingWindow { window, grain: Span::from_ticks(window.ticks().div_ceil(SUB_WINDOWS)) }
    }

    /// How long a unit counts.
    pub const fn window(&self) -> Span {
        self.window
    }

    /// Whether spending is measured to the tick.
    pub fn is_exact(&self) -> bool {
        self.grain == Span::ONE_TICK
    }

    /// The last tick of the sub-window around `at`: where spending at `at` is counted.
    #[inline]
    fn mark(&self, at: Timestamp) -> Timestamp {
        let grain = self.grain.ticks().max(1);
        Timestamp::from_ticks((at.ticks() / grain).saturating_mul(grain).saturating_add(grain - 1))
    }

    /// The first instant at which spending counted at `mark` has left the window.
    #[inline]
    fn leaves(&self, mark: Timestamp) -> Timestamp {
        mark.plus(self.window).plus(Span::ONE_TICK)
    }

    /// How many runs at the front have left the window.
    #[inline]
    fn expired(&self, runs: &SlidingLog, now: Timestamp) -> usize {
        let has_left = |run: &Run| self.leaves(run.at) <= now;
        // Where somebody asks all the time it is one at most, or none.
        match &*runs.runs {
            [first, ..] if !has_left(first) => 0,
            [_, second, ..] if !has_left(second) => 1,
            all => all.partition_point(has_left),
        }
    }

    /// Drops what has left the window.
    #[inline]
    pub(crate) fn drop_expired(&self, runs: &mut SlidingLog, now: Timestamp) {
        runs.drop_front(self.expired(runs, now));
    }

    /// Measures remembered spending with this ruler where it is the coarser one, so that a state never holds
    /// more runs than its law would make.
    pub(crate) fn settle_into(&self, runs: &mut SlidingLog) {
        if self.grain > Span::ONE_TICK {
            *runs = SlidingLog::from_sorted(runs.iter().map(|(at, n)| (self.mark(at), n)), runs.last_time);
        }
    }

    /// How much was spent in the window that ends at `now`.
    #[inline]
    pub fn used(&self, runs: &SlidingLog, now: Timestamp) -> Amount {
        runs.sum() - runs.sum_before(self.expired(runs, now))
    }

    /// Whether `cost` more fits; if not, when enough will have left the window.
    pub fn check(&self, capacity: Capacity, runs: &SlidingLog, cost: Amount, now: Timestamp) -> Verdict {
        if capacity.admits(self.used(runs, now), cost) {
            return Verdict::Granted;
        }
        if !capacity.can_ever_hold(cost) {
            return Verdict::Denied(Wait::Never);
        }
        // The first run whose leaving makes room; it exists, because all leaving would.
        let sum = runs.sum();
        let enough = runs.runs.partition_point(|run| !capacity.admits(sum - run.sum, cost));
        Verdict::Denied(Wait::Until(self.leaves(runs.runs[enough].at)))
    }

    /// Spends `cost`. A clock that went back, or a coarser ruler used before, moves it to the latest run.
    pub fn charge(&self, runs: &mut SlidingLog, cost: Amount, now: Timestamp) -> Receipt {
        self.drop_expired(runs, now);
        let at = runs.runs.last().map_or(Timestamp::EPOCH, |run| run.at).max(self.mark(now));
        runs.push(at, cost);
        runs.last_time = runs.last_time.max(now);
        Receipt::At(at)
    }

    /// Gives `amount` of what was spent `at` back, if it is still remembered.
    pub fn refund(runs: &mut SlidingLog, at: Timestamp, amount: Amount) {
        let Ok(index) = runs.runs.binary_search_by_key(&at, |run| run.at) else { return };
        let amount = amount.min(runs.runs[index].sum - runs.sum_before(index));
        for run in runs.runs.iter_mut().skip(index) {
            run.sum -= amount;
        }
        if runs.runs[index].sum == runs.sum_before(index) {
            runs.runs.remove(index);
        }
        runs.forget_if_empty();
    }

    /// When the last run leaves the window.
    pub fn empty_at(&self, runs: &SlidingLog, now: Timestamp) -> Option<Timestamp> {
        runs.runs.last().map(|last| self.leaves(last.at)).filter(|&at| at > now)
    }
}
