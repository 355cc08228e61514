//! Text tables: columns as wide as their content, two spaces apart.

use std::ops::RangeInclusive;

/// Formats rows below their headings. Columns whose heading begins with a space are right-aligned.
pub(crate) fn lines<const N: usize>(heads: [&str; N], rows: &[[String; N]]) -> String {
    let names = heads.map(|head| head.trim_start().to_owned());
    let all = || std::iter::once(&names).chain(rows);
    let mut out = String::new();
    let widths: [usize; N] =
        std::array::from_fn(|column| all().map(|row| width_of(&row[column])).max().unwrap_or(0));
    for row in all() {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            let padding = " ".repeat(width.saturating_sub(width_of(cell)));
            let gap = if column > 0 { "  " } else { "" };
            if heads[column].starts_with(' ') {
                line.extend([gap, &padding, cell]);
            } else {
                line.extend([gap, cell, &padding]);
            }
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// Text with escaped control characters.
pub(crate) fn harmless(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() { out.extend(letter.escape_default()) } else { out.push(letter) }
    }
    out
}

/// The width of a text on a terminal; East Asian characters and emoji take two columns.
fn width_of(text: &str) -> usize {
    let is_wide = |letter: char| WIDE.iter().any(|wide| wide.contains(&letter));
    text.chars().map(|letter| if is_wide(letter) { 2 } else { 1 }).sum()
}

/// Character ranges of width two, roughly.
const WIDE: [RangeInclusive<char>; 6] = [
    '\u{1100}'..='\u{115f}',
    '\u{2e80}'..='\u{a4cf}',
    '\u{ac00}'..='\u{d7a3}',
    '\u{f900}'..='\u{faff}',
    '\u{ff00}'..='\u{ff60}',
    '\u{1f300}'..='\u{3fffd}',
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_display_width() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned);
        let rows = [row(["海", "5", "x"]), row(["login", "1000", ""])];
        assert_eq!(
            lines(["id", " limit", "what"], &rows),
            "id     limit  what\n海         5  x\nlogin   1000\n"
        );
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(harmless("ada\u{1b}[2J\n海"), "ada\\u{1b}[2J\\n海");
    }
}
