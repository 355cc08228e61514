//! HTTP/1 parsing and writing, as pure functions over bytes.
//!
//! ```text
//!   request  bytes ──▶ Http1RequestHead ──▶ composed head with the gateway's own framing
//!   response bytes ──▶ Http1ResponseHead ─▶ composed head with the gateway's own framing
//!   bodies   bytes ──▶ BodyDecoder ──▶ BodyEncoder
//! ```
//!
//! Nothing is forwarded verbatim except methods, targets, fields and data that were parsed. Request smuggling needs two parsers
//! that disagree about the end of a request; endpoints see only framing that the gateway wrote.
//!
//! Refused with an error: conflicting or repeated lengths, codings other than `chunked`, length and coding together, folded
//! fields, spaces before the colon, `NUL` and other control characters, bare carriage returns and line feeds, several hosts
//! or none, `.` and `..` path segments.

pub mod body;
pub mod header_fields;
mod hop_fields;
pub mod request_head;
pub mod response_head;
mod upgrade;

use std::fmt;

/// The maximum size of a head: its first line and its fields.
pub const MAX_HEAD_BYTES: usize = 64 * 1024;
/// The maximum number of fields.
pub const MAX_FIELDS: usize = 128;
/// The maximum length of a request target.
pub const MAX_TARGET_BYTES: usize = 16 * 1024;

/// Why a message is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireError {
    /// Malformed or ambiguous.
    Malformed(&'static str),
    /// The head is too large or has too many fields.
    HeadTooLarge,
    /// The target is too long.
    TargetTooLong,
    /// The body is too large.
    BodyTooLarge,
    /// The method is not supported.
    MethodNotAllowed,
    /// The transfer coding is not supported.
    UnsupportedCoding,
    /// The HTTP version is not supported.
    UnsupportedVersion,
}

impl WireError {
    /// The HTTP status for this error.
    pub const fn status(self) -> u16 {
        match self {
            WireError::Malformed(_) => 400,
            WireError::MethodNotAllowed => 405,
            WireError::BodyTooLarge => 413,
            WireError::TargetTooLong => 414,
            WireError::HeadTooLarge => 431,
            WireError::UnsupportedCoding => 501,
            WireError::UnsupportedVersion => 505,
        }
    }

    /// The error text.
    pub const fn reason(self) -> &'static str {
        match self {
            WireError::Malformed(why) => why,
            WireError::MethodNotAllowed => "this method is not served here",
            WireError::BodyTooLarge => "the body is too large",
            WireError::TargetTooLong => "the target is too long",
            WireError::HeadTooLarge => "the head is too large, or has too many fields",
            WireError::UnsupportedCoding => {
                "no transfer coding but chunked is spoken here, once and by HTTP/1.1"
            }
            WireError::UnsupportedVersion => "only HTTP/1.0, HTTP/1.1 and HTTP/2 are spoken here",
        }
    }
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}

impl std::error::Error for WireError {}

/// Whether a line ends without a carriage return. Parsers disagree about such lines.
pub(crate) fn has_bare_line_feed(lines: &[u8]) -> bool {
    memchr::memchr_iter(b'\n', lines).any(|at| at == 0 || lines[at - 1] != b'\r')
}

/// Appends a decimal number.
pub(crate) fn push_number(out: &mut Vec<u8>, number: u64) {
    let mut digits = itoa::Buffer::new();
    out.extend_from_slice(digits.format(number).as_bytes());
}

/// Parses a `Content-Length` value. `before` is the value of an earlier field.
pub(crate) fn content_length(value: &[u8], before: Option<u64>) -> Result<u64, WireError> {
    const LONGEST: usize = 18;
    if before.is_some() {
        return Err(WireError::Malformed("there is more than one Content-Length"));
    }
    let value = value.trim_ascii();
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return Err(WireError::Malformed("the Content-Length is not a number"));
    }
    if value.len() > LONGEST {
        return Err(WireError::BodyTooLarge);
    }
    Ok(value.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0')))
}
