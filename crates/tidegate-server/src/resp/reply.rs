//! Encodes replies in RESP2 or RESP3.
//!
//! Everything is appended to one buffer. RESP3 has types for null, maps and verbatim text; in RESP2 these are a negative length, a
//! flat array and a bulk string.

use std::fmt::{self, Write};

/// The longest error text. Errors quote arguments, which may be long.
pub const MAX_ERROR_BYTES: usize = 512;

/// Array header and five integers, each with type byte, sign, nineteen digits and line end.
const MAX_FIVE_BYTES: usize = 4 + 5 * (1 + 20 + 2);

/// The protocol version of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RespVersion {
    /// The version of a new connection.
    #[default]
    Resp2,
    /// The version after `HELLO 3`.
    Resp3,
}

impl RespVersion {
    /// The version number.
    pub const fn number(self) -> i64 {
        match self {
            RespVersion::Resp2 => 2,
            RespVersion::Resp3 => 3,
        }
    }
}

/// Appends replies to a buffer.
#[derive(Debug)]
pub struct RespWriter<'o> {
    output: &'o mut Vec<u8>,
    protocol: RespVersion,
}

impl<'o> RespWriter<'o> {
    /// Appends to this buffer.
    pub fn new(output: &'o mut Vec<u8>, protocol: RespVersion) -> RespWriter<'o> {
        RespWriter { output, protocol }
    }

    /// A simple string such as `OK`, without line ends.
    pub fn simple(&mut self, word: &'static str) {
        self.line(b'+', word.as_bytes());
    }

    /// `-CODE text`. The text is reduced to one line.
    pub fn error(&mut self, code: &str, text: impl fmt::Display) {
        self.output.push(b'-');
        self.output.extend_from_slice(code.as_bytes());
        self.output.push(b' ');
        // Writing into memory fails only when the text is cut.
        let _ = write!(SingleLineText { output: self.output, remaining: MAX_ERROR_BYTES }, "{text}");
        self.end();
    }

    /// An integer.
    pub fn integer(&mut self, number: i64) {
        self.number_line(b':', number);
    }

    /// An array header and five integers, written at once: most replies.
    pub fn five(&mut self, head: &[u8; 4], numbers: [i64; 5]) {
        let mut line = [0; MAX_FIVE_BYTES];
        line[..4].copy_from_slice(head);
        let mut end = 4;
        for number in numbers {
            line[end] = b':';
            end += 1;
            if let Ok(digit @ 0..=9) = u8::try_from(number) {
                line[end] = b'0' + digit;
                end += 1;
            } else {
                let mut digits = itoa::Buffer::new();
                let digits = digits.format(number).as_bytes();
                line[end..end + digits.len()].copy_from_slice(digits);
                end += digits.len();
            }
            line[end..end + 2].copy_from_slice(b"\r\n");
            end += 2;
        }
        self.output.extend_from_slice(&line[..end]);
    }

    /// An encoded reply.
    #[inline]
    pub(super) fn raw(&mut self, reply: &[u8]) {
        self.output.extend_from_slice(reply);
    }

    /// A bulk string.
    pub fn bulk(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            self.output.extend_from_slice(b"$0\r\n\r\n");
            return;
        }
        self.length(b'$', bytes.len());
        self.output.extend_from_slice(bytes);
        self.end();
    }

    /// Two empty bulk strings.
    pub(super) fn two_empty_bulks(&mut self) {
        self.output.extend_from_slice(b"$0\r\n\r\n$0\r\n\r\n");
    }

    /// Verbatim text of several lines.
    pub fn text(&mut self, text: &str) {
        const KIND: &[u8] = b"txt:";
        match self.protocol {
            RespVersion::Resp2 => self.bulk(text.as_bytes()),
            RespVersion::Resp3 => {
                self.length(b'=', KIND.len() + text.len());
                self.output.extend_from_slice(KIND);
                self.output.extend_from_slice(text.as_bytes());
                self.end();
            }
        }
    }

    /// Null.
    pub fn null(&mut self) {
        self.output.extend_from_slice(match self.protocol {
            RespVersion::Resp2 => b"$-1\r\n",
            RespVersion::Resp3 => b"_\r\n",
        });
    }

    /// Header of an array of `length` replies.
    pub fn array(&mut self, length: usize) {
        self.length(b'*', length);
    }

    /// Header of a map of `pairs` pairs.
    pub fn map(&mut self, pairs: usize) {
        match self.protocol {
            RespVersion::Resp2 => self.length(b'*', pairs * 2),
            RespVersion::Resp3 => self.length(b'%', pairs),
        }
    }

    fn length(&mut self, kind: u8, length: usize) {
        self.number_line(kind, i64::try_from(length).unwrap_or(i64::MAX));
    }

    /// A line with a type byte and a number.
    #[inline]
    fn number_line(&mut self, kind: u8, number: i64) {
        if let Ok(digit @ 0..=9) = u8::try_from(number) {
            self.output.extend_from_slice(&[kind, b'0' + digit, b'\r', b'\n']);
            return;
        }
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(number).as_bytes();
        self.output.reserve(digits.len() + 3);
        self.output.push(kind);
        self.output.extend_from_slice(digits);
        self.output.extend_from_slice(b"\r\n");
    }

    fn line(&mut self, kind: u8, rest: &[u8]) {
        self.output.push(kind);
        self.output.extend_from_slice(rest);
        self.end();
    }

    fn end(&mut self) {
        self.output.extend_from_slice(b"\r\n");
    }
}

/// Replaces control characters by spaces and cuts long text, so that a quoted key cannot start another reply.
struct SingleLineText<'o> {
    output: &'o mut Vec<u8>,
    remaining: usize,
}

impl Write for SingleLineText<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|letter| self.write_char(letter))
    }

    fn write_char(&mut self, letter: char) -> fmt::Result {
        self.remaining = self.remaining.checked_sub(letter.len_utf8()).ok_or(fmt::Error)?;
        let letter = if letter.is_control() { ' ' } else { letter };
        self.output.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_integers_are_encoded_in_decimal() {
        let numbers = [0, 7, -1, 10, 99, 100, 101, -100, 12_345, 1_000_000, -999_999, i64::MAX, i64::MIN];
        for number in numbers {
            let mut output = Vec::new();
            RespWriter::new(&mut output, RespVersion::Resp2).five(b"*5\r\n", [number; 5]);
            let expected = format!("*5\r\n{}", format!(":{number}\r\n").repeat(5));
            assert_eq!(String::from_utf8_lossy(&output), expected);
        }
    }
}
