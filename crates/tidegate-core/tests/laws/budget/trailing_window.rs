//! The trailing window against a brute-force model.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::budget::{Quota, Rate, TrailingWindow};
use tidegate_testkit::test_scale::cases;

/// A small scale, in seconds.
const WINDOW: i64 = 60;
const STEP: i64 = 6;
const SECOND: i64 = 1_000_000_000;

fn seconds(count: i64) -> Duration {
    Duration::from_secs(count.unsigned_abs())
}

/// The cumulative usage as points joined by lines.
struct Model {
    points: Vec<(i64, i128)>,
    quota: i128,
    floor: i128,
}

impl Model {
    fn new(average: Rate, floor: Rate, before: Rate) -> Model {
        let per_window = |rate: Rate| rate.over(seconds(WINDOW)).raw();
        Model {
            points: vec![(-WINDOW * SECOND, -per_window(before)), (0, 0)],
            quota: per_window(average),
            floor: i128::from(floor.billionths()),
        }
    }

    fn now(&self) -> (i64, i128) {
        *self.points.last().expect("there is a first")
    }

    fn total_at(&self, at: i64) -> i128 {
        let after = self.points.iter().position(|point| point.0 > at).unwrap_or(self.points.len());
        let Some(&(before_at, before)) = self.points.get(after.wrapping_sub(1)) else {
            return self.points[0].1;
        };
        let Some(&(next_at, next)) = self.points.get(after) else { return before };
        before + ((next - before) * i128::from(at - before_at)).div_euclid(i128::from(next_at - before_at))
    }

    /// The usage of the window that ends at `at`, with usage at `rate` after the last point.
    fn trailing(&self, at: i64, rate: i128) -> i128 {
        let (now, total) = self.now();
        total + rate * i128::from((at - now).max(0)) - self.total_at(at - WINDOW * SECOND)
    }

    /// Whether a step at this rate stays within the quota, checked at every breakpoint.
    fn allows(&self, rate: i128) -> bool {
        let (now, total) = self.now();
        let (window, end) = (WINDOW * SECOND, now + STEP * SECOND);
        let leaving =
            self.points.iter().map(|point| point.0 + window).filter(|at| (now + 1..=end).contains(at));
        let during_step = leaving.chain([end]).all(|at| self.trailing(at, rate) <= self.quota);
        let starts = self.points.iter().map(|point| point.0).filter(|at| (end - window..=now).contains(at));
        let after_step = starts.chain([end - window]).all(|start| {
            let until = start + window - end;
            let held = total + rate * i128::from(STEP * SECOND) - self.total_at(start);
            held + self.floor * i128::from(until) <= self.quota
        });
        during_step && after_step
    }
}

fn rates() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0u32), Just(100), 0u32..=100]
}

proptest! {
    #![proptest_config(cases(400))]

    /// The allowed rate satisfies the model, and one billionth more does not.
    #[test]
    fn max_rate_is_exact(
        before in 0u32..=30,
        floor in 0u32..=30,
        steps in prop::collection::vec((1i64..=STEP * 2, rates(), any::<bool>()), 1..60),
    ) {
        let (average, floor) = (Rate::from_units(30), Rate::from_units(floor));
        let before = Rate::from_units(before);
        let mut trailing = TrailingWindow::new(average, floor, seconds(WINDOW), seconds(STEP), 0, before);
        let mut model = Model::new(average, floor, before);
        for (length, demand, is_within_limit) in steps {
            let max_rate = trailing.max_rate();
            let (now, total) = model.now();
            let exact = i128::from(max_rate.billionths());
            if max_rate > Rate::ZERO {
                prop_assert!(model.allows(exact), "{max_rate:?} at {now}");
            }
            prop_assert!(!model.allows(exact + 1), "more than {max_rate:?} at {now}");
            let demand = Rate::from_units(demand);
            let rate = if is_within_limit { demand.min(max_rate.max(floor)) } else { demand };
            let used = rate.over(seconds(length));
            model.points.push((now + length * SECOND, total + used.raw()));
            trailing.observe(now + length * SECOND, used);
            prop_assert_eq!(trailing.used().raw(), model.trailing(model.now().0, 0));
        }
    }

    /// Usage within the allowed rate never exceeds the quota in any window.
    #[test]
    fn no_window_exceeds_quota(
        before in 0u32..=30,
        floor in 0u32..=30,
        steps in prop::collection::vec((1i64..=STEP, rates()), 1..120),
    ) {
        let (average, floor) = (Rate::from_units(30), Rate::from_units(floor));
        let before = Rate::from_units(before);
        let mut trailing = TrailingWindow::new(average, floor, seconds(WINDOW), seconds(STEP), 0, before);
        let mut model = Model::new(average, floor, before);
        for (length, demand) in steps {
            let rate = Rate::from_units(demand).min(trailing.max_rate().max(floor));
            let (now, total) = model.now();
            let used = rate.over(seconds(length));
            model.points.push((now + length * SECOND, total + used.raw()));
            trailing.observe(now + length * SECOND, used);
            let window = WINDOW * SECOND;
            let breaks = model.points.iter().map(|point| point.0 + window);
            let breaks: Vec<i64> = breaks.filter(|at| (now..=now + length * SECOND).contains(at)).collect();
            for at in breaks.into_iter().chain([now + length * SECOND]) {
                let used = model.total_at(at) - model.total_at(at - window);
                prop_assert!(used <= model.quota + MAX_ROUNDING, "{used} of {} at {at}", model.quota);
            }
        }
    }
}

/// Two interpolations round by less than one billionth of a unit times a nanosecond each.
const MAX_ROUNDING: i128 = 2;

/// The number of stored points stays bounded under frequent measurements.
#[test]
fn points_are_bounded() {
    let rate = Rate::from_units(10);
    let window = Duration::from_secs(600);
    let mut trailing =
        TrailingWindow::new(Rate::from_units(30), Rate::ZERO, window, Duration::from_secs(1), 0, rate);
    let interval = 1_000_000;
    for number in 1..=1_200_000i64 {
        trailing.observe(number * interval, rate.over(Duration::from_nanos(interval.unsigned_abs())));
    }
    assert!(
        trailing.points() <= tidegate_core::budget::trailing_window::MAX_POINTS as usize + 2,
        "{}",
        trailing.points()
    );
    let missing = rate.over(window).minus(trailing.used()).raw().abs();
    assert!(missing <= 2, "{missing}");
    assert_eq!(Quota::ZERO, TrailingWindow::new(rate, rate, window, window, 5, Rate::ZERO).used());
}
