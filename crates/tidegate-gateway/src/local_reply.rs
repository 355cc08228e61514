//! Local replies: responses from the gateway itself.
//!
//! | status | meaning |
//! |---|---|
//! | 400, 405, 413, 414, 431, 501, 505 | the request is invalid or not supported |
//! | 404 | no route |
//! | 408 | the request did not arrive in time |
//! | 429 | `Too Many Requests`, `Too Many Connections` |
//! | 502 | the endpoint failed |
//! | 503 | no healthy endpoint |
//! | 504 | the endpoint did not answer in time |
//!
//! gRPC calls get status 200 with `grpc-status`, because gRPC clients ignore other statuses.

use std::borrow::Cow;
use std::time::Duration;

use arrayvec::ArrayVec;
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tidegate::layer::http::{RATE_LIMIT, RATE_LIMIT_POLICY};

use crate::limits::{LimitRefusal, RefusalKind};
use crate::wire::request_head::push_field;
use crate::wire::{WireError, push_number};
use crate::worker::ClientConnectionEnd;

/// The `Retry-After` value if waiting alone does not help.
const DEFAULT_RETRY_SECONDS: u64 = 1;
/// The largest integer of a structured field.
const MAX_STRUCTURED_INTEGER: u64 = 999_999_999_999_999;
/// The allowed methods.
const METHODS: &str = "GET, HEAD, POST, PUT, DELETE, OPTIONS, PATCH";

/// A response from the gateway itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LocalReply {
    /// The request is invalid.
    Invalid(WireError),
    /// No route matches.
    NoRoute,
    /// A limit refused the request or the connection.
    Refused(LimitRefusal),
    /// The request did not arrive in time.
    RequestTimeout,
    /// The endpoint failed.
    BadGateway,
    /// No healthy endpoint is left.
    NoEndpoint,
    /// The endpoint did not answer in time.
    GatewayTimeout,
}

impl LocalReply {
    /// The HTTP status.
    pub(crate) const fn status(self) -> u16 {
        match self {
            LocalReply::Invalid(error) => error.status(),
            LocalReply::NoRoute => 404,
            LocalReply::RequestTimeout => 408,
            LocalReply::Refused(_) => 429,
            LocalReply::BadGateway => 502,
            LocalReply::NoEndpoint => 503,
            LocalReply::GatewayTimeout => 504,
        }
    }

    /// The gRPC status.
    pub(crate) const fn grpc_status(self) -> u16 {
        match self {
            LocalReply::GatewayTimeout => 4,
            LocalReply::Refused(_) => 8,
            LocalReply::NoRoute => 12,
            LocalReply::BadGateway | LocalReply::NoEndpoint => 14,
            LocalReply::Invalid(_) | LocalReply::RequestTimeout => 13,
        }
    }

    /// Whether the connection closes after the reply. A refused connection must close to free its place.
    pub(crate) const fn ends_connection(self) -> bool {
        matches!(
            self,
            LocalReply::Invalid(_)
                | LocalReply::RequestTimeout
                | LocalReply::Refused(LimitRefusal { kind: RefusalKind::Connections, .. })
        )
    }

    /// How the connection ends if it closes after the reply.
    pub(crate) const fn connection_end(self) -> ClientConnectionEnd {
        match self {
            LocalReply::Invalid(
                WireError::BodyTooLarge | WireError::HeadTooLarge | WireError::TargetTooLong,
            ) => ClientConnectionEnd::TooLarge,
            LocalReply::Invalid(_) => ClientConnectionEnd::Protocol,
            LocalReply::RequestTimeout => ClientConnectionEnd::SlowBody,
            _ => ClientConnectionEnd::Completed,
        }
    }

    /// The body text.
    pub(crate) fn body(self) -> Cow<'static, str> {
        match self {
            LocalReply::Invalid(error) => format!("{}: {error}", reason(error.status())).into(),
            LocalReply::Refused(refusal) => refusal.kind.body().into(),
            other => reason(other.status()).into(),
        }
    }

    /// The length of the body as sent.
    pub(crate) fn body_length(self, is_head_request: bool) -> u64 {
        if is_head_request { 0 } else { self.body().len() as u64 }
    }

    /// Calls `put` for each additional header field.
    fn fields(self, mut put: impl FnMut(HeaderName, &[u8])) {
        let mut value = ArrayVec::new();
        match self {
            LocalReply::Refused(refusal) => write_refusal_fields(&refusal, &mut put),
            LocalReply::Invalid(WireError::MethodNotAllowed) => put(ALLOW, METHODS.as_bytes()),
            LocalReply::NoEndpoint => {
                put(RETRY_AFTER, format_value(&mut value, &[Number(DEFAULT_RETRY_SECONDS)]));
            }
            _ => {}
        }
    }

    /// Writes the reply as HTTP/1.
    pub(crate) fn write(self, is_head_request: bool, closes: bool, out: &mut Vec<u8>) {
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
        if !is_head_request {
            out.extend_from_slice(body.as_bytes());
        }
    }

    /// The reply as status, fields and body for hyper.
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

/// The maximum length of a header value in a refusal.
const LONGEST_VALUE: usize = 96;
type Value = ArrayVec<u8, LONGEST_VALUE>;

/// A part of a header value.
enum ValuePart<'a> {
    Text(&'a str),
    Number(u64),
}
use ValuePart::{Number, Text};

/// Formats a short header value. Refusals are frequent, so this avoids the formatting machinery.
fn format_value<'v>(value: &'v mut Value, parts: &[ValuePart<'_>]) -> &'v [u8] {
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

/// Writes the fields that describe the limit and when to retry.
fn write_refusal_fields(refusal: &LimitRefusal, put: &mut impl FnMut(HeaderName, &[u8])) {
    let mut value = Value::new();
    let (level, limit) = (refusal.level.as_str(), refusal.limit.min(MAX_STRUCTURED_INTEGER));
    let seconds = refusal.retry_after.map_or(DEFAULT_RETRY_SECONDS, whole_seconds);
    put(RETRY_AFTER, format_value(&mut value, &[Number(seconds)]));
    let (policy, state_value) = match refusal.kind {
        RefusalKind::Requests => (
            [Text("\""), Text(level), Text("\";q="), Number(limit), Text(";w=1")],
            [Text("\""), Text(level), Text("\";r=0"), Text(";t="), Number(seconds)],
        ),
        RefusalKind::Connections => (
            [Text("\""), Text(level), Text("-connections\";q="), Number(limit), Text(";qu=\"connections\"")],
            [Text("\""), Text(level), Text("-connections\";r=0"), Text(""), Text("")],
        ),
    };
    put(RATE_LIMIT_POLICY, format_value(&mut value, &policy));
    put(RATE_LIMIT, format_value(&mut value, &state_value));
}

/// Rounds up and never returns 0, so that no client retries too early.
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
