//! Memory sizes: `64MiB`.

use super::number::scale_decimal;
use super::quote::quoted;

/// The units with their number of bytes, in ascending order.
const UNITS: [(&str, u64); 5] =
    [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];

/// Parses a size in bytes: `4096B`, `512KiB`, `64MiB`, `1GiB`, `2TiB`.
///
/// ```
/// assert_eq!(tidegate_config::text::parse_size("64MiB"), Ok(64 << 20));
/// assert!(tidegate_config::text::parse_size("64MB").unwrap_err().ends_with("write 64MiB"));
/// ```
pub fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, unit) = text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
    let scale = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, scale)| *scale);
    let (Some(scale), false) = (scale, digits.is_empty()) else {
        let advice = suggest_size(text).map(|meant| format!("; write {meant}")).unwrap_or_default();
        return Err(format!(
            "must be a whole number and one unit such as 512KiB, 64MiB or 1GiB, found {}{advice}",
            quoted(text)
        ));
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|count| count.checked_mul(scale))
        .ok_or_else(|| format!("is more than can be counted, found {}", quoted(text)))
}

/// Formats a size in the largest unit of which it is a whole multiple.
pub(crate) fn format_size(bytes: u64) -> String {
    let fits = |scale: &u64| bytes.is_multiple_of(*scale);
    let (unit, scale) = UNITS.iter().rev().find(|(_, scale)| fits(scale)).unwrap_or(&UNITS[0]);
    format!("{}{unit}", bytes / scale)
}

/// Suggests a valid size for a fraction, a number without a unit or another spelling.
fn suggest_size(text: &str) -> Option<String> {
    let text = text.trim().to_ascii_lowercase();
    let (number, unit) =
        text.split_at(text.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count());
    let index = match unit.trim() {
        "" | "b" | "byte" | "bytes" => 0,
        "k" | "kb" | "kib" => 1,
        "m" | "mb" | "mib" => 2,
        "g" | "gb" | "gib" => 3,
        "t" | "tb" | "tib" => 4,
        _ => return None,
    };
    scale_decimal(number, UNITS[index].1).filter(|bytes| *bytes > 0).map(format_size)
}
