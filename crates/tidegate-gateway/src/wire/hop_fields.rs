//! What a message says about its hop: how its body is delimited, and whether the connection goes on behind it.

use super::body::Framing;
use super::header_fields::{Field, words};
use super::{Flaw, content_length};

/// The most fields that `Connection` may name: every other field is compared with all of them.
const MOST_NAMED: usize = 32;

/// What was said so far.
#[derive(Debug, Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a word of its own")]
pub(super) struct Hop {
    /// The `Content-Length`.
    pub(super) length: Option<u64>,
    chunked: bool,
    closes: bool,
    stays: bool,
    /// Whether `Connection` says `upgrade`.
    pub(super) upgrades: bool,
    /// How many fields it names that are for this hop only.
    pub(super) named: usize,
}

impl Hop {
    /// Takes a field, if it is about the hop. Which 1.x the message is says what may be in it.
    pub(super) fn take(&mut self, field: Field, value: &[u8], minor: u8) -> Result<(), Flaw> {
        match field {
            Field::ContentLength => self.length = Some(content_length(value, self.length)?),
            Field::TransferEncoding => {
                if self.chunked || minor == 0 || !value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                    return Err(Flaw::Coding);
                }
                self.chunked = true;
            }
            Field::Connection => {
                for word in words(value) {
                    match word {
                        _ if word.eq_ignore_ascii_case(b"close") => self.closes = true,
                        _ if word.eq_ignore_ascii_case(b"keep-alive") => self.stays = true,
                        _ if word.eq_ignore_ascii_case(b"upgrade") => self.upgrades = true,
                        _ => self.named += 1,
                    }
                }
                if self.named > MOST_NAMED {
                    return Err(Flaw::Bad("Connection names too many fields"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// How the body is delimited; `otherwise` if nothing is said. It is one thing or the other.
    pub(super) fn framing(&self, otherwise: Framing) -> Result<Framing, Flaw> {
        match (self.chunked, self.length) {
            (true, Some(_)) => Err(Flaw::Bad("there are a Content-Length and a Transfer-Encoding")),
            (true, None) => Ok(Framing::Chunked),
            (false, Some(length)) => Ok(Framing::Length(length)),
            (false, None) => Ok(otherwise),
        }
    }

    /// Whether the connection goes on.
    pub(super) const fn keeps_alive(&self, minor: u8) -> bool {
        !self.closes && (minor > 0 || self.stays)
    }
}
