//! Fields: which are for the next hop only, and which the gateway writes itself.

use std::net::Ipv6Addr;

use crate::settings::LONGEST_HOST;
use arrayvec::ArrayVec;

/// What a field is to a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// Passed on as it is.
    Ordinary,
    /// `Host`.
    Host,
    /// `Content-Length`.
    ContentLength,
    /// `Transfer-Encoding`.
    TransferEncoding,
    /// `Connection`: which fields are for this hop only, and whether it goes on.
    Connection,
    /// `Upgrade`.
    Upgrade,
    /// `Expect`.
    Expect,
    /// `TE`.
    Te,
    /// `Via`.
    Via,
    /// `X-Forwarded-For`.
    ForwardedFor,
    /// `X-Forwarded-Proto`.
    ForwardedProto,
    /// `X-Forwarded-Host`.
    ForwardedHost,
    /// What else says who the client is: believed of trusted proxies only.
    ClaimedClient,
    /// For this hop only.
    HopByHop,
    /// `Content-Type`.
    ContentType,
    /// `User-Agent`.
    UserAgent,
    /// `Referer`.
    Referer,
}

/// What the field of this name is. Asked for every field of every message, so the length and the first letter say whom it could be.
pub fn field(name: &[u8]) -> Field {
    let first = name.first().map_or(0, u8::to_ascii_lowercase);
    let (known, field): (&[u8], Field) = match (name.len(), first) {
        (2, b't') => (b"te", Field::Te),
        (3, b'v') => (b"via", Field::Via),
        (4, b'h') => (b"host", Field::Host),
        // Programs that are run for a request take it for where their own requests go.
        (5, b'p') => (b"proxy", Field::HopByHop),
        (6, b'e') => (b"expect", Field::Expect),
        (7, b'u') => (b"upgrade", Field::Upgrade),
        (7, b't') => (b"trailer", Field::HopByHop),
        (7, b'r') => (b"referer", Field::Referer),
        (9, b'f') => (b"forwarded", Field::ClaimedClient),
        (9, b'x') => (b"x-real-ip", Field::ClaimedClient),
        (10, b'c') => (b"connection", Field::Connection),
        (10, b'u') => (b"user-agent", Field::UserAgent),
        (10, b'k') => (b"keep-alive", Field::HopByHop),
        (12, b'c') => (b"content-type", Field::ContentType),
        (14, b'c') => (b"content-length", Field::ContentLength),
        (14, b'h') => (b"http2-settings", Field::HopByHop),
        (15, b'x') => (b"x-forwarded-for", Field::ForwardedFor),
        (16, b'x') if name[12..].eq_ignore_ascii_case(b"host") => (b"x-forwarded-host", Field::ForwardedHost),
        (16, b'p') => (b"proxy-connection", Field::HopByHop),
        (17, b't') => (b"transfer-encoding", Field::TransferEncoding),
        (17, b'x') => (b"x-forwarded-proto", Field::ForwardedProto),
        (18, b'p') => (b"proxy-authenticate", Field::HopByHop),
        (19, b'p') => (b"proxy-authorization", Field::HopByHop),
        _ => return other(name, first),
    };
    if name.eq_ignore_ascii_case(known) { field } else { other(name, first) }
}

/// What every field begins with that says how a request came.
const FORWARDED: &[u8] = b"x-forwarded-";

/// What a field is that is none of those with a name of their own.
fn other(name: &[u8], first: u8) -> Field {
    let begins =
        |name: &[u8]| name.get(..FORWARDED.len()).is_some_and(|name| name.eq_ignore_ascii_case(FORWARDED));
    if first == b'x' && begins(name) { Field::ClaimedClient } else { disguised(name) }
}

/// The longest name of a field that is known here.
const LONGEST_KNOWN: usize = 19;

/// What a field is that none of the known ones is. One that would be with dashes for its underscores goes no further: many programs
/// make no difference between the two.
fn disguised(name: &[u8]) -> Field {
    if memchr::memchr(b'_', name).is_none() {
        return Field::Ordinary;
    }
    // Of a longer name its beginning says what it could be.
    let known = if name.len() > LONGEST_KNOWN { &name[..=FORWARDED.len()] } else { name };
    let plain: ArrayVec<u8, LONGEST_KNOWN> =
        known.iter().map(|byte| if *byte == b'_' { b'-' } else { *byte }).collect();
    if field(&plain) == Field::Ordinary { Field::Ordinary } else { Field::HopByHop }
}

/// The words of a list such as that of `Connection`.
pub fn words(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|word| !word.is_empty())
}

/// Whether one of these values of `Connection` names this field, or this option.
pub fn names<'v>(mut values: impl Iterator<Item = &'v [u8]>, wanted: &[u8]) -> bool {
    values.any(|value| words(value).any(|word| word.eq_ignore_ascii_case(wanted)))
}

/// Whether the host may be in a request: a name or an address, and perhaps a port.
pub fn is_host(host: &[u8]) -> bool {
    let (name, port) = if let Some(rest) = host.strip_prefix(b"[") {
        let Some(end) = memchr::memchr(b']', rest) else { return false };
        let address = std::str::from_utf8(&rest[..end]).ok().and_then(|text| text.parse::<Ipv6Addr>().ok());
        if address.is_none() {
            return false;
        }
        (None, &rest[end + 1..])
    } else {
        let end = memchr::memchr(b':', host).unwrap_or(host.len());
        (Some(&host[..end]), &host[end..])
    };
    name.is_none_or(is_name) && (port.is_empty() || port.strip_prefix(b":").is_some_and(is_port))
}

