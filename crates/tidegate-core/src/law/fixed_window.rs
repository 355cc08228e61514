//! Fixed windows: all spent units come back when the window ends (`interval`, `second` to `year`).
//!
//! ```text
//!   interval 60s     hit            hit  hit          hit
//!                    ├──────────────────────────┤     ├─────────── …
//!                    0               59        60     75             the first charge opens a half-open window
//!
//!   day, Shanghai    │        Tue        │        Wed        │
//!                  00:00               00:00               00:00     the calendar opens the window
//! ```
//!
//! The state is a count and a time. A calendar window stores the time of the latest charge. Each check computes whether
//! that time lies in the same window as `now`, so a change of time zone or week start takes effect at once and never
//! forgives usage. An interval stores the time of its first charge, because its window starts there. With the latest
//! charge instead, steady traffic would never reset.
//!
//! A window whose count drops to zero by refunds is closed. The next charge opens a new one.

use crate::amount::{Amount, Capacity};
use crate::calendar::Calendar;
use crate::law::Receipt;
use crate::time::{Span, Timestamp};
use crate::verdict::{Verdict, Wait};

/// How windows start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FixedWindow {
    /// `interval`: at the first charge after the previous window.
    FirstHit {
        /// The length of a window.
        window: Span,
    },
    /// `second` to `year`: at calendar boundaries.
    Calendar(Calendar),
    /// One calendar window that was already looked up. Valid while `now` lies in it.
    Resolved {
        /// The first instant of the window.
        start: Timestamp,
        /// The first instant after the window.
        end: Timestamp,
    },
}

/// The units spent in the latest window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WindowCount {
    /// Units spent in that window.
    pub count: Amount,
    /// The first charge of an interval, the latest charge of a calendar window.
    pub last_time: Timestamp,
}

impl FixedWindow {
    /// This law at `now`, with the calendar window already looked up.
    pub fn resolve(&self, now: Timestamp) -> FixedWindow {
        match self {
            FixedWindow::Calendar(calendar) => {
                let (start, end) = calendar.window(now);
                FixedWindow::Resolved { start, end }
            }
            other => other.clone(),
        }
    }

    /// The first instant after the counted window.
    pub(crate) fn end(&self, count: &WindowCount) -> Timestamp {
        match self {
            FixedWindow::FirstHit { window } => count.last_time.plus(*window),
            FixedWindow::Calendar(calendar) => calendar.window(count.last_time).1,
            FixedWindow::Resolved { end, .. } => *end,
        }
    }

    /// Whether the counted window is still open. A clock that goes back does not close it.
    pub(crate) fn is_open(&self, count: &WindowCount, now: Timestamp) -> bool {
        count.count > 0
            && match self {
                FixedWindow::FirstHit { window } => now < count.last_time.plus(*window),
                FixedWindow::Calendar(calendar) => count.last_time >= calendar.window(now).0,
                FixedWindow::Resolved { start, .. } => count.last_time >= *start,
            }
    }

    /// How much is in use at `now`.
    pub fn used(&self, count: &WindowCount, now: Timestamp) -> Amount {
        if self.is_open(count, now) { count.count } else { 0 }
    }

    /// Whether `cost` more units fit. If they do not, the wait is until the window ends.
    pub fn check(&self, capacity: Capacity, count: &WindowCount, cost: Amount, now: Timestamp) -> Verdict {
        if capacity.admits(self.used(count, now), cost) {
            Verdict::Granted
        } else if capacity.can_ever_hold(cost) {
            Verdict::Denied(Wait::Until(self.end(count)))
        } else {
            Verdict::Denied(Wait::Never)
        }
    }

    /// Spends `cost`. Opens a window if none is open.
    pub fn charge(&self, count: &mut WindowCount, cost: Amount, now: Timestamp) -> Receipt {
        if !self.is_open(count, now) {
            *count = WindowCount { count: cost, last_time: now.max(count.last_time) };
            return Receipt::At(count.last_time);
        }
        count.count = count.count.saturating_add(cost);
        let at = now.max(count.last_time);
        if !matches!(self, FixedWindow::FirstHit { .. }) {
            count.last_time = at;
        }
        Receipt::At(at)
    }

    /// Gives back `amount` of a charge made at `at`, if its window is still open.
    pub fn refund(&self, count: &mut WindowCount, at: Timestamp, amount: Amount, now: Timestamp) {
        let same_window = match self {
            FixedWindow::FirstHit { .. } => at >= count.last_time,
            FixedWindow::Calendar(calendar) => at >= calendar.window(count.last_time).0,
            FixedWindow::Resolved { start, .. } => at >= *start,
        };
        if same_window && self.is_open(count, now) {
            count.count = count.count.saturating_sub(amount);
        }
        if count.count == 0 {
            *count = WindowCount::default();
        }
    }

    /// When the open window ends.
    pub fn empty_at(&self, count: &WindowCount, now: Timestamp) -> Option<Timestamp> {
        self.is_open(count, now).then(|| self.end(count))
    }
}
