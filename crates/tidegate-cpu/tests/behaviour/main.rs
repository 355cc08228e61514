//! Behavior tests of the CPU governor.

mod enforcer;
mod fixture;
mod governor;
mod journal;
mod meter;
mod runner;
mod watchdog;
mod weeks;

use std::time::Duration;

use tidegate::budget::{BudgetTime, Rate};
use tidegate_core::{Span, Timestamp};
use tidegate_cpu::GovernorSettings;
use tidegate_cpu::settings::{CpuSpec, read_cpu};

/// 2025-10-22 at midnight.
const MIDNIGHT: u64 = 1_761_091_200_000_000_000;

/// Parses the settings of a file that must be valid.
#[track_caller]
fn settings(text: &str) -> GovernorSettings {
    let spec = read_cpu("cpu.yaml", text.as_bytes()).unwrap_or_else(|wrong| panic!("{}", wrong.summary()));
    GovernorSettings::of(spec).unwrap_or_else(|error| panic!("{error}"))
}

/// The time after midnight, on the wall clock and on the monotonic clock.
fn after(time: Duration) -> BudgetTime {
    let nanos = u64::try_from(time.as_nanos()).expect("some days");
    BudgetTime {
        wall: Timestamp::from_ticks(MIDNIGHT).plus(Span::from_ticks(nanos)),
        monotonic: i64::try_from(nanos).expect("some days"),
    }
}

fn percent(thousandths: u64) -> Rate {
    Rate::from_billionths(thousandths * 1_000_000)
}

#[test]
fn default_settings_equal_documented_values() {
    let usual = GovernorSettings::of(CpuSpec::default()).expect("they make sense");
    let written = settings(
        "avg_load_limit_percent: 30\nrolling_window_hours: 24\nwindow_start_hour: 0\ntime_zone: UTC\nmin_load_percent: 10\n\
         max_load_percent: 90\nsafety_factor: 0.9\nmetrics_interval_seconds: 5\nadjust_interval_seconds: 15\ntrailing_guard: true\n\
         reserve_percent: 1\nincrease_deadband_points: 5\ntolerance_points: 1\nunobserved: limit\nhistory_retention_days: 30\n",
    );
    assert_eq!(usual, written);
}

#[test]
fn settings_text_equals_parsed_text() {
    let text = "avg_load_limit_percent: 12.5\nrolling_window: 90s\nwindow_start_hour: 6\ntime_zone: Asia/Shanghai\nmin_load_percent: 1.25\n\
                max_load_percent: 80\nsafety_factor: 0.875\nmetrics_interval_seconds: 3\nadjust_interval_seconds: 6\ntrailing_guard: false\n\
                reserve_percent: 2.5\nincrease_deadband_points: 4\ntolerance_points: 0.5\nunobserved: average\nhistory_retention_days: 9\n\
                time_slots:\n  - {start: \"23:00\", end: \"06:30\", max_load_percent: 60}\n";
    let spec = read_cpu("cpu.yaml", text.as_bytes()).unwrap_or_else(|wrong| panic!("{}", wrong.summary()));
    assert_eq!(spec.text(), text);
    assert_eq!(CpuSpec::default().text(), "");
    let both = read_cpu("cpu.yaml", b"rolling_window: 2h\nrolling_window_hours: 2")
        .expect_err("the window is set twice");
    assert!(both.iter().any(|error| error.field == "rolling_window" && error.message.contains("set twice")));
}

#[test]
fn invalid_files_are_rejected_with_reason() {
    for (text, field, why) in [
        ("min_load_percent: 95\navg_load_limit_percent: 99", "min_load_percent", "max_load_percent"),
        ("min_load_percent: 31", "min_load_percent", "alone exceed the average"),
        ("rolling_window_hours: 0", "rolling_window_hours", "from 1 to 168"),
        ("rolling_window_hours: 169", "rolling_window_hours", "from 1 to 168"),
        ("safety_factor: 0", "safety_factor", "above 0 and at most 1"),
        ("safety_factor: 1.01", "safety_factor", "above 0 and at most 1"),
        ("time_zone: Mars/Olympus", "time_zone", "IANA time zone"),
        ("avg_load_limit_percent: 0", "avg_load_limit_percent", "above 0"),
        ("avg_load_limit_percent: .nan", "avg_load_limit_percent", "a number such as"),
        ("window_start_hour: 24", "window_start_hour", "from 0 to 23"),
        ("unobserved: maybe", "unobserved", "limit, average or zero"),
        ("time_slots: [{start: '9', end: '18:00', max_load_percent: 80}]", "time_slots[0].start", "09:30"),
        (
            "time_slots: [{start: '09:00', end: '18:00', max_load_percent: 5}]",
            "time_slots[0]",
            "min_load_percent",
        ),
        ("max_load: 5", "max_load", "is not a field"),
    ] {
        let wrong = read_cpu("cpu.yaml", text.as_bytes()).expect_err(text);
        let error = wrong.iter().next().expect("one error").clone();
        assert_eq!(error.field, field, "{text}");
        assert!(error.message.contains(why), "{text}: {}", error.message);
    }
    // All errors are reported at once, and each of them once.
    let wrong = read_cpu(
        "cpu.yaml",
        b"min_load_percent: 60\nmax_load_percent: 50\nwindow_start_hour: 24\nsafety: 1\ntime_slots:\n  - {start: '9', end: '10:00', max_load_percent: 70}\n  \
          - {start: '09:00', end: '10:00', max_load_percent: 5}\n  - {start: '10:00', end: '11:00', max_load_percent: 61}\n  - {start: '11:00', end: '12:00', max_load_percent: 6}\n",
    )
    .expect_err("everything is wrong");
    let count_errors = |part: &str| {
        wrong.iter().filter(|error| format!("{}: {}", error.field, error.message).contains(part)).count()
    };
    assert_eq!(count_errors("min_load_percent: must be at most max_load_percent, which is 50; found 60"), 1);
    assert_eq!(
        count_errors("min_load_percent: must be at most avg_load_limit_percent, which is 30; found 60"),
        1
    );
    for part in ["window_start_hour:", "safety:", "time_slots[0].start:", "time_slots[1]:", "time_slots[3]:"]
    {
        assert_eq!(count_errors(part), 1, "{part}");
    }
    assert_eq!(wrong.iter().count(), 7);
    let unread =
        read_cpu("cpu.yaml", b"min_load_percent: many\nmax_load_percent: 5").expect_err("it is no number");
    assert_eq!(unread.iter().count(), 1, "an unreadable floor causes no second error");
    // The default reserve leaves less than the floor.
    let spec = read_cpu("cpu.yaml", b"min_load_percent: 30").expect("it makes sense by itself");
    let error = GovernorSettings::of(spec).expect_err("29.7 are left");
    assert!(error.to_string().contains("29.7"), "{error}");
}
