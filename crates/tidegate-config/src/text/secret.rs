//! Passwords, wherever people put them: found and struck out before anything is repeated.
//!
//! ```text
//!    postgres://app:secret@db/limits        host=db password=secret
//!        kind   user└─────┘last @                        └─────┘
//! ```
//!
//! What is mistyped is repeated to whoever typed it, in a terminal, a log or a bug report; so this looks for passwords in what is *not* a
//! URL yet. It rather hides too much than too little: from the first `:` behind the user to the last `@` of the text.

use std::ops::Range;

/// What stands for a password.
const STRUCK: &str = "***";

/// The beginning of the kinds that are known to have a user and a password behind them, even without `//`.
const KIND: &str = "postgre";

/// The text with every password in it struck out.
///
/// ```
/// use tidegate_config::text::without_passwords;
///
/// assert_eq!(without_passwords("postgre:/app:secret@db/limits"), "postgre:/app:***@db/limits");
/// assert_eq!(without_passwords("host=db password=secret user=app"), "host=db password=*** user=app");
/// assert_eq!(without_passwords("user:alice@example.com"), "user:alice@example.com", "nothing of a URL");
/// ```
pub fn without_passwords(text: &str) -> String {
    struck_out(text, &passwords(text))
}

/// The same for a text that is known to be meant as the name of a store, even if nothing in it looks like one.
pub fn without_store_passwords(text: &str) -> String {
    let mut found = passwords(text);
    if found.is_empty() {
        found.extend(password_of_anything(text));
    }
    struck_out(text, &found)
}

/// Where the passwords of a text are, in order.
pub(crate) fn passwords(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let in_url = password_of_url(line);
        let named = named_passwords(line);
        let apart = |range: &Range<usize>| {
            in_url.as_ref().is_none_or(|url| range.end <= url.start || range.start >= url.end)
        };
        let mut ranges: Vec<Range<usize>> =
            named.into_iter().filter(apart).chain(in_url.clone()).filter(|range| !range.is_empty()).collect();
        ranges.sort_by_key(|range| range.start);
        found.extend(ranges.into_iter().map(|range| range.start + start..range.end + start));
        start += line.len();
    }
    found
}

fn struck_out(text: &str, ranges: &[Range<usize>]) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut from = 0;
    for range in ranges {
        shown.push_str(&text[from..range.start]);
        shown.push_str(STRUCK);
        from = range.end;
    }
    shown.push_str(&text[from..]);
    shown
}

/// What stands between the user and the last `@`; or, if there is none, behind the user where a port would be a number.
fn password_of_url(line: &str) -> Option<Range<usize>> {
    let Some(end) = line.rfind('@') else { return password_without_end(line) };
    let head = &line[..end];
    let user = user_of(head)?;
    let colon = head[user..].find(':')?;
    Some(user + colon + 1..end)
}

/// Where the user of a URL begins.
fn user_of(head: &str) -> Option<usize> {
    let slashes = || head.match_indices("://").map(|(at, slashes)| at + slashes.len());
    slashes()
        .find(|start| has_user(&head[*start..]))
        .or_else(|| behind_kind(head))
        .or_else(|| slashes().next())
}

/// Whether a user with a `:` comes next.
fn has_user(text: &str) -> bool {
    let ends = |letter: char| letter == ':' || letter == '\'' || letter == '"' || letter.is_whitespace();
    text.find(ends).is_some_and(|at| text[at..].starts_with(':'))
}

/// What is behind `postgres:` and what looks like it, and behind its slashes.
fn behind_kind(head: &str) -> Option<usize> {
    let lower = head.to_ascii_lowercase();
    lower.match_indices(KIND).find_map(|(at, _)| {
        let kind = at + lower[at..].bytes().take_while(u8::is_ascii_alphanumeric).count();
        let rest = lower[kind..].strip_prefix(':')?;
        Some(head.len() - rest.trim_start_matches('/').len())
    })
}

/// A URL that was cut before its `@`: a number is a port, and anything else a password.
fn password_without_end(line: &str) -> Option<Range<usize>> {
    let user = behind_kind(line)?;
    let rest = &line[user..];
    let start =
        user + rest.find([':', '[', '/', '\'', '"', ' ']).filter(|at| rest[*at..].starts_with(':'))? + 1;
    let behind = &line[start..];
    let port = behind.trim_start_matches(|letter: char| letter.is_ascii_digit());
    let is_port = port.is_empty() || port.starts_with(['/', '?', ',', '\'', '"', ' ', '}', '\n', '\r']);
    (!is_port).then(|| start..start + kept_end(behind.trim_end()))
}

/// The `@` and the `:` of any text at all.
fn password_of_anything(text: &str) -> Option<Range<usize>> {
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
        let fresh = range.start >= end;
        end = end.max(range.end);
        fresh
    });
    found
}

/// Where a value ends: at its quote, or before the next blank.
fn value_end(value: &str, in_query: bool) -> usize {
    if let Some(quote) = value.chars().next().filter(|first| matches!(first, '\'' | '"')) {
        let closed = value[1..].rfind(quote).map(|at| at + 2);
        return closed.unwrap_or(value.trim_end().len());
    }
    let end = value.find(|letter: char| letter.is_whitespace() || (in_query && letter == '&'));
    kept_end(&value[..end.unwrap_or(value.len())])
}

/// What is left without the signs that close what is around it.
fn kept_end(value: &str) -> usize {
    value.trim_end_matches(['\'', '"', '}', ']', ')', ',', ';']).len()
}