/// Whether it is a name with labels, or an address of IPv4. A dot at the end is part of a name.
fn is_name(name: &[u8]) -> bool {
    let letter = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_~".contains(byte);
    let labels = name.strip_suffix(b".").unwrap_or(name);
    name.len() <= LONGEST_HOST
        && labels.split(|byte| *byte == b'.').all(|label| !label.is_empty() && label.iter().all(letter))
}

fn is_port(port: &[u8]) -> bool {
    port.len() <= 5
        && (port.is_empty() || std::str::from_utf8(port).is_ok_and(|port| port.parse::<u16>().is_ok()))
        && port.iter().all(u8::is_ascii_digit)
}

/// Whether a path has a segment `.` or `..`, written plainly or not: whoever is behind the gateway may take it for another path than the
/// gateway does.
pub fn has_dots(path: &[u8]) -> bool {
    let end = memchr::memchr2(b'?', b'#', path).unwrap_or(path.len());
    let path = &path[..end];
    if memchr::memmem::find(path, b"/.").is_none() && memchr::memchr3(b'%', b'\\', b';', path).is_none() {
        return false;
    }
    // What stands behind a semicolon is not part of the segment, some say.
    let is_dots = |segment: &[u8]| {
        let name = segment.split(|byte| *byte == b';').next();
        name.is_some_and(|name| name == b"." || name == b"..")
    };
    decoded(path).split(|byte| matches!(byte, b'/' | b'\\')).any(is_dots)
}

/// A path without `%2e`, `%2f` and `%5c`.
fn decoded(path: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((first, behind)) = rest.split_first() {
        let hidden = match (first, behind) {
            (b'%', [b'2', b'e' | b'E', ..]) => Some(b'.'),
            (b'%', [b'2', b'f' | b'F', ..]) => Some(b'/'),
            (b'%', [b'5', b'c' | b'C', ..]) => Some(b'\\'),
            _ => None,
        };
        plain.push(hidden.unwrap_or(*first));
        rest = if hidden.is_some() { &behind[2..] } else { behind };
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_are_found_however_they_are_written() {
        for path in [
            "/..",
            "/a/../b",
            "/./a",
            "/a/.",
            "/%2e%2e/a",
            "/a/%2E./b",
            "/a/..;x=1/b",
            "/a%2f..%2fb",
            "/a\\..\\b",
        ] {
            assert!(has_dots(path.as_bytes()), "{path}");
        }
        for path in ["/", "/.well-known/x", "/a..b", "/...", "/a/b.c", "/a?x=/../", "/%2ea", "*", "/a;b/c"] {
            assert!(!has_dots(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn fields_are_known_in_any_case_and_by_their_whole_names() {
        for (name, kind) in [
            ("Host", Field::Host),
            ("TRANSFER-ENCODING", Field::TransferEncoding),
            ("x-Forwarded-Port", Field::ClaimedClient),
            ("X-Forwarded-Host", Field::ForwardedHost),
            ("proxy-Connection", Field::HopByHop),
            ("Content-Length", Field::ContentLength),
            ("te", Field::Te),
        ] {
            assert_eq!(field(name.as_bytes()), kind, "{name}");
            let another = format!("{}\u{1}", &name[..name.len() - 1]);
            let expected = if name.to_lowercase().starts_with("x-forwarded-") {
                Field::ClaimedClient
            } else {
                Field::Ordinary
            };
            assert_eq!(field(another.as_bytes()), expected, "{another}");
        }
        for name in ["X_Forwarded_For", "content_length", "transfer-encoding_", "TRANSFER_ENCODING"] {
            let expected = if name.ends_with('_') { Field::Ordinary } else { Field::HopByHop };
            assert_eq!(field(name.as_bytes()), expected, "{name}");
        }
        for name in
            ["X-Forwarded-Prefix", "x-forwarded-server", "X-FORWARDED-", "x-forwarded-anything-at-all"]
        {
            assert_eq!(field(name.as_bytes()), Field::ClaimedClient, "{name}");
        }
        for name in
            ["Proxy", "X_Forwarded_Prefix", "x-forwarded_anything_at_all", "x_forwarded-anything-at-all"]
        {
            assert_eq!(field(name.as_bytes()), Field::HopByHop, "{name}");
        }
        for name in
            ["", "hos", "hosts", "x-forwarded", "y-forwarded-for", "x_custom", "x_custom_and_very_very_long"]
        {
            assert_eq!(field(name.as_bytes()), Field::Ordinary, "{name}");
        }
    }

    #[test]
    fn hosts_are_names_or_addresses() {
        let long = "a".repeat(300);
        for host in [
            "a",
            "A.b-c_d",
            "a.b.",
            "127.0.0.1:80",
            "[::1]",
            "[2001:db8::1]:65535",
            "a:",
            "xn--bcher-kva.example",
        ] {
            assert!(is_host(host.as_bytes()), "{host}");
        }
        for host in [
            "", ".", "a..b", ".a", "a,b", "*", "a:99999", "a:x", "a:80:80", "[::1", "[a]", "[::1]x", "a@b",
            "a/b", "a b", &long,
        ] {
            assert!(!is_host(host.as_bytes()), "{host}");
        }
    }

    #[test]
    fn connection_may_name_fields_in_any_case() {
        let values: [&[u8]; 2] = [b"close , X-One", b"x-two"];
        for wanted in [&b"x-one"[..], b"X-TWO", b"close"] {
            assert!(names(values.into_iter(), wanted));
        }
        assert!(!names(values.into_iter(), b"x-three"));
    }
}
