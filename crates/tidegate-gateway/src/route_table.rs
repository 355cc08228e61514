//! Finds the most specific route of a request.
//!
//! ```text
//!   host      api.example.com   before   *.example.com   before   *
//!   path      /api/v1           before   /api/*          before   /api/**   before   /**
//! ```
//!
//! Hosts are tried in this order. For each host the longest matching path wins. If no path of a host matches, the next host is
//! tried. A lookup does not allocate. Its cost is bounded by the longest configured path, not by the length of the request path.
//!
//! Paths are compared as sent, without the query. The gateway must forward the path unchanged.

use crate::settings::{HostPattern, MAX_HOST_BYTES, PathPattern, PathRest, RouteSpec};
use arrayvec::ArrayVec;
use hashbrown::HashMap;

/// An index of routes. Each route is known by its position in the list.
#[derive(Debug, Default)]
pub struct RouteTable {
    exact: HashMap<Box<str>, HostPaths>,
    /// Keyed by what follows the first label, with its dot.
    one_label: HashMap<Box<str>, HostPaths>,
    any: HostPaths,
}

/// The paths of one host.
#[derive(Debug, Default)]
struct HostPaths {
    by_literal: HashMap<Box<str>, LiteralRoutes>,
    /// The length of the longest literal.
    longest: usize,
}

/// The routes of one literal: exact, with one more segment, with any suffix.
#[derive(Debug, Default)]
struct LiteralRoutes {
    nothing: Option<usize>,
    one_segment: Option<usize>,
    anything: Option<usize>,
}

impl RouteTable {
    /// Builds an index of these routes.
    pub fn new(routes: &[RouteSpec]) -> RouteTable {
        let mut index = RouteTable::default();
        for (at, route) in routes.iter().enumerate() {
            let paths = match &route.host {
                HostPattern::Exact(host) => index.exact.entry(host.as_str().into()).or_default(),
                HostPattern::OneLabel(suffix) => index.one_label.entry(suffix.as_str().into()).or_default(),
                HostPattern::Any => &mut index.any,
            };
            paths.insert(&route.path, at);
        }
        index
    }

    /// The position of the most specific route for a host (with or without a port) and a path.
    pub fn find(&self, host: &str, path: &str) -> Option<usize> {
        let path = path.split(['?', '#']).next().unwrap_or(path);
        // `OPTIONS *` takes the route of the root path.
        let path = if path == "*" { "/" } else { path };
        let specific = NormalizedHost::normalize(host).and_then(|host| {
            let host = host.as_str();
            let exact = self.exact.get(host).and_then(|paths| paths.find(path));
            exact.or_else(|| {
                let dot = host.find('.').filter(|dot| *dot > 0)?;
                self.one_label.get(&host[dot..])?.find(path)
            })
        });
        specific.or_else(|| self.any.find(path))
    }
}

impl HostPaths {
    fn insert(&mut self, path: &PathPattern, at: usize) {
        self.longest = self.longest.max(path.literal.len());
        let routes_here = self.by_literal.entry(path.literal.as_str().into()).or_default();
        let end = match path.rest {
            PathRest::Nothing => &mut routes_here.nothing,
            PathRest::OneSegment => &mut routes_here.one_segment,
            PathRest::Anything => &mut routes_here.anything,
        };
        end.get_or_insert(at);
    }

    fn find(&self, path: &str) -> Option<usize> {
        if let Some(routes_here) = self.literal(path)
            && let Some(at) = routes_here.nothing.or(routes_here.anything)
        {
            return Some(at);
        }
        // Everything before a slash may be a literal. Try the longest first.
        let mut end = path.len();
        while let Some(slash) = path.as_bytes()[..end].iter().rposition(|byte| *byte == b'/') {
            if let Some(routes_here) = self.literal(&path[..slash]) {
                let rest = &path[slash + 1..];
                let is_segment = !rest.is_empty() && !rest.contains('/');
                if let Some(at) = routes_here.one_segment.filter(|_| is_segment).or(routes_here.anything) {
                    return Some(at);
                }
            }
            end = slash.min(self.longest + 1);
        }
        None
    }

    fn literal(&self, literal: &str) -> Option<&LiteralRoutes> {
        if literal.len() > self.longest {
            return None;
        }
        self.by_literal.get(literal)
    }
}

/// A host in lower case, without port and trailing dot.
struct NormalizedHost(ArrayVec<u8, MAX_HOST_BYTES>);

impl NormalizedHost {
    /// `None` if the host is empty or longer than any valid host.
    fn normalize(host: &str) -> Option<NormalizedHost> {
        let name = without_port(host);
        let name = name.strip_suffix('.').unwrap_or(name);
        if name.is_empty() || name.len() > MAX_HOST_BYTES {
            return None;
        }
        Some(NormalizedHost(name.bytes().map(|byte| byte.to_ascii_lowercase()).collect()))
    }

    fn as_str(&self) -> &str {
        // Lower-casing ASCII keeps valid UTF-8.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// The host of `host:port`. An IPv6 address keeps its brackets.
fn without_port(host: &str) -> &str {
    let name_end = if host.starts_with('[') { host.find(']').map_or(0, |end| end + 1) } else { 0 };
    match host[name_end..].find(':') {
        Some(colon) => &host[..name_end + colon],
        None => host,
    }
}
