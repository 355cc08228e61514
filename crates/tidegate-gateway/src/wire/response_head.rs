//! The head of a response: strict parsing, and composition for the client.

use httparse::{Error, Header, Status};

use super::body::{BodyEncoder, BodyFraming};
use super::header_fields::{HeaderField, classify_field, list_contains};
use super::hop_fields::HopFields;
use super::request_head::{HeaderStorage, push_field};
use super::{MAX_HEAD_BYTES, WireError, push_number};

/// A parsed response head.
#[derive(Debug)]
pub struct Http1ResponseHead<'b, 'r> {
    /// The status.
    pub status: u16,
    /// The length of the head in bytes.
    pub length: usize,
    /// How the body is delimited.
    pub framing: BodyFraming,
    /// Whether the connection to the endpoint can be reused.
    pub keeps_alive: bool,
    /// The declared length of the body, even where no body follows.
    declared_length: Option<u64>,
    reason: &'b str,
    fields: &'r [Header<'b>],
    names_fields: bool,
}

/// Properties of the client's connection.
#[derive(Debug, Clone, Copy)]
pub struct ResponseOptions {
    /// The minor HTTP version of the client.
    pub minor: u8,
    /// Whether the connection persists.
    pub keeps_alive: bool,
}

impl<'b, 'r> Http1ResponseHead<'b, 'r> {
    /// Parses the head at the start of `bytes`. `None` if it is incomplete. `is_head_request`: the request
    /// was `HEAD`.
    pub fn read(
        bytes: &'b [u8],
        room: &'r mut HeaderStorage<'b>,
        is_head_request: bool,
    ) -> Result<Option<Http1ResponseHead<'b, 'r>>, WireError> {
        let mut response = httparse::Response::new(&mut []);
        let config = httparse::ParserConfig::default();
        let length = match config.parse_response_with_uninit_headers(&mut response, bytes, room) {
            Ok(Status::Complete(length)) => length,
            Ok(Status::Partial) if bytes.len() < MAX_HEAD_BYTES => return Ok(None),
            Ok(Status::Partial) | Err(Error::TooManyHeaders) => return Err(WireError::HeadTooLarge),
            Err(_) => return Err(WireError::Malformed("this is not an HTTP response")),
        };
        let (Some(status), Some(minor)) = (response.code, response.version) else {
            return Err(WireError::Malformed("this is not an HTTP response"));
        };
        let mut head = Http1ResponseHead {
            status,
            length,
            framing: BodyFraming::None,
            keeps_alive: minor > 0,
            declared_length: None,
            reason: response.reason.unwrap_or_default(),
            fields: response.headers,
            names_fields: false,
        };
        head.parse_fields(minor, is_head_request)?;
        Ok(Some(head))
    }

    fn parse_fields(&mut self, minor: u8, is_head_request: bool) -> Result<(), WireError> {
        let mut hop = HopFields::default();
        for each in self.fields {
            hop.add(classify_field(each.name.as_bytes()), each.value, minor)?;
        }
        let framing = hop.framing(BodyFraming::UntilClose)?;
        self.declared_length = hop.length;
        self.framing = if is_head_request || self.has_no_body() { BodyFraming::None } else { framing };
        self.keeps_alive = hop.keeps_alive(minor) && self.framing != BodyFraming::UntilClose;
        self.names_fields = hop.named > 0;
        Ok(())
    }

    const fn has_no_body(&self) -> bool {
        matches!(self.status, 100..200 | 204 | 304)
    }

    /// Writes the head for the client. Returns how to write its body, and whether the connection persists.
    pub fn compose(&self, options: ResponseOptions, out: &mut Vec<u8>) -> (BodyEncoder, bool) {
        out.extend_from_slice(b"HTTP/1.1 ");
        push_number(out, u64::from(self.status));
        out.push(b' ');
        out.extend_from_slice(self.reason.as_bytes());
        out.extend_from_slice(b"\r\n");
        for each in self.fields {
            match classify_field(each.name.as_bytes()) {
                HeaderField::ContentLength
                | HeaderField::TransferEncoding
                | HeaderField::Connection
                | HeaderField::HopByHop
                | HeaderField::Te => continue,
                HeaderField::Upgrade if self.status != 101 => continue,
                _ => {}
            }
            if self.names_fields && self.is_for_this_hop(each.name.as_bytes()) {
                continue;
            }
            push_field(out, each.name.as_bytes(), each.value);
        }
        let (frames, is_delimited) = match self.framing {
            BodyFraming::None | BodyFraming::Length(_) => (BodyEncoder::Plain, true),
            BodyFraming::Chunked | BodyFraming::UntilClose if options.minor > 0 => {
                out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
                (BodyEncoder::Chunks, true)
            }
            BodyFraming::Chunked | BodyFraming::UntilClose => (BodyEncoder::Plain, false),
        };
        if let Some(length) = self.declared_length.filter(|_| !matches!(self.status, 100..200 | 204)) {
            out.extend_from_slice(b"Content-Length: ");
            push_number(out, length);
            out.extend_from_slice(b"\r\n");
        }
        let keep_alive = options.keeps_alive && is_delimited;
        match (self.status, keep_alive, options.minor) {
            (101, ..) => push_field(out, b"Connection", b"Upgrade"),
            (_, false, _) => push_field(out, b"Connection", b"close"),
            (_, true, 0) => push_field(out, b"Connection", b"keep-alive"),
            _ => {}
        }
        out.extend_from_slice(b"\r\n");
        (frames, keep_alive)
    }

    fn is_for_this_hop(&self, name: &[u8]) -> bool {
        let values =
            self.fields.iter().filter(|each| classify_field(each.name.as_bytes()) == HeaderField::Connection);
        list_contains(values.map(|each| each.value), name)
    }
}
