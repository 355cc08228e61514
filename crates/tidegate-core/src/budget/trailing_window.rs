//! A trailing window: the usage of the last window length at any moment, and the rate that keeps every such window within
//! its quota.
//!
//! ```text
//!        now − W          now + d − W                                   now     now + d
//!   ────────┬────────────────┬───────────────── C(t) ────────────────────┬─────────┬────
//!           └─ leaves during the next step                               └─ x for d
//! ```
//!
//! `C(t)` is the cumulative usage, `m` the floor, `L` the average and `W` the window. A step of length `d` at rate `x` is
//! allowed if afterwards, for every `s` up to `W`, the usage still in the window and the floor until then fit:
//! `use(now+d+s−W, now+d] + m·s ≤ L·W`.
//!
//! With `t = now+d+s−W` this is a bound by the smallest `C(t) − m·t` in the window. A monotonic queue of minima gives it
//! without visiting every point. The window must also fit while the step runs; that concerns only the few points that leave
//! during the step. Usage between two points counts as even, so checking the points suffices.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Quota, Rate, nanos};

/// The most points: one week of points five seconds apart. More frequent samples are merged.
pub const MAX_POINTS: u32 = 1 << 17;

/// The cumulative usage at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct UsagePoint {
    /// Nanoseconds of a monotonic clock.
    at: i64,
    total: Quota,
}

/// The usage of a trailing window.
#[derive(Debug, Clone)]
pub struct TrailingWindow {
    window: i64,
    step: i64,
    floor: Rate,
    quota: Quota,
    /// The points of the window and the last one before it, without the latest.
    points: VecDeque<UsagePoint>,
    /// The index of points removed at the front.
    dropped: u64,
    /// The numbers of the points with a smaller `C − m·t` than all later points.
    minima: VecDeque<u64>,
    latest: UsagePoint,
    /// The smallest distance between points.
    spacing: i64,
}

impl TrailingWindow {
    /// A window that ends at `now`, with constant usage `before`. `step` is the longest step, below the window length.
    pub fn new(
        average: Rate,
        floor: Rate,
        window: Duration,
        step: Duration,
        now: i64,
        before: Rate,
    ) -> TrailingWindow {
        let (window_nanos, step_nanos) = (ticks(window), ticks(step).max(1));
        let first = UsagePoint {
            at: now.saturating_sub(window_nanos),
            total: Quota::ZERO.minus(before.over(window)),
        };
        let mut trailing = TrailingWindow {
            window: window_nanos,
            step: step_nanos.min(window_nanos),
            floor,
            quota: average.over(window),
            points: VecDeque::new(),
            dropped: 0,
            minima: VecDeque::new(),
            latest: UsagePoint { at: now, total: Quota::ZERO },
            spacing: window_nanos / i64::from(MAX_POINTS),
        };
        trailing.push_point(first);
        trailing
    }

    /// Records the usage since the last call. A time before the last one counts as the last one.
    pub fn observe(&mut self, now: i64, used: Quota) {
        let total = self.latest.total.plus(used);
        if now <= self.latest.at {
            self.latest.total = total;
            return;
        }
        let last = self.points.back().map_or(i64::MIN, |point| point.at);
        if self.latest.at.saturating_sub(last) > self.spacing {
            self.push_point(self.latest);
        }
        self.latest = UsagePoint { at: now, total };
        let end = now.saturating_sub(self.window);
        while self.points.get(1).is_some_and(|second| second.at <= end) {
            self.points.pop_front();
            self.dropped += 1;
        }
    }

    /// The usage of the window that ends now, rounded up.
    pub fn used(&self) -> Quota {
        self.since(self.latest.at.saturating_sub(self.window))
    }

