//! Calendar windows on days with clock changes, and the property that windows cover time without overlap.

use jiff::tz::TimeZoneDatabase;
use proptest::prelude::*;
use proptest::sample::select;
use tidegate_core::calendar::Calendar;
use tidegate_core::{Tick, Timestamp, Unit, WeekStart, Zone};
use tidegate_testkit::reference_calendar::ReferenceCalendar;
use tidegate_testkit::test_scale::cases;

fn second(text: &str) -> u64 {
    let at: jiff::Timestamp = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
    u64::try_from(at.as_second()).expect("after 1970")
}

fn calendar(unit: Unit, zone: &str, week_start: WeekStart, tick: Tick) -> Calendar {
    Calendar::new(unit, Zone::named(zone).unwrap_or_else(|| panic!("no zone {zone}")), week_start, tick)
}

/// The window around `inside` runs from `start` to `end`. Asked at its first, a middle and its last tick.
#[track_caller]
fn window(unit: Unit, zone: &str, week_start: WeekStart, inside: &str, start: &str, end: &str) {
    let tick = Tick::MICROSECOND;
    let at = |text: &str| Timestamp::from_ticks(second(text) * tick.per_second());
    let expected = (at(start), at(end));
    let last = Timestamp::from_ticks(expected.1.ticks() - 1);
    for instant in [expected.0, at(inside), last] {
        let found = calendar(unit, zone, week_start, tick).window(instant);
        assert_eq!(found, expected, "{unit:?} in {zone} around {inside}");
    }
    let (start, end) = (second(start), second(end));
    let by_definition = ReferenceCalendar::new(unit, &Zone::named(zone).expect("found above"), week_start)
        .window_around(i64::try_from(second(inside)).expect("small"));
    assert_eq!(by_definition, (i64::try_from(start).expect("small"), i64::try_from(end).expect("small")));
}

#[track_caller]
fn day(zone: &str, inside: &str, start: &str, end: &str) {
    window(Unit::Day, zone, WeekStart::Monday, inside, start, end);
}

#[track_caller]
fn hour(zone: &str, inside: &str, start: &str, end: &str) {
    window(Unit::Hour, zone, WeekStart::Monday, inside, start, end);
}

#[test]
fn new_york_day_with_skipped_hour_has_23_hours() {
    let zone = "America/New_York";
    day(zone, "2025-03-09T12:00:00-04:00", "2025-03-09T00:00:00-05:00", "2025-03-10T00:00:00-04:00");
    hour(zone, "2025-03-09T01:30:00-05:00", "2025-03-09T01:00:00-05:00", "2025-03-09T03:00:00-04:00");
    hour(zone, "2025-03-09T03:30:00-04:00", "2025-03-09T03:00:00-04:00", "2025-03-09T04:00:00-04:00");
}

#[test]
fn new_york_repeated_hour_is_two_windows() {
    let zone = "America/New_York";
    day(zone, "2025-11-02T12:00:00-05:00", "2025-11-02T00:00:00-04:00", "2025-11-03T00:00:00-05:00");
    hour(zone, "2025-11-02T01:30:00-04:00", "2025-11-02T01:00:00-04:00", "2025-11-02T01:00:00-05:00");
    hour(zone, "2025-11-02T01:30:00-05:00", "2025-11-02T01:00:00-05:00", "2025-11-02T02:00:00-05:00");
}

#[test]
fn lord_howe_half_hour_change_gives_long_and_short_hour() {
    let zone = "Australia/Lord_Howe";
    // Autumn: 2:00 becomes 1:30, so the hour from 1:00 lasts 90 minutes.
    hour(zone, "2025-04-06T01:45:00+11:00", "2025-04-06T01:00:00+11:00", "2025-04-06T02:00:00+10:30");
    hour(zone, "2025-04-06T01:45:00+10:30", "2025-04-06T01:00:00+11:00", "2025-04-06T02:00:00+10:30");
    day(zone, "2025-04-06T12:00:00+10:30", "2025-04-06T00:00:00+11:00", "2025-04-07T00:00:00+10:30");
    // Spring: 2:00 becomes 2:30, so the hour from 2:30 lasts 30 minutes.
    hour(zone, "2025-10-05T01:30:00+10:30", "2025-10-05T01:00:00+10:30", "2025-10-05T02:30:00+11:00");
    hour(zone, "2025-10-05T02:45:00+11:00", "2025-10-05T02:30:00+11:00", "2025-10-05T03:00:00+11:00");
    day(zone, "2025-10-05T12:00:00+11:00", "2025-10-05T00:00:00+10:30", "2025-10-06T00:00:00+11:00");
}

