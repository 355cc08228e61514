//! The PROXY header, versions 1 and 2: what a proxy says about a connection before anything else is said on it.
//!
//! A pure function over what has arrived so far. Only connections of trusted proxies may be asked for one.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The longest header of version 1, with the end of its line.
pub const LONGEST_V1: usize = 107;
/// The longest header of version 2 that is read: addresses and some fields behind them.
pub const LONGEST_V2: usize = 16 + 2048;

const V1: &[u8] = b"PROXY ";
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// The part of a version 2 header that always is there.
const V2_HEAD: usize = 16;

/// What a header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// How many bytes it takes; the client's own begin behind them.
    pub length: usize,
    /// Where the client is; `None` if the proxy speaks for itself, or does not know.
    pub source: Option<SocketAddr>,
}

/// Why there is no header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderError {
    /// Not all of it has arrived.
    Incomplete,
    /// What has arrived does not begin with one.
    Absent,
    /// It begins like one, and goes on in a way that no header does.
    Malformed,
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HeaderError::Incomplete => "the PROXY header is not complete",
            HeaderError::Absent => "the connection does not begin with a PROXY header",
            HeaderError::Malformed => "the PROXY header makes no sense",
        })
    }
}

impl std::error::Error for HeaderError {}

/// Reads the header at the beginning of what has arrived.
pub fn parse_proxy_header(bytes: &[u8]) -> Result<Header, HeaderError> {
    if begins(bytes, V2)? {
        return parse_v2(bytes);
    }
    if begins(bytes, V1)? {
        return parse_v1(bytes);
    }
    Err(HeaderError::Absent)
}

/// Whether these begin with that; incomplete if they may yet.
fn begins(bytes: &[u8], with: &[u8]) -> Result<bool, HeaderError> {
    let seen = bytes.len().min(with.len());
    match bytes[..seen] == with[..seen] {
        true if seen < with.len() => Err(HeaderError::Incomplete),
        same => Ok(same),
    }
}

/// `PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\n`.
fn parse_v1(bytes: &[u8]) -> Result<Header, HeaderError> {
    let seen = &bytes[..bytes.len().min(LONGEST_V1)];
    let Some(end) = seen.windows(2).position(|pair| pair == b"\r\n") else {
        let whole = bytes.len() >= LONGEST_V1;
        return Err(if whole { HeaderError::Malformed } else { HeaderError::Incomplete });
    };
    let line = std::str::from_utf8(&seen[V1.len()..end]).map_err(|_| HeaderError::Malformed)?;
    let unknown = line == "UNKNOWN" || line.starts_with("UNKNOWN ");
    let source = if unknown { None } else { Some(source_v1(line).ok_or(HeaderError::Malformed)?) };
    Ok(Header { length: end + 2, source })
}

/// The source of a line.
fn source_v1(line: &str) -> Option<SocketAddr> {
    let mut words = line.split(' ');
    let family = words.next()?;
    let address = |word: &str| -> Option<IpAddr> {
        match family {
            "TCP4" => word.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
            "TCP6" => word.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
            _ => None,
        }
    };
    let port = |word: &str| -> Option<u16> {
        let digits = word.bytes().all(|byte| byte.is_ascii_digit());
        if digits { word.parse().ok() } else { None }
    };
    let (source, _target) = (address(words.next()?)?, address(words.next()?)?);
    let (source_port, _target_port) = (port(words.next()?)?, port(words.next()?)?);
    words.next().is_none().then_some(SocketAddr::new(source, source_port))
}

fn parse_v2(bytes: &[u8]) -> Result<Header, HeaderError> {
    let head = bytes.get(..V2_HEAD).ok_or(HeaderError::Incomplete)?;
    let length = V2_HEAD + usize::from(u16::from_be_bytes([head[14], head[15]]));
    if head[12] >> 4 != 2 || length > LONGEST_V2 {
        return Err(HeaderError::Malformed);
    }
    let body = bytes.get(V2_HEAD..length).ok_or(HeaderError::Incomplete)?;
    let source = match head[12] & 0xf {
        // The proxy's own connection, such as a health check.
        0 => None,
        1 => source_v2(head[13], body)?,
        _ => return Err(HeaderError::Malformed),
    };
    Ok(Header { length, source })
}

/// The source in the body of a version 2 header, if it is of the Internet.
fn source_v2(family: u8, body: &[u8]) -> Result<Option<SocketAddr>, HeaderError> {
    let port = |at: usize| Some(u16::from_be_bytes([*body.get(at)?, *body.get(at + 1)?]));
    let source = match family >> 4 {
        1 => body
            .first_chunk::<4>()
            .zip(port(8))
            .filter(|_| body.len() >= 12)
            .map(|(address, port)| SocketAddr::new(Ipv4Addr::from(*address).into(), port)),
        2 => body
            .first_chunk::<16>()
            .zip(port(32))
            .filter(|_| body.len() >= 36)
            .map(|(address, port)| SocketAddr::new(Ipv6Addr::from(*address).into(), port)),
        // Unspecified, or a socket of the proxy's own machine.
        0 | 3 => return Ok(None),
        _ => None,
    };
    source.map(Some).ok_or(HeaderError::Malformed)
}
