//! Requests and replies as bytes. No socket is involved, so that every malformed reply can be tested.

pub(super) mod http;
pub(super) mod resp;

use super::target::{BenchProtocol, BenchTarget};

/// One request.
#[derive(Debug, Clone, Copy)]
pub(super) struct WireAsk<'a> {
    pub(super) limit: &'a str,
    pub(super) key: &'a str,
    /// With an id the server charges it once, however often it is sent.
    pub(super) request_id: Option<&'a str>,
}

/// The reply to one request: a decision, or why there is none.
pub(super) type WireReply = Result<WireDecision, String>;

/// The parts of a decision that the tool uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WireDecision {
    pub(super) allowed: bool,
    pub(super) lease: Option<Box<str>>,
}

/// The protocol of a connection.
#[derive(Debug, Clone)]
pub(super) enum WireProtocol {
    Http(http::BenchRequestHead),
    Resp,
}

impl WireProtocol {
    /// The protocol of a target, with this token.
    pub(super) fn of(target: &BenchTarget, token: Option<&str>) -> WireProtocol {
        match target.protocol {
            BenchProtocol::Http => WireProtocol::Http(http::BenchRequestHead::new(target, token)),
            BenchProtocol::Resp => WireProtocol::Resp,
        }
    }

    /// Encodes a request.
    pub(super) fn encode_ask(&self, out: &mut Vec<u8>, ask: WireAsk<'_>) {
        match self {
            WireProtocol::Http(head) => http::encode_ask(out, head, ask),
            WireProtocol::Resp => resp::encode_ask(out, ask),
        }
    }

    /// Parses the first reply: its length and content, or `None` if it is incomplete. An error means that the stream
    /// cannot be parsed any further.
    pub(super) fn parse_reply(&self, bytes: &[u8]) -> Result<Option<(usize, WireReply)>, String> {
        match self {
            WireProtocol::Http(_) => http::parse_reply(bytes),
            WireProtocol::Resp => resp::parse_reply(bytes),
        }
    }
}

/// A short, escaped quotation of a reply.
fn quoted(bytes: &[u8]) -> String {
    const SHOWN: usize = 120;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN)]);
    text.trim().escape_debug().to_string()
}
