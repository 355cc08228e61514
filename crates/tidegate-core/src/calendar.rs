//! Calendar windows: the second, hour, day, week, month or year of an instant in a time zone.
//!
//! Only the `calendar` module uses jiff. Two rules turn wall clocks, which jump, into half-open windows that cover all of time
//! without overlap:
//!
//! * A **second, minute or hour** starts when the wall clock shows its first moment, or at a jump from one unit into
//!   another. The hour that repeats in autumn is a second window of sixty minutes. Lord Howe's half-hour change gives one
//!   hour of 90 minutes and one of 30.
//! * A **day, week, month or year** starts at the first instant of its first date. A date that partly repeats is one window
//!   (25 hours in New York in autumn). A date that does not exist starts where the next one does (Samoa, 2011-12-30).
//!
//! The zone database is compiled in, so that a limits file means the same on every machine.
//!
//! A lookup takes some hundred nanoseconds, and most decisions fall in the same window as the previous one. So [`Calendar`]
//! caches the last window in one atomic word. A lost or racing update costs only time.

mod window_schedule;

use std::sync::atomic::{AtomicU64, Ordering};

use jiff::civil::{Date, Weekday};
use jiff::tz::{TimeZone, TimeZoneDatabase};

use crate::time::{LAST_SECOND, Span, Tick, Timestamp};

pub use window_schedule::{MAX_SCHEDULED_WINDOW, MIN_SCHEDULED_WINDOW, ScheduledWindow, WindowSchedule};

/// A calendar unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unit {
    /// A second.
    Second,
    /// A minute of the wall clock.
    Minute,
    /// An hour of the wall clock.
    Hour,
    /// A date.
    Day,
    /// Seven dates, from the limit's first day of the week.
    Week,
    /// A calendar month.
    Month,
    /// A calendar year.
    Year,
}

impl Unit {
    /// Every unit, shortest first.
    pub const ALL: [Unit; 7] =
        [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day, Unit::Week, Unit::Month, Unit::Year];

    /// The word used in limits files.
    pub const fn word(self) -> &'static str {
        match self {
            Unit::Second => "second",
            Unit::Minute => "minute",
            Unit::Hour => "hour",
            Unit::Day => "day",
            Unit::Week => "week",
            Unit::Month => "month",
            Unit::Year => "year",
        }
    }
}

/// A day of the week.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[allow(missing_docs)]
pub enum WeekStart {
    #[default]
    Monday,
    Tuesday,
    Wednesday,
    Thursday,
    Friday,
    Saturday,
    Sunday,
}

impl WeekStart {
    /// Every day, Monday first.
    pub const ALL: [WeekStart; 7] = [
        WeekStart::Monday,
        WeekStart::Tuesday,
        WeekStart::Wednesday,
        WeekStart::Thursday,
        WeekStart::Friday,
        WeekStart::Saturday,
        WeekStart::Sunday,
    ];

    /// The word used in limits files.
    pub const fn word(self) -> &'static str {
        match self {
            WeekStart::Monday => "monday",
            WeekStart::Tuesday => "tuesday",
            WeekStart::Wednesday => "wednesday",
            WeekStart::Thursday => "thursday",
            WeekStart::Friday => "friday",
            WeekStart::Saturday => "saturday",
            WeekStart::Sunday => "sunday",
        }
    }

    /// The number of days from the start of the week to `date`.
    fn days_into_week(self, date: Date) -> i64 {
        let first = match self {
            WeekStart::Monday => Weekday::Monday,
            WeekStart::Tuesday => Weekday::Tuesday,
            WeekStart::Wednesday => Weekday::Wednesday,
            WeekStart::Thursday => Weekday::Thursday,
            WeekStart::Friday => Weekday::Friday,
            WeekStart::Saturday => Weekday::Saturday,
            WeekStart::Sunday => Weekday::Sunday,
        };
        i64::from(date.weekday().since(first))
    }
}

/// A time zone of the IANA database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Zone(TimeZone);

impl Zone {
    /// Coordinated universal time.
    pub const UTC: Zone = Zone(TimeZone::UTC);

