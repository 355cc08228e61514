//! Questions and answers as bytes: pure, without a socket, so that every odd answer can be tried.

pub(super) mod http;
pub(super) mod resp;

use super::target::{Door, Target};

/// One question.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask<'a> {
    pub(super) limit: &'a str,
    pub(super) key: &'a str,
    /// With an id it is charged once, however often it is asked.
    pub(super) request_id: Option<&'a str>,
}

/// What a server said to one question: its decision, or why there is none.
pub(super) type Reply = Result<Answer, String>;

/// A decision, as far as it is counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) allowed: bool,
    pub(super) lease: Option<Box<str>>,
}

/// How a door is spoken with.
#[derive(Debug, Clone)]
pub(super) enum Wire {
    Http(http::Head),
    Resp,
}

impl Wire {
    /// The wire of a target, for whoever has this token.
    pub(super) fn of(target: &Target, token: Option<&str>) -> Wire {
        match target.door {
            Door::Http => Wire::Http(http::Head::new(target, token)),
            Door::Resp => Wire::Resp,
        }
    }

    /// Adds a question to what will be sent.
    pub(super) fn ask(&self, out: &mut Vec<u8>, ask: Ask<'_>) {
        match self {
            Wire::Http(head) => http::ask(out, head, ask),
            Wire::Resp => resp::ask(out, ask),
        }
    }

    /// The first reply in these bytes and how many of them it is; `None` if it is not whole yet. If the bytes can be no
    /// reply, nothing behind them can be understood either.
    pub(super) fn hear(&self, bytes: &[u8]) -> Result<Option<(usize, Reply)>, String> {
        match self {
            Wire::Http(_) => http::hear(bytes),
            Wire::Resp => resp::hear(bytes),
        }
    }
}

/// Something a server said, short and harmless enough to be shown.
fn quoted(bytes: &[u8]) -> String {
    const SHOWN: usize = 120;
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN)]);
    text.trim().escape_debug().to_string()
}
