//! A minimal Rust tokenizer: identifiers, numbers and punctuation, without comments, strings and character literals.
//!
//! Rules about code must not match prose and must not depend on line breaks, so they look at tokens. This is not a parser; it
//! only knows where comments and literals begin and end.

/// A token and its line, from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) line: usize,
    pub(super) text: &'a str,
}

/// The tokens of a source file.
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

/// The length of the first piece of the text, and whether it is a token.
fn piece(rest: &str) -> (usize, bool) {
    let first = rest.chars().next().expect("the caller passes non-empty text");
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

/// The length of a block comment. Block comments nest.
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

/// The length of a raw string (`r"…"`, `r#"…"#`, `br"…"`), if the text begins with one.
fn raw_string(rest: &str) -> Option<usize> {
    let after =
        rest.strip_prefix("br").or_else(|| rest.strip_prefix("cr")).or_else(|| rest.strip_prefix('r'))?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    let body = after[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let start = rest.len() - body.len();
    Some(body.find(&close).map_or(rest.len(), |end| start + end + close.len()))
}

/// The length of a quoted literal, including the opening `prefix` bytes.
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

/// `'a'` is a literal. `'a` is a lifetime, whose quote is a token of its own.
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
    fn comments_are_not_tokens() {
        assert_eq!(words("a // b\nc /* d /* e */ f */ g /// h"), ["a", "c", "g"]);
    }

    #[test]
    fn strings_and_characters_are_not_tokens() {
        assert_eq!(words(r#"a "b \" c" d b"e" 'f' '\'' b'g' h"#), ["a", "d", "h"]);
        assert_eq!(words("a r#\"b \" c\"# d br\"e\" f"), ["a", "d", "f"]);
    }

    #[test]
    fn lifetimes_are_tokens() {
        assert_eq!(words("&'a str"), ["&", "'", "a", "str"]);
        assert_eq!(words("<'_>"), ["<", "'", "_", ">"]);
    }

    #[test]
    fn lines_count_through_comments_and_strings() {
        let tokens = tokens("/*\n*/ a \"\n\" // x\nb");
        assert_eq!(tokens, [Token { line: 2, text: "a" }, Token { line: 4, text: "b" }]);
    }

    #[test]
    fn identifier_with_a_string_prefix_is_one_token() {
        assert_eq!(words("row r#type b c"), ["row", "r", "#", "type", "b", "c"]);
    }
}
