//! When the limit changes, and to what.

use std::time::Duration;

use tidegate::budget::{Quota, Rate};
use tidegate_cpu::governor::Risk;
use tidegate_cpu::{Governor, Observation};

use super::{after, percent, settings};

const SAMPLE: Duration = Duration::from_secs(5);

/// A governor at midnight, without guard and reserve, and a load that is what it is.
fn governor(more: &str) -> Governor {
    Governor::new(
        settings(&format!("trailing_guard: false\nreserve_percent: 0\nunobserved: zero\n{more}")),
        after(Duration::ZERO),
    )
}

fn use_for(governor: &mut Governor, samples: u32, rate: Rate) {
    for _ in 0..samples {
        let now = governor.account().now().monotonic.unsigned_abs();
        let next = after(Duration::from_nanos(now) + SAMPLE);
        governor.observe(next, Observation::Used(rate.over(SAMPLE)));
    }
}

/// D-F9: what has to fall falls at once, however little; what could rise waits until it is worth it.
#[test]
fn limits_fall_at_once_and_rise_when_it_is_worth_it() {
    let mut governor = governor("");
    assert_eq!(governor.applied(), percent(28_000), "the document's first limit");
    use_for(&mut governor, 1, Rate::from_units(90));
    assert!(governor.applied() < percent(28_000), "a little less at once");
    let low = governor.applied();
    // Idle until the limit could be 4.9 points higher, and not 5.
    while governor.advice().limit < low.plus(percent(4_900)) {
        use_for(&mut governor, 12, Rate::ZERO);
        assert!(governor.applied() == low || governor.applied() >= low.plus(percent(5_000)));
    }
    while governor.applied() == low {
        use_for(&mut governor, 1, Rate::ZERO);
    }
    assert!(governor.applied() >= low.plus(percent(5_000)));
}

/// Who is a point below the ceiling has nothing better to wait for.
#[test]
fn limits_rise_to_the_ceiling_however_near_it_is() {
    let mut governor =
        governor("rolling_window_hours: 1\nmin_load_percent: 29\nmax_load_percent: 31\nsafety_factor: 1");
    assert_eq!(governor.applied(), percent(30_000));
    while governor.advice().limit < percent(31_000) {
        assert_eq!(governor.applied(), percent(30_000), "less than the dead band");
        use_for(&mut governor, 1, Rate::from_units(20));
    }
    assert_eq!(governor.applied(), percent(31_000));
}

#[test]
fn limits_rise_once_in_a_while() {
    let mut governor = governor("increase_deadband_points: 0\nadjust_interval_seconds: 60");
    let mut rises = 0;
    let mut before = governor.applied();
    for _ in 0..720 {
        use_for(&mut governor, 1, Rate::ZERO);
        rises += u32::from(governor.applied() > before);
        before = governor.applied();
    }
    assert!((58..=60).contains(&rises), "once a minute for an hour: {rises}");
}

#[test]
fn slots_are_caps_also_over_midnight() {
    let day = "time_slots: [{start: '09:00', end: '18:00', max_load_percent: 15}, {start: '22:00', end: '06:00', max_load_percent: 12}]";
    let mut governor = governor(day);
    let mut seen = Vec::new();
    for hour in 0..24u64 {
        let look =
            governor.observe(after(Duration::from_secs(hour * 3600 + 1800)), Observation::Used(Quota::ZERO));
        seen.push(look.slot.map(|slot| slot.billionths() / 1_000_000_000));
        assert!(look.slot.is_none_or(|slot| look.applied <= slot));
    }
    let (night, work) = (Some(12), Some(15));
    let expected: Vec<Option<u64>> = (0..24)
        .map(|hour| match hour {
            0..6 | 22.. => night,
            9..18 => work,
            _ => None,
        })
        .collect();
    assert_eq!(seen, expected);
    // In the zone that is meant: eight hours earlier by our clock.
    let mut shanghai = self::governor(&format!("time_zone: Asia/Shanghai\n{day}"));
    let look = shanghai.observe(after(Duration::from_secs(3600)), Observation::Used(Quota::ZERO));
    assert_eq!(look.slot, Some(percent(15_000)), "it is nine there");
}

#[test]
fn more_than_the_limit_is_told() {
    let mut governor = governor("");
    let look = |governor: &mut Governor, second: u64, rate: Rate| {
        governor.observe(after(Duration::from_secs(second)), Observation::Used(rate.over(SAMPLE))).exceeds
    };
    assert!(!look(&mut governor, 5, percent(29_000)), "a point above is tolerated");
    assert!(look(&mut governor, 10, percent(29_500)));
    assert_eq!(governor.samples(), (2, 1));
}

#[test]
fn risk_is_how_much_of_the_quota_is_used() {
    let mut governor = governor("");
    let mut at = |minutes: u64, rate: u32| {
        let time = Duration::from_secs(60 * minutes);
        let before = Duration::from_nanos(governor.account().now().monotonic.unsigned_abs());
        governor.observe(
            after(time),
            Observation::Used(Rate::from_units(rate).over(time.saturating_sub(before))),
        );
        governor.risk()
    };
    assert_eq!(at(335, 90), Risk::Low);
    assert_eq!(at(336, 90), Risk::Medium, "30,240 of 43,200");
    assert_eq!(at(431, 90), Risk::Medium);
    assert_eq!(at(432, 90), Risk::High);
}

/// D-F8, D15: no drop in the last minute, and no jump to the floor.
#[test]
fn the_boundary_is_crossed_without_a_drop() {
    let mut governor =
        governor("increase_deadband_points: 0\nadjust_interval_seconds: 5\nmetrics_interval_seconds: 5");
    let day = 17_280;
    for sample in 0..day + 100 {
        let applied = governor.applied();
        assert!(applied >= percent(27_900), "{applied:?} at sample {sample}");
        use_for(&mut governor, 1, applied);
    }
}
