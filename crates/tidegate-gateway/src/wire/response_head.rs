//! The head of a response: read strictly, and composed anew for the client.

use httparse::{Error, Header, Status};

use super::body::{Frames, Framing};
use super::header_fields::{Field, field, names};
use super::hop_fields::Hop;
use super::request_head::{Room, push_field};
use super::{Flaw, LARGEST_HEAD, push_number};

/// A response as it was sent.
#[derive(Debug)]
pub struct Reply<'b, 'r> {
    /// Its status.
    pub status: u16,
    /// How long the head is.
    pub length: usize,
    /// How its body is delimited.
    pub framing: Framing,
    /// Whether the connection to whoever sent it can be used again.
    pub keeps_alive: bool,
    /// The length of the body, if it was told: also where no body follows.
    told_length: Option<u64>,
    reason: &'b str,
    fields: &'r [Header<'b>],
    names_fields: bool,
}

/// To whom a response is composed.
#[derive(Debug, Clone, Copy)]
pub struct To {
    /// Which 1.x the client speaks.
    pub minor: u8,
    /// Whether the connection goes on.
    pub keeps_alive: bool,
}

impl<'b, 'r> Reply<'b, 'r> {
    /// Reads the head at the beginning of what has arrived; `None` if it is not whole. `to_head`: the request was `HEAD`.
    pub fn read(
        bytes: &'b [u8],
        room: &'r mut Room<'b>,
        to_head: bool,
    ) -> Result<Option<Reply<'b, 'r>>, Flaw> {
        let mut response = httparse::Response::new(&mut []);
        let config = httparse::ParserConfig::default();
        let length = match config.parse_response_with_uninit_headers(&mut response, bytes, room) {
            Ok(Status::Complete(length)) => length,
            Ok(Status::Partial) if bytes.len() < LARGEST_HEAD => return Ok(None),
            Ok(Status::Partial) | Err(Error::TooManyHeaders) => return Err(Flaw::LargeHead),
            Err(_) => return Err(Flaw::Bad("this is not an HTTP response")),
        };
        let (Some(status), Some(minor)) = (response.code, response.version) else {
            return Err(Flaw::Bad("this is not an HTTP response"));
        };
        let mut reply = Reply {
            status,
            length,
            framing: Framing::None,
            keeps_alive: minor > 0,
            told_length: None,
            reason: response.reason.unwrap_or_default(),
            fields: response.headers,
            names_fields: false,
        };
        reply.understand(minor, to_head)?;
        Ok(Some(reply))
    }

    fn understand(&mut self, minor: u8, to_head: bool) -> Result<(), Flaw> {
        let mut hop = Hop::default();
        for each in self.fields {
            hop.take(field(each.name.as_bytes()), each.value, minor)?;
        }
        let framing = hop.framing(Framing::UntilClose)?;
        self.told_length = hop.length;
        self.framing = if to_head || self.has_no_body() { Framing::None } else { framing };
        self.keeps_alive = hop.keeps_alive(minor) && self.framing != Framing::UntilClose;
        self.names_fields = hop.named > 0;
        Ok(())
    }

    const fn has_no_body(&self) -> bool {
        matches!(self.status, 100..200 | 204 | 304)
    }

    /// Writes the head for the client; how its body is to be written, and whether the connection goes on behind it.
    pub fn compose(&self, to: To, out: &mut Vec<u8>) -> (Frames, bool) {
        out.extend_from_slice(b"HTTP/1.1 ");
        push_number(out, u64::from(self.status));
        out.push(b' ');
        out.extend_from_slice(self.reason.as_bytes());
        out.extend_from_slice(b"\r\n");
        for each in self.fields {
            match field(each.name.as_bytes()) {
                Field::ContentLength
                | Field::TransferEncoding
                | Field::Connection
                | Field::HopByHop
                | Field::Te => continue,
                Field::Upgrade if self.status != 101 => continue,
                _ => {}
            }
            if self.names_fields && self.is_for_this_hop(each.name.as_bytes()) {
                continue;
            }
            push_field(out, each.name.as_bytes(), each.value);
        }
        let (frames, is_delimited) = match self.framing {
            Framing::None | Framing::Length(_) => (Frames::Plain, true),
            Framing::Chunked | Framing::UntilClose if to.minor > 0 => {
                out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
                (Frames::Chunks, true)
            }
            Framing::Chunked | Framing::UntilClose => (Frames::Plain, false),
        };
        if let Some(length) = self.told_length.filter(|_| !matches!(self.status, 100..200 | 204)) {
            out.extend_from_slice(b"Content-Length: ");
            push_number(out, length);
            out.extend_from_slice(b"\r\n");
        }
        let goes_on = to.keeps_alive && is_delimited;
        match (self.status, goes_on, to.minor) {
            (101, ..) => push_field(out, b"Connection", b"Upgrade"),
            (_, false, _) => push_field(out, b"Connection", b"close"),
            (_, true, 0) => push_field(out, b"Connection", b"keep-alive"),
            _ => {}
        }
        out.extend_from_slice(b"\r\n");
        (frames, goes_on)
    }

    fn is_for_this_hop(&self, name: &[u8]) -> bool {
        let values = self.fields.iter().filter(|each| field(each.name.as_bytes()) == Field::Connection);
        names(values.map(|each| each.value), name)
    }
}
