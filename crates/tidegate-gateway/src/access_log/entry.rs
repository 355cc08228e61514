//! The access log: one line for every request, also for those that were refused.
//!
//! ```text
//!   203.0.113.9 - ada [2026-03-01T09:00:06.000123Z] "GET /a?b HTTP/1.1" 429 17 "-" "curl/8" host=api.example.com took=0.000041 …
//!   …received=0 route=api.example.com backend=api refused=client/requests limit=10
//! ```
//!
//! The text is the combined format, with a time that sorts and with fields behind it; JSON has the same under names. What there
//! is nothing to say of is left out, or `-` where a place must be filled.
//!
//! Decided: whatever a client sends is written so that it cannot be anything but its field. Text is printable ASCII only, with
//! `\xNN` for every other byte, for quotes and for backslashes, and without spaces where no quotes are. In JSON, what is no UTF-8 becomes
//! U+FFFD, and everything that any reader takes for the end of a line is escaped.

use std::io::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use jiff::fmt::StdIoWrite;
use jiff::fmt::temporal::DateTimePrinter;
use jiff::{SignedDuration, Timestamp};

use crate::limits::Refusal;

/// How a line is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Format {
    /// The combined format, and more.
    #[default]
    Text,
    /// An object.
    Json,
}

impl Format {
    /// All of them.
    pub const ALL: [Format; 2] = [Format::Text, Format::Json];

    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Format::Text => "text",
            Format::Json => "json",
        }
    }
}

/// What is known of a request when it is over.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// When it came, since 1970.
    pub at: Duration,
    /// From where.
    pub client: IpAddr,
    /// What the client is called, if it is known by a name.
    pub client_name: Option<&'a [u8]>,
    /// The method.
    pub method: &'a str,
    /// The host, as it was sent.
    pub host: &'a str,
    /// The path and the query, as they were sent.
    pub path: &'a str,
    /// The protocol: `HTTP/1.1`, `HTTP/2.0`.
    pub protocol: &'a str,
    /// The status that was answered.
    pub status: u16,
    /// How long the body of the answer was, as far as it was sent.
    pub sent_bytes: u64,
    /// How long the body of the request was, as far as it was read.
    pub received_bytes: u64,
    /// How long it took, until the last byte of the answer.
    pub took: Duration,
    /// By which route.
    pub route: Option<&'a str>,
    /// To which backend.
    pub backend: Option<&'a str>,
    /// To which endpoint, the last that was tried.
    pub endpoint: Option<&'a str>,
    /// How many endpoints were tried before that one.
    pub retries: u32,
    /// Which rule refused it.
    pub refused: Option<Refusal>,
    /// Why it was not passed on, or not to its end.
    pub why: Option<&'a str>,
    /// The client's program.
    pub user_agent: Option<&'a [u8]>,
    /// Where the client came from.
    pub referer: Option<&'a [u8]>,
}

/// Where times are rounded down: to the microsecond.
const PRINTER: DateTimePrinter = DateTimePrinter::new().precision(Some(6));

