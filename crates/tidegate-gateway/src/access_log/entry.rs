//! Formats one access log line per request, including refused requests.
//!
//! ```text
//!   203.0.113.9 - ada [2026-03-01T09:00:06.000123Z] "GET /a?b HTTP/1.1" 429 17 "-" "curl/8" host=api.example.com took=0.000041 …
//!   …received=0 route=api.example.com backend=api refused=client/requests limit=10
//! ```
//!
//! The text format is the combined format with a sortable time and extra `name=value` fields. JSON has the same data
//! under names. Absent values are omitted, or written as `-` where a position must be filled.
//!
//! A client cannot forge a field. Text is printable ASCII only: every other byte, quotes and backslashes become `\xNN`,
//! and values without quotes contain no spaces. In JSON, invalid UTF-8 becomes U+FFFD. JSON escapes every character
//! that a reader may take for the end of a line.

use std::io::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use jiff::fmt::StdIoWrite;
use jiff::fmt::temporal::DateTimePrinter;
use jiff::{SignedDuration, Timestamp};

use crate::limits::LimitRefusal;

/// The format of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum AccessLogFormat {
    /// The combined format with extra fields.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

impl AccessLogFormat {
    /// All formats.
    pub const ALL: [AccessLogFormat; 2] = [AccessLogFormat::Text, AccessLogFormat::Json];

    /// The name of the format on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            AccessLogFormat::Text => "text",
            AccessLogFormat::Json => "json",
        }
    }
}

/// The data of one finished request.
#[derive(Debug, Clone, Copy)]
pub struct AccessLogEntry<'a> {
    /// When the request arrived, since 1970.
    pub at: Duration,
    /// The address of the client.
    pub client: IpAddr,
    /// The name of the client, if a header names it.
    pub client_name: Option<&'a [u8]>,
    /// The method.
    pub method: &'a str,
    /// The host, as sent.
    pub host: &'a str,
    /// The path and the query, as sent.
    pub path: &'a str,
    /// The protocol: `HTTP/1.1`, `HTTP/2.0`.
    pub protocol: &'a str,
    /// The response status.
    pub status: u16,
    /// The bytes of the response body that were sent.
    pub sent_bytes: u64,
    /// The bytes of the request body that were read.
    pub received_bytes: u64,
    /// The time from the first byte of the request to the last byte of the response.
    pub took: Duration,
    /// The route.
    pub route: Option<&'a str>,
    /// The backend.
    pub backend: Option<&'a str>,
    /// The last endpoint that was tried.
    pub endpoint: Option<&'a str>,
    /// The number of endpoints tried before it.
    pub retries: u32,
    /// The rule that refused the request.
    pub refused: Option<LimitRefusal>,
    /// Why the request was not forwarded, or not completed.
    pub why: Option<&'a str>,
    /// The `User-Agent` field.
    pub user_agent: Option<&'a [u8]>,
    /// The `Referer` field.
    pub referer: Option<&'a [u8]>,
}

/// Rounds times down to microseconds.
const PRINTER: DateTimePrinter = DateTimePrinter::new().precision(Some(6));

