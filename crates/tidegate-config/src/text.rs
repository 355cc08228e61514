//! Numbers and times as people write them, on the command line and in files.
//!
//! One grammar for every door: a duration is one whole number and one unit, a rate is a count over a duration, an
//! instant is RFC 3339 with its offset, a size is one whole number and one unit that is a power of 1024, an address has its
//! port. Each parser answers a refusal with a sentence that quotes what was
//! written and shows what is allowed, so that callers need only say where.
//!
//! Refused on purpose: fractions (`1.5h` is `90m`), sums (`1h30m`), thousands separators, a default unit, local
//! times without an offset, leap seconds, which a count of seconds since the epoch cannot name, sizes in `MB`, which
//! are one thing to some and another to others, and names of hosts, which may be many addresses or none.

mod address;
mod clock;
mod nearest;
mod secret;
mod size;

use std::time::Duration;

use jiff::civil::{Date, DateTime};
use jiff::tz::Offset;
use tidegate_core::Capacity;
use tidegate_core::time::{DURATION_UNITS, LAST_SECOND, format_duration};

pub use address::parse_address;
pub use clock::{TimeOfDay, parse_clock};
pub(crate) use nearest::folded;
pub use nearest::{did_you_mean, nearest, suggestion};
pub(crate) use secret::passwords;
pub use secret::{without_passwords, without_store_passwords};
pub use size::parse_size;
pub(crate) use size::shown_size;

/// A duration: `500ms`, `15s`, `10m`, `24h`, `7d`.
///
/// ```
/// # use std::time::Duration;
/// assert_eq!(tidegate_config::text::parse_duration("10m"), Ok(Duration::from_secs(600)));
/// assert!(tidegate_config::text::parse_duration("1h30m").unwrap_err().ends_with("write 90m"));
/// ```
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let (digits, unit) = text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
    let scale = DURATION_UNITS.iter().find(|(name, _)| *name == unit).map(|(_, scale)| *scale);
    let (Some(scale), false) = (scale, digits.is_empty()) else {
        let advice = duration_meant(text).map(|meant| format!("; write {meant}")).unwrap_or_default();
        return Err(format!(
            "must be a whole number and one unit such as 500ms, 15s, 10m, 24h or 7d, found {}{advice}",
            quoted(text)
        ));
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|count| count.checked_mul(scale))
        .map(Duration::from_millis)
        .ok_or_else(|| {
            format!("is longer than can be counted, found {}; the longest is 36525d", quoted(text))
        })
}

/// A rate: `100/60s`, at most 100 in every 60 seconds; `-1` counts without refusing, `0` refuses everything.
///
/// ```
/// # use std::time::Duration;
/// # use tidegate_core::Capacity;
/// let rate = tidegate_config::text::parse_rate("100/60s");
/// assert_eq!(rate, Ok((Capacity::AtMost(100), Duration::from_secs(60))));
/// ```
pub fn parse_rate(text: &str) -> Result<(Capacity, Duration), String> {
    let Some((count, window)) = text.split_once('/') else {
        return Err(format!("must be COUNT/DURATION such as 100/60s, found {}", quoted(text)));
    };
    let in_rate = |part: &str, why: String| format!("the {part} of the rate {} {why}", quoted(text));
    let capacity = parse_capacity(count).map_err(|why| in_rate("count", why))?;
    let window = parse_duration(window).map_err(|why| in_rate("duration", why))?;
    if window.is_zero() {
        return Err(in_rate("duration", "must be at least 1ms".to_owned()));
    }
    Ok((capacity, window))
}

/// A limit: `-1`, `0`, or a whole number above.
pub fn parse_capacity(text: &str) -> Result<Capacity, String> {
    let below = text.strip_prefix('-').is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_digit()));
    match parse_whole(text) {
        Ok(-1) => Ok(Capacity::Unlimited),
        Ok(limit @ 0..) => Ok(Capacity::AtMost(limit.unsigned_abs())),
        Err(why) if !below => Err(why),
        _ => Err(format!(
            "must be -1 (count, never refuse), 0 (refuse everything) or a whole number above, found {}",
            shortened(text)
        )),
    }
}

