//! Finds and masks passwords before a message quotes a text.
//!
//! ```text
//!    postgres://app:secret@db/limits        host=db password=secret
//!      scheme   user└─────┘last @                        └─────┘
//! ```
//!
//! Diagnostics quote invalid values, and terminals, logs and bug reports show them. A value may be a mistyped URL, so a URL parser
//! would miss its password. This module masks too much rather than too little: from the first `:` after the user to the last `@`
//! of the text.

use std::ops::Range;

/// The text that replaces a password.
const MASK: &str = "***";

/// The prefix of the schemes that a user and a password follow even without `//`.
const SCHEME_PREFIX: &str = "postgre";

/// Masks every password in a text.
///
/// ```
/// use tidegate_config::text::without_passwords;
///
/// assert_eq!(without_passwords("postgre:/app:secret@db/limits"), "postgre:/app:***@db/limits");
/// assert_eq!(without_passwords("host=db password=secret user=app"), "host=db password=*** user=app");
/// assert_eq!(without_passwords("user:alice@example.com"), "user:alice@example.com", "nothing of a URL");
/// ```
pub fn without_passwords(text: &str) -> String {
    mask_ranges(text, &password_ranges(text))
}

/// Masks passwords in a text that was given as a store URL, even if the text does not look like a URL.
pub fn without_store_passwords(text: &str) -> String {
    let mut found = password_ranges(text);
    if found.is_empty() {
        found.extend(password_of_any_text(text));
    }
    mask_ranges(text, &found)
}

/// The byte ranges of the passwords in a text, in order.
pub(crate) fn password_ranges(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let in_url = password_of_url(line);
        let named = named_passwords(line);
        let is_outside_url = |range: &Range<usize>| {
            in_url.as_ref().is_none_or(|url| range.end <= url.start || range.start >= url.end)
        };
        let mut ranges: Vec<Range<usize>> = named
            .into_iter()
            .filter(is_outside_url)
            .chain(in_url.clone())
            .filter(|range| !range.is_empty())
            .collect();
        ranges.sort_by_key(|range| range.start);
        found.extend(ranges.into_iter().map(|range| range.start + start..range.end + start));
        start += line.len();
    }
    found
}

fn mask_ranges(text: &str, ranges: &[Range<usize>]) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut from = 0;
    for range in ranges {
        shown.push_str(&text[from..range.start]);
        shown.push_str(MASK);
        from = range.end;
    }
    shown.push_str(&text[from..]);
    shown
}

/// The text between the user and the last `@`. Without an `@`, see [`password_of_cut_url`].
fn password_of_url(line: &str) -> Option<Range<usize>> {
    let Some(end) = line.rfind('@') else { return password_of_cut_url(line) };
    let head = &line[..end];
    let user = user_start(head)?;
    let colon = head[user..].find(':')?;
    Some(user + colon + 1..end)
}

/// The offset of the user in a URL.
fn user_start(head: &str) -> Option<usize> {
    let slashes = || head.match_indices("://").map(|(at, slashes)| at + slashes.len());
    slashes()
        .find(|start| starts_with_user(&head[*start..]))
        .or_else(|| scheme_end(head))
        .or_else(|| slashes().next())
}

/// Whether the text begins with a user and a `:`.
fn starts_with_user(text: &str) -> bool {
    let ends = |letter: char| letter == ':' || letter == '\'' || letter == '"' || letter.is_whitespace();
    text.find(ends).is_some_and(|at| text[at..].starts_with(':'))
}

/// The offset after `postgres:`, or a similar scheme, and its slashes.
fn scheme_end(head: &str) -> Option<usize> {
    let lower = head.to_ascii_lowercase();
    lower.match_indices(SCHEME_PREFIX).find_map(|(at, _)| {
        let end = at + lower[at..].bytes().take_while(u8::is_ascii_alphanumeric).count();
        let rest = lower[end..].strip_prefix(':')?;
        Some(head.len() - rest.trim_start_matches('/').len())
    })
}

/// The password of a URL that was cut before its `@`. A number after the `:` is a port; any other text is a password.
fn password_of_cut_url(line: &str) -> Option<Range<usize>> {
    let user = scheme_end(line)?;
    let rest = &line[user..];
    let start =
        user + rest.find([':', '[', '/', '\'', '"', ' ']).filter(|at| rest[*at..].starts_with(':'))? + 1;
    let behind = &line[start..];
    let port = behind.trim_start_matches(|letter: char| letter.is_ascii_digit());
    let is_port = port.is_empty() || port.starts_with(['/', '?', ',', '\'', '"', ' ', '}', '\n', '\r']);
    (!is_port).then(|| start..start + trimmed_len(behind.trim_end()))
}

/// The text between the second `:`, or else the first, and the last `@`.
fn password_of_any_text(text: &str) -> Option<Range<usize>> {
    let end = text.rfind('@')?;
    let head = &text[..end];
    let first = head.find(':')? + 1;
    let second = head[first..].find(':').map(|at| first + at + 1);
    Some(second.unwrap_or(first)..end)
}

/// The values of `password=…` and `password: …`.
fn named_passwords(line: &str) -> Vec<Range<usize>> {
    const NAME: &str = "password";
    let lower = line.to_ascii_lowercase();
    let in_query = line.contains('?');
    let value_of = |(at, name): (usize, &str)| {
        let rest = &line[at + name.len()..];
        let sign = rest.trim_start_matches(['"', '\'']).trim_start();
        let value = sign.strip_prefix('=').or_else(|| sign.strip_prefix(':'))?;
        let value = if sign.starts_with('=') { value } else { value.strip_prefix(char::is_whitespace)? };
        let value = value.trim_start();
        let start = line.len() - value.len();
        Some(start..start + value_end(value, in_query))
    };
    let mut found: Vec<Range<usize>> = lower.match_indices(NAME).filter_map(value_of).collect();
    let mut end = 0;
    found.retain(|range| {
        let is_new = range.start >= end;
        end = end.max(range.end);
        is_new
    });
    found
}

/// The length of a value: to its closing quote, or to the next whitespace.
fn value_end(value: &str, in_query: bool) -> usize {
    if let Some(quote) = value.chars().next().filter(|first| matches!(first, '\'' | '"')) {
        let closed = value[1..].rfind(quote).map(|at| at + 2);
        return closed.unwrap_or(value.trim_end().len());
    }
    let end = value.find(|letter: char| letter.is_whitespace() || (in_query && letter == '&'));
    trimmed_len(&value[..end.unwrap_or(value.len())])
}

/// The length of a value without the closing punctuation around it.
fn trimmed_len(value: &str) -> usize {
    value.trim_end_matches(['\'', '"', '}', ']', ')', ',', ';']).len()
}