#[test]
fn shanghai_year_ends_eight_hours_before_utc() {
    let (zone, monday) = ("Asia/Shanghai", WeekStart::Monday);
    let last = "2024-12-31T23:59:59+08:00";
    let new_year = "2025-01-01T00:00:00+08:00";
    window(Unit::Year, zone, monday, last, "2024-01-01T00:00:00+08:00", new_year);
    window(Unit::Month, zone, monday, last, "2024-12-01T00:00:00+08:00", new_year);
    window(Unit::Day, zone, monday, last, "2024-12-31T00:00:00+08:00", new_year);
    window(Unit::Hour, zone, monday, last, "2024-12-31T23:00:00+08:00", new_year);
    window(Unit::Minute, zone, monday, last, "2024-12-31T23:59:00+08:00", new_year);
    window(Unit::Second, zone, monday, last, last, new_year);
    window(Unit::Week, zone, monday, last, "2024-12-30T00:00:00+08:00", "2025-01-06T00:00:00+08:00");
}

#[test]
fn february_has_leap_day() {
    let monday = WeekStart::Monday;
    window(
        Unit::Month,
        "UTC",
        monday,
        "2024-02-29T12:00:00Z",
        "2024-02-01T00:00:00Z",
        "2024-03-01T00:00:00Z",
    );
    window(
        Unit::Month,
        "UTC",
        monday,
        "2100-02-28T12:00:00Z",
        "2100-02-01T00:00:00Z",
        "2100-03-01T00:00:00Z",
    );
    day("UTC", "2024-02-29T12:00:00Z", "2024-02-29T00:00:00Z", "2024-03-01T00:00:00Z");
    window(Unit::Year, "UTC", monday, "2024-02-29T12:00:00Z", "2024-01-01T00:00:00Z", "2025-01-01T00:00:00Z");
}

#[test]
fn samoa_missing_date_extends_previous_window() {
    let (zone, friday) = ("Pacific/Apia", WeekStart::Friday);
    day(zone, "2011-12-29T23:59:59-10:00", "2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00");
    day(zone, "2011-12-31T00:00:00+14:00", "2011-12-31T00:00:00+14:00", "2012-01-01T00:00:00+14:00");
    // The missing date was a Friday, so the week from Friday starts on a Saturday.
    let (before, first, after) =
        ("2011-12-23T00:00:00-10:00", "2011-12-31T00:00:00+14:00", "2012-01-06T00:00:00+14:00");
    window(Unit::Week, zone, friday, "2011-12-29T12:00:00-10:00", before, first);
    window(Unit::Week, zone, friday, "2012-01-01T12:00:00+14:00", first, after);
}

#[test]
fn week_across_new_year_for_every_start_day() {
    let inside = "2024-12-31T12:00:00Z";
    for (week_start, start, end) in [
        (WeekStart::Monday, "2024-12-30T00:00:00Z", "2025-01-06T00:00:00Z"),
        (WeekStart::Tuesday, "2024-12-31T00:00:00Z", "2025-01-07T00:00:00Z"),
        (WeekStart::Wednesday, "2024-12-25T00:00:00Z", "2025-01-01T00:00:00Z"),
        (WeekStart::Thursday, "2024-12-26T00:00:00Z", "2025-01-02T00:00:00Z"),
        (WeekStart::Friday, "2024-12-27T00:00:00Z", "2025-01-03T00:00:00Z"),
        (WeekStart::Saturday, "2024-12-28T00:00:00Z", "2025-01-04T00:00:00Z"),
        (WeekStart::Sunday, "2024-12-29T00:00:00Z", "2025-01-05T00:00:00Z"),
    ] {
        window(Unit::Week, "UTC", week_start, inside, start, end);
    }
}

