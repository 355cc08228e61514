//! One-pass parser for the most frequent acquire body: one ask for a key.
//!
//! ```text
//!   {"limit_id":"login","limit_key":"ada"}      {"limit_id": "login", "limit_key": "ada", "count": 2}
//! ```
//!
//! Anything else (another field, an escape, a large or fractional number, a repeated field, malformed JSON) is left to the general parser,
//! which can report errors. So this parser accepts a subset of the general one and gives the same result.

use tidegate::model::Amount;

/// The most digits of a count.
const MAX_DIGITS: usize = 18;

/// One ask for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) struct CompactAcquireBody<'a> {
    pub(in crate::http) limit_id: &'a str,
    pub(in crate::http) limit_key: &'a str,
    pub(in crate::http) count: Amount,
}

/// Parses such a body; `None` if it has another form.
pub(in crate::http) fn read(body: &[u8]) -> Option<CompactAcquireBody<'_>> {
    let mut cursor = JsonCursor(body);
    let (mut limit_id, mut limit_key, mut count) = (None, None, None);
    cursor.expect(b'{')?;
    loop {
        let field = cursor.text()?;
        cursor.expect(b':')?;
        match field {
            "limit_id" if limit_id.is_none() => limit_id = Some(cursor.text()?),
            "limit_key" if limit_key.is_none() => limit_key = Some(cursor.text()?),
            "count" if count.is_none() => count = Some(cursor.number()?),
            _ => return None,
        }
        match cursor.next()? {
            b',' => {}
            b'}' => break,
            _ => return None,
        }
    }
    cursor.skip_blanks();
    let body = CompactAcquireBody { limit_id: limit_id?, limit_key: limit_key?, count: count.unwrap_or(1) };
    cursor.0.is_empty().then_some(body)
}

/// The unread rest of the body.
struct JsonCursor<'a>(&'a [u8]);

impl<'a> JsonCursor<'a> {
    fn skip_blanks(&mut self) {
        while let [b' ' | b'\t' | b'\n' | b'\r', rest @ ..] = self.0 {
            self.0 = rest;
        }
    }

    /// The next non-blank byte.
    #[inline]
    fn next(&mut self) -> Option<u8> {
        self.skip_blanks();
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    #[inline]
    fn expect(&mut self, wanted: u8) -> Option<()> {
        (self.next()? == wanted).then_some(())
    }

    /// A string without escapes.
    #[inline]
    fn text(&mut self) -> Option<&'a str> {
        self.expect(b'"')?;
        let end = self.0.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20))?;
        let (text, rest) = self.0.split_at(end);
        self.0 = rest.strip_prefix(b"\"")?;
        std::str::from_utf8(text).ok()
    }

    /// A non-negative integer in canonical form.
    fn number(&mut self) -> Option<Amount> {
        self.skip_blanks();
        let end = self.0.iter().position(|byte| !byte.is_ascii_digit())?;
        let (digits, rest) = self.0.split_at(end);
        self.0 = rest;
        if end > MAX_DIGITS {
            return None;
        }
        crate::resp::frame::parse_number(digits)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::http::wire::acquire::AcquireBody;

    #[track_caller]
    fn check(text: &str, expected: Option<(&str, &str, u64)>) {
        let expected =
            expected.map(|(limit_id, limit_key, count)| CompactAcquireBody { limit_id, limit_key, count });
        assert_eq!(read(text.as_bytes()), expected, "{text}");
    }

    #[test]
    fn common_bodies_are_parsed() {
        check(r#"{"limit_id":"login","limit_key":"ada"}"#, Some(("login", "ada", 1)));
        check(r#"{"limit_key":"ada","limit_id":"login"}"#, Some(("login", "ada", 1)));
        check(
            " {\t\"limit_id\" : \"l\" ,\n\"limit_key\": \"\u{e4}\", \"count\": 20 } \r\n",
            Some(("l", "\u{e4}", 20)),
        );
        check(r#"{"limit_id":"login","limit_key":"","count":0}"#, Some(("login", "", 0)));
    }

    #[test]
    fn other_bodies_are_left_to_the_general_parser() {
        for text in [
            "",
            "{}",
            "[]",
            r#"{"limit_id":"l"}"#,
            r#"{"limit_key":"a"}"#,
            r#"{"limit_id":"l","limit_key":null}"#,
            r#"{"limit_id":"l","limit_key":"a","limit_key":"b"}"#,
            r#"{"limit_id":"l","limit_key":"a","hold":true}"#,
            r#"{"limit_id":"l","limit_key":"a","count":null}"#,
            r#"{"limit_id":"l","limit_key":"a","count":01}"#,
            r#"{"limit_id":"l","limit_key":"a","count":-1}"#,
            r#"{"limit_id":"l","limit_key":"a","count":1.0}"#,
            r#"{"limit_id":"l","limit_key":"a","count":1e3}"#,
            r#"{"limit_id":"l","limit_key":"a","count":"1"}"#,
            r#"{"limit_id":"l","limit_key":"a","count":1000000000000000000}"#,
            r#"{"limit_id":"l","limit_key":"\u0061"}"#,
            "{\"limit_id\":\"l\",\"limit_key\":\"a\nb\"}",
            r#"{"limit_id":"l","limit_key":"a",}"#,
            r#"{"limit_id":"l","limit_key":"a"}x"#,
            r#"{"limit_id":"l","limit_key":"a""#,
            r#"{"limit_id":"l" "limit_key":"a"}"#,
        ] {
            check(text, None);
        }
        assert_eq!(read(b"{\"limit_id\":\"l\",\"limit_key\":\"\xff\"}"), None);
    }

    /// Valid and invalid bodies from random pieces.
    fn pieces() -> impl Strategy<Value = String> {
        let known = [
            "{",
            "}",
            ",",
            ":",
            " ",
            "\n",
            "\"limit_id\"",
            "\"limit_key\"",
            "\"count\"",
            "\"hold\"",
            "\"l\"",
            "\"\"",
            "1",
            "0",
            "07",
            "-1",
            "1.5",
            "null",
            "true",
            "\"a\\n\"",
            "\"\u{fc}\"",
            "[",
            "]",
            "18446744073709551616",
        ];
        let soup =
            prop::collection::vec(prop::sample::select(known.to_vec()), 0..16).prop_map(|it| it.concat());
        let fields = [
            "\"limit_id\":\"l\"",
            "\"limit_key\":\"k\"",
            "\"count\":3",
            "\"count\":03",
            "\"count\": 9 ",
            "\"limit_key\":\"\\\"\"",
            "\"ttl_ms\":1",
        ];
        let object = prop::collection::vec(prop::sample::select(fields.to_vec()), 0..5)
            .prop_map(|fields| format!("{{{}}}", fields.join(",")));
        prop_oneof![soup, object]
    }

    proptest! {
        #[test]
        fn accepted_bodies_agree_with_the_general_parser(text in pieces()) {
            if let Some(CompactAcquireBody { limit_id, limit_key, count }) = read(text.as_bytes()) {
                let body: AcquireBody<'_> = crate::http::wire::read(text.as_bytes()).expect("it reads it too");
                let asks = body.asks().expect("one ask");
                prop_assert_eq!(asks.len(), 1);
                prop_assert_eq!((asks[0].limit_id, asks[0].key, asks[0].count), (limit_id, Some(limit_key.as_bytes()), count));
                prop_assert!(body.request_id().is_none() && body.ttl().is_none());
                prop_assert!(body.max_wait().is_ok_and(|max_wait| max_wait.is_zero()));
                prop_assert_eq!(body.hold(), tidegate::model::Hold::No);
            }
        }
    }
}
