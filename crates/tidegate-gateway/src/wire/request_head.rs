//! The head of a request: strict parsing, and composition for the endpoint.

use std::mem::MaybeUninit;
use std::net::IpAddr;

use httparse::{Error, Header, Status};

use super::body::BodyFraming;
use super::header_fields::{
    HeaderField, classify_field, has_dot_segment, is_host, list_contains, list_items,
};
use super::hop_fields::HopFields;
use super::upgrade::{accepts_upgrade, push_upgrade};
use super::{MAX_FIELDS, MAX_HEAD_BYTES, MAX_TARGET_BYTES, WireError, has_bare_line_feed, push_number};

/// The gateway's name in `Via`.
const VIA_NAME: &[u8] = b"tidegate";
/// The maximum number of gateways in `Via`. One more indicates a loop.
pub(crate) const MAX_HOPS: usize = 8;

/// Storage for parsed fields.
pub type HeaderStorage<'b> = [MaybeUninit<Header<'b>>; MAX_FIELDS];

/// Creates empty storage.
pub const fn header_storage<'b>() -> HeaderStorage<'b> {
    [const { MaybeUninit::uninit() }; MAX_FIELDS]
}

/// A parsed request head.
#[derive(Debug)]
pub struct Http1RequestHead<'b, 'r> {
    /// The method.
    pub method: &'b str,
    /// The host, with its port if sent; empty if an HTTP/1.0 client sent none.
    pub host: &'b str,
    /// The path with its query, as sent.
    pub path: &'b str,
    /// The minor HTTP version.
    pub minor: u8,
    /// The length of the head in bytes.
    pub length: usize,
    /// How the body is delimited.
    pub framing: BodyFraming,
    /// Whether the client keeps the connection open.
    pub keeps_alive: bool,
    /// Whether the client waits for `100 Continue`.
    pub expects_continue: bool,
    /// The requested upgrade protocol.
    pub upgrade: Option<&'b [u8]>,
    fields: &'r [Header<'b>],
    /// Whether `Connection` names fields.
    names_fields: bool,
}

/// What the gateway tells endpoints about the client.
#[derive(Debug, Clone, Copy)]
pub struct ForwardingInfo {
    /// The address of the peer.
    pub peer: IpAddr,
    /// Whether the peer is a trusted proxy.
    pub is_trusted: bool,
    /// Whether the request came over TLS.
    pub is_secure: bool,
}

impl<'b, 'r> Http1RequestHead<'b, 'r> {
    /// Parses the head at the start of `bytes`. `None` if it is incomplete.
    pub fn read(
        bytes: &'b [u8],
        room: &'r mut HeaderStorage<'b>,
    ) -> Result<Option<Http1RequestHead<'b, 'r>>, WireError> {
        let mut request = httparse::Request::new(&mut []);
        let length = match request.parse_with_uninit_headers(bytes, room) {
            Ok(Status::Complete(length)) if length <= MAX_HEAD_BYTES => length,
            Ok(Status::Partial) if bytes.len() < MAX_HEAD_BYTES => return Ok(None),
            Ok(_) | Err(Error::TooManyHeaders) => return Err(WireError::HeadTooLarge),
            Err(Error::Version) => return Err(WireError::UnsupportedVersion),
            Err(Error::HeaderName) => {
                return Err(WireError::Malformed("a field's name makes no sense, or a field is folded"));
            }
            Err(Error::HeaderValue) => return Err(WireError::Malformed("a field's value makes no sense")),
            Err(_) => return Err(WireError::Malformed("this is not an HTTP request")),
        };
        if has_bare_line_feed(&bytes[..length]) {
            return Err(WireError::Malformed("a line ends without a carriage return"));
        }
        let (Some(method), Some(target), Some(minor)) = (request.method, request.path, request.version)
        else {
            return Err(WireError::Malformed("this is not an HTTP request"));
        };
        let mut head = Http1RequestHead {
            method,
            host: "",
            path: target,
            minor,
            length,
            framing: BodyFraming::None,
            keeps_alive: minor > 0,
            expects_continue: false,
            upgrade: None,
            fields: request.headers,
            names_fields: false,
        };
        head.parse_fields(target)?;
        Ok(Some(head))
    }