#[test]
fn hours_in_half_hour_zones_follow_local_time() {
    hour(
        "Asia/Kolkata",
        "2025-01-01T10:45:00+05:30",
        "2025-01-01T10:00:00+05:30",
        "2025-01-01T11:00:00+05:30",
    );
    hour(
        "Australia/Adelaide",
        "2025-01-01T10:15:00+10:30",
        "2025-01-01T10:00:00+10:30",
        "2025-01-01T11:00:00+10:30",
    );
    hour(
        "Asia/Kathmandu",
        "2025-01-01T10:50:00+05:45",
        "2025-01-01T10:00:00+05:45",
        "2025-01-01T11:00:00+05:45",
    );
}

#[test]
fn havana_clock_change_at_midnight_moves_day_start() {
    let zone = "America/Havana";
    // Spring: midnight does not exist; the date starts at 1:00.
    day(zone, "2025-03-09T12:00:00-04:00", "2025-03-09T01:00:00-04:00", "2025-03-10T00:00:00-04:00");
    hour(zone, "2025-03-09T01:30:00-04:00", "2025-03-09T01:00:00-04:00", "2025-03-09T02:00:00-04:00");
    // Autumn: midnight occurs twice; the date starts at the first.
    day(zone, "2025-11-02T12:00:00-05:00", "2025-11-02T00:00:00-04:00", "2025-11-03T00:00:00-05:00");
    hour(zone, "2025-11-02T00:30:00-05:00", "2025-11-02T00:00:00-05:00", "2025-11-02T01:00:00-05:00");
}

#[test]
fn saint_johns_fallback_across_midnight_keeps_new_day() {
    let (zone, monday) = ("America/St_Johns", WeekStart::Monday);
    // One minute past midnight on 1 November the clock went back to 23:01 on 31 October.
    let (again, first) = ("2009-10-31T23:30:00-03:30", "2009-11-01T00:00:00-02:30");
    day(zone, again, first, "2009-11-02T00:00:00-03:30");
    day(zone, "2009-10-31T12:00:00-02:30", "2009-10-31T00:00:00-02:30", first);
    window(Unit::Month, zone, monday, again, first, "2009-12-01T00:00:00-03:30");
    hour(zone, "2009-11-01T00:00:30-02:30", first, "2009-11-01T00:01:00-02:30");
    hour(zone, again, "2009-10-31T23:01:00-03:30", "2009-11-01T00:00:00-03:30");
}

#[test]
fn sao_paulo_clock_change_at_midnight_moves_day_start() {
    let zone = "America/Sao_Paulo";
    day(zone, "2018-11-04T12:00:00-02:00", "2018-11-04T01:00:00-02:00", "2018-11-05T00:00:00-02:00");
    day(zone, "2018-02-17T12:00:00-02:00", "2018-02-17T00:00:00-02:00", "2018-02-18T00:00:00-03:00");
}

#[test]
fn juba_month_includes_repeated_last_hour() {
    let (zone, monday) = ("Africa/Juba", WeekStart::Monday);
    let (start, end) = ("2021-01-01T00:00:00+03:00", "2021-02-01T00:00:00+02:00");
    window(Unit::Month, zone, monday, "2021-01-31T23:30:00+02:00", start, end);
}

#[test]
fn monrovia_offset_with_seconds_shifts_windows() {
    let (zone, monday) = ("Africa/Monrovia", WeekStart::Monday);
    let (inside, end) = ("1972-01-07T00:44:10Z", "1972-01-07T00:44:30Z");
    window(Unit::Minute, zone, monday, inside, "1972-01-07T00:43:30Z", end);
    window(Unit::Day, zone, monday, inside, "1972-01-06T00:44:30Z", end);
}

#[test]
fn first_week_starts_at_epoch() {
    let found = calendar(Unit::Week, "UTC", WeekStart::Monday, Tick::MILLISECOND).window(Timestamp::EPOCH);
    assert_eq!(
        found,
        (Timestamp::EPOCH, Timestamp::from_ticks(4 * 86_400_000)),
        "1970-01-05 was the first Monday"
    );
}

