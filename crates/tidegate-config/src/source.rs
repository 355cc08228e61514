//! The bytes of a file as text with places: where a value stands, and what its line looks like.
//!
//! Places are byte ranges; lines and columns are worked out only for what is reported. A line ends at LF, CR LF
//! or a lone CR, as YAML has it, and a column counts characters from 1.

use std::borrow::Cow;

use unicode_width::UnicodeWidthChar;

use crate::text::passwords;

/// The largest file that is read.
pub const LARGEST_FILE: usize = 64 << 20;

/// How many characters of a line are shown before and after the place.
const SHOWN_BEFORE: usize = 60;
const SHOWN_AFTER: usize = 60;

/// Where YAML may end a value inside a line.
const SPLITS: [char; 12] = [',', '{', '}', '[', ']', '#', '"', '\'', ':', ' ', '\t', '@'];

/// A range of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceSpan {
    /// The first byte.
    pub start: usize,
    /// The byte behind the last.
    pub end: usize,
}

impl SourceSpan {
    pub(crate) const START: SourceSpan = SourceSpan::at(0);

    /// Between two bytes.
    pub(crate) const fn at(start: usize) -> SourceSpan {
        SourceSpan { start, end: start }
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.start == self.end
    }
}

/// A named text and where its lines begin.
pub struct ConfigSource<'a> {
    pub(crate) name: &'a str,
    pub(crate) text: &'a str,
    lines: Vec<usize>,
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
        let lines = std::iter::once(0).chain((0..bytes.len()).filter(ends_line).map(|at| at + 1)).collect();
        ConfigSource { name, text, lines }
    }

    /// The line and the column of a place, both from 1.
    pub fn line_and_column(&self, span: SourceSpan) -> (usize, usize) {
        let line = self.line_index(span);
        let start = self.lines[line];
        (line + 1, self.text.get(start..span.start).map_or(0, |before| before.chars().count()) + 1)
    }

    /// The part of the line around a place.
    pub(crate) fn excerpt(&self, span: SourceSpan) -> SourceExcerpt {
        let line = self.line_index(span);
        let whole = self.line(line);
        let whole = &*starred(whole);
        let (before, after) =
            whole.split_at_checked(span.start.saturating_sub(self.lines[line])).unwrap_or((whole, ""));
        let first = before.char_indices().rev().take(SHOWN_BEFORE).last().map_or(before.len(), |(at, _)| at);
        let last = after.char_indices().nth(SHOWN_AFTER).map_or(after.len(), |(at, _)| at);

        let mut shown = Shown::default();
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

    /// Parts of passwords on the line of a place, as they may have been read: a password with a comma is two values to YAML.
    pub(crate) fn secrets(&self, span: SourceSpan) -> Vec<&'a str> {
        let line = self.line(self.line_index(span));
        let parts = passwords(line).into_iter().flat_map(|range| line[range].split(SPLITS));
        parts.filter(|part| !part.is_empty()).collect()
    }

    fn line(&self, line: usize) -> &'a str {
        let end = self.lines.get(line + 1).copied().unwrap_or(self.text.len());
        self.text.get(self.lines[line]..end).unwrap_or("").trim_end_matches(['\n', '\r'])
    }

    fn line_index(&self, span: SourceSpan) -> usize {
        self.lines.partition_point(|start| *start <= span.start).saturating_sub(1)
    }
}

/// A line of the file, cut to a readable width, and the part of it that is meant.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SourceExcerpt {
    /// The line, or the part of it around the place; `…` stands for what was cut.
    pub text: String,
    /// How many columns of the text are before the mark.
    pub caret: usize,
    /// How many columns the mark has, at least 1.
    pub width: usize,
}

/// A line with a star for every byte of a password, so that all else stays in its column.
fn starred(line: &str) -> Cow<'_, str> {
    let found = passwords(line);
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

/// Text for a terminal: tabs are spaces, what cannot be seen is made visible, and its width is known.
#[derive(Default)]
struct Shown {
    text: String,
    width: usize,
}

impl Shown {
    fn push(&mut self, letter: char) {
        // Marks that turn the direction of text could make a line look like another one.
        let turns =
            matches!(letter, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        match letter.width() {
            _ if letter == '\t' => {
                self.text.push_str("    ");
                self.width += 4;
            }
            Some(width) if !turns => {
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