    /// The method and the target of an invalid head, as far as they can be parsed.
    pub fn first_line(bytes: &'b [u8]) -> (&'b str, &'b str) {
        let mut request = httparse::Request::new(&mut []);
        // Parsing stops at the error, or at the first field for lack of storage.
        let _flaw = request.parse(bytes);
        (request.method.unwrap_or_default(), request.path.unwrap_or_default())
    }

    fn parse_fields(&mut self, target: &'b str) -> Result<(), WireError> {
        let (mut host, mut hop) = (None, HopFields::default());
        for each in self.fields {
            let kind = classify_field(each.name.as_bytes());
            hop.add(kind, each.value, self.minor)?;
            match kind {
                HeaderField::Host if host.is_some() => {
                    return Err(WireError::Malformed("there is more than one Host"));
                }
                HeaderField::Host => host = Some(each.value.trim_ascii()),
                HeaderField::Upgrade => self.upgrade = Some(each.value),
                HeaderField::Expect => {
                    if !each.value.eq_ignore_ascii_case(b"100-continue") {
                        return Err(WireError::Malformed("only 100-continue can be expected"));
                    }
                    self.expects_continue = self.minor > 0;
                }
                HeaderField::Via if count_hops(each.value) >= MAX_HOPS => {
                    return Err(WireError::Malformed("the request goes round in circles"));
                }
                _ => {}
            }
        }
        self.framing = hop.framing(BodyFraming::None)?;
        self.keeps_alive = hop.keeps_alive(self.minor);
        self.names_fields = hop.named > 0;
        self.upgrade =
            self.upgrade.filter(|protocol| accepts_upgrade(protocol, &hop, self.minor, self.framing));
        if target.len() > MAX_TARGET_BYTES {
            return Err(WireError::TargetTooLong);
        }
        if matches!(self.method, "CONNECT" | "TRACE") {
            return Err(WireError::MethodNotAllowed);
        }
        self.set_target(target, host)
    }