/// A number with up to nine places behind its point, such as `0.9` or `36.5`, in billionths.
pub fn parse_decimal(text: &str) -> Result<u64, String> {
    const PLACES: usize = 9;
    let refuse = || format!("must be a number such as 30 or 0.9, found {}", quoted(text));
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    if !is_number(whole) || !is_number(part) {
        return Err(refuse());
    }
    if part.len() > PLACES {
        return Err(format!("must have at most {PLACES} places behind its point, found {}", quoted(text)));
    }
    let part: u64 = format!("{part:0<PLACES$}").parse().map_err(|_| refuse())?;
    let whole: u64 = whole.parse().map_err(|_| refuse())?;
    let number = whole.checked_mul(1_000_000_000).and_then(|whole| whole.checked_add(part));
    number.ok_or_else(|| format!("is too large: {}", quoted(text)))
}

/// A number of billionths, with as many places behind its point as it needs.
pub fn shown_decimal(billionths: i128) -> String {
    let sign = if billionths < 0 { "-" } else { "" };
    let (whole, part) =
        (billionths.unsigned_abs() / 1_000_000_000, billionths.unsigned_abs() % 1_000_000_000);
    let shown = format!("{sign}{whole}.{part:09}");
    shown.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A whole number in decimal digits, in the range of a signed 64-bit integer.
pub fn parse_whole(text: &str) -> Result<i64, String> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let decimal = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    if decimal && (digits == "0" || !digits.starts_with('0')) {
        let bound = if text.starts_with('-') { ("least", i64::MIN) } else { ("most", i64::MAX) };
        return text
            .parse()
            .map_err(|_| format!("must be at {} {}, found {}", bound.0, bound.1, shortened(text)));
    }
    Err(format!("must be a whole number, {}", not_whole(text, digits)))
}

