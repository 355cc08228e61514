//! Limit changes: falls, rises, time slots, and window boundaries.

use std::time::Duration;

use tidegate::budget::{Quota, Rate};
use tidegate_cpu::governor::Risk;
use tidegate_cpu::{Governor, Observation};

use super::{after, percent, settings};

const SAMPLE: Duration = Duration::from_secs(5);

/// A governor at midnight without trailing guard and reserve.
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

/// A limit falls immediately by any amount. It rises only by at least the dead band.
#[test]
fn limit_falls_at_once_and_rises_by_dead_band() {
    let mut governor = governor("");
    assert_eq!(governor.applied(), percent(28_000), "the documented first limit");
    use_for(&mut governor, 1, Rate::from_units(90));
    assert!(governor.applied() < percent(28_000), "a little less at once");
    let low = governor.applied();
    // Idle until the limit could rise by 4.9 points, which is less than the dead band.
    while governor.advice().limit < low.plus(percent(4_900)) {
        use_for(&mut governor, 12, Rate::ZERO);
        assert!(governor.applied() == low || governor.applied() >= low.plus(percent(5_000)));
    }
    while governor.applied() == low {
        use_for(&mut governor, 1, Rate::ZERO);
    }
    assert!(governor.applied() >= low.plus(percent(5_000)));
}

/// A limit one point below the ceiling rises to the ceiling, although the step is smaller than the dead band.
#[test]
fn limit_near_ceiling_rises_to_ceiling() {
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
fn limit_rises_once_per_adjust_interval() {
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
fn time_slots_cap_limit_across_midnight() {
    let day = "time_slots: [{start: '09:00', end: '18:00', max_load_percent: 15}, {start: '22:00', end: '06:00', max_load_percent: 12}]";
    let mut governor = governor(day);
    let mut seen = Vec::new();
    for hour in 0..24u64 {
        let decision =
            governor.observe(after(Duration::from_secs(hour * 3600 + 1800)), Observation::Used(Quota::ZERO));
        seen.push(decision.slot.map(|slot| slot.billionths() / 1_000_000_000));
        assert!(decision.slot.is_none_or(|slot| decision.applied <= slot));
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
    // Slots use the configured time zone, eight hours ahead of UTC.
    let mut shanghai = self::governor(&format!("time_zone: Asia/Shanghai\n{day}"));
    let decision = shanghai.observe(after(Duration::from_secs(3600)), Observation::Used(Quota::ZERO));
    assert_eq!(decision.slot, Some(percent(15_000)), "it is nine there");
}

#[test]
fn usage_above_limit_is_reported() {
    let mut governor = governor("");
    let exceeds_limit = |governor: &mut Governor, second: u64, rate: Rate| {
        governor.observe(after(Duration::from_secs(second)), Observation::Used(rate.over(SAMPLE))).exceeds
    };
    assert!(!exceeds_limit(&mut governor, 5, percent(29_000)), "a point above is tolerated");
    assert!(exceeds_limit(&mut governor, 10, percent(29_500)));
    assert_eq!(governor.samples(), (2, 1));
}

#[test]
fn risk_depends_on_used_quota() {
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

/// The limit neither drops in the last minute of a window nor jumps to the floor after it.
#[test]
fn window_boundary_keeps_limit() {
    let mut governor =
        governor("increase_deadband_points: 0\nadjust_interval_seconds: 5\nmetrics_interval_seconds: 5");
    let day = 17_280;
    for sample in 0..day + 100 {
        let applied = governor.applied();
        assert!(applied >= percent(27_900), "{applied:?} at sample {sample}");
        use_for(&mut governor, 1, applied);
    }
}
