//! The settings file: valid files and the errors of invalid ones.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_gateway::settings::{Allowance, Balance, HostPattern, PathPattern, PathRest, Window};
use tidegate_gateway::settings::{GatewaySpec, read_gateway};

const GOOD: &str = r#"
server:
  port: 9848
  trustedProxies: [10.0.0.0/8, "fd00::/8", 192.0.2.1]
  proxyProtocol: true
  clientHeader: X-Api-Key
  rateLimit: {maxQps: 2000, maxConnections: 10000, maxQpsPerClient: 10, maxConnectionsPerClient: 5, window: fixed}
  headerTimeout: 3s
tls: {certificate: cert.pem, key: key.pem}
management: {port: 9849}
backends:
  - name: api-service
    loadBalance: least-connection
    probe: {path: /health, periodSeconds: 10, timeoutSeconds: 1, successThreshold: 1, failureThreshold: 3}
    endpoints: [{host: 127.0.0.1, port: 8080, priority: 1}, {host: "[::1]", port: 8080}]
    rateLimit: {maxQps: -1, maxConnections: 0, maxQpsPerClient: inherit, maxConnectionsPerClient: unlimited}
routes:
  - {host: "API.example.com.", path: "/**", backend: api-service, rateLimit: {maxQps: 500}}
  - {host: "*.example.com", path: "/v1/*", backend: api-service}
  - {backend: api-service}
"#;

fn read(text: &str) -> Result<GatewaySpec, Vec<String>> {
    read_with(text, &|_| None)
}

fn read_with(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<GatewaySpec, Vec<String>> {
    read_gateway("gateway.yaml", text.as_bytes(), env).map_err(|errors| {
        let line = |found: &tidegate_config::Diagnostic| {
            let help = found.help.as_deref().map(|help| format!(" ({help})")).unwrap_or_default();
            format!("{}:{} {}: {}{help}", found.line, found.column, found.field, found.message)
        };
        errors.iter().map(line).collect()
    })
}

#[test]
fn every_field_is_read() {
    let spec = read(GOOD).expect("a good file");
    assert_eq!(spec.server.listen.to_string(), "0.0.0.0:9848");
    let networks: Vec<String> = spec.server.trusted_proxies.iter().map(ToString::to_string).collect();
    assert_eq!(networks, ["10.0.0.0/8", "fd00::/8", "192.0.2.1/32"]);
    assert_eq!((spec.server.proxy_protocol, spec.server.client_header.as_deref()), (true, Some("x-api-key")));
    assert_eq!((spec.server.window, spec.server.header_timeout), (Window::Fixed, Duration::from_secs(3)));
    assert_eq!(spec.server.limits.max_connections_per_client, Allowance::AtMost(5));
    assert_eq!(spec.tls.expect("a certificate").key, "key.pem");
    assert_eq!(spec.management.expect("a management port").to_string(), "127.0.0.1:9849");
    let backend = &spec.backends[0];
    assert_eq!(backend.balance, Balance::LeastConnection);
    assert_eq!(backend.probe.as_ref().map(|probe| probe.failures), Some(3));
    assert_eq!((backend.endpoints[1].host.as_str(), backend.endpoints[1].priority), ("::1", 1));
    assert_eq!(backend.limits.max_qps, Allowance::Inherit);
    assert_eq!(backend.limits.max_connections, Allowance::AtMost(0));
    assert_eq!(backend.limits.max_connections_per_client, Allowance::Unlimited);
    let ids: Vec<String> = spec.routes.iter().map(tidegate_gateway::settings::RouteSpec::id).collect();
    assert_eq!(ids, ["api.example.com", "*.example.com/v1/*", "*"]);
    assert_eq!(spec.routes[1].host, HostPattern::OneLabel(".example.com".to_owned()));
    assert_eq!(spec.routes[1].path, PathPattern { literal: "/v1".to_owned(), rest: PathRest::OneSegment });
}

#[test]
fn variables_are_expanded_before_values_are_parsed() {
    let env = |name: &str| match name {
        "PORT" => Some("7001".to_owned()),
        "EMPTY" => Some(String::new()),
        "LOOP" => Some("${env:LOOP}".to_owned()),
        _ => None,
    };
    let text = |port: &str, name: &str| {
        format!(
            "server: {{port: \"{port}\"}}\nbackends: [{{name: \"{name}\", endpoints: [{{host: h, port: 1}}]}}]\nroutes: []"
        )
    };
    let port = |port: &str| read_with(&text(port, "b"), &env).map(|spec| spec.server.listen.port());
    let name =
        |name: &str| read_with(&text("${env:PORT}", name), &env).map(|spec| spec.backends[0].name.clone());
    assert_eq!(port("${env:PORT}"), Ok(7001));
    assert_eq!(port("${env:PORT:-9}"), Ok(7001));
    assert_eq!(port("${env:NONE:-9}"), Ok(9));
    assert_eq!(port("${env:EMPTY:-9}"), Ok(9));
    assert_eq!(port("${env:NONE:-${env:NOT:-1${env:PORT}}}"), Ok(17001));
    assert_eq!(name("a-${env:PORT}-${env:NONE:-}é"), Ok("a-7001-é".to_owned()));
    assert_eq!(name("é$${env:PORT}"), Ok("é${env:PORT}".to_owned()));
    assert_eq!(
        name("${env:LOOP}"),
        Ok("${env:LOOP}".to_owned()),
        "what a variable says is not looked at again"
    );
    for (written, expected) in [
        (
            "${env:NONE}",
            "1:16 server.port: the variable NONE is not set; set it, or write ${env:NONE:-default}",
        ),
        ("${env:PORT", "a variable is not closed"),
        ("${env:1X}", "the name of a variable must be letters, digits and _"),
        ("${env:}", "the name of a variable must be"),
    ] {
        let errors = port(written).expect_err("the variable is missing or invalid");
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].contains(expected), "{errors:?}");
    }
    let deep = format!("{}1{}", "${env:NONE:-".repeat(40), "}".repeat(40));
    assert!(port(&deep).expect_err("too deep")[0].contains("at most 16 deep"));
}

