//! Header fields: which are hop-by-hop, and which the gateway writes itself.

use std::net::Ipv6Addr;

use crate::settings::MAX_HOST_BYTES;
use arrayvec::ArrayVec;

/// The role of a field in forwarding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderField {
    /// Forwarded unchanged.
    Ordinary,
    /// `Host`.
    Host,
    /// `Content-Length`.
    ContentLength,
    /// `Transfer-Encoding`.
    TransferEncoding,
    /// `Connection`: names the hop-by-hop fields and whether the connection persists.
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
    /// Another field that identifies the client. Forwarded from trusted proxies only.
    ClaimedClient,
    /// Another hop-by-hop field.
    HopByHop,
    /// `Content-Type`.
    ContentType,
    /// `User-Agent`.
    UserAgent,
    /// `Referer`.
    Referer,
}

/// Classifies a field name. This runs for every field, so the length and the first letter select the only
/// candidate.
pub fn classify_field(name: &[u8]) -> HeaderField {
    let first = name.first().map_or(0, u8::to_ascii_lowercase);
    let (known, field): (&[u8], HeaderField) = match (name.len(), first) {
        (2, b't') => (b"te", HeaderField::Te),
        (3, b'v') => (b"via", HeaderField::Via),
        (4, b'h') => (b"host", HeaderField::Host),
        // CGI programs take it for their own proxy setting (httpoxy).
        (5, b'p') => (b"proxy", HeaderField::HopByHop),
        (6, b'e') => (b"expect", HeaderField::Expect),
        (7, b'u') => (b"upgrade", HeaderField::Upgrade),
        (7, b't') => (b"trailer", HeaderField::HopByHop),
        (7, b'r') => (b"referer", HeaderField::Referer),
        (9, b'f') => (b"forwarded", HeaderField::ClaimedClient),
        (9, b'x') => (b"x-real-ip", HeaderField::ClaimedClient),
        (10, b'c') => (b"connection", HeaderField::Connection),
        (10, b'u') => (b"user-agent", HeaderField::UserAgent),
        (10, b'k') => (b"keep-alive", HeaderField::HopByHop),
        (12, b'c') => (b"content-type", HeaderField::ContentType),
        (14, b'c') => (b"content-length", HeaderField::ContentLength),
        (14, b'h') => (b"http2-settings", HeaderField::HopByHop),
        (15, b'x') => (b"x-forwarded-for", HeaderField::ForwardedFor),
        (16, b'x') if name[12..].eq_ignore_ascii_case(b"host") => {
            (b"x-forwarded-host", HeaderField::ForwardedHost)
        }
        (16, b'p') => (b"proxy-connection", HeaderField::HopByHop),
        (17, b't') => (b"transfer-encoding", HeaderField::TransferEncoding),
        (17, b'x') => (b"x-forwarded-proto", HeaderField::ForwardedProto),
        (18, b'p') => (b"proxy-authenticate", HeaderField::HopByHop),
        (19, b'p') => (b"proxy-authorization", HeaderField::HopByHop),
        _ => return classify_prefixed(name, first),
    };
    if name.eq_ignore_ascii_case(known) { field } else { classify_prefixed(name, first) }
}

/// The prefix of fields that describe the original request.
const FORWARDED: &[u8] = b"x-forwarded-";

/// Classifies a name that has no entry of its own.
fn classify_prefixed(name: &[u8], first: u8) -> HeaderField {
    let begins =
        |name: &[u8]| name.get(..FORWARDED.len()).is_some_and(|name| name.eq_ignore_ascii_case(FORWARDED));
    if first == b'x' && begins(name) { HeaderField::ClaimedClient } else { classify_underscored(name) }
}

/// The length of the longest known name.
const MAX_KNOWN_NAME: usize = 19;

/// Classifies a name with underscores. If its dashed form is special, the field is dropped, because many
/// programs treat both forms alike.
fn classify_underscored(name: &[u8]) -> HeaderField {
    if memchr::memchr(b'_', name).is_none() {
        return HeaderField::Ordinary;
    }
    // For a longer name the prefix decides.
    let known = if name.len() > MAX_KNOWN_NAME { &name[..=FORWARDED.len()] } else { name };
    let plain: ArrayVec<u8, MAX_KNOWN_NAME> =
        known.iter().map(|byte| if *byte == b'_' { b'-' } else { *byte }).collect();
    if classify_field(&plain) == HeaderField::Ordinary {
        HeaderField::Ordinary
    } else {
        HeaderField::HopByHop
    }
}

/// The items of a comma-separated list, as in `Connection`.
pub fn list_items(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|word| !word.is_empty())
}

