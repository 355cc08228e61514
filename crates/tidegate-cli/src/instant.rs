//! Instants in text: parsed exactly, written short.
//!
//! An instant is RFC 3339 text or a JSON number of seconds since 1970. Both are parsed with integers, to the
//! nanosecond: a binary float cannot hold `60.0000001`. Finer digits are refused unless they are zeros.
//!
//! Recorded events mostly share the date and offset of the previous line. [`InstantReader`] and [`InstantWriter`]
//! cache dates, so that the calendar is consulted once per day. Validity is decided in one place, [`tidegate_config::text::parse_instant`];
//! the cache only repeats its results.

use std::time::Duration;

use tidegate::model::{Tick, Timestamp};
use tidegate_core::time::LAST_SECOND;

use crate::json;

/// Decimals of a nanosecond.
const NANO_DIGITS: i64 = 9;
/// End of `HH:MM:SS` in RFC 3339.
const TIME_END: usize = 19;
/// End of the date, where `T` begins.
const DATE_END: usize = 10;
/// Longest offset: `+08:00`.
const OFFSET_LEN: usize = 6;
const SECONDS_A_DAY: u64 = 86_400;

/// Parses instants.
#[derive(Debug, Default)]
pub(crate) struct InstantReader {
    /// The last valid date and offset, with its midnight in seconds since 1970.
    known: Option<Midnight>,
}

#[derive(Debug)]
struct Midnight {
    date: [u8; DATE_END],
    offset: Vec<u8>,
    second: i64,
}

impl InstantReader {
    /// Parses a JSON value.
    pub(crate) fn read(&mut self, value: &str) -> Result<Timestamp, String> {
        let since_epoch = match value.as_bytes().first() {
            Some(b'"') => self.read_text(value)?,
            Some(b'-' | b'0'..=b'9') => seconds(value)?,
            _ => {
                let found = json::kind(value);
                return Err(format!(
                    "must be RFC 3339 text or a number of seconds since 1970, found {found}"
                ));
            }
        };
        let after = || "must not be after 2262-04-11T23:47:16Z".to_owned();
        Tick::NANOSECOND.instant(since_epoch).ok_or_else(after)
    }

    /// Parses RFC 3339 text without quotes.
    pub(crate) fn read_plain(&mut self, text: &str) -> Result<Timestamp, String> {
        let mut since_epoch = self.recall(text.as_bytes());
        if since_epoch.is_none() {
            let instant = tidegate_config::text::parse_instant(text)?;
            self.known = Midnight::before(text.as_bytes(), instant);
            since_epoch = Some(instant);
        }
        let instant = since_epoch.and_then(|since_epoch| Tick::NANOSECOND.instant(since_epoch));
        Ok(instant.expect("parse_instant accepts no later second"))
    }

    fn read_text(&mut self, value: &str) -> Result<Duration, String> {
        let written = &value[1..value.len() - 1];
        if let Some(known) = self.recall(written.as_bytes()) {
            return Ok(known);
        }
        let text = json::text(value).ok_or("has an escape that is no character")?;
        let instant = tidegate_config::text::parse_instant(&text)?;
        self.known = if text == written { Midnight::before(written.as_bytes(), instant) } else { None };
        Ok(instant)
    }

    /// Computes the instant if date and offset are cached.
    fn recall(&self, text: &[u8]) -> Option<Duration> {
        let known = self.known.as_ref()?;
        let (date, rest) = text.split_at_checked(DATE_END)?;
        let (clock, rest) = rest.split_at_checked(TIME_END - DATE_END)?;
        let (fraction, offset) = rest.split_at_checked(rest.len().checked_sub(known.offset.len())?)?;
        if date != known.date || offset != known.offset {
            return None;
        }
        let nanos = match fraction {
            [] => 0,
            [b'.', digits @ ..] if (1..=9).contains(&digits.len()) => {
                number(digits)? * 10_u32.pow(9 - u32::try_from(digits.len()).ok()?)
            }
            _ => return None,
        };
        let second = known.second.checked_add(i64::from(second_of_day(clock)?))?;
        Some(Duration::new(u64::try_from(second).ok().filter(|&second| second < LAST_SECOND)?, nanos))
    }
}

impl Midnight {
    /// The midnight of a text with a known instant.
    fn before(text: &[u8], instant: Duration) -> Option<Midnight> {
        let utc = text.ends_with(b"Z") || text.ends_with(b"z");
        let offset = text.len().checked_sub(if utc { 1 } else { OFFSET_LEN })?;
        let of_day = second_of_day(text.get(DATE_END..TIME_END)?)?;
        Some(Midnight {
            date: text.get(..DATE_END)?.try_into().ok()?,
            offset: text.get(offset..)?.to_vec(),
            second: i64::try_from(instant.as_secs()).ok()? - i64::from(of_day),
        })
    }
}

