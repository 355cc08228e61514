//! Questions and answers as bytes: pure, without a socket, so that every odd answer can be tried.

pub(super) mod http;
pub(super) mod resp;

use super::target::{BenchProtocol, BenchTarget};

/// One question.
#[derive(Debug, Clone, Copy)]
pub(super) struct WireAsk<'a> {
    pub(super) limit: &'a str,
    pub(super) key: &'a str,
    /// With an id it is charged once, however often it is asked.
    pub(super) request_id: Option<&'a str>,
}

/// What a server said to one question: its decision, or why there is none.
pub(super) type WireReply = Result<WireDecision, String>;

/// A decision, as far as it is counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WireDecision {
    pub(super) allowed: bool,
    pub(super) lease: Option<Box<str>>,
}

/// How a door is spoken with.
#[derive(Debug, Clone)]
pub(super) enum WireProtocol {
    Http(http::RequestHead),
    Resp,
}

impl WireProtocol {
    /// The wire of a target, for whoever has this token.
    pub(super) fn of(target: &BenchTarget, token: Option<&str>) -> WireProtocol {
        match target.protocol {
            BenchProtocol::Http => WireProtocol::Http(http::RequestHead::new(target, token)),
            BenchProtocol::Resp => WireProtocol::Resp,
        }
    }

    /// Adds a question to what will be sent.
    pub(super) fn encode_ask(&self, out: &mut Vec<u8>, ask: WireAsk<'_>) {
        match self {
            WireProtocol::Http(head) => http::encode_ask(out, head, ask),
            WireProtocol::Resp => resp::encode_ask(out, ask),
        }
    }

    /// The first reply in these bytes and how many of them it is; `None` if it is not whole yet. If the bytes can be no
    /// reply, nothing behind them can be understood either.
    pub(super) fn parse_reply(&self, bytes: &[u8]) -> Result<Option<(usize, WireReply)>, String> {
        match self {
            WireProtocol::Http(_) => http::parse_reply(bytes),
            WireProtocol::Resp => resp::parse_reply(bytes),
        }
    }
}

/// Something a server said, short and harmless enough to be shown.
fn quoted(bytes: &[u8]) -> String {
    const SHOWN: usize = 120;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN)]);
    text.trim().escape_debug().to_string()
}
