//! Which route a request takes: the most specific one.
//!
//! ```text
//!   host      api.example.com   before   *.example.com   before   *
//!   path      /api/v1           before   /api/*          before   /api/**   before   /**
//! ```
//!
//! Hosts are tried first to last, and of each host the path that has most in common with the request's. A host none of whose paths
//! fits leaves the request to the next. Looking up allocates nothing, and takes no longer for paths that nobody has written routes for:
//! no more of a path is looked at than the longest route has.
//!
//! A path is compared as it was sent, without its query. Whoever sends it on must send the same.

use crate::settings::{HostPattern, LONGEST_HOST, PathPattern, PathRest, Route};
use arrayvec::ArrayVec;
use hashbrown::HashMap;

/// Where routes are found; each is known by its place in the list that this was made from.
#[derive(Debug, Default)]
pub struct Routes {
    exact: HashMap<Box<str>, Paths>,
    /// By what follows the first label, with its dot.
    one_label: HashMap<Box<str>, Paths>,
    any: Paths,
}

/// The paths of one host.
#[derive(Debug, Default)]
struct Paths {
    by_literal: HashMap<Box<str>, Ends>,
    /// The longest literal.
    longest: usize,
}

/// The routes that have one literal: without anything behind it, with one segment, with anything.
#[derive(Debug, Default)]
struct Ends {
    nothing: Option<usize>,
    one_segment: Option<usize>,
    anything: Option<usize>,
}

impl Routes {
    /// An index of these routes.
    pub fn new(routes: &[Route]) -> Routes {
        let mut index = Routes::default();
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

    /// The place of the most specific route for what a request says: its host, with or without a port, and its path.
    pub fn find(&self, host: &str, path: &str) -> Option<usize> {
        let path = path.split(['?', '#']).next().unwrap_or(path);
        // What is asked of everything that a host has, such as `OPTIONS *`, goes where its root does.
        let path = if path == "*" { "/" } else { path };
        let specific = Host::normal(host).and_then(|host| {
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

impl Paths {
    fn insert(&mut self, path: &PathPattern, at: usize) {
        self.longest = self.longest.max(path.literal.len());
        let ends = self.by_literal.entry(path.literal.as_str().into()).or_default();
        let end = match path.rest {
            PathRest::Nothing => &mut ends.nothing,
            PathRest::OneSegment => &mut ends.one_segment,
            PathRest::Anything => &mut ends.anything,
        };
        end.get_or_insert(at);
    }

    fn find(&self, path: &str) -> Option<usize> {
        if let Some(ends) = self.literal(path)
            && let Some(at) = ends.nothing.or(ends.anything)
        {
            return Some(at);
        }
        // Whatever is before a slash may be a literal; the longest first.
        let mut end = path.len();
        while let Some(slash) = path.as_bytes()[..end].iter().rposition(|byte| *byte == b'/') {
            if let Some(ends) = self.literal(&path[..slash]) {
                let behind = &path[slash + 1..];
                let is_segment = !behind.is_empty() && !behind.contains('/');
                if let Some(at) = ends.one_segment.filter(|_| is_segment).or(ends.anything) {
                    return Some(at);
                }
            }
            end = slash.min(self.longest + 1);
        }
        None
    }

    fn literal(&self, literal: &str) -> Option<&Ends> {
        if literal.len() > self.longest {
            return None;
        }
        self.by_literal.get(literal)
    }
}

/// A host in lower case, without its port and the dot at its end.
struct Host(ArrayVec<u8, LONGEST_HOST>);

impl Host {
    /// `None` if it is none, or longer than any.
    fn normal(host: &str) -> Option<Host> {
        let name = without_port(host);
        let name = name.strip_suffix('.').unwrap_or(name);
        if name.is_empty() || name.len() > LONGEST_HOST {
            return None;
        }
        Some(Host(name.bytes().map(|byte| byte.to_ascii_lowercase()).collect()))
    }

    fn as_str(&self) -> &str {
        // Lower case keeps text text.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// The host of `host:port`; an IPv6 address keeps its brackets.
fn without_port(host: &str) -> &str {
    let name_end = if host.starts_with('[') { host.find(']').map_or(0, |end| end + 1) } else { 0 };
    match host[name_end..].find(':') {
        Some(colon) => &host[..name_end + colon],
        None => host,
    }
}
