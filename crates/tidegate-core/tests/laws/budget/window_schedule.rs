//! Which window an instant belongs to.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::calendar::{WindowSchedule, Zone};
use tidegate_core::{Tick, Timestamp};
use tidegate_testkit::test_scale::cases;

const HOUR: Duration = Duration::from_secs(3600);

fn tiling(zone: &str, first_hour: u8, hours: u32) -> WindowSchedule {
    let zone = Zone::named(zone).expect("a known zone");
    WindowSchedule::new(zone, first_hour, HOUR * hours).expect("a sensible tiling")
}

fn at(text: &str) -> Timestamp {
    let at: jiff::Timestamp = text.parse().expect("an instant");
    Timestamp::from_ticks(u64::try_from(at.as_nanosecond()).expect("after 1970"))
}

fn told(at: Timestamp) -> String {
    let nanos = i128::from(at.ticks());
    jiff::Timestamp::from_nanosecond(nanos).expect("in range").to_string()
}

#[track_caller]
fn is(tiling: &WindowSchedule, instant: &str, start: &str, end: &str) {
    let tile = tiling.window(at(instant));
    assert_eq!((told(tile.start).as_str(), told(tile.end).as_str()), (start, end), "{instant}");
}

/// D06.
#[test]
fn days_begin_at_their_hour() {
    let midnight = tiling("UTC", 0, 24);
    is(&midnight, "2025-10-22T17:08:39Z", "2025-10-22T00:00:00Z", "2025-10-23T00:00:00Z");
    is(&midnight, "2025-10-23T00:00:00Z", "2025-10-23T00:00:00Z", "2025-10-24T00:00:00Z");
    let six = tiling("UTC", 6, 24);
    is(&six, "2025-10-22T05:59:59.999999999Z", "2025-10-21T06:00:00Z", "2025-10-22T06:00:00Z");
    is(&six, "2025-10-22T06:00:00Z", "2025-10-22T06:00:00Z", "2025-10-23T06:00:00Z");
}

#[test]
fn days_have_the_hours_that_people_live_through() {
    let new_york = tiling("America/New_York", 0, 24);
    is(&new_york, "2025-03-09T12:00:00Z", "2025-03-09T05:00:00Z", "2025-03-10T04:00:00Z");
    is(&new_york, "2025-11-02T12:00:00Z", "2025-11-02T04:00:00Z", "2025-11-03T05:00:00Z");
    // Three in the morning, which is there; two, which is not, begins where the gap ends.
    let two = tiling("America/New_York", 2, 24);
    is(&two, "2025-03-09T12:00:00Z", "2025-03-09T07:00:00Z", "2025-03-10T06:00:00Z");
    // The hour that comes twice begins once.
    let one = tiling("America/New_York", 1, 24);
    is(&one, "2025-11-02T06:30:00Z", "2025-11-02T05:00:00Z", "2025-11-03T06:00:00Z");
}

#[test]
fn parts_of_a_day_begin_anew_each_day() {
    let half = tiling("UTC", 6, 12);
    is(&half, "2025-10-22T05:00:00Z", "2025-10-21T18:00:00Z", "2025-10-22T06:00:00Z");
    is(&half, "2025-10-22T17:00:00Z", "2025-10-22T06:00:00Z", "2025-10-22T18:00:00Z");
    let eight = tiling("America/New_York", 0, 8);
    is(&eight, "2025-03-10T03:00:00Z", "2025-03-09T21:00:00Z", "2025-03-10T04:00:00Z");
    is(&eight, "2025-11-03T04:59:59Z", "2025-11-02T20:00:00Z", "2025-11-03T05:00:00Z");
    let hours = tiling("America/New_York", 0, 1);
    is(&hours, "2025-11-03T04:59:59Z", "2025-11-03T03:00:00Z", "2025-11-03T05:00:00Z");
}

#[test]
fn days_and_odd_hours_are_counted_from_1970() {
    let two = tiling("UTC", 0, 48);
    // 20,383 days after 1970-01-01, an odd one.
    is(&two, "2025-10-22T17:00:00Z", "2025-10-21T00:00:00Z", "2025-10-23T00:00:00Z");
    let week = tiling("Asia/Shanghai", 9, 168);
    is(&week, "2025-10-23T01:00:00Z", "2025-10-23T01:00:00Z", "2025-10-30T01:00:00Z");
    let seven = tiling("UTC", 0, 7);
    is(&seven, "1970-01-01T06:59:59Z", "1970-01-01T00:00:00Z", "1970-01-01T07:00:00Z");
    is(&seven, "1970-01-02T01:00:00Z", "1970-01-01T21:00:00Z", "1970-01-02T04:00:00Z");
}

#[test]
fn others_are_no_tilings() {
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

    /// Every instant has one tile, the next begins where it ends, and it is as long as it says give or take what clocks jump.
    #[test]
    fn tiles_cover_time(
        zone in prop_oneof!["UTC", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu"],
        first_hour in 0u8..24,
        hours in 1u32..=168,
        second in 1_200_000_000u64..2_000_000_000,
    ) {
        let tiling = tiling(&zone, first_hour, hours);
        let at = |second: u64| Timestamp::from_ticks(second * 1_000_000_000);
        let tile = tiling.window(at(second));
        prop_assert!(tile.start <= at(second) && at(second) < tile.end);
        prop_assert_eq!(tiling.window(tile.start), tile);
        let last = Timestamp::from_ticks(tile.end.ticks() - 1);
        prop_assert_eq!(tiling.window(last), tile);
        prop_assert_eq!(tiling.window(tile.end).start, tile.end);
        let length = Tick::NANOSECOND.duration(tile.end.since(tile.start));
        prop_assert_eq!(length, tile.length());
        prop_assert!(length <= HOUR * (hours + 24), "{:?}", length);
    }
}
