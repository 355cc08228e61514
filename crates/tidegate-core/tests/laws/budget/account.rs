//! Accounts: tiles and trails together, over days.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::budget::{BudgetAccount, BudgetTerms, BudgetTime, Quota, Rate, Share, Unobserved};
use tidegate_core::calendar::{WindowSchedule, Zone};
use tidegate_core::{Span, Timestamp};
use tidegate_testkit::test_scale::cases;

use super::{DAY, MINUTE, minutes, share, terms};

const SECOND: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_secs(15);

/// 2025-10-22 at midnight.
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

fn open(unobserved: Unobserved, guards: bool, at: Duration) -> BudgetAccount {
    BudgetAccount::open(terms(), days(), unobserved, guards, STEP, after(at))
}

/// D-F3: five minutes at 90 %, begun at noon.
#[test]
fn time_that_nobody_saw_counts_by_policy() {
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

/// D07: what was used over a boundary counts where it was used.
#[test]
fn windows_begin_anew() {
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

/// D-F8: nothing happens in the last minute that did not happen before it.
#[test]
fn the_limit_does_not_drop_at_the_end() {
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

/// D-F1: idle until 16:00, then everything that is allowed. Two days are in order, and a day of the trail is far over.
#[test]
fn the_trail_is_what_a_provider_looks_at() {
    let worst = |guards| {
        let mut account = open(Unobserved::Zero, guards, Duration::ZERO);
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
fn clocks_that_are_put_right_lose_nothing() {
    let mut account = open(Unobserved::Zero, true, DAY / 2);
    let moment = |wall: Duration, steady: Duration| BudgetTime {
        wall: after(wall).wall,
        monotonic: after(steady).monotonic,
    };
    let noon = DAY / 2;
    account.observe(moment(noon + MINUTE, noon + MINUTE), Rate::from_units(60).over(MINUTE));
    // An hour back: the window goes on where it was.
    account.observe(moment(MINUTE * (720 - 58), noon + MINUTE * 2), Rate::from_units(60).over(MINUTE));
    assert_eq!((minutes(account.used()), account.elapsed()), (120, noon + MINUTE));
    assert_eq!(minutes(account.trailing_used()), 120);
    // And a day ahead: a new window, and the same trail.
    account.observe(moment(DAY + noon, noon + MINUTE * 3), Rate::from_units(60).over(MINUTE));
    assert_eq!(minutes(account.trailing_used()), 180);
    assert!(minutes_rounded(account.used()) <= 60);
}

fn minutes_rounded(quota: Quota) -> i128 {
    quota.billionth_minutes() / 1_000_000_000
}

proptest! {
    #![proptest_config(cases(60))]

    /// The document's theorem, and the trail's: whoever obeys is never over, for any window, use and jitter.
    #[test]
    fn who_obeys_is_never_over(
        hours in 1u32..=30,
        floor in 0u32..=30,
        safety in 1u64..=1000,
        guards in any::<bool>(),
        begin in 0u32..86_400,
        policy in prop::sample::select(Unobserved::ALL.to_vec()),
        // How long each look takes, and how much of what is allowed is used, in percent.
        looks in prop::collection::vec((1u32..=15, prop_oneof![Just(100u64), 0u64..=100], 1u32..300), 1..40),
    ) {
        let terms = BudgetTerms { floor: Rate::from_units(floor), safety: share(safety), reserve: Share::NONE, ..terms() };
        let window = Duration::from_secs(3600) * hours;
        let tiling = WindowSchedule::new(Zone::UTC, 0, window).expect("some hours");
        let mut now = SECOND * begin;
        let mut account = BudgetAccount::open(terms, tiling, policy, guards, STEP, after(now));
        // What is charged for the time before may be anything that the average allows.
        for (seconds, percent, times) in looks {
            for _ in 0..times {
                let limit = account.advice().limit;
                let left = account.window().length().saturating_sub(account.elapsed());
                // Somebody looks when a window ends, as the governor does.
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
                if guards {
                    let trailing = account.trailing_used();
                    let allowed = account.trailing_total().plus(Quota::from_raw(2));
                    prop_assert!(trailing <= allowed, "{:?} of {:?}", trailing, allowed);
                }
            }
        }
    }
}
