//! Replies: what is said, in the words of the protocol that the client speaks.
//!
//! Everything is appended to one buffer. RESP3 has words of its own for nothing, for maps and for text that is meant for people;
//! in RESP2 these are a negative length, a flat array, and a bulk string.

use std::fmt::{self, Write};

/// The longest text of an error. Errors quote what was asked, and that may be long.
pub const MAX_ERROR_BYTES: usize = 512;

/// A head and five numbers, each with a letter, a sign, nineteen digits and an end.
const MAX_FIVE_BYTES: usize = 4 + 5 * (1 + 20 + 2);

/// Which version of the protocol is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RespVersion {
    /// What a connection begins with.
    #[default]
    Resp2,
    /// What `HELLO 3` changes to.
    Resp3,
}

impl RespVersion {
    /// Its number, as in `HELLO 3`.
    pub const fn number(self) -> i64 {
        match self {
            RespVersion::Resp2 => 2,
            RespVersion::Resp3 => 3,
        }
    }
}

/// Writes replies behind what is in the buffer already.
#[derive(Debug)]
pub struct RespWriter<'o> {
    output: &'o mut Vec<u8>,
    protocol: RespVersion,
}

impl<'o> RespWriter<'o> {
    /// Writes into this buffer.
    pub fn new(output: &'o mut Vec<u8>, protocol: RespVersion) -> RespWriter<'o> {
        RespWriter { output, protocol }
    }

    /// A word such as `OK`. It has no line ends in it.
    pub fn simple(&mut self, word: &'static str) {
        self.line(b'+', word.as_bytes());
    }

    /// `-CODE text`. Whatever the text quotes, it stays one line.
    pub fn error(&mut self, code: &str, text: impl fmt::Display) {
        self.output.push(b'-');
        self.output.extend_from_slice(code.as_bytes());
        self.output.push(b' ');
        // Writing into memory does not fail; what is too long is cut short.
        let _ = write!(SingleLineText { output: self.output, remaining: MAX_ERROR_BYTES }, "{text}");
        self.end();
    }

    /// A number.
    pub fn integer(&mut self, number: i64) {
        self.number_line(b':', number);
    }

    /// Five numbers behind a head that says what they are part of, in one piece: most of what is said.
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

    /// A whole reply that was written elsewhere.
    #[inline]
    pub(super) fn raw(&mut self, reply: &[u8]) {
        self.output.extend_from_slice(reply);
    }

    /// Bytes.
    pub fn bulk(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            self.output.extend_from_slice(b"$0\r\n\r\n");
            return;
        }
        self.length(b'$', bytes.len());
        self.output.extend_from_slice(bytes);
        self.end();
    }

    /// No bytes, and no bytes again.
    pub(super) fn two_empty_bulks(&mut self) {
        self.output.extend_from_slice(b"$0\r\n\r\n$0\r\n\r\n");
    }

    /// Text for people: several lines that a client may show as they are.
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

    /// Nothing.
    pub fn null(&mut self) {
        self.output.extend_from_slice(match self.protocol {
            RespVersion::Resp2 => b"$-1\r\n",
            RespVersion::Resp3 => b"_\r\n",
        });
    }

    /// The head of an array; so many replies follow.
    pub fn array(&mut self, length: usize) {
        self.length(b'*', length);
    }

    /// The head of a map; so many pairs of replies follow.
    pub fn map(&mut self, pairs: usize) {
        match self.protocol {
            RespVersion::Resp2 => self.length(b'*', pairs * 2),
            RespVersion::Resp3 => self.length(b'%', pairs),
        }
    }

    fn length(&mut self, kind: u8, length: usize) {
        self.number_line(kind, i64::try_from(length).unwrap_or(i64::MAX));
    }

    /// A line of one number: most of what is said.
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

/// Text in which every control character is a space, and which ends: nobody's key may begin another reply.
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
    fn numbers_are_written_as_they_are() {
        let numbers = [0, 7, -1, 10, 99, 100, 101, -100, 12_345, 1_000_000, -999_999, i64::MAX, i64::MIN];
        for number in numbers {
            let mut output = Vec::new();
            RespWriter::new(&mut output, RespVersion::Resp2).five(b"*5\r\n", [number; 5]);
            let expected = format!("*5\r\n{}", format!(":{number}\r\n").repeat(5));
            assert_eq!(String::from_utf8_lossy(&output), expected);
        }
    }
}
