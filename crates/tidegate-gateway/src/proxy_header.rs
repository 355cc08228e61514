//! Parser for the PROXY protocol header, versions 1 and 2.
//!
//! It is a pure function over the bytes received so far. The gateway expects the header only from trusted proxies.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The maximum length of a version 1 header, with its line end.
pub const MAX_V1_BYTES: usize = 107;
/// The maximum length of a version 2 header: addresses and some extension fields.
pub const MAX_V2_BYTES: usize = 16 + 2048;

const V1: &[u8] = b"PROXY ";
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// The length of the fixed part of a version 2 header.
const V2_HEAD: usize = 16;

/// A parsed header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProxyHeader {
    /// The length of the header. The client's bytes follow it.
    pub length: usize,
    /// The address of the client. `None` if the proxy speaks for itself or does not know the client.
    pub source: Option<SocketAddr>,
}

/// Why no header was parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyHeaderError {
    /// More bytes are needed.
    Incomplete,
    /// The bytes do not start with a PROXY header.
    Absent,
    /// The header starts correctly but is invalid.
    Malformed,
}

impl fmt::Display for ProxyHeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProxyHeaderError::Incomplete => "the PROXY header is not complete",
            ProxyHeaderError::Absent => "the connection does not begin with a PROXY header",
            ProxyHeaderError::Malformed => "the PROXY header makes no sense",
        })
    }
}

impl std::error::Error for ProxyHeaderError {}

/// Parses the header at the start of `bytes`.
pub fn parse_proxy_header(bytes: &[u8]) -> Result<ProxyHeader, ProxyHeaderError> {
    if begins(bytes, V2)? {
        return parse_v2(bytes);
    }
    if begins(bytes, V1)? {
        return parse_v1(bytes);
    }
    Err(ProxyHeaderError::Absent)
}

/// Whether `bytes` starts with `with`. Incomplete if it may still do so.
fn begins(bytes: &[u8], with: &[u8]) -> Result<bool, ProxyHeaderError> {
    let seen = bytes.len().min(with.len());
    match bytes[..seen] == with[..seen] {
        true if seen < with.len() => Err(ProxyHeaderError::Incomplete),
        same => Ok(same),
    }
}

/// Parses `PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\n`.
fn parse_v1(bytes: &[u8]) -> Result<ProxyHeader, ProxyHeaderError> {
    let seen = &bytes[..bytes.len().min(MAX_V1_BYTES)];
    let Some(end) = seen.windows(2).position(|pair| pair == b"\r\n") else {
        let whole = bytes.len() >= MAX_V1_BYTES;
        return Err(if whole { ProxyHeaderError::Malformed } else { ProxyHeaderError::Incomplete });
    };
    let line = std::str::from_utf8(&seen[V1.len()..end]).map_err(|_| ProxyHeaderError::Malformed)?;
    let unknown = line == "UNKNOWN" || line.starts_with("UNKNOWN ");
    let source = if unknown { None } else { Some(source_v1(line).ok_or(ProxyHeaderError::Malformed)?) };
    Ok(ProxyHeader { length: end + 2, source })
}

/// The source address of a version 1 line.
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

fn parse_v2(bytes: &[u8]) -> Result<ProxyHeader, ProxyHeaderError> {
    let head = bytes.get(..V2_HEAD).ok_or(ProxyHeaderError::Incomplete)?;
    let length = V2_HEAD + usize::from(u16::from_be_bytes([head[14], head[15]]));
    if head[12] >> 4 != 2 || length > MAX_V2_BYTES {
        return Err(ProxyHeaderError::Malformed);
    }
    let body = bytes.get(V2_HEAD..length).ok_or(ProxyHeaderError::Incomplete)?;
    let source = match head[12] & 0xf {
        // A connection of the proxy itself, such as a health check.
        0 => None,
        1 => source_v2(head[13], body)?,
        _ => return Err(ProxyHeaderError::Malformed),
    };
    Ok(ProxyHeader { length, source })
}

/// The source address of a version 2 header, if it is an Internet address.
fn source_v2(family: u8, body: &[u8]) -> Result<Option<SocketAddr>, ProxyHeaderError> {
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
        // Unspecified, or a Unix socket.
        0 | 3 => return Ok(None),
        _ => None,
    };
    source.map(Some).ok_or(ProxyHeaderError::Malformed)
}
