//! What the gateway says itself: refusals, and that something went wrong.
//!
//! | | |
//! |---|---|
//! | 400, 405, 413, 414, 431, 501, 505 | the request is not one that is passed on |
//! | 404 | no route |
//! | 408 | the request did not come in time |
//! | 429 | `Too Many Requests`, `Too Many Connections` |
//! | 502 | whoever is behind the gateway failed |
//! | 503 | nobody behind the gateway is well |
//! | 504 | it took too long |
//!
//! Calls of gRPC are told by `grpc-status`, with 200, because their clients look nowhere else.

use std::borrow::Cow;
use std::time::Duration;

use arrayvec::ArrayVec;
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tidegate::layer::http::{RATE_LIMIT, RATE_LIMIT_POLICY};

use crate::limits::{Kind, Refusal};
use crate::wire::request_head::push_field;
use crate::wire::{Flaw, push_number};
use crate::worker::Over;

/// After how long to come back if no time helps by itself.
const SOME_TIME: u64 = 1;
/// The largest integer of a structured field.
const LARGEST_INTEGER: u64 = 999_999_999_999_999;
/// What can be asked for.
const METHODS: &str = "GET, HEAD, POST, PUT, DELETE, OPTIONS, PATCH";

/// An answer of the gateway itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// What was sent is not passed on.
    Flawed(Flaw),
    /// There is no route.
    NoRoute,
    /// A limit said no.
    Refused(Refusal),
    /// The request did not come in time.
    Slow,
    /// Whoever is behind the gateway failed.
    Failed,
    /// Nobody behind the gateway is well.
    Nobody,
    /// It took too long.
    Late,
}

impl Answer {
    /// The status.
    pub(crate) const fn status(self) -> u16 {
        match self {
            Answer::Flawed(flaw) => flaw.status(),
            Answer::NoRoute => 404,
            Answer::Slow => 408,
            Answer::Refused(_) => 429,
            Answer::Failed => 502,
            Answer::Nobody => 503,
            Answer::Late => 504,
        }
    }

    /// The status that clients of gRPC understand.
    pub(crate) const fn grpc_status(self) -> u16 {
        match self {
            Answer::Late => 4,
            Answer::Refused(_) => 8,
            Answer::NoRoute => 12,
            Answer::Failed | Answer::Nobody => 14,
            Answer::Flawed(_) | Answer::Slow => 13,
        }
    }

    /// Whether the connection ends with it: too many connections are not fewer if they stay.
    pub(crate) const fn ends_connection(self) -> bool {
        matches!(
            self,
            Answer::Flawed(_) | Answer::Slow | Answer::Refused(Refusal { kind: Kind::Connections, .. })
        )
    }

    /// How a connection is over that ends with it.
    pub(crate) const fn over(self) -> Over {
        match self {
            Answer::Flawed(Flaw::LargeBody | Flaw::LargeHead | Flaw::LongTarget) => Over::TooLarge,
            Answer::Flawed(_) => Over::Protocol,
            Answer::Slow => Over::SlowBody,
            _ => Over::Said,
        }
    }