/// `T23:59:59` as seconds of the day.
fn second_of_day(clock: &[u8]) -> Option<u32> {
    let &[b'T' | b't', h1, h2, b':', m1, m2, b':', s1, s2] = clock else { return None };
    let (hour, minute, second) = (number(&[h1, h2])?, number(&[m1, m2])?, number(&[s1, s2])?);
    (hour < 24 && minute < 60 && second < 60).then_some(hour * 3600 + minute * 60 + second)
}

/// Parses up to nine decimal digits.
fn number(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0_u32, |sum, b| b.is_ascii_digit().then(|| sum * 10 + u32::from(b - b'0')))
}

/// Parses a JSON number of seconds since 1970, exactly.
fn seconds(json: &str) -> Result<Duration, String> {
    let found = || shortened(json);
    let unsigned = json.strip_prefix('-').unwrap_or(json);
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let shift: i64 =
        exponent.parse().map_err(|_| format!("has an exponent out of range, found {}", found()))?;
    // Digits before this position are nanoseconds or coarser; later digits are finer.
    let position =
        shift.saturating_add(i64::try_from(whole.len()).unwrap_or(i64::MAX)).saturating_add(NANO_DIGITS);
    let mut nanos = 0_u64;
    let mut digits = whole.bytes().chain(fraction.bytes()).map(|b| u64::from(b - b'0'));
    let mut read = 0_i64;
    for digit in digits.by_ref().take(usize::try_from(position).unwrap_or(0)) {
        read += 1;
        nanos = nanos.checked_mul(10).and_then(|n| n.checked_add(digit)).ok_or_else(|| too_late(&found()))?;
    }
    if digits.any(|digit| digit != 0) {
        return Err(format!("must not be finer than a nanosecond (9 decimals), found {}", found()));
    }
    while nanos != 0 && read < position {
        read += 1;
        nanos = nanos.checked_mul(10).ok_or_else(|| too_late(&found()))?;
    }
    if nanos != 0 && json.starts_with('-') {
        return Err(format!("must not be before 1970, found {}", found()));
    }
    let instant = Duration::from_nanos(nanos);
    if instant.as_secs() > LAST_SECOND { Err(too_late(&found())) } else { Ok(instant) }
}

fn too_late(found: &str) -> String {
    format!("must not be after second {LAST_SECOND} (the year 2262), found {found}; is it in milliseconds?")
}

fn shortened(text: &str) -> String {
    const LONGEST: usize = 48;
    if text.len() <= LONGEST { text.to_owned() } else { format!("{}…", &text[..LONGEST]) }
}

/// Writes instants as RFC 3339 in UTC, with as many decimals as needed.
#[derive(Debug)]
pub(crate) struct InstantWriter {
    /// Formatted dates by day since 1970, in a direct-mapped cache.
    days: [(u64, [u8; DATE_END + 1]); InstantWriter::DAYS],
}

impl Default for InstantWriter {
    fn default() -> InstantWriter {
        InstantWriter { days: [(u64::MAX, *b"0000-00-00T"); InstantWriter::DAYS] }
    }
}

impl InstantWriter {
    const DAYS: usize = 64;

    /// Appends an instant without quotes.
    pub(crate) fn write(&mut self, at: Timestamp, out: &mut Vec<u8>) {
        let (seconds, nanos) = (at.ticks() / 1_000_000_000, at.ticks() % 1_000_000_000);
        let of_day = seconds % SECONDS_A_DAY;
        out.extend_from_slice(self.date(seconds / SECONDS_A_DAY));
        let mut clock = *b"00:00:00";
        for (position, part) in [(0, of_day / 3600), (3, of_day / 60 % 60), (6, of_day % 60)] {
            clock[position] = digit(part / 10);
            clock[position + 1] = digit(part % 10);
        }
        out.extend_from_slice(&clock);
        if nanos != 0 {
            fraction(nanos, out);
        }
        out.push(b'Z');
    }

    fn date(&mut self, day: u64) -> &[u8] {
        let slot = usize::try_from(day % InstantWriter::DAYS as u64).unwrap_or_default();
        if self.days[slot].0 != day {
            self.days[slot] = (day, date(day));
        }
        &self.days[slot].1
    }
}