/// The dates on both sides of every clock change of every zone from 1970 to 2037 match the definition.
#[test]
fn days_match_definition_at_every_clock_change() {
    let tick = Tick::MILLISECOND;
    for name in Zone::names() {
        let rules = TimeZoneDatabase::bundled().get(&name).expect("listed zones exist");
        let zone = Zone::named(&name).expect("listed zones exist");
        let days = Calendar::new(Unit::Day, zone.clone(), WeekStart::Monday, tick);
        let mut calendar = ReferenceCalendar::new(Unit::Day, &zone, WeekStart::Monday);
        let jumps = rules.following(jiff::Timestamp::UNIX_EPOCH).map(|jump| jump.timestamp().as_second());
        for second in jumps.take_while(|&jump| jump < 2_145_916_800).flat_map(|jump| [jump - 1, jump]) {
            let found = days.window(Timestamp::from_ticks(u64::try_from(second).expect("after 1970") * 1000));
            let (start, end) = calendar.window_around(second);
            let ticks =
                |second: i64| Timestamp::from_ticks(u64::try_from(second).expect("after 1970") * 1000);
            assert_eq!(found, (ticks(start), ticks(end)), "{name} at {second}");
        }
    }
}

/// Zones that cover every kind of rule.
const ZONES: [&str; 20] = [
    "UTC",
    "Asia/Shanghai",
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "America/Havana",
    "America/St_Johns",
    "America/Sao_Paulo",
    "Pacific/Apia",
    "Pacific/Kiritimati",
    "Pacific/Kwajalein",
    "Africa/Monrovia",
    "Africa/Casablanca",
    "Africa/Juba",
    "Europe/Dublin",
    "Asia/Pyongyang",
    "America/Caracas",
    "Antarctica/Troll",
    "Asia/Gaza",
];

/// A zone and a second. Half of the seconds are near a clock change.
fn zones_and_seconds() -> impl Strategy<Value = (String, u64)> {
    let zones = prop_oneof![select(ZONES.to_vec()).prop_map(str::to_owned), select(Zone::names())];
    let near = (zones, 0u64..3_000_000_000, any::<bool>(), -7_300i64..7_300);
    near.prop_map(|(zone, second, jump, past)| {
        let rules = TimeZoneDatabase::bundled().get(&zone).expect("listed zones exist");
        let at = jiff::Timestamp::from_second(i64::try_from(second).expect("small")).expect("in range");
        let next =
            rules.following(at).next().filter(|_| jump).map(|jump| jump.timestamp().as_second() + past);
        (zone, next.and_then(|second| u64::try_from(second).ok()).unwrap_or(second))
    })
}

proptest! {
    #![proptest_config(cases(400))]

    /// Each instant is in its window, the next window starts where it ends, and both match a walk along the clock.
    #[test]
    fn windows_cover_time_without_overlap((zone, at) in zones_and_seconds(), week_start in select(WeekStart::ALL.to_vec())) {
        let tick = Tick::MILLISECOND;
        for unit in Unit::ALL {
            let calendar = calendar(unit, &zone, week_start, tick);
            let instant = Timestamp::from_ticks(at * tick.per_second() + 999);
            let (start, end) = calendar.window(instant);
            prop_assert!(start <= instant && instant < end, "{unit:?} around {at}: {start:?} {end:?}");
            prop_assert_eq!(calendar.window(end).0, end, "the next {:?} begins where this one ends", unit);
            let last = Timestamp::from_ticks(end.ticks() - 1);
            prop_assert_eq!(calendar.window(last), (start, end));
            prop_assert_eq!(calendar.window(start), (start, end));
            let mut calendar = ReferenceCalendar::new(unit, &Zone::named(&zone).expect("listed"), week_start);
            let walked = calendar.window_around(i64::try_from(at).expect("small"));
            let seconds = |at: Timestamp| i64::try_from(at.ticks() / tick.per_second()).expect("small");
            prop_assert_eq!((seconds(start), seconds(end)), walked, "{:?} in {} at {}", unit, zone, at);
        }
    }

    /// The cached window never changes an answer.
    #[test]
    fn cached_window_equals_fresh_lookup(
        zone in select(ZONES.to_vec()),
        asked in proptest::collection::vec((0u64..3_000_000_000, 0u64..200_000), 1..12),
        unit in select(Unit::ALL.to_vec()),
    ) {
        let used = calendar(unit, zone, WeekStart::Monday, Tick::NANOSECOND);
        for (far, near) in asked {
            for at in [far, far + near, far] {
                let at = Timestamp::from_ticks(at * 1_000_000_000);
                let fresh = calendar(unit, zone, WeekStart::Monday, Tick::NANOSECOND);
                prop_assert_eq!(used.window(at), fresh.window(at));
            }
        }
    }
}