    /// Finds a zone by its IANA name (`Asia/Shanghai`), ignoring case.
    pub fn named(name: &str) -> Option<Zone> {
        TimeZoneDatabase::bundled().get(name).ok().map(Zone)
    }

    /// The canonical name of the zone.
    pub fn name(&self) -> &str {
        self.0.iana_name().unwrap_or("UTC")
    }

    /// The local minutes after midnight at an instant in nanoseconds.
    pub fn minute_of_day(&self, at: Timestamp) -> u16 {
        let second = i64::try_from(Tick::NANOSECOND.second_of(at).min(LAST_SECOND)).unwrap_or(i64::MAX);
        let wall = second + i64::from(self.offset(at));
        u16::try_from(wall.rem_euclid(86_400) / 60).unwrap_or(0)
    }

    /// The UTC offset in seconds at an instant in nanoseconds. Positive offsets are east of UTC.
    pub fn offset(&self, at: Timestamp) -> i32 {
        let second = i64::try_from(Tick::NANOSECOND.second_of(at).min(LAST_SECOND)).unwrap_or(i64::MAX);
        self.0.to_offset(instant(second)).seconds()
    }

    /// The names of all zones, for suggestions in messages.
    pub fn names() -> Vec<String> {
        TimeZoneDatabase::bundled().available().map(|name| name.to_string()).collect()
    }
}

/// The windows of one unit in one zone.
#[derive(Debug)]
pub struct Calendar {
    unit: Unit,
    zone: Zone,
    week_start: WeekStart,
    tick: Tick,
    /// The cached window: its first second in the upper bits, its length in seconds in the lower 28.
    last: AtomicU64,
}

const LENGTH_BITS: u32 = 28;
const LENGTH_MASK: u64 = (1 << LENGTH_BITS) - 1;

impl Calendar {
    /// The calendar of one unit in one zone.
    pub const fn new(unit: Unit, zone: Zone, week_start: WeekStart, tick: Tick) -> Calendar {
        Calendar { unit, zone, week_start, tick, last: AtomicU64::new(0) }
    }

    /// The unit.
    pub const fn unit(&self) -> Unit {
        self.unit
    }

    /// An upper bound of the window length, in ticks.
    pub fn longest(&self) -> Span {
        const DAY: u64 = 86_400;
        let seconds = match self.unit {
            Unit::Second => 1,
            Unit::Minute => 60,
            // A clock change adds at most one hour.
            Unit::Hour => 2 * 3_600,
            Unit::Day => 26 * 3_600,
            Unit::Week => 8 * DAY,
            Unit::Month => 32 * DAY,
            Unit::Year => 367 * DAY,
        };
        Span::from_ticks(self.tick.per_second().saturating_mul(seconds))
    }

    /// The window that contains `at`: its first instant and the first instant after it.
    #[inline]
    pub fn window(&self, at: Timestamp) -> (Timestamp, Timestamp) {
        let second = self.tick.second_of(at).min(LAST_SECOND);
        let packed = self.last.load(Ordering::Relaxed);
        let (start, length) = (packed >> LENGTH_BITS, packed & LENGTH_MASK);
        let (start, end) = if second.wrapping_sub(start) < length {
            (start, start + length)
        } else {
            self.find_and_remember(second)
        };
        (self.tick.at_second(start), self.tick.at_second(end))
    }

    #[cold]
    fn find_and_remember(&self, second: u64) -> (u64, u64) {
        let (start, end) = self.find(i64::try_from(second).expect("seconds of 64-bit ticks fit"));
        // A window that starts before 1970 is cut at the epoch.
        let (start, end) = (u64::try_from(start).unwrap_or(0), u64::try_from(end).unwrap_or(0));
        self.last.store(start << LENGTH_BITS | (end - start), Ordering::Relaxed);
        (start, end)
    }

    /// The window that contains a Unix second, in Unix seconds.
    fn find(&self, second: i64) -> (i64, i64) {
        match self.unit {
            Unit::Second => (second, second + 1),
            Unit::Minute => (self.clock_start(second, 60), self.clock_end(second, 60)),
            Unit::Hour => (self.clock_start(second, 3600), self.clock_end(second, 3600)),
            Unit::Day | Unit::Week | Unit::Month | Unit::Year => self.dates(second),
        }
    }