impl Entry<'_> {
    /// Appends the line, with its end.
    pub fn write(&self, format: Format, out: &mut Vec<u8>) {
        match format {
            Format::Text => self.write_text(out),
            Format::Json => self.write_json(out),
        }
        out.push(b'\n');
    }

    fn write_text(&self, out: &mut Vec<u8>) {
        say(out, format_args!("{} - ", self.client));
        bare(out, self.client_name.unwrap_or(b"-"));
        out.extend_from_slice(b" [");
        time(out, self.at);
        out.extend_from_slice(b"] \"");
        for (gap, part) in [("", self.method), (" ", self.path), (" ", self.protocol)] {
            out.extend_from_slice(gap.as_bytes());
            // A space inside would make more words of it than three.
            bare(out, part.as_bytes());
        }
        say(out, format_args!("\" {} {}", self.status, self.sent_bytes));
        for part in [self.referer, self.user_agent] {
            out.extend_from_slice(b" \"");
            quoted(out, part.unwrap_or(b"-"));
            out.push(b'"');
        }
        field(out, "host", self.host);
        say(out, format_args!(" took={} received={}", Seconds(self.took), self.received_bytes));
        for (name, value) in [("route", self.route), ("backend", self.backend), ("endpoint", self.endpoint)] {
            if let Some(value) = value {
                field(out, name, value);
            }
        }
        if self.retries > 0 {
            say(out, format_args!(" retries={}", self.retries));
        }
        if let Some(Refusal { kind, level, limit, degraded, .. }) = self.refused {
            say(out, format_args!(" refused={}/{} limit={limit}", level.word(), kind.word()));
            out.extend_from_slice(if degraded { b" degraded=true" } else { b"" });
        }
        if let Some(why) = self.why {
            out.extend_from_slice(b" why=\"");
            quoted(out, why.as_bytes());
            out.push(b'"');
        }
    }

    fn write_json(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"{\"time\":\"");
        time(out, self.at);
        say(out, format_args!("\",\"client\":\"{}\"", self.client));
        let texts = [
            ("name", self.client_name),
            ("method", Some(self.method.as_bytes())),
            ("host", Some(self.host.as_bytes())),
            ("path", Some(self.path.as_bytes())),
            ("protocol", Some(self.protocol.as_bytes())),
        ];
        members(out, &texts);
        say(out, format_args!(",\"status\":{},\"sent_bytes\":{}", self.status, self.sent_bytes));
        say(out, format_args!(",\"received_bytes\":{},\"took\":{}", self.received_bytes, Seconds(self.took)));
        let texts = [
            ("route", self.route.map(str::as_bytes)),
            ("backend", self.backend.map(str::as_bytes)),
            ("endpoint", self.endpoint.map(str::as_bytes)),
            ("user_agent", self.user_agent),
            ("referer", self.referer),
            ("why", self.why.map(str::as_bytes)),
        ];
        members(out, &texts);
        if self.retries > 0 {
            say(out, format_args!(",\"retries\":{}", self.retries));
        }
        if let Some(Refusal { kind, level, limit, degraded, .. }) = self.refused {
            let (level, kind) = (level.word(), kind.word());
            let refused =
                format_args!(",\"refused\":{{\"level\":\"{level}\",\"kind\":\"{kind}\",\"limit\":{limit}");
            say(out, refused);
            out.extend_from_slice(if degraded { b",\"degraded\":true}" } else { b"}" });
        }
        out.push(b'}');
    }
}

fn say(out: &mut Vec<u8>, said: std::fmt::Arguments<'_>) {
    // A vector takes everything.
    let _never_fails = out.write_fmt(said);
}

fn time(out: &mut Vec<u8>, since_1970: Duration) {
    let at = SignedDuration::try_from(since_1970).ok().and_then(|at| Timestamp::from_duration(at).ok());
    let _never_fails = PRINTER.print_timestamp(&at.unwrap_or(Timestamp::MAX), StdIoWrite(out));
}

/// Seconds to the microsecond, rounded down.
struct Seconds(Duration);

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:06}", self.0.as_secs(), self.0.subsec_micros())
    }
}

/// ` name=value`.
fn field(out: &mut Vec<u8>, name: &str, value: &str) {
    say(out, format_args!(" {name}="));
    bare(out, value.as_bytes());
}

/// A word of the text.
fn bare(out: &mut Vec<u8>, bytes: &[u8]) {
    printable(out, if bytes.is_empty() { b"-" } else { bytes }, b'!');
}

/// What is between quotes in the text.
fn quoted(out: &mut Vec<u8>, bytes: &[u8]) {
    printable(out, bytes, b' ');
}

fn printable(out: &mut Vec<u8>, bytes: &[u8], first: u8) {
    for byte in bytes {
        match byte {
            b'"' | b'\\' => say(out, format_args!("\\x{byte:02x}")),
            byte if (first..=b'~').contains(byte) => out.push(*byte),
            byte => say(out, format_args!("\\x{byte:02x}")),
        }
    }
}

/// `,"name":"value"` for all that are there.
fn members(out: &mut Vec<u8>, all: &[(&str, Option<&[u8]>)]) {
    for (name, value) in all {
        if let Some(value) = value {
            say(out, format_args!(",\"{name}\":\""));
            json_text(out, value);
            out.push(b'"');
        }
    }
}

/// What is between the quotes of a JSON text.
fn json_text(out: &mut Vec<u8>, bytes: &[u8]) {
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '"' => out.extend_from_slice(b"\\\""),
                '\\' => out.extend_from_slice(b"\\\\"),
                // All of them are below U+FFFF.
                letter if letter.is_control() || matches!(letter, '\u{2028}' | '\u{2029}') => {
                    say(out, format_args!("\\u{:04x}", u32::from(letter)));
                }
                letter => out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        if !chunk.invalid().is_empty() {
            out.extend_from_slice(b"\\ufffd");
        }
    }
}