/// An instant since the epoch from RFC 3339 with an offset: `2026-01-20T00:00:00+08:00` or `2026-01-19T16:00:00Z`.
///
/// ```
/// # use std::time::Duration;
/// assert_eq!(tidegate_config::text::parse_instant("1970-01-01T01:00:00.5+01:00"), Ok(Duration::from_millis(500)));
/// ```
pub fn parse_instant(text: &str) -> Result<Duration, String> {
    let Some(written) = Written::split(text) else {
        if let Some(coarser) = without_tenth_decimal(text).filter(|coarser| Written::split(coarser).is_some())
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
            instant_meant(text).map(|meant| format!("; write {meant}")).unwrap_or_default(),
        ));
    };
    let instant = written.resolve().map_err(|why| match written.time {
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

/// An instant without the decimals of its second beyond the ninth; `None` if it has no more than that.
fn without_tenth_decimal(text: &str) -> Option<String> {
    let (head, tail) = text.split_once('.')?;
    let digits = tail.len() - tail.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    (digits > 9).then(|| format!("{head}.{}{}", &tail[..9], &tail[digits..]))
}

/// A value as messages show it: in quotes, on one line, not too long.
pub fn quoted(text: &str) -> String {
    format!("'{}'", shortened(text))
}

/// The same without the quotes.
pub(crate) fn shortened(text: &str) -> String {
    const LONGEST: usize = 48;
    let mut shown = String::new();
    for (count, letter) in without_passwords(text).chars().enumerate() {
        if count == LONGEST {
            shown.push('…');
            break;
        }
        match letter {
            '\'' | '"' | '\\' => shown.push(letter),
            _ => shown.extend(letter.escape_debug()),
        }
    }
    shown
}

/// The parts of an instant that has the right form.
struct Written {
    date: [i16; 3],
    time: [i8; 3],
    nanosecond: i32,
    /// In minutes east of UTC.
    offset: i32,
}

impl Written {
    /// Reads `YYYY-MM-DDTHH:MM:SS[.FFFFFFFFF](Z|+HH:MM|-HH:MM)`.
    fn split(text: &str) -> Option<Written> {
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
        Some(Written { date: numbers(date, '-', [4, 2, 2])?, time, nanosecond, offset: offset(rest)? })
    }

    /// The instant, if the calendar and the clock have it.
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

/// Numbers of fixed widths between separators.
fn numbers(text: &str, between: char, widths: [usize; 3]) -> Option<[i16; 3]> {
    let mut parts = text.split(between);
    let mut numbers = [0; 3];
    for (number, width) in numbers.iter_mut().zip(widths) {
        let part = parts.next().filter(|part| part.len() == width)?;
        *number = part.bytes().all(|b| b.is_ascii_digit()).then(|| part.parse().ok())??;
    }
    parts.next().is_none().then_some(numbers)
}

/// Up to nine digits after the point.
fn nanoseconds(fraction: &str) -> Option<i32> {
    (1..=9).contains(&fraction.len()).then(|| format!("{fraction:0<9}").parse().ok())?
}

/// `Z` or `±HH:MM`, in minutes. An hour above 23 is kept, to be refused with a reason.
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

// What somebody probably meant.

/// The duration in our grammar that a number without a unit, a sum, a fraction or another spelling stands for.
fn duration_meant(text: &str) -> Option<String> {
    let text = text.trim().to_ascii_lowercase();
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        // Nothing at all is seldom what is allowed.
        let is_something = text.bytes().any(|digit| digit != b'0');
        return (text.len() < 20 && is_something).then(|| format!("{text}s"));
    }
    let mut rest = text.as_str();
    let mut milliseconds = 0_u64;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
        let (number, after) = rest.split_at(digits);
        let letters = after.trim_start();
        let (unit, after) = letters.split_at(letters.bytes().take_while(u8::is_ascii_lowercase).count());
        let scale = match unit {
            "" if number.len() == text.len() => 1000,
            "ms" | "msec" | "msecs" | "millis" | "millisecond" | "milliseconds" => 1,
            "s" | "sec" | "secs" | "second" | "seconds" => 1000,
            "m" | "min" | "mins" | "minute" | "minutes" => 60_000,
            "h" | "hr" | "hrs" | "hour" | "hours" => 3_600_000,
            "d" | "day" | "days" => 24 * 3_600_000,
            "w" | "week" | "weeks" => 7 * 24 * 3_600_000,
            _ => return None,
        };
        milliseconds = milliseconds.checked_add(scaled(number, scale)?)?;
        rest = after.trim_start();
    }
    (milliseconds > 0).then(|| format_duration(Duration::from_millis(milliseconds)))
}

/// A decimal number times a scale, if that is whole.
fn scaled(number: &str, scale: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let tenths = 10_u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let digits: u64 = format!("{whole}{fraction}").parse().ok()?;
    let product = digits.checked_mul(scale)?;
    product.is_multiple_of(tenths).then_some(product / tenths)
}

/// Why a text is no whole number, and what it may have been meant to be.
fn not_whole(text: &str, digits: &str) -> String {
    let found = shortened(text);
    let without: String = text.chars().filter(|c| !matches!(c, '_' | ',' | ' ' | '\'')).collect();
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if text.is_empty() {
        "found nothing".to_owned()
    } else if is_digits(digits) {
        format!("found {found}; write it without leading zeros")
    } else if without.len() < text.len() && is_digits(&without) {
        format!("found '{found}'; write {} without separators", shortened(&without))
    } else if digits.parse::<f64>().is_ok_and(f64::is_finite) {
        let meant = exponent_meant(text).map(|meant| format!("; write {meant}")).unwrap_or_default();
        format!("found {found}, which has a fraction or an exponent{meant}")
    } else if ["unlimited", "infinite", "infinity", "inf", ".inf", "none", "never"].contains(&digits) {
        format!("found '{found}'; for no limit write -1")
    } else {
        format!("found '{found}'")
    }
}

/// `1e3` is 1000, `5.0` is 5.
fn exponent_meant(text: &str) -> Option<u64> {
    let (number, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    scaled(number, 10_u64.checked_pow(exponent.parse().ok()?)?)
}

/// The instant in our grammar that a date, a local time or another separator stands for.
fn instant_meant(text: &str) -> Option<String> {
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
        .find(|meant| Written::split(meant).is_some_and(|written| written.resolve().is_ok()))
}
