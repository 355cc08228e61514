//! Formatting of budget numbers and times: exact in JSON, short in text.
//!
//! Text is truncated after two decimals and never rounded up. So nothing looks used up that is not, and no limit
//! looks higher than it is.

use std::time::Duration;

use serde_json::value::RawValue;
use tidegate::budget::{Quota, Rate};
use tidegate::model::{Span, Timestamp};
use tidegate_config::text::format_decimal;
use tidegate_core::Zone;

use crate::instant::InstantWriter;

/// Billionths per hundredth.
const HUNDREDTH: i128 = 10_000_000;

/// 100 percent, in billionths.
const WHOLE: i128 = 100_000_000_000;

/// An exact JSON number.
pub(super) type JsonNumber = Box<RawValue>;

/// Billionths as a JSON number.
pub(super) fn json_number(billionths: i128) -> JsonNumber {
    RawValue::from_string(format_decimal(billionths)).expect("a decimal number is JSON")
}

/// A rate in percent.
pub(super) fn rate(rate: Rate) -> JsonNumber {
    json_number(rate.billionths().into())
}

/// A rate, capped at 100 percent.
pub(super) fn at_most_all(rate: Rate) -> Rate {
    rate.min(Rate::from_units(100))
}

/// A quota in percent-minutes.
pub(super) fn quota(quota: Quota) -> JsonNumber {
    json_number(quota.billionth_minutes())
}

/// A time in minutes.
pub(super) fn minutes(time: Duration) -> JsonNumber {
    json_number(billionths_of_minutes(time))
}

/// A time in billionths of a minute.
fn billionths_of_minutes(time: Duration) -> i128 {
    Rate::from_units(1).over(time).billionth_minutes()
}

/// The share of one quota in another, in billionths of a percent; `None` of zero.
pub(super) fn part(part: Quota, of: Quota) -> Option<i128> {
    // In minutes the product cannot overflow for any supported time.
    let (part, of) = (part.billionth_minutes(), of.billionth_minutes());
    (of > 0).then(|| part.saturating_mul(WHOLE) / of)
}

/// Billionths with two decimals: `27.74`.
pub(super) fn short(billionths: i128) -> String {
    format_decimal(billionths.div_euclid(HUNDREDTH) * HUNDREDTH)
}

/// `27.74 %`.
pub(super) fn short_rate(rate: Rate) -> String {
    format!("{} %", short(rate.billionths().into()))
}

/// `41010 %·min`.
pub(super) fn short_quota(quota: Quota) -> String {
    format!("{} %·min", short(quota.billionth_minutes()))
}

/// `1380 min`.
pub(super) fn short_minutes(time: Duration) -> String {
    format!("{} min", short(billionths_of_minutes(time)))
}

/// Local time with its offset: `2026-01-20T08:00:00+08:00`.
pub(super) fn instant(zone: &Zone, at: Timestamp) -> String {
    let (clock, offset) = wall(zone, at);
    let mut out = Vec::new();
    InstantWriter::default().write(clock, &mut out);
    let mut text = String::from_utf8_lossy(&out).into_owned();
    if offset != 0 {
        let (sign, minutes) = (if offset < 0 { '-' } else { '+' }, offset.unsigned_abs() / 60);
        text = format!("{}{sign}{:02}:{:02}", text.trim_end_matches('Z'), minutes / 60, minutes % 60);
    }
    text
}

/// Local time as if it were UTC, and its offset in seconds.
pub(super) fn wall(zone: &Zone, at: Timestamp) -> (Timestamp, i32) {
    let offset = zone.offset(at);
    let span = Span::from_ticks(u64::from(offset.unsigned_abs()) * 1_000_000_000);
    (if offset < 0 { at.minus(span) } else { at.plus(span) }, offset)
}

/// Two aligned columns of names and values.
pub(super) fn table(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let lines: Vec<_> = rows.iter().map(|(name, value)| format!("{name:width$}  {value}\n")).collect();
    lines.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_truncated_to_two_decimals() {
        assert_eq!(short(27_745_652_173), "27.74");
        assert_eq!(short(43_200_000_000_000), "43200");
        assert_eq!(short(999_999_999), "0.99");
        assert_eq!(short(-1), "-0.01");
    }

    #[test]
    fn instant_has_the_offset_of_its_zone() {
        let zone = |name| Zone::named(name).expect("a zone");
        let at = Timestamp::from_ticks(1_767_225_600_000_000_000);
        assert_eq!(instant(&Zone::UTC, at), "2026-01-01T00:00:00Z");
        assert_eq!(instant(&zone("Asia/Kolkata"), at), "2026-01-01T05:30:00+05:30");
        assert_eq!(instant(&zone("America/New_York"), at), "2025-12-31T19:00:00-05:00");
    }

    #[test]
    fn share_of_ten_years_does_not_overflow() {
        let decade = Rate::from_units(100).over(Duration::from_secs(3660 * 86_400));
        assert_eq!(part(decade, decade), Some(WHOLE));
        assert_eq!(part(Quota::ZERO, decade), Some(0));
        assert_eq!(part(decade, Quota::ZERO), None);
    }
}