    /// What is said.
    pub(crate) fn body(self) -> Cow<'static, str> {
        match self {
            Answer::Flawed(flaw) => format!("{}: {flaw}", reason(flaw.status())).into(),
            Answer::Refused(refusal) => refusal.kind.body().into(),
            other => reason(other.status()).into(),
        }
    }

    /// How long what is said is.
    pub(crate) fn body_length(self, to_head: bool) -> u64 {
        if to_head { 0 } else { self.body().len() as u64 }
    }

    /// The fields beside it, one after the other: a name and a value.
    fn fields(self, mut put: impl FnMut(HeaderName, &[u8])) {
        let mut value = ArrayVec::new();
        match self {
            Answer::Refused(refusal) => describe(&refusal, &mut put),
            Answer::Flawed(Flaw::Method) => put(ALLOW, METHODS.as_bytes()),
            Answer::Nobody => put(RETRY_AFTER, written(&mut value, &[Number(SOME_TIME)])),
            _ => {}
        }
    }

    /// As it is written to a client of HTTP/1.
    pub(crate) fn write(self, to_head: bool, closes: bool, out: &mut Vec<u8>) {
        let body = self.body();
        out.extend_from_slice(b"HTTP/1.1 ");
        push_number(out, u64::from(self.status()));
        out.push(b' ');
        out.extend_from_slice(reason(self.status()).as_bytes());
        out.extend_from_slice(b"\r\nContent-Type: text/plain\r\nContent-Length: ");
        push_number(out, body.len() as u64);
        out.extend_from_slice(b"\r\n");
        self.fields(|name, value| push_field(out, name.as_str().as_bytes(), value));
        if closes {
            push_field(out, b"Connection", b"close");
        }
        out.extend_from_slice(b"\r\n");
        if !to_head {
            out.extend_from_slice(body.as_bytes());
        }
    }

    /// As hyper takes it: status, fields, body.
    pub(crate) fn parts(self, is_grpc: bool) -> (StatusCode, HeaderMap, Cow<'static, str>) {
        let mut headers = HeaderMap::new();
        self.fields(|name, value| {
            if let Ok(value) = HeaderValue::from_bytes(value) {
                headers.insert(name, value);
            }
        });
        if is_grpc {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
            headers.insert(HeaderName::from_static("grpc-status"), HeaderValue::from(self.grpc_status()));
            if let Ok(message) = HeaderValue::try_from(&*self.body()) {
                headers.insert(HeaderName::from_static("grpc-message"), message);
            }
            return (StatusCode::OK, headers, Cow::Borrowed(""));
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        (StatusCode::from_u16(self.status()).unwrap_or(StatusCode::BAD_GATEWAY), headers, self.body())
    }
}

/// The longest value that is written for a refusal.
const LONGEST_VALUE: usize = 96;
type Value = ArrayVec<u8, LONGEST_VALUE>;

/// A part of a value.
enum Part<'a> {
    Text(&'a str),
    Number(u64),
}
use Part::{Number, Text};

/// A short value. None is longer than there is room for. Whoever is refused is refused often, so nothing is interpreted on the way.
fn written<'v>(value: &'v mut Value, parts: &[Part<'_>]) -> &'v [u8] {
    value.clear();
    let mut digits = itoa::Buffer::new();
    for part in parts {
        let text = match part {
            Text(text) => text,
            Number(number) => digits.format(*number),
        };
        let _fits = value.try_extend_from_slice(text.as_bytes());
    }
    value
}

/// What a refusal says about the limit, and when to come back.
fn describe(refusal: &Refusal, put: &mut impl FnMut(HeaderName, &[u8])) {
    let mut value = Value::new();
    let (level, limit) = (refusal.level.word(), refusal.limit.min(LARGEST_INTEGER));
    let seconds = refusal.retry_after.map_or(SOME_TIME, whole_seconds);
    put(RETRY_AFTER, written(&mut value, &[Number(seconds)]));
    let (policy, standing) = match refusal.kind {
        Kind::Requests => (
            [Text("\""), Text(level), Text("\";q="), Number(limit), Text(";w=1")],
            [Text("\""), Text(level), Text("\";r=0"), Text(";t="), Number(seconds)],
        ),
        Kind::Connections => (
            [Text("\""), Text(level), Text("-connections\";q="), Number(limit), Text(";qu=\"connections\"")],
            [Text("\""), Text(level), Text("-connections\";r=0"), Text(""), Text("")],
        ),
    };
    put(RATE_LIMIT_POLICY, written(&mut value, &policy));
    put(RATE_LIMIT, written(&mut value, &standing));
}

/// Rounded up, and never 0: nobody is told to come back too early.
fn whole_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

const fn reason(status: u16) -> &'static str {
    match status {
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        413 => "Content Too Large",
        414 => "URI Too Long",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "Error",
    }
}
