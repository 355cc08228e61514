//! Whole numbers, limits and decimal numbers: `-1`, `100`, `0.9`.

use tidegate_core::Capacity;

use super::quote::{quoted, shortened};

/// Parses a limit: `-1`, `0`, or a larger whole number.
pub fn parse_capacity(text: &str) -> Result<Capacity, String> {
    let is_negative_number =
        text.strip_prefix('-').is_some_and(|digits| digits.bytes().all(|b| b.is_ascii_digit()));
    match parse_whole(text) {
        Ok(-1) => Ok(Capacity::Unlimited),
        Ok(limit @ 0..) => Ok(Capacity::AtMost(limit.unsigned_abs())),
        Err(why) if !is_negative_number => Err(why),
        _ => Err(format!(
            "must be -1 (count, never refuse), 0 (refuse everything) or a whole number above, found {}",
            shortened(text)
        )),
    }
}

/// Parses a number with up to nine decimal places, such as `0.9` or `36.5`, in billionths.
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

/// Formats a number of billionths without trailing zeros.
pub fn format_decimal(billionths: i128) -> String {
    let sign = if billionths < 0 { "-" } else { "" };
    let (whole, part) =
        (billionths.unsigned_abs() / 1_000_000_000, billionths.unsigned_abs() % 1_000_000_000);
    let shown = format!("{sign}{whole}.{part:09}");
    shown.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Parses a whole number in decimal digits, in the range of a signed 64-bit integer.
pub fn parse_whole(text: &str) -> Result<i64, String> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let decimal = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    if decimal && (digits == "0" || !digits.starts_with('0')) {
        let bound = if text.starts_with('-') { ("least", i64::MIN) } else { ("most", i64::MAX) };
        return text
            .parse()
            .map_err(|_| format!("must be at {} {}, found {}", bound.0, bound.1, shortened(text)));
    }
    Err(format!("must be a whole number, {}", explain_not_whole(text, digits)))
}

/// Multiplies a decimal number by a scale. `None` if the product is not whole or too large.
pub(super) fn scale_decimal(number: &str, scale: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let tenths = 10_u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let digits: u64 = format!("{whole}{fraction}").parse().ok()?;
    let product = digits.checked_mul(scale)?;
    product.is_multiple_of(tenths).then_some(product / tenths)
}

/// Explains why a text is not a whole number and suggests a valid one.
fn explain_not_whole(text: &str, digits: &str) -> String {
    let found = shortened(text);
    let compact: String = text.chars().filter(|c| !matches!(c, '_' | ',' | ' ' | '\'')).collect();
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if text.is_empty() {
        "found nothing".to_owned()
    } else if is_digits(digits) {
        format!("found {found}; write it without leading zeros")
    } else if compact.len() < text.len() && is_digits(&compact) {
        format!("found '{found}'; write {} without separators", shortened(&compact))
    } else if digits.parse::<f64>().is_ok_and(f64::is_finite) {
        let meant = suggest_whole(text).map(|meant| format!("; write {meant}")).unwrap_or_default();
        format!("found {found}, which has a fraction or an exponent{meant}")
    } else if ["unlimited", "infinite", "infinity", "inf", ".inf", "none", "never"].contains(&digits) {
        format!("found '{found}'; for no limit write -1")
    } else {
        format!("found '{found}'")
    }
}

/// Suggests a whole number for an exponent or a zero fraction: `1e3` is 1000, `5.0` is 5.
fn suggest_whole(text: &str) -> Option<u64> {
    let (number, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    scale_decimal(number, 10_u64.checked_pow(exponent.parse().ok()?)?)
}