#[test]
fn limit_below_minus_one_is_refused_at_every_level() {
    let text = GOOD
        .replace("maxQps: 2000", "maxQps: -2")
        .replace("maxConnections: 0", "maxConnections: -5")
        .replace("maxQps: 500", "maxQps: -3");
    let errors = read(&text).expect_err("three errors");
    let fields =
        ["server.rateLimit.maxQps", "backends[0].rateLimit.maxConnections", "routes[0].rateLimit.maxQps"];
    assert_eq!(errors.len(), 3, "{errors:?}");
    for (message, field) in errors.iter().zip(fields) {
        assert!(message.contains(field) && message.contains("must be -1"), "{message}");
    }
}

/// A replacement in the valid file and the error it causes.
const MISTAKES: &[(&str, &str, &str)] = &[
    (
        "port: 9848\n",
        "port: 9848\n  listen: 1.2.3.4:5\n",
        "server.listen: says where to listen, and so does port",
    ),
    ("port: 9848\n", "port: 0\n", "server.port: must be from 1 to 65535, found 0"),
    ("port: 9848\n", "listen: localhost\n", "server.listen: "),
    ("port: 9848\n", "prot: 9848\n", "did you mean 'port'?"),
    ("10.0.0.0/8", "10.0.0.0/33", "server.trustedProxies[0]: has more bits than an address"),
    ("10.0.0.0/8", "10.0.0.1/8", "has bits set behind those that count"),
    ("10.0.0.0/8", "ten/8", "must be an address and the number of bits that count"),
    ("10.0.0.0/8", "{a: b}", "server.trustedProxies[0]: must be a text; found a mapping"),
    ("X-Api-Key", "'X Api Key'", "server.clientHeader: must be the name of a header"),
    ("window: fixed", "window: fixd", "did you mean 'fixed'?"),
    ("maxQpsPerClient: 10", "maxQpsPerClient: lots", "inherit or unlimited, found 'lots'"),
    (
        "maxQpsPerClient: 10",
        "maxQpsPerClient: 99999999999999999999",
        "must be at most 9223372036854775807, found",
    ),
    ("maxQpsPerClient: 10", "maxQpsPerClient: 1.5", "found '1.5'"),
    ("maxQpsPerClient: 10", "maxQpsPerClient: '10'", "write 10 without quotes"),
    (", key: key.pem", "", "tls.key: is missing"),
    ("management: {port: 9849}", "management: {}", "management: must have a port or an address"),
    ("least-connection", "least-connections", "did you mean 'least-connection'?"),
    ("path: /health", "path: health", "backends[0].probe.path: must be a path such as /health"),
    (
        "host: \"[::1]\", port: 8080",
        "host: 127.0.0.1, port: 8080",
        "127.0.0.1:8080 is written on line 15 too",
    ),
    ("host: \"[::1]\"", "host: http://h", "backends[0].endpoints[1].host: must be a name or an address"),
    (
        "endpoints: [{host: 127.0.0.1, port: 8080, priority: 1}, {host: \"[::1]\", port: 8080}]",
        "endpoints: []",
        "must have at least one endpoint",
    ),
    (
        "endpoints: [{host: 127.0.0.1, port: 8080, priority: 1}, {host: \"[::1]\", port: 8080}]",
        "",
        "backends[0].endpoints: is missing",
    ),
    (
        "routes:\n",
        "  - {name: api-service, endpoints: [{host: h, port: 1}]}\nroutes:\n",
        "'api-service' is the name of the backend on line 12 too",
    ),
    (
        "routes:\n",
        "  - {name: a b, endpoints: [{host: h, port: 1}]}\nroutes:\n",
        "backends[1].name: must be 1 to 128 bytes without spaces",
    ),
    (
        "{backend: api-service}",
        "{backend: api-servce}",
        "no backend is called 'api-servce'; write one under backends (did you mean 'api-service'?)",
    ),
    (
        "{backend: api-service}",
        "{backend: api-service}\n  - {host: '*', path: '/**', backend: api-service}",
        "the route of * and /** is written on line 20 too",
    ),
    ("*.example.com", "a.*.example.com", "may have one *, as the whole first label"),
    ("*.example.com", "example.com:80", "must not have a port"),
    ("*.example.com", "bücher.example", "must be written as it is sent, in ASCII"),
    ("*.example.com", "-a.example", "must be labels of letters"),
    ("*.example.com", "a..example", "must be labels of letters"),
    ("*.example.com", "*.", "may have one *, as the whole first label"),
    ("*.example.com", ".", "must not be empty"),
    ("*.example.com", "a/b", "must not have a path"),
    ("*.example.com", "[::1]:80", "must be an IPv6 address in brackets"),
    ("/v1/*", "v1", "must begin with a slash"),
    ("/v1/*", "/*/v1", "may have * or ** only as its last segment"),
    ("/v1/*", "/v1*", "may have * or ** only as its last segment"),
    ("/v1/*", "/v1?x=1", "must not have a query"),
    ("/v1/*", "/a//b", "must not have empty segments"),
    ("/v1/*", "/a/../b", "must not have the segments . and .."),
];

