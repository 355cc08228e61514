//! HTTP/1 on the wire, as pure functions over bytes: what comes in is read strictly, what goes out is written anew.
//!
//! ```text
//!   request  bytes ──▶ head ──▶ what is asked ──▶ composed: one line, fields that are for the next hop, framing of our own
//!   response bytes ──▶ reply ─▶ what is said ───▶ composed likewise
//!   bodies   bytes ──▶ framing ─▶ pieces ───────▶ framed anew
//! ```
//!
//! Decided: nothing is passed on as it was sent but methods, targets, fields and data that were understood. Two parties who
//! disagree about where a request ends are what smuggling is made of; whoever is behind the gateway hears of lengths only from it.
//!
//! Refused, each with an answer that says so: lengths that conflict or repeat, codings other than `chunked`, both at once, fields
//! that are folded over lines, fields with spaces before the colon, `NUL` and other control characters, bare carriage returns and bare line
//! feeds, several hosts or none, paths with `.` and `..` in them.

pub mod body;
pub mod header_fields;
mod hop_fields;
pub mod request_head;
pub mod response_head;

use std::fmt;

/// The longest head: its line and its fields.
pub const LARGEST_HEAD: usize = 64 * 1024;
/// The most fields of a head.
pub const MOST_FIELDS: usize = 128;
/// The longest target of a request.
pub const LONGEST_TARGET: usize = 16 * 1024;

/// What is wrong with what was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// It makes no sense, or could be understood in two ways.
    Bad(&'static str),
    /// The head is too long, or has too many fields.
    LargeHead,
    /// The target is too long.
    LongTarget,
    /// The body is too long.
    LargeBody,
    /// The method is for nobody here.
    Method,
    /// A coding that is not spoken here.
    Coding,
    /// A version that is not spoken here.
    Version,
}

impl Flaw {
    /// The status that tells it.
    pub const fn status(self) -> u16 {
        match self {
            Flaw::Bad(_) => 400,
            Flaw::Method => 405,
            Flaw::LargeBody => 413,
            Flaw::LongTarget => 414,
            Flaw::LargeHead => 431,
            Flaw::Coding => 501,
            Flaw::Version => 505,
        }
    }

    /// What is wrong, in words.
    pub const fn why(self) -> &'static str {
        match self {
            Flaw::Bad(why) => why,
            Flaw::Method => "this method is not served here",
            Flaw::LargeBody => "the body is too large",
            Flaw::LongTarget => "the target is too long",
            Flaw::LargeHead => "the head is too large, or has too many fields",
            Flaw::Coding => "no transfer coding but chunked is spoken here, once and by HTTP/1.1",
            Flaw::Version => "only HTTP/1.0, HTTP/1.1 and HTTP/2 are spoken here",
        }
    }
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.why())
    }
}

impl std::error::Error for Flaw {}

/// Whether there is a line that ends otherwise than lines do. Some take what is behind it for the rest of the line, and others do not.
pub(crate) fn has_odd_line(lines: &[u8]) -> bool {
    memchr::memchr_iter(b'\n', lines).any(|at| at == 0 || lines[at - 1] != b'\r')
}

/// Adds a decimal number.
pub(crate) fn push_number(out: &mut Vec<u8>, number: u64) {
    let mut digits = itoa::Buffer::new();
    out.extend_from_slice(digits.format(number).as_bytes());
}

/// The one length that the fields `Content-Length` say.
pub(crate) fn content_length(value: &[u8], before: Option<u64>) -> Result<u64, Flaw> {
    const LONGEST: usize = 18;
    if before.is_some() {
        return Err(Flaw::Bad("there is more than one Content-Length"));
    }
    let value = value.trim_ascii();
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return Err(Flaw::Bad("the Content-Length is not a number"));
    }
    if value.len() > LONGEST {
        return Err(Flaw::LargeBody);
    }
    Ok(value.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
}
