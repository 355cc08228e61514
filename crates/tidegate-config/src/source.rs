//! The text of a settings file, with line numbers, columns and excerpts for diagnostics.
//!
//! Positions are byte ranges. Lines and columns are computed only for reported positions. A line ends at LF, CR LF or a lone CR,
//! as in YAML. A column counts characters from 1.

use std::borrow::Cow;

use unicode_width::UnicodeWidthChar;

use crate::text::password_ranges;

/// The maximum size of a settings file in bytes.
pub const MAX_FILE_BYTES: usize = 64 << 20;

/// The maximum number of characters that an excerpt shows before and after a position.
const SHOWN_BEFORE: usize = 60;
const SHOWN_AFTER: usize = 60;

/// Characters that can end a YAML value inside a line.
const VALUE_DELIMITERS: [char; 12] = [',', '{', '}', '[', ']', '#', '"', '\'', ':', ' ', '\t', '@'];

/// A range of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceSpan {
    /// The first byte.
    pub start: usize,
    /// The byte after the last.
    pub end: usize,
}

impl SourceSpan {
    pub(crate) const START: SourceSpan = SourceSpan::at(0);

    /// An empty range before the byte `start`.
    pub(crate) const fn at(start: usize) -> SourceSpan {
        SourceSpan { start, end: start }
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.start == self.end
    }
}

/// A named text with the offsets of its lines.
pub struct ConfigSource<'a> {
    pub(crate) name: &'a str,
    pub(crate) text: &'a str,
    /// The offset of each line.
    line_starts: Vec<usize>,
}

impl<'a> ConfigSource<'a> {
    pub(crate) fn new(name: &'a str, text: &'a str) -> ConfigSource<'a> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let bytes = text.as_bytes();
        let ends_line = |&at: &usize| match bytes[at] {
            b'\n' => true,
            b'\r' => bytes.get(at + 1) != Some(&b'\n'),
            _ => false,
        };
        let line_starts =
            std::iter::once(0).chain((0..bytes.len()).filter(ends_line).map(|at| at + 1)).collect();
        ConfigSource { name, text, line_starts }
    }

    /// The line and the column of a position, both from 1.
    pub fn line_and_column(&self, span: SourceSpan) -> (usize, usize) {
        let line = self.line_index(span);
        let start = self.line_starts[line];
        (line + 1, self.text.get(start..span.start).map_or(0, |before| before.chars().count()) + 1)
    }

    /// The part of a line around a position.
    pub(crate) fn excerpt(&self, span: SourceSpan) -> SourceExcerpt {
        let line = self.line_index(span);
        let whole = self.line(line);
        let whole = &*mask_passwords(whole);
        let (before, after) =
            whole.split_at_checked(span.start.saturating_sub(self.line_starts[line])).unwrap_or((whole, ""));
        let first = before.char_indices().rev().take(SHOWN_BEFORE).last().map_or(before.len(), |(at, _)| at);
        let last = after.char_indices().nth(SHOWN_AFTER).map_or(after.len(), |(at, _)| at);

        let mut shown = TerminalText::default();
        if first > 0 {
            shown.push('…');
        }
        before[first..].chars().for_each(|letter| shown.push(letter));
        let caret = shown.width;
        let marked = (span.end - span.start).min(last);
        after[..last]
            .char_indices()
            .filter(|(at, _)| *at < marked)
            .for_each(|(_, letter)| shown.push(letter));
        let width = (shown.width - caret).max(1);
        after[..last]
            .char_indices()
            .filter(|(at, _)| *at >= marked)
            .for_each(|(_, letter)| shown.push(letter));
        if last < after.len() {
            shown.push('…');
        }
        SourceExcerpt { text: shown.text, caret, width }
    }

    /// The parts of passwords on the line of a position. YAML reads a password with a comma as two values, so each part counts.
    pub(crate) fn secrets(&self, span: SourceSpan) -> Vec<&'a str> {
        let line = self.line(self.line_index(span));
        let parts = password_ranges(line).into_iter().flat_map(|range| line[range].split(VALUE_DELIMITERS));
        parts.filter(|part| !part.is_empty()).collect()
    }

    fn line(&self, line: usize) -> &'a str {
        let end = self.line_starts.get(line + 1).copied().unwrap_or(self.text.len());
        self.text.get(self.line_starts[line]..end).unwrap_or("").trim_end_matches(['\n', '\r'])
    }

    fn line_index(&self, span: SourceSpan) -> usize {
        self.line_starts.partition_point(|start| *start <= span.start).saturating_sub(1)
    }
}

/// An excerpt of a line with the marked columns.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SourceExcerpt {
    /// The line, or the part around the position; `…` marks omitted text.
    pub text: String,
    /// The number of columns before the mark.
    pub caret: usize,
    /// The width of the mark in columns, at least 1.
    pub width: usize,
}

/// Replaces each byte of a password by a star, so that the other text keeps its columns.
fn mask_passwords(line: &str) -> Cow<'_, str> {
    let found = password_ranges(line);
    if found.is_empty() {
        return Cow::Borrowed(line);
    }
    let mut shown = line.to_owned();
    for range in found {
        let stars = "*".repeat(range.len());
        shown.replace_range(range, &stars);
    }
    Cow::Owned(shown)
}

/// Text for a terminal with its width. Tabs become four spaces; invisible characters become U+FFFD.
#[derive(Default)]
struct TerminalText {
    text: String,
    width: usize,
}

impl TerminalText {
    fn push(&mut self, letter: char) {
        // Bidirectional marks could make a line look like a different one.
        let is_direction_mark =
            matches!(letter, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        match letter.width() {
            _ if letter == '\t' => {
                self.text.push_str("    ");
                self.width += 4;
            }
            Some(width) if !is_direction_mark => {
                self.text.push(letter);
                self.width += width;
            }
            _ => {
                self.text.push('\u{fffd}');
                self.width += 1;
            }
        }
    }
}