/// `2026-01-20T`: the date of a day since 1970.
fn date(day: u64) -> [u8; DATE_END + 1] {
    let second = i64::try_from(day * SECONDS_A_DAY).unwrap_or_default();
    let midnight = jiff::Timestamp::from_second(second).unwrap_or_default();
    let text = midnight.strftime("%Y-%m-%dT").to_string();
    text.as_bytes().try_into().unwrap_or(*b"0000-00-00T")
}

/// Appends billionths as a decimal fraction without trailing zeros: `.5`.
pub(crate) fn fraction(mut nanos: u64, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(b".000000000");
    for position in (start + 1..out.len()).rev() {
        out[position] = digit(nanos % 10);
        nanos /= 10;
    }
    let zeros = out[start..].iter().rev().take_while(|&&b| b == b'0').count();
    out.truncate(out.len() - zeros);
}

fn digit(value: u64) -> u8 {
    b'0' + u8::try_from(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(json: &str, nanos: u64) {
        let mut reader = InstantReader::default();
        assert_eq!(reader.read(json), Ok(Timestamp::from_ticks(nanos)), "first reading of {json}");
        assert_eq!(reader.read(json), Ok(Timestamp::from_ticks(nanos)), "second reading of {json}");
    }

    #[track_caller]
    fn refuses(json: &str, why: &str) {
        let found = InstantReader::default().read(json).expect_err("an invalid instant");
        assert!(found.contains(why), "{json}: {found}");
    }

    #[test]
    fn number_is_parsed_to_the_nanosecond() {
        check("0", 0);
        check("-0.0", 0);
        check("60.0000001", 60_000_000_100);
        check("0.1", 100_000_000);
        check("1735660799.999999999", 1_735_660_799_999_999_999);
        check("1.500000000000", 1_500_000_000);
        check("1e3", 1_000_000_000_000);
        check("1.5E+1", 15_000_000_000);
        check("25e-1", 2_500_000_000);
        check("0e999999", 0);
        check("0.000000000000000000000e12", 0);
    }

    #[test]
    fn number_out_of_range_is_refused() {
        refuses("-1", "before 1970");
        refuses("-1e-9", "before 1970");
        refuses("0.0000000001", "finer than a nanosecond");
        refuses("1e-10", "finer than a nanosecond");
        refuses("1e-99999999", "finer than a nanosecond");
        refuses("9223372037", "after");
        refuses("1735660799000", "milliseconds");
        refuses("1e99999999", "after");
        refuses("1e99999999999999999999", "exponent");
        refuses("null", "found null");
        refuses("[1]", "found a list");
    }

    #[test]
    fn text_is_parsed_with_and_without_cache() {
        check(r#""1970-01-01T00:00:00Z""#, 0);
        check(r#""1970-01-01T00:00:00.5+00:00""#, 500_000_000);
        check(r#""1970-01-01T08:00:00.000000001+08:00""#, 1);
        check(r#""1970-01-01T08:00:01\u005a""#, 28_801_000_000_000);
    }

    #[test]
    fn invalid_time_on_a_cached_date_is_refused() {
        let mut reader = InstantReader::default();
        reader.read(r#""1970-01-01T09:00:00+08:00""#).expect("valid");
        for (text, why) in [
            (r#""1970-01-01T23:59:60+08:00""#, "leap second"),
            (r#""1970-01-01T24:00:00+08:00""#, "time of day"),
            (r#""1970-01-01T07:59:59+08:00""#, "before 1970"),
            (r#""1970-01-01T09:00:00.+08:00""#, "offset"),
            (r#""1970-01-01T09:00:00.1234567891+08:00""#, "finer than a nanosecond"),
            (r#""1970-01-01T09:00:00""#, "offset"),
        ] {
            let found = reader.read(text).expect_err(text);
            assert!(found.contains(why), "{text}: {found}");
        }
    }

    #[test]
    fn instant_is_written_without_trailing_zeros() {
        let mut writer = InstantWriter::default();
        for (nanos, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (1, "1970-01-01T00:00:00.000000001Z"),
            (1_735_660_799_500_000_000, "2024-12-31T15:59:59.5Z"),
            (1_709_164_800_000_000_000, "2024-02-29T00:00:00Z"),
            (u64::MAX, "2554-07-21T23:34:33.709551615Z"),
        ] {
            let mut out = Vec::new();
            writer.write(Timestamp::from_ticks(nanos), &mut out);
            assert_eq!(String::from_utf8_lossy(&out), text);
        }
    }
}
