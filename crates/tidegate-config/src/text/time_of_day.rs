//! Times of day.

use super::quote::quoted;

/// A time of day, in minutes after midnight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimeOfDay(u16);

impl TimeOfDay {
    /// Minutes after midnight, below 1440.
    pub const fn minutes(self) -> u16 {
        self.0
    }

    /// The time `minutes` after midnight, modulo one day.
    pub const fn from_minutes(minutes: u16) -> TimeOfDay {
        TimeOfDay(minutes % (24 * 60))
    }
}

impl std::fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:02}:{:02}", self.0 / 60, self.0 % 60)
    }
}

/// Parses a time of day such as `09:30`. `24:00` is midnight.
pub fn parse_time_of_day(text: &str) -> Result<TimeOfDay, String> {
    let number = |digits: &str| match digits.as_bytes() {
        [tens @ b'0'..=b'9', ones @ b'0'..=b'9'] => {
            Some(u16::from(tens - b'0') * 10 + u16::from(ones - b'0'))
        }
        _ => None,
    };
    let read = text.split_once(':').and_then(|(hour, minute)| Some((number(hour)?, number(minute)?)));
    match read {
        Some((hour, minute)) if (hour < 24 && minute < 60) || (hour, minute) == (24, 0) => {
            Ok(TimeOfDay::from_minutes(hour * 60 + minute))
        }
        _ => Err(format!("must be a time of day such as 09:30, found {}", quoted(text))),
    }
}