#[test]
fn every_error_is_reported_at_its_position() {
    for (good, bad, expected) in MISTAKES {
        assert!(GOOD.contains(good), "{good}");
        let errors = read(&GOOD.replacen(good, bad, 1)).expect_err(bad);
        assert!(errors.len() == 1 && errors[0].contains(expected), "{bad}: {expected}\n{errors:#?}");
    }
}

#[test]
fn all_errors_are_reported_at_once() {
    let text = "server: {port: x}\nbackends: [{name: b, endpoints: [{host: 'h:1', port: 1}]}]\nroutes: [{host: 'a:1', path: b, backend: c}]";
    let errors = read(text).expect_err("five errors");
    let fields: Vec<&str> = errors.iter().filter_map(|line| line.split(' ').nth(1)).collect();
    assert_eq!(
        fields,
        [
            "server.port:",
            "backends[0].endpoints[0].host:",
            "routes[0].host:",
            "routes[0].path:",
            "routes[0].backend:"
        ]
    );
}

#[test]
fn empty_file_is_refused() {
    for text in ["", "{}", "server: {port: 1}", "backends: []\nroutes: []", "[]", "server: {port: ["] {
        assert!(read(text).is_err(), "{text}");
    }
}

proptest! {
    /// Arbitrary replacements never panic.
    #[test]
    fn arbitrary_files_never_panic(at in 0..GOOD.len(), inserted in "[-a-z*/:{}\\[\\]$,. \n\"'0-9é]{0,12}") {
        let text = format!("{}{inserted}{}", &GOOD[..at], &GOOD[at..]);
        let _either = read_with(&text, &|name| (name.len() > 2).then(|| "${env:".to_owned()));
    }
}