/// Whether a list contains this item, ignoring case.
pub fn list_contains<'v>(mut values: impl Iterator<Item = &'v [u8]>, wanted: &[u8]) -> bool {
    values.any(|value| list_items(value).any(|word| word.eq_ignore_ascii_case(wanted)))
}

/// Whether a host is valid: a name or an address with an optional port.
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

/// Whether this is a name with labels or an IPv4 address. A trailing dot is allowed.
fn is_name(name: &[u8]) -> bool {
    let letter = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_~".contains(byte);
    let labels = name.strip_suffix(b".").unwrap_or(name);
    name.len() <= MAX_HOST_BYTES
        && labels.split(|byte| *byte == b'.').all(|label| !label.is_empty() && label.iter().all(letter))
}

fn is_port(port: &[u8]) -> bool {
    port.len() <= 5
        && (port.is_empty() || std::str::from_utf8(port).is_ok_and(|port| port.parse::<u16>().is_ok()))
        && port.iter().all(u8::is_ascii_digit)
}

/// Whether a path has a `.` or `..` segment, plain or encoded. An endpoint may resolve such a path
/// differently.
pub fn has_dot_segment(path: &[u8]) -> bool {
    let end = memchr::memchr2(b'?', b'#', path).unwrap_or(path.len());
    let path = &path[..end];
    if memchr::memmem::find(path, b"/.").is_none() && memchr::memchr3(b'%', b'\\', b';', path).is_none() {
        return false;
    }
    // Some servers ignore what follows a semicolon in a segment.
    let is_dots = |segment: &[u8]| {
        let name = segment.split(|byte| *byte == b';').next();
        name.is_some_and(|name| name == b"." || name == b"..")
    };
    decoded(path).split(|byte| matches!(byte, b'/' | b'\\')).any(is_dots)
}

/// Decodes `%2e`, `%2f` and `%5c` in a path.
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
    fn dot_segments_are_found_in_every_encoding() {
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
            assert!(has_dot_segment(path.as_bytes()), "{path}");
        }
        for path in ["/", "/.well-known/x", "/a..b", "/...", "/a/b.c", "/a?x=/../", "/%2ea", "*", "/a;b/c"] {
            assert!(!has_dot_segment(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn fields_are_classified_by_whole_name_in_any_case() {
        for (name, kind) in [
            ("Host", HeaderField::Host),
            ("TRANSFER-ENCODING", HeaderField::TransferEncoding),
            ("x-Forwarded-Port", HeaderField::ClaimedClient),
            ("X-Forwarded-Host", HeaderField::ForwardedHost),
            ("proxy-Connection", HeaderField::HopByHop),
            ("Content-Length", HeaderField::ContentLength),
            ("te", HeaderField::Te),
        ] {
            assert_eq!(classify_field(name.as_bytes()), kind, "{name}");
            let another = format!("{}\u{1}", &name[..name.len() - 1]);
            let expected = if name.to_lowercase().starts_with("x-forwarded-") {
                HeaderField::ClaimedClient
            } else {
                HeaderField::Ordinary
            };
            assert_eq!(classify_field(another.as_bytes()), expected, "{another}");
        }
        for name in ["X_Forwarded_For", "content_length", "transfer-encoding_", "TRANSFER_ENCODING"] {
            let expected = if name.ends_with('_') { HeaderField::Ordinary } else { HeaderField::HopByHop };
            assert_eq!(classify_field(name.as_bytes()), expected, "{name}");
        }
        for name in
            ["X-Forwarded-Prefix", "x-forwarded-server", "X-FORWARDED-", "x-forwarded-anything-at-all"]
        {
            assert_eq!(classify_field(name.as_bytes()), HeaderField::ClaimedClient, "{name}");
        }
        for name in
            ["Proxy", "X_Forwarded_Prefix", "x-forwarded_anything_at_all", "x_forwarded-anything-at-all"]
        {
            assert_eq!(classify_field(name.as_bytes()), HeaderField::HopByHop, "{name}");
        }
        for name in
            ["", "hos", "hosts", "x-forwarded", "y-forwarded-for", "x_custom", "x_custom_and_very_very_long"]
        {
            assert_eq!(classify_field(name.as_bytes()), HeaderField::Ordinary, "{name}");
        }
    }

    #[test]
    fn valid_hosts_are_names_or_addresses() {
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
    fn connection_list_matches_in_any_case() {
        let values: [&[u8]; 2] = [b"close , X-One", b"x-two"];
        for wanted in [&b"x-one"[..], b"X-TWO", b"close"] {
            assert!(list_contains(values.into_iter(), wanted));
        }
        assert!(!list_contains(values.into_iter(), b"x-three"));
    }
}