    // Minutes and hours follow the wall clock, as seconds since the local 1970-01-01.

    fn wall(&self, second: i64) -> i64 {
        second + i64::from(self.zone.0.to_offset(instant(second)).seconds())
    }

    /// The latest start of a unit at or before `second`.
    fn clock_start(&self, second: i64, unit: i64) -> i64 {
        let floor = second - self.wall(second).rem_euclid(unit);
        match self.jump_at_or_before(second) {
            Some(jump) if floor < jump && !self.begins_unit(jump, unit) => self.clock_start(jump - 1, unit),
            Some(jump) if floor < jump => jump,
            _ => floor,
        }
    }

    /// The earliest start of a unit after `second`.
    fn clock_end(&self, second: i64, unit: i64) -> i64 {
        let ceiling = second - self.wall(second).rem_euclid(unit) + unit;
        match self.jump_after(second) {
            Some(jump) if jump <= ceiling && self.begins_unit(jump, unit) => jump,
            Some(jump) if jump <= ceiling => self.clock_end(jump, unit),
            _ => ceiling,
        }
    }

    /// Whether a unit starts at this jump of the wall clock: the jump lands on the start of a unit, or in a different unit.
    fn begins_unit(&self, jump: i64, unit: i64) -> bool {
        let (before, after) = (self.wall(jump - 1), self.wall(jump));
        after.rem_euclid(unit) == 0 || before.div_euclid(unit) != after.div_euclid(unit)
    }

    fn jump_at_or_before(&self, second: i64) -> Option<i64> {
        self.zone.0.preceding(instant(second + 1)).next().map(|jump| jump.timestamp().as_second())
    }

    fn jump_after(&self, second: i64) -> Option<i64> {
        self.zone.0.following(instant(second)).next().map(|jump| jump.timestamp().as_second())
    }

    // Days and longer units follow dates.

    fn dates(&self, second: i64) -> (i64, i64) {
        let date = instant(second).to_zoned(self.zone.0.clone()).date();
        let first = self.first_date(date);
        let next = self.next_date(first);
        let after = self.first_second(next);
        if after <= second {
            // The clock fell back across midnight to the previous date. The later date has already started and does not start
            // twice.
            return (after, self.first_second(self.next_date(next)));
        }
        (self.first_second(first), after)
    }

    fn first_date(&self, date: Date) -> Date {
        match self.unit {
            Unit::Week => add_days(date, -self.week_start.days_into_week(date)),
            Unit::Month => date.first_of_month(),
            Unit::Year => date.first_of_year(),
            _ => date,
        }
    }

    fn next_date(&self, first: Date) -> Date {
        match self.unit {
            Unit::Week => add_days(first, 7),
            Unit::Month => add_days(first.last_of_month(), 1),
            Unit::Year => add_days(first.last_of_year(), 1),
            _ => add_days(first, 1),
        }
    }

    /// The first second of a date: the first midnight if there are two, or the end of the gap if there is none.
    fn first_second(&self, date: Date) -> i64 {
        let midnight = date.to_zoned(self.zone.0.clone()).expect("dates of instants up to 2262 are in range");
        midnight.timestamp().as_second()
    }
}

impl Clone for Calendar {
    fn clone(&self) -> Calendar {
        Calendar::new(self.unit, self.zone.clone(), self.week_start, self.tick)
    }
}

impl PartialEq for Calendar {
    fn eq(&self, other: &Calendar) -> bool {
        (self.unit, &self.zone, self.week_start, self.tick)
            == (other.unit, &other.zone, other.week_start, other.tick)
    }
}

impl Eq for Calendar {}

fn instant(second: i64) -> jiff::Timestamp {
    jiff::Timestamp::from_second(second).expect("seconds of 64-bit ticks are in jiff's range")
}

fn add_days(date: Date, days: i64) -> Date {
    date.checked_add(jiff::Span::new().days(days)).expect("dates of instants up to 2262 are in range")
}
