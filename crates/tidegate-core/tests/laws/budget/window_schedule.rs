//! Windows of a schedule.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::calendar::{WindowSchedule, Zone};
use tidegate_core::{Tick, Timestamp};
use tidegate_testkit::test_scale::cases;

const HOUR: Duration = Duration::from_secs(3600);

fn schedule(zone: &str, first_hour: u8, hours: u32) -> WindowSchedule {
    let zone = Zone::named(zone).expect("a known zone");
    WindowSchedule::new(zone, first_hour, HOUR * hours).expect("a sensible schedule")
}

fn at(text: &str) -> Timestamp {
    let at: jiff::Timestamp = text.parse().expect("an instant");
    Timestamp::from_ticks(u64::try_from(at.as_nanosecond()).expect("after 1970"))
}

fn format_instant(at: Timestamp) -> String {
    let nanos = i128::from(at.ticks());
    jiff::Timestamp::from_nanosecond(nanos).expect("in range").to_string()
}

#[track_caller]
fn assert_window(schedule: &WindowSchedule, instant: &str, start: &str, end: &str) {
    let window = schedule.window(at(instant));
    assert_eq!(
        (format_instant(window.start).as_str(), format_instant(window.end).as_str()),
        (start, end),
        "{instant}"
    );
}

#[test]
fn days_start_at_first_hour() {
    let midnight = schedule("UTC", 0, 24);
    assert_window(&midnight, "2025-10-22T17:08:39Z", "2025-10-22T00:00:00Z", "2025-10-23T00:00:00Z");
    assert_window(&midnight, "2025-10-23T00:00:00Z", "2025-10-23T00:00:00Z", "2025-10-24T00:00:00Z");
    let six = schedule("UTC", 6, 24);
    assert_window(&six, "2025-10-22T05:59:59.999999999Z", "2025-10-21T06:00:00Z", "2025-10-22T06:00:00Z");
    assert_window(&six, "2025-10-22T06:00:00Z", "2025-10-22T06:00:00Z", "2025-10-23T06:00:00Z");
}

#[test]
fn days_follow_clock_changes() {
    let new_york = schedule("America/New_York", 0, 24);
    assert_window(&new_york, "2025-03-09T12:00:00Z", "2025-03-09T05:00:00Z", "2025-03-10T04:00:00Z");
    assert_window(&new_york, "2025-11-02T12:00:00Z", "2025-11-02T04:00:00Z", "2025-11-03T05:00:00Z");
    // 3:00 exists. 2:00 does not exist, so that window starts at the end of the gap.
    let two = schedule("America/New_York", 2, 24);
    assert_window(&two, "2025-03-09T12:00:00Z", "2025-03-09T07:00:00Z", "2025-03-10T06:00:00Z");
    // An hour that repeats starts once.
    let one = schedule("America/New_York", 1, 24);
    assert_window(&one, "2025-11-02T06:30:00Z", "2025-11-02T05:00:00Z", "2025-11-03T06:00:00Z");
}

#[test]
fn parts_of_a_day_restart_each_day() {
    let half = schedule("UTC", 6, 12);
    assert_window(&half, "2025-10-22T05:00:00Z", "2025-10-21T18:00:00Z", "2025-10-22T06:00:00Z");
    assert_window(&half, "2025-10-22T17:00:00Z", "2025-10-22T06:00:00Z", "2025-10-22T18:00:00Z");
    let eight = schedule("America/New_York", 0, 8);
    assert_window(&eight, "2025-03-10T03:00:00Z", "2025-03-09T21:00:00Z", "2025-03-10T04:00:00Z");
    assert_window(&eight, "2025-11-03T04:59:59Z", "2025-11-02T20:00:00Z", "2025-11-03T05:00:00Z");
    let hours = schedule("America/New_York", 0, 1);
    assert_window(&hours, "2025-11-03T04:59:59Z", "2025-11-03T03:00:00Z", "2025-11-03T05:00:00Z");
}

#[test]
fn multi_day_and_odd_windows_count_from_1970() {
    let two = schedule("UTC", 0, 48);
    // 20,383 days after 1970-01-01, an odd one.
    assert_window(&two, "2025-10-22T17:00:00Z", "2025-10-21T00:00:00Z", "2025-10-23T00:00:00Z");
    let week = schedule("Asia/Shanghai", 9, 168);
    assert_window(&week, "2025-10-23T01:00:00Z", "2025-10-23T01:00:00Z", "2025-10-30T01:00:00Z");
    let seven = schedule("UTC", 0, 7);
    assert_window(&seven, "1970-01-01T06:59:59Z", "1970-01-01T00:00:00Z", "1970-01-01T07:00:00Z");
    assert_window(&seven, "1970-01-02T01:00:00Z", "1970-01-01T21:00:00Z", "1970-01-02T04:00:00Z");
}

#[test]
fn invalid_lengths_and_hours_are_refused() {
    let utc = || Zone::UTC;
    for hours in [0, 169] {
        assert_eq!(WindowSchedule::new(utc(), 0, HOUR * hours), None);
    }
    assert_eq!(WindowSchedule::new(utc(), 24, HOUR), None);
    assert_eq!(WindowSchedule::new(utc(), 0, HOUR + Duration::from_nanos(1)), None);
    assert!(WindowSchedule::new(utc(), 23, Duration::from_secs(90)).is_some());
}

proptest! {
    #![proptest_config(cases(256))]

    /// Each instant is in one window, windows are adjacent, and clock changes bound their length.
    #[test]
    fn windows_cover_time_without_overlap(
        zone in prop_oneof!["UTC", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu"],
        first_hour in 0u8..24,
        hours in 1u32..=168,
        second in 1_200_000_000u64..2_000_000_000,
    ) {
        let schedule = schedule(&zone, first_hour, hours);
        let at = |second: u64| Timestamp::from_ticks(second * 1_000_000_000);
        let window = schedule.window(at(second));
        prop_assert!(window.start <= at(second) && at(second) < window.end);
        prop_assert_eq!(schedule.window(window.start), window);
        let last = Timestamp::from_ticks(window.end.ticks() - 1);
        prop_assert_eq!(schedule.window(last), window);
        prop_assert_eq!(schedule.window(window.end).start, window.end);
        let length = Tick::NANOSECOND.duration(window.end.since(window.start));
        prop_assert_eq!(length, window.length());
        prop_assert!(length <= HOUR * (hours + 24), "{:?}", length);
    }
}
