//! Durations and rates: `10m`, `100/60s`.

use std::time::Duration;

use tidegate_core::Capacity;
use tidegate_core::time::{DURATION_UNITS, format_duration};

use super::number::{parse_capacity, scale_decimal};
use super::quote::quoted;

/// Parses a duration: `500ms`, `15s`, `10m`, `24h`, `7d`.
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
        let advice = suggest_duration(text).map(|meant| format!("; write {meant}")).unwrap_or_default();
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

/// Parses a rate such as `100/60s`, at most 100 in every 60 seconds. A count of `-1` is unlimited; `0` refuses everything.
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

/// Suggests a valid duration for a number without a unit, a sum, a fraction or another spelling.
fn suggest_duration(text: &str) -> Option<String> {
    let text = text.trim().to_ascii_lowercase();
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        // Zero is rarely allowed, so it is not suggested.
        let is_nonzero = text.bytes().any(|digit| digit != b'0');
        return (text.len() < 20 && is_nonzero).then(|| format!("{text}s"));
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
        milliseconds = milliseconds.checked_add(scale_decimal(number, scale)?)?;
        rest = after.trim_start();
    }
    (milliseconds > 0).then(|| format_duration(Duration::from_millis(milliseconds)))
}