    /// The largest rate for one step that keeps this and all later windows within the quota, if later usage stays at the floor.
    pub fn max_rate(&mut self) -> Rate {
        let now = self.latest.at;
        let start = now.saturating_add(self.step).saturating_sub(self.window);
        self.drop_minima_before(start);
        let mut least = self.floor_adjusted(UsagePoint { at: start, total: self.total_at(start) });
        if let Some(point) = self.minima.front().and_then(|index| self.point_at(*index)) {
            least = least.min(self.floor_adjusted(point));
        }
        least = least.min(self.floor_adjusted(self.latest));
        // The difference `C − m·t` already contains the floor for every `s`.
        let available = self.quota.raw() - self.latest.total.raw() + self.floor_usage(start) + least;
        let mut rate = Quota::from_raw(available).rate_over(time(self.step));
        let first = self.count_until(now.saturating_sub(self.window));
        for point in self.points.range(first..).take_while(|point| point.at <= start) {
            let leaves_after = point.at + self.window - now;
            let left = self.quota.minus(self.latest.total.minus(point.total));
            // Divides only if the usage does not fit.
            if rate.over(time(leaves_after)) > left {
                rate = left.rate_over(time(leaves_after));
            }
        }
        rate
    }

    /// The index of stored points.
    pub fn points(&self) -> usize {
        self.points.len() + 1
    }

    fn push_point(&mut self, point: UsagePoint) {
        let adjusted = self.floor_adjusted(point);
        while let Some(last) = self.minima.back().and_then(|index| self.point_at(*index)) {
            if self.floor_adjusted(last) < adjusted {
                break;
            }
            self.minima.pop_back();
        }
        self.minima.push_back(self.dropped + self.points.len() as u64);
        self.points.push_back(point);
    }

    fn drop_minima_before(&mut self, start: i64) {
        while let Some(index) = self.minima.front() {
            if self.point_at(*index).is_some_and(|point| point.at >= start) {
                break;
            }
            self.minima.pop_front();
        }
    }

    fn point_at(&self, index: u64) -> Option<UsagePoint> {
        let index = index.checked_sub(self.dropped)?;
        self.points.get(usize::try_from(index).ok()?).copied()
    }

    /// `C − m·t`.
    fn floor_adjusted(&self, point: UsagePoint) -> i128 {
        point.total.raw() - self.floor_usage(point.at)
    }

    /// The usage of the floor up to a time.
    fn floor_usage(&self, at: i64) -> i128 {
        i128::from(self.floor.billionths()) * i128::from(at)
    }

    /// The usage since a time, rounded up.
    fn since(&self, at: i64) -> Quota {
        self.latest.total.minus(self.total_at(at))
    }

    /// The index of points at or before a time. Callers ask for times near the front, so this is an exponential search
    /// followed by a binary search.
    fn count_until(&self, at: i64) -> usize {
        let is_before = |index: usize| self.points.get(index).is_some_and(|point| point.at <= at);
        let mut stride = 1;
        while is_before(stride) {
            stride *= 2;
        }
        let (mut from, mut to) = (stride / 2, stride.min(self.points.len()));
        while from < to {
            let middle = from.midpoint(to);
            if is_before(middle) {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        from
    }

    /// The cumulative usage at a time in the window, rounded down.
    fn total_at(&self, at: i64) -> Quota {
        let after = self.count_until(at);
        let next = self.points.get(after).copied().unwrap_or(self.latest);
        let Some(before) = after.checked_sub(1).and_then(|index| self.points.get(index)) else {
            return self.points.front().map_or(self.latest.total, |first| first.total);
        };
        if at >= next.at {
            return next.total;
        }
        if at == before.at {
            return before.total;
        }
        let used = next.total.minus(before.total);
        before.total.plus(used.portion(time(at - before.at), time(next.at - before.at)))
    }
}

fn ticks(time: Duration) -> i64 {
    i64::try_from(nanos(time)).unwrap_or(i64::MAX)
}

fn time(ticks: i64) -> Duration {
    Duration::from_nanos(u64::try_from(ticks).unwrap_or(0))
}