    /// Determines the host and the path.
    fn set_target(&mut self, target: &'b str, host: Option<&'b [u8]>) -> Result<(), WireError> {
        const ODD_HOST: WireError = WireError::Malformed("the host is not one");
        const ODD_TARGET: WireError = WireError::Malformed("the target is neither a path nor an address");
        if host.is_none() && self.minor > 0 {
            return Err(WireError::Malformed("there is no Host"));
        }
        let sent = std::str::from_utf8(host.unwrap_or_default()).map_err(|_| ODD_HOST)?;
        if target.starts_with('/') {
            self.host = sent;
        } else if let Some(rest) = strip_scheme(target) {
            // The absolute target overrides the `Host` field.
            let end = rest.find(['/', '?']).unwrap_or(rest.len());
            self.host = &rest[..end];
            self.path = if rest[end..].starts_with('/') { &rest[end..] } else { "/" };
            if rest[end..].starts_with('?') || !is_host(self.host.as_bytes()) {
                return Err(ODD_TARGET);
            }
        } else if target == "*" && self.method == "OPTIONS" {
            self.host = sent;
        } else {
            return Err(ODD_TARGET);
        }
        if !(is_host(self.host.as_bytes()) || self.host.is_empty() && self.minor == 0) {
            return Err(ODD_HOST);
        }
        if self.path.contains('#') || !self.path.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(WireError::Malformed("the path has characters that no path has"));
        }
        if has_dot_segment(self.path.as_bytes()) {
            return Err(WireError::Malformed("the path has . or .. in it"));
        }
        Ok(())
    }

    /// The values of the fields with this name, in order.
    pub fn values<'f>(&'f self, name: &'f [u8]) -> impl DoubleEndedIterator<Item = &'b [u8]> + 'f {
        self.fields
            .iter()
            .filter(move |each| each.name.as_bytes().eq_ignore_ascii_case(name))
            .map(|each| each.value)
    }

    /// The value of the field with this name. `None` if there are several.
    pub fn value(&self, name: &[u8]) -> Option<&'b [u8]> {
        let mut values = self.values(name);
        values.next().filter(|_| values.next().is_none())
    }

    /// Writes the head for the endpoint.
    pub fn compose(&self, info: &ForwardingInfo, out: &mut Vec<u8>) {
        out.extend_from_slice(self.method.as_bytes());
        out.push(b' ');
        out.extend_from_slice(self.path.as_bytes());
        out.extend_from_slice(b" HTTP/1.1\r\nHost: ");
        out.extend_from_slice(self.host.as_bytes());
        out.extend_from_slice(b"\r\n");
        let mut seen = ForwardedFieldsSeen::default();
        for each in self.fields {
            let kind = classify_field(each.name.as_bytes());
            match kind {
                HeaderField::Ordinary
                | HeaderField::ContentType
                | HeaderField::UserAgent
                | HeaderField::Referer
                | HeaderField::Via => {}
                HeaderField::ClaimedClient | HeaderField::ForwardedProto | HeaderField::ForwardedHost
                    if info.is_trusted => {}
                _ => continue,
            }
            if self.names_fields && self.is_for_this_hop(each.name.as_bytes()) {
                continue;
            }
            seen.proto |= kind == HeaderField::ForwardedProto;
            seen.host |= kind == HeaderField::ForwardedHost;
            push_field(out, each.name.as_bytes(), each.value);
        }
        self.compose_forwarded(info, seen, out);
        match self.framing {
            BodyFraming::Length(length) => {
                out.extend_from_slice(b"Content-Length: ");
                push_number(out, length);
                out.extend_from_slice(b"\r\n");
            }
            BodyFraming::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
            BodyFraming::None | BodyFraming::UntilClose => {}
        }
        if let Some(protocol) = self.upgrade {
            push_upgrade(out, protocol);
        }
        out.extend_from_slice(b"\r\n");
    }

    fn compose_forwarded(&self, info: &ForwardingInfo, seen: ForwardedFieldsSeen, out: &mut Vec<u8>) {
        out.extend_from_slice(b"X-Forwarded-For: ");
        if info.is_trusted {
            for value in self.values(b"x-forwarded-for").filter(|value| !value.is_empty()) {
                out.extend_from_slice(value);
                out.extend_from_slice(b", ");
            }
        }
        push_address(out, info.peer);
        out.extend_from_slice(b"\r\n");
        if !seen.proto {
            let scheme: &[u8] = if info.is_secure { b"https" } else { b"http" };
            push_field(out, b"X-Forwarded-Proto", scheme);
        }
        if !seen.host && !self.host.is_empty() {
            push_field(out, b"X-Forwarded-Host", self.host.as_bytes());
        }
        out.extend_from_slice(if self.minor == 0 { b"Via: 1.0 " } else { b"Via: 1.1 " });
        out.extend_from_slice(VIA_NAME);
        out.extend_from_slice(b"\r\n");
    }

    fn is_for_this_hop(&self, name: &[u8]) -> bool {
        list_contains(self.values(b"connection"), name)
    }
}

/// The forwarding fields that a trusted proxy has sent.
#[derive(Debug, Default, Clone, Copy)]
struct ForwardedFieldsSeen {
    proto: bool,
    host: bool,
}

/// Appends a field.
pub(crate) fn push_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Appends an address.
pub(crate) fn push_address(out: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(address) => {
            for (place, octet) in address.octets().into_iter().enumerate() {
                if place > 0 {
                    out.push(b'.');
                }
                push_number(out, u64::from(octet));
            }
        }
        IpAddr::V6(address) => out.extend_from_slice(address.to_string().as_bytes()),
    }
}

/// The number of gateways in a `Via` value.
pub(crate) fn count_hops(via: &[u8]) -> usize {
    list_items(via).filter(|hop| hop.ends_with(VIA_NAME)).count()
}

fn strip_scheme(target: &str) -> Option<&str> {
    let (scheme, rest) = target.split_once("://")?;
    (scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")).then_some(rest)
}
