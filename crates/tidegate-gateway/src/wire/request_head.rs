//! The head of a request: read strictly, and composed anew for whoever is behind the gateway.

use std::mem::MaybeUninit;
use std::net::IpAddr;

use httparse::{Error, Header, Status};

use super::body::Framing;
use super::header_fields::{Field, field, has_dots, is_host, names, words};
use super::hop_fields::Hop;
use super::{Flaw, LARGEST_HEAD, LONGEST_TARGET, MOST_FIELDS, has_odd_line, push_number};

/// What the gateway calls itself to those behind it.
const PSEUDONYM: &[u8] = b"tidegate";
/// The most gateways like this one that a request may have passed: one more, and it goes round in circles.
pub(crate) const MOST_HOPS: usize = 8;

/// Room for the fields of a head.
pub type Room<'b> = [MaybeUninit<Header<'b>>; MOST_FIELDS];

/// An empty room.
pub const fn room<'b>() -> Room<'b> {
    [const { MaybeUninit::uninit() }; MOST_FIELDS]
}

/// A request as it was sent.
#[derive(Debug)]
pub struct Head<'b, 'r> {
    /// The method, as it was sent.
    pub method: &'b str,
    /// The host, with its port if it was sent with one; empty if an old client named none.
    pub host: &'b str,
    /// The path with its query, as it was sent.
    pub path: &'b str,
    /// Which 1.x.
    pub minor: u8,
    /// How long the head is.
    pub length: usize,
    /// How its body is delimited.
    pub framing: Framing,
    /// Whether the client wants to go on with another request.
    pub keeps_alive: bool,
    /// Whether it waits for a word before it sends the body.
    pub expects_continue: bool,
    /// The protocol to go over to, if it asks for one.
    pub upgrade: Option<&'b [u8]>,
    fields: &'r [Header<'b>],
    /// Whether some fields are named by `Connection`.
    names_fields: bool,
}

/// What the gateway says about a request to those behind it.
#[derive(Debug, Clone, Copy)]
pub struct Forwarded {
    /// Who sent it to the gateway.
    pub peer: IpAddr,
    /// Whether what that one says about others is believed.
    pub is_trusted: bool,
    /// Whether it came by TLS.
    pub is_secure: bool,
}

impl<'b, 'r> Head<'b, 'r> {
    /// Reads the head at the beginning of what has arrived; `None` if it is not whole.
    pub fn read(bytes: &'b [u8], room: &'r mut Room<'b>) -> Result<Option<Head<'b, 'r>>, Flaw> {
        let mut request = httparse::Request::new(&mut []);
        let length = match request.parse_with_uninit_headers(bytes, room) {
            Ok(Status::Complete(length)) if length <= LARGEST_HEAD => length,
            Ok(Status::Partial) if bytes.len() < LARGEST_HEAD => return Ok(None),
            Ok(_) | Err(Error::TooManyHeaders) => return Err(Flaw::LargeHead),
            Err(Error::Version) => return Err(Flaw::Version),
            Err(Error::HeaderName) => {
                return Err(Flaw::Bad("a field's name makes no sense, or a field is folded"));
            }
            Err(Error::HeaderValue) => return Err(Flaw::Bad("a field's value makes no sense")),
            Err(_) => return Err(Flaw::Bad("this is not an HTTP request")),
        };
        if has_odd_line(&bytes[..length]) {
            return Err(Flaw::Bad("a line ends without a carriage return"));
        }
        let (Some(method), Some(target), Some(minor)) = (request.method, request.path, request.version)
        else {
            return Err(Flaw::Bad("this is not an HTTP request"));
        };
        let mut head = Head {
            method,
            host: "",
            path: target,
            minor,
            length,
            framing: Framing::None,
            keeps_alive: minor > 0,
            expects_continue: false,
            upgrade: None,
            fields: request.headers,
            names_fields: false,
        };
        head.understand(target)?;
        Ok(Some(head))
    }

    /// The method and the target of a head that has a flaw, as far as it says them.
    pub fn first_line(bytes: &'b [u8]) -> (&'b str, &'b str) {
        let mut request = httparse::Request::new(&mut []);
        // It stops at the flaw, or at the first field, for which there is no room.
        let _flaw = request.parse(bytes);
        (request.method.unwrap_or_default(), request.path.unwrap_or_default())
    }

    fn understand(&mut self, target: &'b str) -> Result<(), Flaw> {
        let (mut host, mut hop) = (None, Hop::default());
        for each in self.fields {
            let kind = field(each.name.as_bytes());
            hop.take(kind, each.value, self.minor)?;
            match kind {
                Field::Host if host.is_some() => return Err(Flaw::Bad("there is more than one Host")),
                Field::Host => host = Some(each.value.trim_ascii()),
                Field::Upgrade => self.upgrade = Some(each.value),
                Field::Expect => {
                    if !each.value.eq_ignore_ascii_case(b"100-continue") {
                        return Err(Flaw::Bad("only 100-continue can be expected"));
                    }
                    self.expects_continue = self.minor > 0;
                }
                Field::Via if hops(each.value) >= MOST_HOPS => {
                    return Err(Flaw::Bad("the request goes round in circles"));
                }
                _ => {}
            }
        }
        self.framing = hop.framing(Framing::None)?;
        self.keeps_alive = hop.keeps_alive(self.minor);
        self.names_fields = hop.named > 0;
        let may_upgrade = hop.upgrades && self.minor > 0 && self.framing == Framing::None;
        self.upgrade = self.upgrade.filter(|protocol| may_upgrade && !is_http(protocol));
        if target.len() > LONGEST_TARGET {
            return Err(Flaw::LongTarget);
        }
        if matches!(self.method, "CONNECT" | "TRACE") {
            return Err(Flaw::Method);
        }
        self.place(target, host)
    }

