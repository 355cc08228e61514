//! Sliding windows: each unit comes back one window after it was spent.
//!
//! ```text
//!   sliding 5 per 15s         t=0 1 2 3 4                    15        15 + one tick
//!                               ● ● ● ● ●    x  x  x          x         ●
//!                               └─────── closed: exactly 15s old still counts ──────┘
//! ```
//!
//! The state is a sorted list of entries, one for each instant with charges. Each entry stores the sum of all charges up
//! to and including it. So the usage and the wait of a refusal each take one binary search. A refusal must not change the
//! state, and costs the same as a grant.
//!
//! `bucketed` is the same law with a coarser granularity. Time is cut into 64 sub-windows, and a charge anywhere in a
//! sub-window counts at its last tick:
//!
//! ```text
//!          ├────────┼────────┼────────┤        charged at ●, counted at ▌: never earlier than the charge,
//!             ●  ●  ▌      ●  ▌                so no window ever exceeds the limit
//! ```
//!
//! `exact` has a granularity of one tick. Both share one algorithm.

mod entry_list;

use crate::amount::{Amount, Capacity};
use crate::law::Receipt;
use crate::time::{Span, Timestamp};
use crate::verdict::{Verdict, Wait};

use entry_list::EntryList;

/// The number of sub-windows of a `bucketed` window.
pub const SUB_WINDOWS: u64 = 64;

/// The sliding window law.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlidingWindow {
    window: Span,
    granularity: Span,
}

/// The charges of one instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct LogEntry {
    at: Timestamp,
    /// The sum of all charges up to and including this entry, since `SlidingLog::base`.
    sum: Amount,
}

/// The charges in the window, oldest first.
#[derive(Debug, Clone, Default)]
pub struct SlidingLog {
    /// The sum before the first entry.
    base: Amount,
    entries: EntryList,
    /// The clock time of the last charge. Only readings report it.
    last_time: Timestamp,
}

impl SlidingLog {
    /// The time of the last charge; `None` if the log is empty.
    #[inline]
    pub fn last_charge(&self) -> Option<Timestamp> {
        (!self.entries.is_empty()).then_some(self.last_time)
    }

    /// The number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the log is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The entries as (instant, amount), oldest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (Timestamp, Amount)> {
        self.entries.iter().enumerate().map(|(index, entry)| (entry.at, entry.sum - self.sum_before(index)))
    }

    /// Builds a log from sorted (instant, amount) pairs and the time of the last charge.
    pub fn from_sorted(
        list: impl IntoIterator<Item = (Timestamp, Amount)>,
        last_time: Timestamp,
    ) -> SlidingLog {
        let mut log = SlidingLog { last_time, ..SlidingLog::default() };
        for (at, amount) in list {
            log.push(at, amount);
        }
        log
    }

    /// Replaces all entries and reuses the allocation.
    pub fn replace_entries(
        &mut self,
        list: impl IntoIterator<Item = (Timestamp, Amount)>,
        last_time: Timestamp,
    ) {
        self.base = 0;
        self.entries.clear();
        self.last_time = last_time;
        let mut sum: Amount = 0;
        for (at, amount) in list {
            sum = sum.saturating_add(amount);
            match self.entries.last_mut() {
                Some(last) if last.at == at => last.sum = sum,
                _ => self.entries.push(LogEntry { at, sum }),
            }
        }
    }

    /// The units in the log.
    #[inline]
    pub fn total(&self) -> Amount {
        self.sum() - self.base
    }

    /// The last entry as (instant, amount).
    pub fn latest(&self) -> Option<(Timestamp, Amount)> {
        let last = self.entries.last()?;
        Some((last.at, last.sum - self.sum_before(self.entries.len() - 1)))
    }

    /// Appends the only entry of another log, if it is not earlier than the last entry here. On the same instant the higher
    /// amount wins. Returns whether it did.
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

    /// The sum up to the last entry.
    #[inline]
    fn sum(&self) -> Amount {
        self.entries.last().map_or(self.base, |entry| entry.sum)
    }

    /// The sum before entry `index`.
    #[inline]
    fn sum_before(&self, index: usize) -> Amount {
        if index == 0 { self.base } else { self.entries[index - 1].sum }
    }

    /// Adds a charge that is not earlier than the last entry.
    fn push(&mut self, at: Timestamp, amount: Amount) {
        if self.sum().checked_add(amount).is_none() {
            self.rebase();
        }
        let sum = self.sum().saturating_add(amount);
        match self.entries.last_mut() {
            // If the sum saturates, the charge moves the last entry later instead.
            Some(last) if last.at == at || last.sum == sum => *last = LogEntry { at, sum },
            _ => self.entries.push(LogEntry { at, sum }),
        }
    }

    /// Rebases the sums before they overflow.
    fn rebase(&mut self) {
        let base = std::mem::take(&mut self.base);
        for entry in self.entries.iter_mut() {
            entry.sum -= base;
        }
    }

    #[inline]
    fn drop_front(&mut self, count: usize) {
        if count > 0 {
            self.base = self.sum_before(count);
            self.entries.drop_front(count);
        }
        self.reset_if_empty();
    }

    #[inline]
    fn reset_if_empty(&mut self) {
        if self.entries.is_empty() {
            *self = SlidingLog::default();
        }
    }
}

