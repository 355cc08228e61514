//! Route lookup.

use proptest::prelude::*;
use tidegate_gateway::RouteTable;
use tidegate_gateway::settings::{HostPattern, PathPattern, PathRest, RateLimits, RouteSpec};

fn route(host: &str, path: &str) -> RouteSpec {
    RouteSpec {
        host: HostPattern::parse(host).expect("a host"),
        path: PathPattern::parse(path).expect("a path"),
        backend: "b".to_owned(),
        limits: RateLimits::default(),
    }
}

fn found(routes: &[(&str, &str)], host: &str, path: &str) -> Option<usize> {
    let routes: Vec<RouteSpec> = routes.iter().map(|(host, path)| route(host, path)).collect();
    RouteTable::new(&routes).find(host, path)
}

#[test]
fn most_specific_route_wins() {
    let routes = [
        ("*", "/**"),
        ("*.example.com", "/**"),
        ("api.example.com", "/**"),
        ("api.example.com", "/v1/*"),
        ("api.example.com", "/v1/**"),
        ("api.example.com", "/v1/users"),
    ];
    for (host, path, expected) in [
        ("api.example.com", "/v1/users", 5),
        ("api.example.com", "/v1/users?page=2", 5),
        ("api.example.com", "/v1/items", 3),
        ("api.example.com", "/v1/items/7", 4),
        ("api.example.com", "/v1", 4),
        ("api.example.com", "/v1/", 4),
        ("api.example.com", "/v2", 2),
        ("www.example.com", "/v1/users", 1),
        ("a.b.example.com", "/", 0),
        ("example.com", "/", 0),
        ("API.Example.COM.:8443", "/v1/users", 5),
        ("[::1]:80", "/", 0),
        ("", "/", 0),
    ] {
        assert_eq!(found(&routes, host, path), Some(expected), "{host}{path}");
    }
}

#[test]
fn host_without_matching_path_falls_through() {
    let routes = [("api.example.com", "/v1/**"), ("*.example.com", "/v2/**")];
    assert_eq!(found(&routes, "api.example.com", "/v2/x"), Some(1));
    assert_eq!(found(&routes, "api.example.com", "/v3"), None);
    assert_eq!(found(&routes, "elsewhere.org", "/v1/x"), None);
}

#[test]
fn lookup_cost_is_bounded_by_the_longest_route() {
    let long = "/a".repeat(4_000_000);
    assert_eq!(found(&[("*", "/x/**")], "h", &long), None);
}

/// Whether a route matches, in the simplest form.
fn matches(route: &RouteSpec, host: &str, path: &str) -> bool {
    let host_fits = match &route.host {
        HostPattern::Exact(exact) => exact == host,
        HostPattern::OneLabel(suffix) => host
            .split_once('.')
            .is_some_and(|(first, rest)| !first.is_empty() && format!(".{rest}") == *suffix),
        HostPattern::Any => true,
    };
    let rest = path.strip_prefix(route.path.literal.as_str());
    host_fits
        && match route.path.rest {
            PathRest::Nothing => rest == Some(""),
            PathRest::OneSegment => rest
                .and_then(|rest| rest.strip_prefix('/'))
                .is_some_and(|segment| !segment.is_empty() && !segment.contains('/')),
            PathRest::Anything => rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
        }
}

/// The best match by brute force: host first, then the longest literal, then the pattern kind.
fn brute_force(routes: &[RouteSpec], host: &str, path: &str) -> Option<usize> {
    let host_rank = |route: &RouteSpec| match route.host {
        HostPattern::Exact(_) => 0,
        HostPattern::OneLabel(_) => 1,
        HostPattern::Any => 2,
    };
    let rank = |at: usize| {
        let route = &routes[at];
        (host_rank(route), std::cmp::Reverse(route.path.literal.len()), route.path.rest, at)
    };
    (0..routes.len()).filter(|at| matches(&routes[*at], host, path)).min_by_key(|at| rank(*at))
}

fn hosts() -> impl Strategy<Value = String> {
    prop::sample::select(vec!["*", "a.x", "b.x", "*.x", "*.b.x", "a.b.x", "x"]).prop_map(str::to_owned)
}

fn paths() -> impl Strategy<Value = String> {
    let segments = prop::collection::vec(prop::sample::select(vec!["a", "b", "ab"]), 0..4);
    let end = prop::sample::select(vec!["", "/*", "/**", "/"]);
    (segments, end).prop_map(|(segments, end)| {
        let path: String = segments.iter().flat_map(|segment| ["/", segment]).chain([end]).collect();
        if path.is_empty() { "/".to_owned() } else { path }
    })
}

proptest! {
    #[test]
    fn index_matches_brute_force(
        written in prop::collection::vec((hosts(), paths()), 0..12),
        host in "(a|b|x|a\\.x|b\\.x|a\\.b\\.x|c\\.x)",
        path in "(/(a|b|ab)?){1,5}",
    ) {
        let routes: Vec<RouteSpec> = written.iter().map(|(host, path)| route(host, path)).collect();
        prop_assert_eq!(RouteTable::new(&routes).find(&host, &path), brute_force(&routes, &host, &path));
    }
}
