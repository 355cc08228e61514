//! Parses simple HTTP/1.1 requests and writes their responses.

use std::mem::MaybeUninit;

use ::http::header::{AUTHORIZATION, HeaderName, IF_MATCH};
use ::http::{HeaderValue, Method, Request, Response, Uri};
use bytes::Bytes;

use crate::serve::bounds::{MAX_FAST_PATH_BODY, MAX_HEAD_BYTES, MAX_HEADER_FIELDS};
use crate::serve::coarse_clock::DATE_BYTES;

/// What a buffer begins with.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "the value is moved once, into the caller")]
pub(super) enum ParsedRequest {
    /// A simple request of this many bytes.
    Whole(Request<Bytes>, usize),
    /// Possibly the beginning of a simple request.
    Partial(MissingPart),
    /// Something that needs the full HTTP implementation.
    Unsupported,
}

/// Which part of a partial request is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MissingPart {
    /// The head is incomplete.
    Head,
    /// The head is complete, the body is not.
    Body,
}

/// The header fields that the API reads; others are dropped.
const FORWARDED_HEADERS: [HeaderName; 3] = [AUTHORIZATION, IF_MATCH, ::http::header::ACCEPT];

/// The first line of every HTTP/2 connection.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n";

/// Uninitialized slots for parsed header fields.
pub(super) type HeaderSlots<'b> = [MaybeUninit<httparse::Header<'b>>; MAX_HEADER_FIELDS];

/// Slots for one request.
pub(super) const fn empty_header_slots<'b>() -> HeaderSlots<'b> {
    [const { MaybeUninit::uninit() }; MAX_HEADER_FIELDS]
}

/// What a buffer begins with, borrowed from the buffer.
pub(super) enum ParsedView<'f, 'b> {
    /// A simple request, if its target is valid.
    Whole(RequestView<'f, 'b>),
    Partial(MissingPart),
    Unsupported,
}

/// A simple request, borrowed from the buffer.
pub(super) struct RequestView<'f, 'b> {
    method: &'b str,
    target: &'b str,
    fields: &'f [httparse::Header<'b>],
    pub(super) body: &'b [u8],
    /// Length of head and body.
    pub(super) length: usize,
}

/// Parses the request at the beginning of the buffer.
pub(super) fn parse(buffer: &[u8]) -> ParsedRequest {
    match parse_view(buffer, &mut empty_header_slots()) {
        ParsedView::Whole(view) => view.to_request(),
        ParsedView::Partial(missing) => ParsedRequest::Partial(missing),
        ParsedView::Unsupported => ParsedRequest::Unsupported,
    }
}

/// Parses the request at the beginning of the buffer without copying it.
pub(super) fn parse_view<'f, 'b>(buffer: &'b [u8], fields: &'f mut HeaderSlots<'b>) -> ParsedView<'f, 'b> {
    // Wait for more bytes until HTTP/2 can be told from HTTP/1.
    if buffer.len() < PREFACE.len() && PREFACE.starts_with(buffer) {
        return ParsedView::Partial(MissingPart::Head);
    }
    let mut head = httparse::Request::new(&mut []);
    let head_length = match head.parse_with_uninit_headers(buffer, fields) {
        Ok(httparse::Status::Complete(length)) if length <= MAX_HEAD_BYTES => length,
        Ok(httparse::Status::Partial) if buffer.len() < MAX_HEAD_BYTES => {
            return ParsedView::Partial(MissingPart::Head);
        }
        _ => return ParsedView::Unsupported,
    };
    let (Some(method), Some(target), Some(1)) = (head.method, head.path, head.version) else {
        return ParsedView::Unsupported;
    };
    let fields: &'f [httparse::Header<'b>] = head.headers;
    let Some(body_length) = body_length(fields) else { return ParsedView::Unsupported };
    let length = head_length + body_length;
    match buffer.get(head_length..length) {
        Some(body) => ParsedView::Whole(RequestView { method, target, fields, body, length }),
        None => ParsedView::Partial(MissingPart::Body),
    }
}

impl RequestView<'_, '_> {
    /// Whether the request has exactly this method and target.
    pub(super) fn is(&self, method: &str, target: &str) -> bool {
        self.method == method && self.target == target
    }

    /// The value of the first field of this name.
    pub(super) fn field(&self, name: &HeaderName) -> Option<&[u8]> {
        let field = self.fields.iter().find(|field| field.name.eq_ignore_ascii_case(name.as_str()));
        field.map(|field| field.value)
    }

    /// Copies the request into the type that the API takes.
    pub(super) fn to_request(&self) -> ParsedRequest {
        match build_request(self.method, self.target, self.fields, self.body) {
            Some(request) => ParsedRequest::Whole(request, self.length),
            None => ParsedRequest::Unsupported,
        }
    }
}

