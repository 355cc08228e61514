//! Host patterns and path patterns of the settings file.

use std::fmt;
use std::net::Ipv6Addr;

use tidegate_config::text::quoted;

/// The maximum length of a host name.
pub const MAX_HOST_BYTES: usize = 253;
/// The maximum length of a label.
const MAX_LABEL_BYTES: usize = 63;
/// The maximum length of a route's path.
pub const MAX_PATTERN_BYTES: usize = 1024;

/// The hosts of a route. The variants are in match order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostPattern {
    /// One host, in lower case, without port and trailing dot.
    Exact(String),
    /// Any single label before this suffix, which starts with a dot: `*.example.com` is `.example.com`.
    OneLabel(String),
    /// Any host.
    Any,
}

impl HostPattern {
    /// Parses a pattern. The error says what is wrong.
    pub fn parse(text: &str) -> Result<HostPattern, String> {
        let refuse = |why: &str| {
            Err(format!(
                "{why}, found {}; write a host such as api.example.com or *.example.com",
                quoted(text)
            ))
        };
        let lower = text.to_ascii_lowercase();
        let host = lower.strip_suffix('.').unwrap_or(&lower);
        if text == "*" {
            return Ok(HostPattern::Any);
        }
        if host.starts_with('[') {
            let inside = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
            return match inside.and_then(|address| address.parse::<Ipv6Addr>().ok()) {
                Some(address) => Ok(HostPattern::Exact(format!("[{address}]"))),
                None => refuse("must be an IPv6 address in brackets, without a port"),
            };
        }
        let (wild, name) = match host.strip_prefix("*.") {
            Some(name) => (true, name),
            None => (false, host),
        };
        if name.is_empty() {
            return refuse("must not be empty");
        }
        if !name.is_ascii() {
            return refuse("must be written as it is sent, in ASCII (xn--…)");
        }
        if name.contains(':') {
            return refuse("must not have a port or a scheme; a route is for every port");
        }
        if name.contains('*') {
            return refuse("may have one *, as the whole first label");
        }
        if name.contains('/') {
            return refuse("must not have a path; write that in path");
        }
        if host.len() > MAX_HOST_BYTES {
            return Err(format!("must be at most {MAX_HOST_BYTES} bytes, found {}", host.len()));
        }
        if !name.split('.').all(is_label) {
            return refuse(
                "must be labels of letters, digits, - and _, each of 1 to 63, with dots between them",
            );
        }
        Ok(if wild { HostPattern::OneLabel(format!(".{name}")) } else { HostPattern::Exact(name.to_owned()) })
    }
}

fn is_label(label: &str) -> bool {
    let within = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=MAX_LABEL_BYTES).contains(&label.len())
        && label.bytes().all(within)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostPattern::Exact(host) => f.write_str(host),
            HostPattern::OneLabel(suffix) => write!(f, "*{suffix}"),
            HostPattern::Any => f.write_str("*"),
        }
    }
}

/// The paths of a route.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PathPattern {
    /// The literal prefix, without a trailing slash unless it is part of the pattern; empty for `/*` and
    /// `/**`.
    pub literal: String,
    /// What may follow the literal.
    pub rest: PathRest,
}

/// What may follow the literal of a path. The variants are in match order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathRest {
    /// Nothing.
    Nothing,
    /// One non-empty segment: `/*`.
    OneSegment,
    /// Nothing, or a slash and anything: `/**`.
    Anything,
}

impl PathPattern {
    /// The pattern that matches every path.
    pub const fn any() -> PathPattern {
        PathPattern { literal: String::new(), rest: PathRest::Anything }
    }

    /// Parses a pattern. The error says what is wrong.
    pub fn parse(text: &str) -> Result<PathPattern, String> {
        let refuse = |why: &str| {
            Err(format!("{why}, found {}; write a path such as /api, /api/* or /api/**", quoted(text)))
        };
        if !text.starts_with('/') {
            return refuse("must begin with a slash");
        }
        if text.len() > MAX_PATTERN_BYTES {
            return Err(format!("must be at most {MAX_PATTERN_BYTES} bytes, found {}", text.len()));
        }
        let (literal, rest) = if let Some(literal) = text.strip_suffix("/**") {
            (literal, PathRest::Anything)
        } else if let Some(literal) = text.strip_suffix("/*") {
            (literal, PathRest::OneSegment)
        } else {
            (text, PathRest::Nothing)
        };
        if literal.contains('*') {
            return refuse("may have * or ** only as its last segment");
        }
        if literal.contains(['?', '#']) {
            return refuse("must not have a query or a fragment");
        }
        if !literal.bytes().all(|byte| byte.is_ascii_graphic()) {
            return refuse("must be written as it is sent, in ASCII without spaces (%20)");
        }
        if literal.contains("//") || (rest != PathRest::Nothing && literal.ends_with('/')) {
            return refuse("must not have empty segments");
        }
        if literal.split('/').any(|segment| segment == "." || segment == "..") {
            return refuse("must not have the segments . and ..");
        }
        Ok(PathPattern { literal: literal.to_owned(), rest })
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.literal)?;
        f.write_str(match self.rest {
            PathRest::Nothing => "",
            PathRest::OneSegment => "/*",
            PathRest::Anything => "/**",
        })
    }
}
