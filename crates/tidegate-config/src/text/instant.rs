//! Instants: `2026-01-20T00:00:00+08:00`.

use std::time::Duration;

use jiff::civil::{Date, DateTime};
use jiff::tz::Offset;
use tidegate_core::time::LAST_SECOND;

use super::quote::quoted;

/// Parses an instant: RFC 3339 with an offset, such as `2026-01-20T00:00:00+08:00`. Returns the time since the epoch.
///
/// ```
/// # use std::time::Duration;
/// assert_eq!(tidegate_config::text::parse_instant("1970-01-01T01:00:00.5+01:00"), Ok(Duration::from_millis(500)));
/// ```
pub fn parse_instant(text: &str) -> Result<Duration, String> {
    let Some(parts) = InstantParts::split(text) else {
        if let Some(coarser) =
            without_tenth_decimal(text).filter(|coarser| InstantParts::split(coarser).is_some())
        {
            return Err(format!(
                "must not be finer than a nanosecond, found {}; write {coarser}",
                quoted(text)
            ));
        }
        return Err(format!(
            "must be a date, a time and an offset such as 2026-01-20T00:00:00+08:00 or 2026-01-19T16:00:00Z, \
             found {}{}",
            quoted(text),
            suggest_instant(text).map(|meant| format!("; write {meant}")).unwrap_or_default(),
        ));
    };
    let instant = parts.resolve().map_err(|why| match parts.time {
        [.., 60] => {
            format!("{why}, found {}; write second 59, or second 00 of the next minute", quoted(text))
        }
        _ => format!("{why}, found {}", quoted(text)),
    })?;
    match Duration::try_from(instant.duration_since(jiff::Timestamp::UNIX_EPOCH)) {
        Err(_) => Err(format!("must not be before 1970-01-01T00:00:00Z, found {}", quoted(text))),
        Ok(since) if since.as_secs() > LAST_SECOND => {
            Err(format!("must not be after 2262-04-11T23:47:16Z, found {}", quoted(text)))
        }
        Ok(since) => Ok(since),
    }
}

/// Removes the decimals of a second after the ninth. `None` if there are at most nine.
fn without_tenth_decimal(text: &str) -> Option<String> {
    let (head, tail) = text.split_once('.')?;
    let digits = tail.len() - tail.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    (digits > 9).then(|| format!("{head}.{}{}", &tail[..9], &tail[digits..]))
}

/// The parts of an instant with valid syntax. The values may be out of range.
struct InstantParts {
    date: [i16; 3],
    time: [i8; 3],
    nanosecond: i32,
    /// Minutes east of UTC.
    offset: i32,
}

impl InstantParts {
    /// Splits `YYYY-MM-DDTHH:MM:SS[.FFFFFFFFF](Z|+HH:MM|-HH:MM)`.
    fn split(text: &str) -> Option<InstantParts> {
        let (date, rest) = (text.get(..10)?, text.get(10..)?.strip_prefix(['T', 't'])?);
        let (time, rest) = (rest.get(..8)?, rest.get(8..)?);
        let (nanosecond, rest) = match rest.strip_prefix('.') {
            Some(rest) => {
                let fraction = rest.split_at(rest.bytes().take_while(u8::is_ascii_digit).count());
                (nanoseconds(fraction.0)?, fraction.1)
            }
            None => (0, rest),
        };
        let time = numbers(time, ':', [2, 2, 2])?.map(|part| i8::try_from(part).unwrap_or(i8::MAX));
        Some(InstantParts { date: numbers(date, '-', [4, 2, 2])?, time, nanosecond, offset: offset(rest)? })
    }

    /// Returns the instant. Fails if a part is out of range or the date does not exist.
    fn resolve(&self) -> Result<jiff::Timestamp, &'static str> {
        let ([year, month, day], [hour, minute, second]) = (self.date, self.time);
        if second == 60 {
            return Err("must not be a leap second");
        }
        let small = |part: i16| i8::try_from(part).unwrap_or(i8::MAX);
        let date = Date::new(year, small(month), small(day)).map_err(|_| "must be a date that exists")?;
        let time = DateTime::new(year, date.month(), date.day(), hour, minute, second, self.nanosecond)
            .map_err(|_| "must have a time of day from 00:00:00 to 23:59:59")?;
        let offset = Offset::from_seconds(self.offset * 60)
            .map_err(|_| "must have an offset from -23:59 to +23:59")?;
        offset.to_timestamp(time).map_err(|_| "must be from the year 1970 to 2262")
    }
}

/// Parses three numbers of fixed widths between separators.
fn numbers(text: &str, between: char, widths: [usize; 3]) -> Option<[i16; 3]> {
    let mut parts = text.split(between);
    let mut numbers = [0; 3];
    for (number, width) in numbers.iter_mut().zip(widths) {
        let part = parts.next().filter(|part| part.len() == width)?;
        *number = part.bytes().all(|b| b.is_ascii_digit()).then(|| part.parse().ok())??;
    }
    parts.next().is_none().then_some(numbers)
}

/// Parses one to nine digits after the decimal point.
fn nanoseconds(fraction: &str) -> Option<i32> {
    (1..=9).contains(&fraction.len()).then(|| format!("{fraction:0<9}").parse().ok())?
}

/// Parses `Z` or `±HH:MM` as minutes. An offset out of range becomes 100 hours, which [`InstantParts::resolve`] rejects.
fn offset(text: &str) -> Option<i32> {
    if text == "Z" || text == "z" {
        return Some(0);
    }
    let [_, hours, minutes] = numbers(&format!("00:{}", text.get(1..)?), ':', [2, 2, 2])?;
    let out_of_range = hours > 23 || minutes > 59;
    let size = if out_of_range { 100 * 60 } else { i32::from(hours) * 60 + i32::from(minutes) };
    match text.as_bytes().first()? {
        b'+' => Some(size),
        b'-' => Some(-size),
        _ => None,
    }
}

/// Suggests a valid instant for a date, a local time or another separator.
fn suggest_instant(text: &str) -> Option<String> {
    let text = text.trim();
    let candidates = [
        format!("{text}T00:00:00Z"),
        format!("{text}Z"),
        format!("{text}:00Z"),
        format!("{text}:00"),
        format!("{}:00{}", text.get(..16).unwrap_or_default(), text.get(16..).unwrap_or_default()),
        text.replacen(' ', "T", 1),
        format!("{}Z", text.replacen(' ', "T", 1)),
    ];
    candidates
        .into_iter()
        .find(|meant| InstantParts::split(meant).is_some_and(|parts| parts.resolve().is_ok()))
}