/// Length of the body; `None` if a field makes the request not simple.
fn body_length(fields: &[httparse::Header<'_>]) -> Option<usize> {
    let mut length = None;
    for field in fields {
        let name = field.name;
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        // Matching the length first skips most names.
        match name.len() {
            2 if is("te") => return None,
            6 if is("expect") => return None,
            7 if is("upgrade") || is("trailer") => return None,
            10 if is("connection") && !field.value.eq_ignore_ascii_case(b"keep-alive") => return None,
            14 if is("content-length") => {
                let declared =
                    parse_length(field.value).filter(|declared| *declared <= MAX_FAST_PATH_BODY)?;
                if length.replace(declared).is_some() {
                    return None;
                }
            }
            17 if is("transfer-encoding") => return None,
            _ => {}
        }
    }
    Some(length.unwrap_or(0))
}

/// Parses a length of up to nine digits.
fn parse_length(text: &[u8]) -> Option<usize> {
    if text.is_empty() || text.len() > 9 {
        return None;
    }
    text.iter().try_fold(0_usize, |number, digit| {
        digit.is_ascii_digit().then(|| number * 10 + usize::from(digit - b'0'))
    })
}

fn build_request(
    method: &str,
    target: &str,
    fields: &[httparse::Header<'_>],
    body: &[u8],
) -> Option<Request<Bytes>> {
    if !target.starts_with('/') || is_event_stream_path(target) {
        return None;
    }
    let mut request = Request::new(Bytes::copy_from_slice(body));
    *request.method_mut() = Method::from_bytes(method.as_bytes()).ok()?;
    *request.uri_mut() = Uri::try_from(target).ok()?;
    for field in fields {
        if let Some(header) =
            FORWARDED_HEADERS.iter().find(|header| field.name.eq_ignore_ascii_case(header.as_str()))
        {
            let value = HeaderValue::from_bytes(field.value).ok()?;
            request.headers_mut().append(header.clone(), value);
        }
    }
    Some(request)
}

/// Whether the path serves an event stream; the fast path writes only whole responses.
fn is_event_stream_path(target: &str) -> bool {
    let path = target.split('?').next().unwrap_or_default();
    path.starts_with("/v1/activity/") && path.ends_with("/events")
}

/// What happens to the connection after the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Persistence {
    KeepAlive,
    Close,
}

/// Appends a decision: the same bytes as [`write_response`] for a 200 response with this body.
pub(super) fn write_decision(body: &[u8], date: &[u8; DATE_BYTES], output: &mut Vec<u8>) {
    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ";
    output.reserve(256 + body.len());
    output.extend_from_slice(HEAD);
    output.extend_from_slice(itoa::Buffer::new().format(body.len()).as_bytes());
    output.extend_from_slice(b"\r\ndate: ");
    output.extend_from_slice(date);
    output.extend_from_slice(b"\r\n\r\n");
    output.extend_from_slice(body);
}

/// Appends a response. For `HEAD` the body is omitted and its length is sent.
pub(super) fn write_response(
    response: &Response<Bytes>,
    is_head: bool,
    persistence: Persistence,
    date: &[u8; DATE_BYTES],
    output: &mut Vec<u8>,
) {
    let status = response.status();
    let body = response.body();
    output.reserve(256 + body.len());
    if status.as_u16() == 200 {
        output.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    } else {
        output.extend_from_slice(b"HTTP/1.1 ");
        output.extend_from_slice(status.as_str().as_bytes());
        output.push(b' ');
        output.extend_from_slice(status.canonical_reason().unwrap_or("").as_bytes());
        output.extend_from_slice(b"\r\n");
    }
    for (name, value) in response.headers() {
        output.extend_from_slice(name.as_str().as_bytes());
        output.extend_from_slice(b": ");
        output.extend_from_slice(value.as_bytes());
        output.extend_from_slice(b"\r\n");
    }
    // A 204 response has no content-length.
    if status.as_u16() != 204 {
        output.extend_from_slice(b"content-length: ");
        output.extend_from_slice(itoa::Buffer::new().format(body.len()).as_bytes());
        output.extend_from_slice(b"\r\n");
    }
    if persistence == Persistence::Close {
        output.extend_from_slice(b"connection: close\r\n");
    }
    output.extend_from_slice(b"date: ");
    output.extend_from_slice(date);
    output.extend_from_slice(b"\r\n\r\n");
    if !is_head {
        output.extend_from_slice(body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_text(text: &str) -> ParsedRequest {
        parse(text.as_bytes())
    }

    #[test]
    fn simple_request_is_parsed_whole_or_partial() {
        let text = "POST /v1/acquire?x=1 HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nAuthorization: Bearer t\r\n\r\nhelloGET";
        let ParsedRequest::Whole(request, length) = parse_text(text) else { panic!("it is plain") };
        assert_eq!(length, text.len() - 3);
        assert_eq!(request.method(), Method::POST);
        assert_eq!(request.uri(), "/v1/acquire?x=1");
        assert_eq!(&request.body()[..], b"hello");
        assert_eq!(request.headers().get(AUTHORIZATION).expect("header"), "Bearer t");
        assert_eq!(request.headers().len(), 1, "other fields are dropped");
        for end in 0..length {
            assert!(matches!(parse_text(&text[..end]), ParsedRequest::Partial(_)), "{end}");
        }
    }

    #[test]
    fn other_requests_are_unsupported() {
        for head in [
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "GET / HTTP/1.0\r\n\r\n",
            "GET http://h/ HTTP/1.1\r\n\r\n",
            "OPTIONS * HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx",
            "POST / HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\nx",
            "POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\nx",
            "POST / HTTP/1.1\r\nContent-Length: 99999\r\n\r\nx",
            "POST / HTTP/1.1\r\nContent-Length:\r\n\r\nx",
            "POST / HTTP/1.1\r\nExpect: 100-continue\r\n\r\n",
            "GET / HTTP/1.1\r\nConnection: close\r\n\r\n",
            "GET / HTTP/1.1\r\nConnection: keep-alive, upgrade\r\n\r\n",
            "GET / HTTP/1.1\r\nUpgrade: h2c\r\n\r\n",
            "GET / HTTP/1.1\r\nBad Name: x\r\n\r\n",
            "GET / HTTP/1.1\r\n folded: x\r\n\r\n",
            "\u{0}\u{1}garbage",
            "*1\r\n$4\r\nPING\r\n",
            "GET /v1/activity/u/00/events HTTP/1.1\r\n\r\n",
            "GET /v1/activity/u/00/events?x=1 HTTP/1.1\r\n\r\n",
        ] {
            assert!(matches!(parse_text(head), ParsedRequest::Unsupported), "{head:?}");
        }
    }

    #[test]
    fn http2_preface_is_detected_by_its_whole_first_line() {
        for end in 0..PREFACE.len() {
            assert!(matches!(parse(&PREFACE[..end]), ParsedRequest::Partial(MissingPart::Head)), "{end}");
        }
        assert!(matches!(parse(PREFACE), ParsedRequest::Unsupported));
    }

    #[test]
    fn large_heads_and_many_fields_are_unsupported() {
        let long = format!("GET /{} HTTP/1.1\r\n", "x".repeat(MAX_HEAD_BYTES));
        assert!(matches!(parse_text(&long), ParsedRequest::Unsupported));
        let fields = "a: b\r\n".repeat(MAX_HEADER_FIELDS + 1);
        assert!(matches!(parse_text(&format!("GET / HTTP/1.1\r\n{fields}\r\n")), ParsedRequest::Unsupported));
    }

    #[test]
    fn decision_is_written_like_any_response() {
        let date = *b"Mon, 16 Nov 2026 00:00:00 GMT";
        let mut response = Response::new(Bytes::from_static(b"{\"allowed\":true}"));
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(::http::header::CONTENT_TYPE, json);
        let (mut one, mut other) = (Vec::new(), Vec::new());
        write_response(&response, false, Persistence::KeepAlive, &date, &mut one);
        write_decision(response.body(), &date, &mut other);
        assert_eq!(String::from_utf8_lossy(&other), String::from_utf8_lossy(&one));
    }

    #[test]
    fn responses_have_length_and_date() {
        let date = *b"Mon, 16 Nov 2026 00:00:00 GMT";
        let mut response = Response::new(Bytes::from_static(b"{}"));
        let text = |response: &Response<Bytes>, is_head| {
            let mut output = Vec::new();
            write_response(response, is_head, Persistence::KeepAlive, &date, &mut output);
            String::from_utf8(output).expect("text")
        };
        let ok = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ndate: Mon, 16 Nov 2026 00:00:00 GMT\r\n\r\n";
        assert_eq!(text(&response, false), format!("{ok}{{}}"));
        assert_eq!(text(&response, true), ok);
        let mut last = Vec::new();
        write_response(&response, true, Persistence::Close, &date, &mut last);
        assert!(String::from_utf8(last).expect("text").contains("\r\nconnection: close\r\n"));
        *response.status_mut() = ::http::StatusCode::NO_CONTENT;
        response.body_mut().clear();
        assert!(!text(&response, false).contains("content-length"));
        assert!(text(&response, false).starts_with("HTTP/1.1 204 No Content\r\n"));
    }
}
