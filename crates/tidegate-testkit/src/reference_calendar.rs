//! Calendar units by definition.
//!
//! A minute or an hour is found by walking from second to second and reading the wall clock. A date unit is found from
//! the latest date that the wall clock has shown so far, which never goes back.

use std::collections::HashMap;

use jiff::tz::{TimeZone, TimeZoneDatabase};
use tidegate_core::{Unit, WeekStart, Zone};

/// Longer than any unit.
const FAR: i64 = 400 * 86_400;

/// One unit in one time zone, with a cache of windows.
#[derive(Debug, Clone)]
pub struct ReferenceCalendar {
    unit: Unit,
    zone: TimeZone,
    week_start: i64,
    found: HashMap<i64, (i64, i64)>,
}

impl ReferenceCalendar {
    /// A calendar for this unit and zone.
    pub fn new(unit: Unit, zone: &Zone, week_start: WeekStart) -> ReferenceCalendar {
        let zone = TimeZoneDatabase::bundled().get(zone.name()).expect("a zone has the name it was found by");
        let first_day =
            WeekStart::ALL.iter().position(|&day| day == week_start).expect("all days are listed");
        ReferenceCalendar {
            unit,
            zone,
            week_start: i64::try_from(first_day).expect("below seven"),
            found: HashMap::new(),
        }
    }

    /// The first second of the unit around `second`, and the first second after it. Never before 1970.
    pub fn window_around(&mut self, second: i64) -> (i64, i64) {
        if let Some(&window) = self.found.get(&second) {
            return window;
        }
        let (start, end) = match self.unit {
            Unit::Second => (second, second + 1),
            Unit::Minute => self.by_walking(second, 60),
            Unit::Hour => self.by_walking(second, 3600),
            Unit::Day | Unit::Week | Unit::Month | Unit::Year => self.by_dates(second),
        };
        let window = (start.max(0), end);
        self.found.insert(second, window);
        window
    }

    /// Seconds that the wall clock shows since a civil 1970-01-01T00:00:00.
    fn wall(&self, second: i64) -> i64 {
        second + i64::from(self.zone.to_offset(instant(second)).seconds())
    }

    /// Walks down and up to the nearest boundaries.
    fn by_walking(&self, second: i64, length: i64) -> (i64, i64) {
        let begins = |second: i64| {
            let (before, here) = (self.wall(second - 1), self.wall(second));
            let jumped = here != before + 1;
            here.rem_euclid(length) == 0 || (jumped && here.div_euclid(length) != before.div_euclid(length))
        };
        let start = (0..FAR).map(|step| second - step).find(|&second| begins(second));
        let end = (1..FAR).map(|step| second + step).find(|&second| begins(second));
        (start.expect("units begin"), end.expect("units end"))
    }

    /// The unit of the latest date shown up to `second`, as a number that never decreases.
    fn label(&self, second: i64) -> i64 {
        let shown = |second: i64| {
            let days = self.wall(second).div_euclid(86_400);
            let date = instant(second).to_zoned(self.zone.clone()).date();
            match self.unit {
                // 1970-01-01 was a Thursday, three days after a Monday.
                Unit::Week => (days + 3 - self.week_start).div_euclid(7),
                Unit::Month => i64::from(date.year()) * 12 + i64::from(date.month()),
                Unit::Year => i64::from(date.year()),
                _ => days,
            }
        };
        // A clock that is set back across midnight shows the former date again, but the later date has been shown.
        let before_jump = self.zone.preceding(instant(second + 1)).next();
        let before_jump = before_jump.map(|jump| shown(jump.timestamp().as_second() - 1));
        shown(second).max(before_jump.unwrap_or(i64::MIN))
    }

    fn by_dates(&self, second: i64) -> (i64, i64) {
        let label = self.label(second);
        let first = |from: i64, to: i64, found: &dyn Fn(i64) -> bool| {
            let (mut low, mut high) = (from, to);
            while low < high {
                let middle = low + (high - low) / 2;
                if found(self.label(middle)) { high = middle } else { low = middle + 1 }
            }
            low
        };
        let start = first(second - FAR, second, &|other| other >= label);
        let end = first(second, second + FAR, &|other| other > label);
        (start, end)
    }
}

fn instant(second: i64) -> jiff::Timestamp {
    jiff::Timestamp::from_second(second).expect("tests stay inside jiff's range")
}
