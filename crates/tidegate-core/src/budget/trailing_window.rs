//! The trail: what was used over the last window, at any moment, and what may be used next so that no such window is ever over.
//!
//! ```text
//!        now − W          now + d − W                                   now     now + d
//!   ────────┬────────────────┬───────────────── C(t) ────────────────────┬─────────┬────
//!           └─ leaves while the next step runs                           └─ x for d
//! ```
//!
//! With `C` all that was ever used, `m` the floor, `L` the average and `W` the window, a step of length `d` at rate `x` keeps the promise if
//! after it, for every `s` up to `W`, what the trail will still hold then and the floor until then fit: `use(now+d+s−W, now+d] + m·s ≤ L·W`.
//! In terms of `t = now+d+s−W` that is a bound by the least `C(t) − m·t` on the trail, which a queue of minima knows without looking at
//! every point. While the step runs the trail must hold as well; that is a matter of the few points that leave meanwhile.
//!
//! What was used between two points counts as used evenly. Then it is enough to look at the points.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Quota, Rate, nanos};

/// The most points of a trail: those of a week at five seconds each. Samples that come more often are put together.
pub const MAX_POINTS: u32 = 1 << 17;

/// All that was ever used, up to a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Point {
    /// Nanoseconds of a steady clock.
    at: i64,
    total: Quota,
}

/// What was used over the last window.
#[derive(Debug, Clone)]
pub struct TrailingWindow {
    window: i64,
    step: i64,
    floor: Rate,
    quota: Quota,
    /// The points of the last window, and the one before it; the latest is apart.
    points: VecDeque<Point>,
    /// How many points were dropped at the front.
    dropped: u64,
    /// The numbers of points that have less `C − m·t` than all after them.
    minima: VecDeque<u64>,
    tip: Point,
    /// Points are this far apart at least.
    spacing: i64,
}

impl TrailingWindow {
    /// A trail from now on. Before, this much was used all the time. Steps are this long at most; the window is longer.
    pub fn new(
        average: Rate,
        floor: Rate,
        window: Duration,
        step: Duration,
        now: i64,
        before: Rate,
    ) -> TrailingWindow {
        let (window_nanos, step_nanos) = (ticks(window), ticks(step).max(1));
        let first =
            Point { at: now.saturating_sub(window_nanos), total: Quota::ZERO.minus(before.over(window)) };
        let mut trail = TrailingWindow {
            window: window_nanos,
            step: step_nanos.min(window_nanos),
            floor,
            quota: average.over(window),
            points: VecDeque::new(),
            dropped: 0,
            minima: VecDeque::new(),
            tip: Point { at: now, total: Quota::ZERO },
            spacing: window_nanos / i64::from(MAX_POINTS),
        };
        trail.settle(first);
        trail
    }

    /// So much was used since the last time; it is this moment now. A moment before the last one counts as the last one.
    pub fn observe(&mut self, now: i64, used: Quota) {
        let total = self.tip.total.plus(used);
        if now <= self.tip.at {
            self.tip.total = total;
            return;
        }
        let last = self.points.back().map_or(i64::MIN, |point| point.at);
        if self.tip.at.saturating_sub(last) > self.spacing {
            self.settle(self.tip);
        }
        self.tip = Point { at: now, total };
        let end = now.saturating_sub(self.window);
        while self.points.get(1).is_some_and(|second| second.at <= end) {
            self.points.pop_front();
            self.dropped += 1;
        }
    }

    /// What was used in the window that ends now, rounded up.
    pub fn used(&self) -> Quota {
        self.since(self.tip.at.saturating_sub(self.window))
    }

    /// The most that may be used for one step, so that no window is over, and none will be if no more than the floor is used after it.
    pub fn max_rate(&mut self) -> Rate {
        let now = self.tip.at;
        let start = now.saturating_add(self.step).saturating_sub(self.window);
        self.forget_minima_before(start);
        let mut least = self.height(Point { at: start, total: self.total_at(start) });
        if let Some(point) = self.minima.front().and_then(|number| self.numbered(*number)) {
            least = least.min(self.height(point));
        }
        least = least.min(self.height(self.tip));
        // Whatever `s` is, the floor until then is what `C − m·t` leaves out.
        let room = self.quota.raw() - self.tip.total.raw() + self.drawn(start) + least;
        let mut rate = Quota::from_raw(room).rate_over(time(self.step));
        let first = self.until(now.saturating_sub(self.window));
        for point in self.points.range(first..).take_while(|point| point.at <= start) {
            let runs = point.at + self.window - now;
            let left = self.quota.minus(self.tip.total.minus(point.total));
            // Only what does not fit has to be divided.
            if rate.over(time(runs)) > left {
                rate = left.rate_over(time(runs));
            }
        }
        rate
    }

    /// How many points are kept.
    pub fn points(&self) -> usize {
        self.points.len() + 1
    }

    fn settle(&mut self, point: Point) {
        let height = self.height(point);
        while let Some(last) = self.minima.back().and_then(|number| self.numbered(*number)) {
            if self.height(last) < height {
                break;
            }
            self.minima.pop_back();
        }
        self.minima.push_back(self.dropped + self.points.len() as u64);
        self.points.push_back(point);
    }

    fn forget_minima_before(&mut self, start: i64) {
        while let Some(number) = self.minima.front() {
            if self.numbered(*number).is_some_and(|point| point.at >= start) {
                break;
            }
            self.minima.pop_front();
        }
    }

    fn numbered(&self, number: u64) -> Option<Point> {
        let index = number.checked_sub(self.dropped)?;
        self.points.get(usize::try_from(index).ok()?).copied()
    }

    /// `C − m·t`.
    fn height(&self, point: Point) -> i128 {
        point.total.raw() - self.drawn(point.at)
    }

    /// What the floor draws up to a moment.
    fn drawn(&self, at: i64) -> i128 {
        i128::from(self.floor.billionths()) * i128::from(at)
    }

    /// What was used from a moment until now, rounded up.
    fn since(&self, at: i64) -> Quota {
        self.tip.total.minus(self.total_at(at))
    }

    /// How many points are at or before a moment. Who asks means the front, where points leave, so they are looked for from there: in
    /// strides that double, and then in halves.
    fn until(&self, at: i64) -> usize {
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

    /// All that was used until a moment on the trail, rounded down.
    fn total_at(&self, at: i64) -> Quota {
        let after = self.until(at);
        let next = self.points.get(after).copied().unwrap_or(self.tip);
        let Some(before) = after.checked_sub(1).and_then(|index| self.points.get(index)) else {
            return self.points.front().map_or(self.tip.total, |first| first.total);
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