/// Two logs are equal if they hold the same charges. Their bases may differ.
impl PartialEq for SlidingLog {
    fn eq(&self, other: &SlidingLog) -> bool {
        self.last_time == other.last_time && self.iter().eq(other.iter())
    }
}

impl Eq for SlidingLog {}

impl SlidingWindow {
    /// A window with a granularity of one tick.
    pub const fn exact(window: Span) -> SlidingWindow {
        SlidingWindow { window, granularity: Span::ONE_TICK }
    }

    /// A window with 64 sub-windows.
    pub const fn bucketed(window: Span) -> SlidingWindow {
        SlidingWindow { window, granularity: Span::from_ticks(window.ticks().div_ceil(SUB_WINDOWS)) }
    }

    /// The length of the window.
    pub const fn window(&self) -> Span {
        self.window
    }

    /// The length of a sub-window.
    pub const fn granularity(&self) -> Span {
        self.granularity
    }

    /// Whether the granularity is one tick.
    pub fn is_exact(&self) -> bool {
        self.granularity == Span::ONE_TICK
    }

    /// The last tick of the sub-window around `at`, where a charge at `at` counts.
    #[inline]
    fn counted_at(&self, at: Timestamp) -> Timestamp {
        let granularity = self.granularity.ticks().max(1);
        Timestamp::from_ticks(
            (at.ticks() / granularity).saturating_mul(granularity).saturating_add(granularity - 1),
        )
    }

    /// The first instant after a charge counted at `mark` has left the window.
    #[inline]
    fn expires_at(&self, mark: Timestamp) -> Timestamp {
        mark.plus(self.window).plus(Span::ONE_TICK)
    }

    /// The number of leading entries that have left the window.
    #[inline]
    fn count_expired(&self, log: &SlidingLog, now: Timestamp) -> usize {
        let is_expired = |entry: &LogEntry| self.expires_at(entry.at) <= now;
        // Under steady traffic at most one entry expires between two calls.
        match &*log.entries {
            [first, ..] if !is_expired(first) => 0,
            [_, second, ..] if !is_expired(second) => 1,
            all => all.partition_point(is_expired),
        }
    }

    /// Removes the entries that have left the window.
    #[inline]
    pub(crate) fn drop_expired(&self, log: &mut SlidingLog, now: Timestamp) {
        log.drop_front(self.count_expired(log, now));
    }

    /// Rounds entries up to this granularity if it is the coarser one. A log then never has more entries than its law
    /// would create.
    pub(crate) fn coarsen(&self, log: &mut SlidingLog) {
        if self.granularity > Span::ONE_TICK {
            *log = SlidingLog::from_sorted(log.iter().map(|(at, n)| (self.counted_at(at), n)), log.last_time);
        }
    }

    /// The units spent in the window that ends at `now`.
    #[inline]
    pub fn used(&self, log: &SlidingLog, now: Timestamp) -> Amount {
        log.sum() - log.sum_before(self.count_expired(log, now))
    }

    /// Whether `cost` more units fit. If they do not, the wait is until enough entries leave the window.
    pub fn check(&self, capacity: Capacity, log: &SlidingLog, cost: Amount, now: Timestamp) -> Verdict {
        if capacity.admits(self.used(log, now), cost) {
            return Verdict::Granted;
        }
        if !capacity.can_ever_hold(cost) {
            return Verdict::Denied(Wait::Never);
        }
        // The first entry whose expiry makes enough room. It exists, because the expiry of all entries would.
        let sum = log.sum();
        let enough = log.entries.partition_point(|entry| !capacity.admits(sum - entry.sum, cost));
        Verdict::Denied(Wait::Until(self.expires_at(log.entries[enough].at)))
    }

    /// Spends `cost`. If the clock went back, or an earlier granularity was coarser, the charge joins the latest entry.
    pub fn charge(&self, log: &mut SlidingLog, cost: Amount, now: Timestamp) -> Receipt {
        self.drop_expired(log, now);
        let at = log.entries.last().map_or(Timestamp::EPOCH, |entry| entry.at).max(self.counted_at(now));
        log.push(at, cost);
        log.last_time = log.last_time.max(now);
        Receipt::At(at)
    }

    /// Gives back `amount` of a charge made at `at`, if the log still has it.
    pub fn refund(log: &mut SlidingLog, at: Timestamp, amount: Amount) {
        let Ok(index) = log.entries.binary_search_by_key(&at, |entry| entry.at) else { return };
        let amount = amount.min(log.entries[index].sum - log.sum_before(index));
        for entry in log.entries.iter_mut().skip(index) {
            entry.sum -= amount;
        }
        if log.entries[index].sum == log.sum_before(index) {
            log.entries.remove(index);
        }
        log.reset_if_empty();
    }

    /// When the last entry leaves the window.
    pub fn empty_at(&self, log: &SlidingLog, now: Timestamp) -> Option<Timestamp> {
        log.entries.last().map(|last| self.expires_at(last.at)).filter(|&at| at > now)
    }
}
