//! The trail against a model that looks at everything every time.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::budget::{Quota, Rate, TrailingWindow};
use tidegate_testkit::test_scale::cases;

/// Seconds of a small world.
const WINDOW: i64 = 60;
const STEP: i64 = 6;
const SECOND: i64 = 1_000_000_000;

fn seconds(count: i64) -> Duration {
    Duration::from_secs(count.unsigned_abs())
}

/// Everything that was ever used, as points that are joined by lines.
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

    /// What was used in the window that ends then; after now at this rate.
    fn trailing(&self, at: i64, rate: i128) -> i128 {
        let (now, total) = self.now();
        total + rate * i128::from((at - now).max(0)) - self.total_at(at - WINDOW * SECOND)
    }

    /// Whether a step at this rate keeps the promise, looked at wherever something changes.
    fn keeps(&self, rate: i128) -> bool {
        let (now, total) = self.now();
        let (window, end) = (WINDOW * SECOND, now + STEP * SECOND);
        let leaving =
            self.points.iter().map(|point| point.0 + window).filter(|at| (now + 1..=end).contains(at));
        let while_it_runs = leaving.chain([end]).all(|at| self.trailing(at, rate) <= self.quota);
        let starts = self.points.iter().map(|point| point.0).filter(|at| (end - window..=now).contains(at));
        let after_it = starts.chain([end - window]).all(|start| {
            let until = start + window - end;
            let held = total + rate * i128::from(STEP * SECOND) - self.total_at(start);
            held + self.floor * i128::from(until) <= self.quota
        });
        while_it_runs && after_it
    }
}

fn rates() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0u32), Just(100), 0u32..=100]
}

proptest! {
    #![proptest_config(cases(400))]

    /// What the trail allows is kept by the model, and one billionth more is not.
    #[test]
    fn room_is_exact(
        before in 0u32..=30,
        floor in 0u32..=30,
        steps in prop::collection::vec((1i64..=STEP * 2, rates(), any::<bool>()), 1..60),
    ) {
        let (average, floor) = (Rate::from_units(30), Rate::from_units(floor));
        let before = Rate::from_units(before);
        let mut trail = TrailingWindow::new(average, floor, seconds(WINDOW), seconds(STEP), 0, before);
        let mut model = Model::new(average, floor, before);
        for (length, wish, obeys) in steps {
            let room = trail.max_rate();
            let (now, total) = model.now();
            let exact = i128::from(room.billionths());
            if room > Rate::ZERO {
                prop_assert!(model.keeps(exact), "{room:?} at {now}");
            }
            prop_assert!(!model.keeps(exact + 1), "more than {room:?} at {now}");
            let wish = Rate::from_units(wish);
            let rate = if obeys { wish.min(room.max(floor)) } else { wish };
            let used = rate.over(seconds(length));
            model.points.push((now + length * SECOND, total + used.raw()));
            trail.observe(now + length * SECOND, used);
            prop_assert_eq!(trail.used().raw(), model.trailing(model.now().0, 0));
        }
    }

    /// Whoever obeys at every step, from a start that is in order, is never over, at any moment.
    #[test]
    fn no_window_is_ever_over(
        before in 0u32..=30,
        floor in 0u32..=30,
        steps in prop::collection::vec((1i64..=STEP, rates()), 1..120),
    ) {
        let (average, floor) = (Rate::from_units(30), Rate::from_units(floor));
        let before = Rate::from_units(before);
        let mut trail = TrailingWindow::new(average, floor, seconds(WINDOW), seconds(STEP), 0, before);
        let mut model = Model::new(average, floor, before);
        for (length, wish) in steps {
            let rate = Rate::from_units(wish).min(trail.max_rate().max(floor));
            let (now, total) = model.now();
            let used = rate.over(seconds(length));
            model.points.push((now + length * SECOND, total + used.raw()));
            trail.observe(now + length * SECOND, used);
            let window = WINDOW * SECOND;
            let breaks = model.points.iter().map(|point| point.0 + window);
            let breaks: Vec<i64> = breaks.filter(|at| (now..=now + length * SECOND).contains(at)).collect();
            for at in breaks.into_iter().chain([now + length * SECOND]) {
                let used = model.total_at(at) - model.total_at(at - window);
                prop_assert!(used <= model.quota + SECOND_OF_ROUNDING, "{used} of {} at {at}", model.quota);
            }
        }
    }
}

/// Reading between two points rounds by less than one billionth for a nanosecond each.
const SECOND_OF_ROUNDING: i128 = 2;

/// However often somebody looks, no more points are kept than that.
#[test]
fn points_are_bounded() {
    let rate = Rate::from_units(10);
    let window = Duration::from_secs(600);
    let mut trail =
        TrailingWindow::new(Rate::from_units(30), Rate::ZERO, window, Duration::from_secs(1), 0, rate);
    let look = 1_000_000;
    for number in 1..=1_200_000i64 {
        trail.observe(number * look, rate.over(Duration::from_nanos(look.unsigned_abs())));
    }
    assert!(
        trail.points() <= tidegate_core::budget::trailing_window::MAX_POINTS as usize + 2,
        "{}",
        trail.points()
    );
    let missing = rate.over(window).minus(trail.used()).raw().abs();
    assert!(missing <= 2, "{missing}");
    assert_eq!(Quota::ZERO, TrailingWindow::new(rate, rate, window, window, 5, Rate::ZERO).used());
}
