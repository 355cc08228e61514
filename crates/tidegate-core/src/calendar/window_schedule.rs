//! Consecutive windows of one length, aligned to an hour of the day in a time zone.
//!
//! * A length that divides a day restarts at the first hour of each date. A clock change makes the last window of that date
//!   longer or shorter.
//! * Whole days are counted from 1970-01-01, from the first hour to the first hour.
//! * Any other length is counted in elapsed time from the first hour of 1970-01-01.

use std::time::Duration;

use jiff::civil::Date;

use super::{Zone, add_days, instant};
use crate::time::{LAST_SECOND, Tick, Timestamp};

const DAY: i64 = 86_400;

/// The shortest window: one minute.
pub const MIN_SCHEDULED_WINDOW: Duration = Duration::from_secs(60);

/// The longest window: one week.
pub const MAX_SCHEDULED_WINDOW: Duration = Duration::from_secs(7 * 86_400);

/// A schedule of consecutive windows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowSchedule {
    zone: Zone,
    first_hour: i8,
    /// The nominal length of a window, in seconds.
    length: i64,
}

/// One window of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScheduledWindow {
    /// The first instant of the window.
    pub start: Timestamp,
    /// The first instant after the window.
    pub end: Timestamp,
}

impl ScheduledWindow {
    /// The length of the window. Instants count nanoseconds.
    pub fn length(&self) -> Duration {
        Tick::NANOSECOND.duration(self.end.since(self.start))
    }
}

impl WindowSchedule {
    /// A schedule with windows of `length` that start at `first_hour`. `None` unless the length is whole seconds from
    /// [`MIN_SCHEDULED_WINDOW`] to [`MAX_SCHEDULED_WINDOW`] and the hour is below 24.
    pub fn new(zone: Zone, first_hour: u8, length: Duration) -> Option<WindowSchedule> {
        let fits =
            (MIN_SCHEDULED_WINDOW..=MAX_SCHEDULED_WINDOW).contains(&length) && length.subsec_nanos() == 0;
        let first_hour = i8::try_from(first_hour).ok().filter(|hour| *hour < 24)?;
        let length = i64::try_from(length.as_secs()).ok().filter(|_| fits)?;
        Some(WindowSchedule { zone, first_hour, length })
    }

    /// The length of a window without clock changes.
    pub fn nominal_length(&self) -> Duration {
        Duration::from_secs(self.length.unsigned_abs())
    }

    /// The time zone.
    pub fn zone(&self) -> &Zone {
        &self.zone
    }

    /// The window that contains an instant in nanoseconds.
    pub fn window(&self, at: Timestamp) -> ScheduledWindow {
        let tick = Tick::NANOSECOND;
        let second = i64::try_from(tick.second_of(at).min(LAST_SECOND)).unwrap_or(i64::MAX);
        let (start, end) = self.find(second);
        // A window that starts before 1970 is cut at the epoch.
        let instant = |second: i64| tick.at_second(u64::try_from(second).unwrap_or(0));
        ScheduledWindow { start: instant(start), end: instant(end) }
    }

    fn find(&self, second: i64) -> (i64, i64) {
        let length = self.length;
        if length % DAY != 0 && DAY % length != 0 {
            let first = self.begin(EPOCH);
            let start = first + (second - first).div_euclid(length) * length;
            return (start, start + length);
        }
        let day = self.day(second);
        if length % DAY == 0 {
            let days = length / DAY;
            let first = add_days(day, -days_since_epoch(day).rem_euclid(days));
            return (self.begin(first), self.begin(add_days(first, days)));
        }
        let (first, after) = (self.begin(day), self.begin(add_days(day, 1)));
        let last = DAY / length - 1;
        let number = ((second - first) / length).min(last);
        let start = first + number * length;
        (start, if number == last { after } else { (start + length).min(after) })
    }

    /// The date whose first hour is the latest at or before `second`.
    fn day(&self, second: i64) -> Date {
        let mut day = instant(second).to_zoned(self.zone.0.clone()).date();
        while second < self.begin(day) {
            day = add_days(day, -1);
        }
        // The clock may have fallen back to the previous date. A date that has started does not start twice.
        while self.begin(add_days(day, 1)) <= second {
            day = add_days(day, 1);
        }
        day
    }

    /// The start of a date: the first instant with its first hour, or the end of the gap if there is none.
    fn begin(&self, date: Date) -> i64 {
        let civil = date.at(self.first_hour, 0, 0, 0);
        let begins = civil.to_zoned(self.zone.0.clone()).expect("dates of instants up to 2262 are in range");
        begins.timestamp().as_second()
    }
}

const EPOCH: Date = Date::constant(1970, 1, 1);

fn days_since_epoch(date: Date) -> i64 {
    i64::from(date.since(EPOCH).expect("dates up to 2262 are within reach").get_days())
}
