//! Windows: everything spent comes back at once, when the window ends.
//!
//! ```text
//!   interval 60s     hit            hit  hit          hit
//!                    ├──────────────────────────┤     ├─────────── …
//!                    0               59        60     75             first hit opens, half-open
//!
//!   day, Shanghai    │        Tue        │        Wed        │
//!                  00:00               00:00               00:00     the calendar opens
//! ```
//!
//! The state is document 004's `PolicyStatus`: a count and a time. A calendar window keeps the time of the
//! latest charge, and whether that lies in the same window as `now` is computed when asked, so a change of zone
//! or week start is right at once and never forgives. An interval keeps the time of the first charge, because
//! that is what its window hangs from; keeping the latest would never reset under steady traffic.
//!
//! A window with nothing left in it (all of it refunded) is closed: the next charge opens a new one.

use crate::amount::{Amount, Capacity};
use crate::calendar::Calendar;
use crate::law::Receipt;
use crate::time::{Span, Timestamp};
use crate::verdict::{Verdict, Wait};

/// Where windows begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FixedWindow {
    /// `interval`: at the first charge after the window before it ended.
    FirstHit {
        /// How long a window lasts.
        window: Span,
    },
    /// `second` to `year`: where the calendar says.
    Calendar(Calendar),
    /// One window of a calendar, looked up before. It answers as the calendar would while `now` lies in it.
    Resolved {
        /// Its first instant.
        start: Timestamp,
        /// The first instant after it.
        end: Timestamp,
    },
}

/// How much was spent in the latest window there was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WindowCount {
    /// Units spent in that window.
    pub count: Amount,
    /// The first charge of an interval, the latest charge of a calendar window.
    pub last_time: Timestamp,
}

impl FixedWindow {
    /// The law as it is at `now`, without its calendar.
    pub fn resolve(&self, now: Timestamp) -> FixedWindow {
        match self {
            FixedWindow::Calendar(calendar) => {
                let (start, end) = calendar.window(now);
                FixedWindow::Resolved { start, end }
            }
            other => other.clone(),
        }
    }

    /// The first instant after the window that `count` remembers.
    pub(crate) fn end(&self, count: &WindowCount) -> Timestamp {
        match self {
            FixedWindow::FirstHit { window } => count.last_time.plus(*window),
            FixedWindow::Calendar(calendar) => calendar.window(count.last_time).1,
            FixedWindow::Resolved { end, .. } => *end,
        }
    }

    /// Whether the remembered window is still open. A clock that went back does not close it.
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

    /// Whether `cost` more fits; if not, the window's end helps.
    pub fn check(&self, capacity: Capacity, count: &WindowCount, cost: Amount, now: Timestamp) -> Verdict {
        if capacity.admits(self.used(count, now), cost) {
            Verdict::Granted
        } else if capacity.can_ever_hold(cost) {
            Verdict::Denied(Wait::Until(self.end(count)))
        } else {
            Verdict::Denied(Wait::Never)
        }
    }

    /// Spends `cost`, opening a window if none is open.
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

    /// Gives `amount` of a charge made `at` back, if its window is the one that is open.
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
