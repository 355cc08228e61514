//! Fields: which are for the next hop only, and which the gateway writes itself.

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

/// What the field of this name is.
pub fn field(name: &[u8]) -> Field {
    let known: &[(&[u8], Field)] = match name.len() {
        2 => &[(b"te", Field::Te)],
        3 => &[(b"via", Field::Via)],
        4 => &[(b"host", Field::Host)],
        6 => &[(b"expect", Field::Expect)],
        7 => &[(b"upgrade", Field::Upgrade), (b"trailer", Field::HopByHop), (b"referer", Field::Referer)],
        9 => &[(b"forwarded", Field::ClaimedClient), (b"x-real-ip", Field::ClaimedClient)],
        10 => &[
            (b"connection", Field::Connection),
            (b"user-agent", Field::UserAgent),
            (b"keep-alive", Field::HopByHop),
        ],
        12 => &[(b"content-type", Field::ContentType)],
        14 => &[(b"content-length", Field::ContentLength), (b"http2-settings", Field::HopByHop)],
        15 => &[(b"x-forwarded-for", Field::ForwardedFor)],
        16 => &[
            (b"x-forwarded-host", Field::ForwardedHost),
            (b"x-forwarded-port", Field::ClaimedClient),
            (b"proxy-connection", Field::HopByHop),
        ],
        17 => {
            &[(b"transfer-encoding", Field::TransferEncoding), (b"x-forwarded-proto", Field::ForwardedProto)]
        }
        18 => &[(b"proxy-authenticate", Field::HopByHop)],
        19 => &[(b"proxy-authorization", Field::HopByHop)],
        _ => &[],
    };
    known
        .iter()
        .find(|(known, _)| name.eq_ignore_ascii_case(known))
        .map_or(Field::Ordinary, |(_, field)| *field)
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
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~:[]%!$&'()*+,;=".contains(byte);
    !host.is_empty() && host.len() <= 512 && host.iter().all(plain)
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
    fn connection_may_name_fields_in_any_case() {
        let values: [&[u8]; 2] = [b"close , X-One", b"x-two"];
        for wanted in [&b"x-one"[..], b"X-TWO", b"close"] {
            assert!(names(values.into_iter(), wanted));
        }
        assert!(!names(values.into_iter(), b"x-three"));
    }
}
