//! Rust as a list of words: identifiers, numbers and single signs, without comments, strings and characters.
//!
//! Rules about code must not trip over prose, and must not be fooled by line breaks, so they look at words. This is
//! not a parser and does not want to be one; it knows just enough to tell where text begins and ends.

/// A word of code and the line it is on, from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) line: usize,
    pub(super) text: &'a str,
}

/// The words of a source file.
pub(super) fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < source.len() {
        let rest = &source[at..];
        let (length, is_code) = piece(rest);
        let text = &rest[..length];
        if is_code {
            tokens.push(Token { line, text });
        }
        line += text.matches('\n').count();
        at += length;
    }
    tokens
}

/// How long the first piece of the text is, and whether it is a word of code.
fn piece(rest: &str) -> (usize, bool) {
    let first = rest.chars().next().expect("there is some text left");
    if rest.starts_with("//") {
        (rest.find('\n').unwrap_or(rest.len()), false)
    } else if rest.starts_with("/*") {
        (block_comment(rest), false)
    } else if let Some(length) = raw_string(rest) {
        (length, false)
    } else if let Some(prefix) = ["\"", "b\"", "c\""].iter().find(|prefix| rest.starts_with(**prefix)) {
        (quoted(rest, prefix.len(), b'"'), false)
    } else if first == '\'' || rest.starts_with("b'") {
        character_or_lifetime(rest)
    } else if is_word(first) {
        (rest.find(|letter| !is_word(letter)).unwrap_or(rest.len()), true)
    } else {
        (first.len_utf8(), !first.is_whitespace())
    }
}

fn is_word(letter: char) -> bool {
    letter == '_' || letter.is_alphanumeric()
}

/// The length of a block comment; they nest.
fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    while at < rest.len() {
        let here = &rest.as_bytes()[at..];
        if here.starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if here.starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

/// The length of `r"…"`, `r#"…"#`, `br"…"` and their like, if the text begins with one.
fn raw_string(rest: &str) -> Option<usize> {
    let after =
        rest.strip_prefix("br").or_else(|| rest.strip_prefix("cr")).or_else(|| rest.strip_prefix('r'))?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    let body = after[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let start = rest.len() - body.len();
    Some(body.find(&close).map_or(rest.len(), |end| start + end + close.len()))
}

/// The length of text in quotes, the opening `prefix` bytes included.
fn quoted(rest: &str, prefix: usize, quote: u8) -> usize {
    let bytes = rest.as_bytes();
    let mut at = prefix;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// `'a'` is text, `'a` is a lifetime, whose sign is a word by itself.
fn character_or_lifetime(rest: &str) -> (usize, bool) {
    let prefix = if rest.starts_with('b') { 2 } else { 1 };
    let mut letters = rest[prefix..].chars();
    match (letters.next(), letters.next()) {
        (Some('\\'), _) | (Some(_), Some('\'')) => (quoted(rest, prefix, b'\''), false),
        _ => (1, true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> Vec<&str> {
        tokens(source).into_iter().map(|token| token.text).collect()
    }

    #[test]
    fn comments_are_not_code() {
        assert_eq!(words("a // b\nc /* d /* e */ f */ g /// h"), ["a", "c", "g"]);
    }

    #[test]
    fn strings_and_characters_are_not_code() {
        assert_eq!(words(r#"a "b \" c" d b"e" 'f' '\'' b'g' h"#), ["a", "d", "h"]);
        assert_eq!(words("a r#\"b \" c\"# d br\"e\" f"), ["a", "d", "f"]);
    }

    #[test]
    fn lifetimes_are() {
        assert_eq!(words("&'a str"), ["&", "'", "a", "str"]);
        assert_eq!(words("<'_>"), ["<", "'", "_", ">"]);
    }

    #[test]
    fn lines_are_counted_through_everything() {
        let tokens = tokens("/*\n*/ a \"\n\" // x\nb");
        assert_eq!(tokens, [Token { line: 2, text: "a" }, Token { line: 4, text: "b" }]);
    }

    #[test]
    fn a_word_that_begins_like_a_string_is_a_word() {
        assert_eq!(words("row r#type b c"), ["row", "r", "#", "type", "b", "c"]);
    }
}
