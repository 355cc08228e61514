//! The hop-by-hop part of a head: the body framing and whether the connection persists.

use super::body::BodyFraming;
use super::header_fields::{HeaderField, list_items};
use super::{WireError, content_length};

/// The maximum number of fields named by `Connection`. Every field is compared with all of them.
const MAX_NAMED: usize = 32;

/// The state while parsing fields.
#[derive(Debug, Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent header options")]
pub(super) struct HopFields {
    /// The `Content-Length`.
    pub(super) length: Option<u64>,
    chunked: bool,
    closes: bool,
    keeps_alive_option: bool,
    /// Whether `Connection` contains `upgrade`.
    pub(super) upgrades: bool,
    /// The number of fields that `Connection` names.
    pub(super) named: usize,
}

impl HopFields {
    /// Processes a field. `minor` is the minor HTTP version.
    pub(super) fn add(&mut self, field: HeaderField, value: &[u8], minor: u8) -> Result<(), WireError> {
        match field {
            HeaderField::ContentLength => self.length = Some(content_length(value, self.length)?),
            HeaderField::TransferEncoding => {
                if self.chunked || minor == 0 || !value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                    return Err(WireError::UnsupportedCoding);
                }
                self.chunked = true;
            }
            HeaderField::Connection => {
                for word in list_items(value) {
                    match word {
                        _ if word.eq_ignore_ascii_case(b"close") => self.closes = true,
                        _ if word.eq_ignore_ascii_case(b"keep-alive") => self.keeps_alive_option = true,
                        _ if word.eq_ignore_ascii_case(b"upgrade") => self.upgrades = true,
                        _ => self.named += 1,
                    }
                }
                if self.named > MAX_NAMED {
                    return Err(WireError::Malformed("Connection names too many fields"));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The framing of the body; `default` without framing fields. Length and coding together are an error.
    pub(super) fn framing(&self, default: BodyFraming) -> Result<BodyFraming, WireError> {
        match (self.chunked, self.length) {
            (true, Some(_)) => {
                Err(WireError::Malformed("there are a Content-Length and a Transfer-Encoding"))
            }
            (true, None) => Ok(BodyFraming::Chunked),
            (false, Some(length)) => Ok(BodyFraming::Length(length)),
            (false, None) => Ok(default),
        }
    }

    /// Whether the connection persists.
    pub(super) const fn keeps_alive(&self, minor: u8) -> bool {
        !self.closes && (minor > 0 || self.keeps_alive_option)
    }
}