    /// Finds out which host and which path are meant.
    fn place(&mut self, target: &'b str, host: Option<&'b [u8]>) -> Result<(), Flaw> {
        const ODD_HOST: Flaw = Flaw::Bad("the host is not one");
        const ODD_TARGET: Flaw = Flaw::Bad("the target is neither a path nor an address");
        if host.is_none() && self.minor > 0 {
            return Err(Flaw::Bad("there is no Host"));
        }
        let sent = std::str::from_utf8(host.unwrap_or_default()).map_err(|_| ODD_HOST)?;
        if target.starts_with('/') {
            self.host = sent;
        } else if let Some(rest) = strip_scheme(target) {
            // What the target says counts, and the field does not.
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
            return Err(Flaw::Bad("the path has characters that no path has"));
        }
        if has_dots(self.path.as_bytes()) {
            return Err(Flaw::Bad("the path has . or .. in it"));
        }
        Ok(())
    }

    /// The values of the fields of this name, in the order they were sent.
    pub fn values<'f>(&'f self, name: &'f [u8]) -> impl DoubleEndedIterator<Item = &'b [u8]> + 'f {
        self.fields
            .iter()
            .filter(move |each| each.name.as_bytes().eq_ignore_ascii_case(name))
            .map(|each| each.value)
    }

    /// The one value of the field of this name; `None` also if there are several.
    pub fn value(&self, name: &[u8]) -> Option<&'b [u8]> {
        let mut values = self.values(name);
        values.next().filter(|_| values.next().is_none())
    }

    /// Writes the head for whoever is behind the gateway.
    pub fn compose(&self, about: &Forwarded, out: &mut Vec<u8>) {
        out.extend_from_slice(self.method.as_bytes());
        out.push(b' ');
        out.extend_from_slice(self.path.as_bytes());
        out.extend_from_slice(b" HTTP/1.1\r\nHost: ");
        out.extend_from_slice(self.host.as_bytes());
        out.extend_from_slice(b"\r\n");
        let mut claims = Claims::default();
        for each in self.fields {
            let kind = field(each.name.as_bytes());
            match kind {
                Field::Ordinary | Field::ContentType | Field::UserAgent | Field::Referer | Field::Via => {}
                Field::ClaimedClient | Field::ForwardedProto | Field::ForwardedHost if about.is_trusted => {}
                _ => continue,
            }
            if self.names_fields && self.is_for_this_hop(each.name.as_bytes()) {
                continue;
            }
            claims.proto |= kind == Field::ForwardedProto;
            claims.host |= kind == Field::ForwardedHost;
            push_field(out, each.name.as_bytes(), each.value);
        }
        self.compose_claims(about, claims, out);
        match self.framing {
            Framing::Length(length) => {
                out.extend_from_slice(b"Content-Length: ");
                push_number(out, length);
                out.extend_from_slice(b"\r\n");
            }
            Framing::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
            Framing::None | Framing::UntilClose => {}
        }
        if let Some(protocol) = self.upgrade {
            push_field(out, b"Connection", b"Upgrade");
            push_field(out, b"Upgrade", protocol);
        }
        out.extend_from_slice(b"\r\n");
    }

    fn compose_claims(&self, about: &Forwarded, claims: Claims, out: &mut Vec<u8>) {
        out.extend_from_slice(b"X-Forwarded-For: ");
        if about.is_trusted {
            for value in self.values(b"x-forwarded-for").filter(|value| !value.is_empty()) {
                out.extend_from_slice(value);
                out.extend_from_slice(b", ");
            }
        }
        push_address(out, about.peer);
        out.extend_from_slice(b"\r\n");
        if !claims.proto {
            let scheme: &[u8] = if about.is_secure { b"https" } else { b"http" };
            push_field(out, b"X-Forwarded-Proto", scheme);
        }
        if !claims.host && !self.host.is_empty() {
            push_field(out, b"X-Forwarded-Host", self.host.as_bytes());
        }
        out.extend_from_slice(if self.minor == 0 { b"Via: 1.0 " } else { b"Via: 1.1 " });
        out.extend_from_slice(PSEUDONYM);
        out.extend_from_slice(b"\r\n");
    }

    fn is_for_this_hop(&self, name: &[u8]) -> bool {
        names(self.values(b"connection"), name)
    }
}

/// What trusted proxies have said already.
#[derive(Debug, Default, Clone, Copy)]
struct Claims {
    proto: bool,
    host: bool,
}

/// Adds a field.
pub(crate) fn push_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Adds an address.
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

/// How many gateways like this one have passed a request on.
pub(crate) fn hops(via: &[u8]) -> usize {
    words(via).filter(|hop| hop.ends_with(PSEUDONYM)).count()
}

/// Whether one of these protocols is HTTP, or what it may be spoken over. Who went over to it would have a connection behind the gateway,
/// and could ask there for what the gateway never sees.
fn is_http(protocols: &[u8]) -> bool {
    words(protocols).any(|protocol| {
        let name = protocol.split(|byte| *byte == b'/').next().unwrap_or_default().trim_ascii();
        [&b"http"[..], b"h2c", b"h2", b"h3", b"tls"].iter().any(|known| name.eq_ignore_ascii_case(known))
    })
}

fn strip_scheme(target: &str) -> Option<&str> {
    let (scheme, rest) = target.split_once("://")?;
    (scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")).then_some(rest)
}
