//! Budget accounts over several days.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::budget::{BudgetAccount, BudgetTerms, BudgetTime, Quota, Rate, Share, Unobserved};
use tidegate_core::calendar::{WindowSchedule, Zone};
use tidegate_core::{Span, Timestamp};
use tidegate_testkit::test_scale::cases;

use super::{DAY, MINUTE, minutes, share, terms};

const SECOND: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_secs(15);

/// 2025-10-22 at midnight UTC, in nanoseconds.
const MIDNIGHT: u64 = 1_761_091_200_000_000_000;

fn after(time: Duration) -> BudgetTime {
    let nanos = u64::try_from(time.as_nanos()).expect("some days");
    BudgetTime {
        wall: Timestamp::from_ticks(MIDNIGHT).plus(Span::from_ticks(nanos)),
        monotonic: i64::try_from(nanos).expect("some days"),
    }
}

fn days() -> WindowSchedule {
    WindowSchedule::new(Zone::UTC, 0, DAY).expect("a day")
}

fn open(unobserved: Unobserved, enforce_trailing: bool, at: Duration) -> BudgetAccount {
    BudgetAccount::open(terms(), days(), unobserved, enforce_trailing, STEP, after(at))
}

/// Five minutes at 90 %, opened at noon.
#[test]
fn unobserved_time_counts_by_policy() {
    let noon = DAY / 2;
    for (policy, used) in
        [(Unobserved::Zero, 450), (Unobserved::Limit, 22_050), (Unobserved::Average, 65_250)]
    {
        let mut account = open(policy, false, noon);
        account.observe(after(noon + MINUTE * 5), Rate::from_units(90).over(MINUTE * 5));
        assert_eq!(minutes(account.used()), used, "{policy:?}");
        assert_eq!(account.average(), Rate::from_units(90));
        assert_eq!(account.unobserved_for(), noon);
    }
}

/// Usage across a window boundary counts in the window where it was used.
#[test]
fn usage_across_window_boundary_is_split() {
    let mut account = open(Unobserved::Zero, false, MINUTE * 1430);
    account.observe(after(MINUTE * 1439), Rate::from_units(90).over(MINUTE * 9));
    assert_eq!(minutes(account.used()), 810);
    account.observe(after(DAY + MINUTE), Rate::from_units(50).over(MINUTE * 2));
    assert_eq!(minutes(account.used()), 50, "half of the last two minutes");
    assert_eq!(account.elapsed(), MINUTE);
    account.observe(after(DAY * 4), Rate::from_units(10).over(MINUTE * (3 * 1440 - 1)));
    assert_eq!(minutes(account.used()), 0, "now is the first instant of a new window");
    account.observe_gap(after(DAY * 4 + MINUTE));
    account.observe_gap(after(DAY * 5 + MINUTE));
    assert_eq!(account.unobserved_for(), MINUTE);
}

/// The limit does not change in the last minute of a window.
#[test]
fn limit_never_drops_while_fully_used() {
    let mut account = open(Unobserved::Zero, false, Duration::ZERO);
    let mut before = Rate::ZERO;
    for number in 0..17_280u32 {
        let limit = account.advice().limit;
        assert!(limit >= before, "it only rises while everything is used: {before:?} {limit:?} at {number}");
        before = limit;
        account.observe(after(SECOND * 5 * (number + 1)), limit.over(SECOND * 5));
    }
    assert_eq!(account.advice().limit, Rate::from_units(28), "a new day");
}

/// Idle until 16:00, then everything that is allowed. Each day is within budget, but a trailing day is far above it.
#[test]
fn enforced_trailing_window_bounds_trailing_usage() {
    let worst = |enforce_trailing| {
        let mut account = open(Unobserved::Zero, enforce_trailing, Duration::ZERO);
        let mut worst = Quota::ZERO;
        for number in 0..2 * 17_280u32 {
            let limit = account.advice().limit;
            let rate = if number < 2 * 17_280 / 3 { Rate::ZERO } else { limit };
            account.observe(after(SECOND * 5 * (number + 1)), rate.over(SECOND * 5));
            worst = worst.max(account.trailing_used());
        }
        worst.rate_over(DAY)
    };
    let without = worst(false);
    assert!(without > Rate::from_units(45), "{without:?}");
    assert!(worst(true) <= Rate::from_units(30));
}

#[test]
fn clock_adjustment_keeps_trailing_usage() {
    let mut account = open(Unobserved::Zero, true, DAY / 2);
    let time_at = |wall: Duration, steady: Duration| BudgetTime {
        wall: after(wall).wall,
        monotonic: after(steady).monotonic,
    };
    let noon = DAY / 2;
    account.observe(time_at(noon + MINUTE, noon + MINUTE), Rate::from_units(60).over(MINUTE));
    // The clock goes back an hour: the window continues.
    account.observe(time_at(MINUTE * (720 - 58), noon + MINUTE * 2), Rate::from_units(60).over(MINUTE));
    assert_eq!((minutes(account.used()), account.elapsed()), (120, noon + MINUTE));
    assert_eq!(minutes(account.trailing_used()), 120);
    // The clock goes forward a day: a new window, and the same trailing usage.
    account.observe(time_at(DAY + noon, noon + MINUTE * 3), Rate::from_units(60).over(MINUTE));
    assert_eq!(minutes(account.trailing_used()), 180);
    assert!(minutes_rounded(account.used()) <= 60);
}

fn minutes_rounded(quota: Quota) -> i128 {
    quota.billionth_minutes() / 1_000_000_000
}

proptest! {
    #![proptest_config(cases(60))]

    /// Usage within the advised limit never exceeds the quota, for any window, usage and jitter.
    #[test]
    fn usage_within_limit_never_exceeds_quota(
        hours in 1u32..=30,
        floor in 0u32..=30,
        safety in 1u64..=1000,
        enforce_trailing in any::<bool>(),
        begin in 0u32..86_400,
        policy in prop::sample::select(Unobserved::ALL.to_vec()),
        // The length of each step in seconds, the usage in percent of the limit, and the number of repetitions.
        steps in prop::collection::vec((1u32..=15, prop_oneof![Just(100u64), 0u64..=100], 1u32..300), 1..40),
    ) {
        let terms = BudgetTerms { floor: Rate::from_units(floor), safety: share(safety), reserve: Share::NONE, ..terms() };
        let window = Duration::from_secs(3600) * hours;
        let schedule = WindowSchedule::new(Zone::UTC, 0, window).expect("some hours");
        let mut now = SECOND * begin;
        let mut account = BudgetAccount::open(terms, schedule, policy, enforce_trailing, STEP, after(now));
        // The time before the account opened counts by its policy, at most as the average.
        for (seconds, percent, times) in steps {
            for _ in 0..times {
                let limit = account.advice().limit;
                let left = account.window().length().saturating_sub(account.elapsed());
                // A step ends at the latest when the window ends, as in the governor.
                let time = (SECOND * seconds).min(left);
                let rate = Rate::from_billionths(limit.billionths() / 100 * percent);
                let before = account.window();
                let used = account.used().plus(rate.over(time));
                now += time;
                account.observe(after(now), rate.over(time));
                let total = terms.total(before.length());
                if policy != Unobserved::Average {
                    prop_assert!(used <= total, "{:?} of {:?}", used, total);
                }
                if enforce_trailing {
                    let trailing = account.trailing_used();
                    let allowed = account.trailing_total().plus(Quota::from_raw(2));
                    prop_assert!(trailing <= allowed, "{:?} of {:?}", trailing, allowed);
                }
            }
        }
    }
}
