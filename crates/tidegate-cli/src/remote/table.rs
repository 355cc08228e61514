//! Columns for people: as wide as they need, two spaces apart, nothing behind the last one.

use std::ops::RangeInclusive;

/// The rows below their heads, each line with its end. Columns whose head begins with a space are numbers, and end in line.
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

/// Text that does nothing to a terminal but stand there.
pub(crate) fn harmless(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() { out.extend(letter.escape_default()) } else { out.push(letter) }
    }
    out
}

/// How many columns a text takes, as terminals do it with the scripts of East Asia and with pictures.
fn width_of(text: &str) -> usize {
    let is_wide = |letter: char| WIDE.iter().any(|wide| wide.contains(&letter));
    text.chars().map(|letter| if is_wide(letter) { 2 } else { 1 }).sum()
}

/// Letters that are two columns wide, roughly.
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
    fn columns_are_as_wide_as_they_need() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned);
        let rows = [row(["海", "5", "x"]), row(["login", "1000", ""])];
        assert_eq!(
            lines(["id", " limit", "what"], &rows),
            "id     limit  what\n海         5  x\nlogin   1000\n"
        );
    }

    #[test]
    fn nobody_elses_text_commands_a_terminal() {
        assert_eq!(harmless("ada\u{1b}[2J\n海"), "ada\\u{1b}[2J\\n海");
    }
}