impl AccessLogEntry<'_> {
    /// Appends the line with its line end.
    pub fn write(&self, format: AccessLogFormat, out: &mut Vec<u8>) {
        match format {
            AccessLogFormat::Text => self.write_text(out),
            AccessLogFormat::Json => self.write_json(out),
        }
        out.push(b'\n');
    }

    fn write_text(&self, out: &mut Vec<u8>) {
        push_fmt(out, format_args!("{} - ", self.client));
        push_word(out, self.client_name.unwrap_or(b"-"));
        out.extend_from_slice(b" [");
        push_time(out, self.at);
        out.extend_from_slice(b"] \"");
        for (gap, part) in [("", self.method), (" ", self.path), (" ", self.protocol)] {
            out.extend_from_slice(gap.as_bytes());
            // `push_word` escapes spaces, so the request line always has three words.
            push_word(out, part.as_bytes());
        }
        push_fmt(out, format_args!("\" {} {}", self.status, self.sent_bytes));
        for part in [self.referer, self.user_agent] {
            out.extend_from_slice(b" \"");
            push_quoted(out, part.unwrap_or(b"-"));
            out.push(b'"');
        }
        push_field(out, "host", self.host);
        push_fmt(
            out,
            format_args!(" took={} received={}", SecondsWithMicros(self.took), self.received_bytes),
        );
        for (name, value) in [("route", self.route), ("backend", self.backend), ("endpoint", self.endpoint)] {
            if let Some(value) = value {
                push_field(out, name, value);
            }
        }
        if self.retries > 0 {
            push_fmt(out, format_args!(" retries={}", self.retries));
        }
        if let Some(LimitRefusal { kind, level, limit, degraded, .. }) = self.refused {
            push_fmt(out, format_args!(" refused={}/{} limit={limit}", level.as_str(), kind.as_str()));
            out.extend_from_slice(if degraded { b" degraded=true" } else { b"" });
        }
        if let Some(why) = self.why {
            out.extend_from_slice(b" why=\"");
            push_quoted(out, why.as_bytes());
            out.push(b'"');
        }
    }

    fn write_json(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"time\":\"");
        push_time(out, self.at);
        push_fmt(out, format_args!("\",\"client\":\"{}\"", self.client));
        let texts = [
            ("name", self.client_name),
            ("method", Some(self.method.as_bytes())),
            ("host", Some(self.host.as_bytes())),
            ("path", Some(self.path.as_bytes())),
            ("protocol", Some(self.protocol.as_bytes())),
        ];
        push_members(out, &texts);
        push_fmt(out, format_args!(",\"status\":{},\"sent_bytes\":{}", self.status, self.sent_bytes));
        push_fmt(
            out,
            format_args!(
                ",\"received_bytes\":{},\"took\":{}",
                self.received_bytes,
                SecondsWithMicros(self.took)
            ),
        );
        let texts = [
            ("route", self.route.map(str::as_bytes)),
            ("backend", self.backend.map(str::as_bytes)),
            ("endpoint", self.endpoint.map(str::as_bytes)),
            ("user_agent", self.user_agent),
            ("referer", self.referer),
            ("why", self.why.map(str::as_bytes)),
        ];
        push_members(out, &texts);
        if self.retries > 0 {
            push_fmt(out, format_args!(",\"retries\":{}", self.retries));
        }
        if let Some(LimitRefusal { kind, level, limit, degraded, .. }) = self.refused {
            let (level, kind) = (level.as_str(), kind.as_str());
            let refused =
                format_args!(",\"refused\":{{\"level\":\"{level}\",\"kind\":\"{kind}\",\"limit\":{limit}");
            push_fmt(out, refused);
            out.extend_from_slice(if degraded { b",\"degraded\":true}" } else { b"}" });
        }
        out.push(b'}');
    }
}

fn push_fmt(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    // Writing to a `Vec` never fails.
    let _never_fails = out.write_fmt(text);
}

fn push_time(out: &mut Vec<u8>, since_1970: Duration) {
    let at = SignedDuration::try_from(since_1970).ok().and_then(|at| Timestamp::from_duration(at).ok());
    let _never_fails = PRINTER.print_timestamp(&at.unwrap_or(Timestamp::MAX), StdIoWrite(out));
}

/// A duration in seconds, rounded down to microseconds.
struct SecondsWithMicros(Duration);

impl std::fmt::Display for SecondsWithMicros {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:06}", self.0.as_secs(), self.0.subsec_micros())
    }
}

/// Appends ` name=value`.
fn push_field(out: &mut Vec<u8>, name: &str, value: &str) {
    push_fmt(out, format_args!(" {name}="));
    push_word(out, value.as_bytes());
}

/// Appends a word of the text format.
fn push_word(out: &mut Vec<u8>, bytes: &[u8]) {
    push_escaped(out, if bytes.is_empty() { b"-" } else { bytes }, b'!');
}

/// Appends a quoted value of the text format.
fn push_quoted(out: &mut Vec<u8>, bytes: &[u8]) {
    push_escaped(out, bytes, b' ');
}

fn push_escaped(out: &mut Vec<u8>, bytes: &[u8], first: u8) {
    for byte in bytes {
        match byte {
            b'"' | b'\\' => push_fmt(out, format_args!("\\x{byte:02x}")),
            byte if (first..=b'~').contains(byte) => out.push(*byte),
            byte => push_fmt(out, format_args!("\\x{byte:02x}")),
        }
    }
}

/// Appends `,"name":"value"` for every present value.
fn push_members(out: &mut Vec<u8>, all: &[(&str, Option<&[u8]>)]) {
    for (name, value) in all {
        if let Some(value) = value {
            push_fmt(out, format_args!(",\"{name}\":\""));
            push_json_text(out, value);
            out.push(b'"');
        }
    }
}

/// Appends the content of a JSON string.
fn push_json_text(out: &mut Vec<u8>, bytes: &[u8]) {
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '"' => out.extend_from_slice(b"\\\""),
                '\\' => out.extend_from_slice(b"\\\\"),
                // All of these characters are below U+FFFF.
                letter if letter.is_control() || matches!(letter, '\u{2028}' | '\u{2029}') => {
                    push_fmt(out, format_args!("\\u{:04x}", u32::from(letter)));
                }
                letter => out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        if !chunk.invalid().is_empty() {
            out.extend_from_slice(b"\\ufffd");
        }
    }
}
