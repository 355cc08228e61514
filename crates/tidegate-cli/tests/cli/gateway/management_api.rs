//! The management port: health, metrics and limits.

use std::collections::{HashMap, HashSet};

use super::backend::TestBackend;
use super::fixture::{TestGateway, settings, wait_until};
use super::http_client::HttpClient;

#[test]
fn health_reports_up() {
    let backend = TestBackend::immediate();
    let gateway = TestGateway::of(&settings(backend.port(), "maxConnections: 10", ""));
    let mut client = HttpClient::to(gateway.address).expect("it listens");
    client.get("/").is(200);
    let health = gateway.manage("GET /health").json(200);
    assert_eq!((&health["status"], &health["connections"]), (&"UP".into(), &1.into()), "{health}");
    assert_eq!(health["backends"]["b"], serde_json::json!({"endpoints": 1, "well": 1}), "{health}");
    assert!(health["timestamp"].as_u64().is_some_and(|at| at > 1_700_000_000_000), "{health}");
    drop(client);
    gateway.end();
}

#[test]
fn unknown_paths_return_404() {
    let backend = TestBackend::immediate();
    let gateway = TestGateway::of(&settings(backend.port(), "", ""));
    assert_eq!(gateway.manage("GET /nothing").status, 404);
    let wrong = gateway.manage("GET /reload");
    assert_eq!((wrong.status, wrong.header("allow")), (405, Some("POST")));
    assert_eq!(gateway.manage("POST /limits").status, 405);
    // Management paths on the gateway port are ordinary paths.
    for path in ["/health", "/metrics", "/limits"] {
        assert_eq!(gateway.get(path).is(200), "ok", "{path} went to the backend");
    }
    gateway.end();
}

#[test]
fn management_off_opens_no_port() {
    let backend = TestBackend::immediate();
    let text = settings(backend.port(), "", "").replace("management: {listen: 127.0.0.1:0}\n", "");
    let gateway = TestGateway::of(&text);
    assert_eq!(gateway.management, "off");
    assert_eq!(gateway.get("/").is(200), "ok");
    gateway.end();
}

#[test]
fn limits_report_usage_and_refusals() {
    let backend = TestBackend::immediate();
    let gateway =
        TestGateway::of(&settings(backend.port(), "maxQps: 3, maxConnections: 9, window: fixed", ""));
    let mut client = HttpClient::to(gateway.address).expect("it listens");
    let refused = (0..20).filter(|_| client.get("/").status == 429).count();
    let limits = gateway.limits();
    assert_eq!(limits["window"], "fixed");
    assert_eq!(limits["server"]["maxQps"]["limit"], 3);
    assert_eq!(limits["server"]["maxQps"]["refused"], refused, "{limits}");
    assert_eq!(limits["server"]["maxConnections"], serde_json::json!({"limit": 9, "used": 1, "refused": 0}));
    assert_eq!((&limits["routes"][0]["id"], &limits["backends"][0]["name"]), (&"*".into(), &"b".into()));
    assert_eq!(limits["routes"][0]["maxQps"]["limit"], "unlimited", "{limits}");
    let hottest = &limits["hottestClients"]["clients"][0];
    assert_eq!((&hottest["client"], &hottest["connections"]), (&"127.0.0.1".into(), &1.into()), "{limits}");
    drop(client);
    gateway.end();
}

/// A metrics line: name, labels, value.
fn parse_sample(line: &str) -> Option<(&str, &str, f64)> {
    let (series, value) = line.rsplit_once(' ')?;
    let (name, labels) = match series.split_once('{') {
        Some((name, labels)) => (name, labels.strip_suffix('}')?),
        None => (series, ""),
    };
    let is_name = |name: &str| {
        !name.is_empty()
            && !name.starts_with(|letter: char| letter.is_ascii_digit())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let mut rest = labels;
    while !rest.is_empty() {
        let (label, value) = rest.split_once("=\"")?;
        let end =
            value.char_indices().find(|(at, letter)| *letter == '"' && !value[..*at].ends_with('\\'))?.0;
        rest = value[end + 1..].strip_prefix(',').unwrap_or(&value[end + 1..]);
        if !is_name(label) {
            return None;
        }
    }
    Some((name, labels, value.parse().ok()?)).filter(|_| is_name(name))
}

/// The values of all series on a page. Every line must be valid.
fn parse_metrics(page: &str) -> HashMap<(&str, &str), f64> {
    assert!(page.ends_with('\n'));
    let (mut kinds, mut helped, mut seen) = (HashMap::new(), HashSet::new(), HashMap::new());
    for line in page.lines() {
        if let Some(about) = line.strip_prefix("# HELP ") {
            let (name, help) = about.split_once(' ').expect("a name and words");
            assert!(!help.is_empty() && helped.insert(name), "{line}");
        } else if let Some(about) = line.strip_prefix("# TYPE ") {
            let (name, kind) = about.split_once(' ').expect("a name and a kind");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert!(helped.contains(name) && kinds.insert(name, kind).is_none(), "{line}");
        } else {
            let (name, labels, value) =
                parse_sample(line).unwrap_or_else(|| panic!("this is no sample: {line}"));
            let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let family =
                of_histogram.filter(|family| kinds.get(family) == Some(&"histogram")).unwrap_or(name);
            let kind = kinds.get(family).unwrap_or_else(|| panic!("of an unknown kind: {line}"));
            assert!(value.is_finite() && (*kind == "gauge" || value >= 0.0), "{line}");
            assert!(*kind != "counter" || name.ends_with("_total"), "{line}");
            assert!(seen.insert((name, labels), value).is_none(), "twice: {line}");
        }
    }
    seen
}

#[test]
fn every_metrics_line_is_valid() {
    let backend = TestBackend::immediate();
    let rates = "maxQps: 1000, maxConnections: 9";
    let gateway = TestGateway::of(&settings(backend.port(), &format!("{rates}, maxQpsPerClient: 0"), ""));
    for _ in 0..3 {
        gateway.get("/\\\"odd").is(429);
    }
    gateway.write(&settings(backend.port(), rates, ""));
    gateway.manage("POST /reload").is(200);
    for _ in 0..4 {
        gateway.get("/").is(200);
    }
    let response = gateway.manage("GET /metrics");
    assert!(
        response.header("content-type").is_some_and(|kind| kind.starts_with("text/plain")),
        "{}",
        response.head
    );
    // A request is counted shortly after its response.
    wait_until("all requests are counted", || {
        let page = gateway.manage("GET /metrics").is(200);
        let seen = parse_metrics(&page);
        let sum = |name: &str, part: &str| -> u64 {
            let of = seen.iter().filter(|((each, labels), _)| *each == name && labels.contains(part));
            of.map(|(_, value)| format!("{value}").parse::<u64>().expect("a count")).sum()
        };
        let responses = |code| sum("tidegate_gateway_responses_total", code);
        let refusals = sum("tidegate_gateway_refusals_total", "level=\"client\"");
        (responses("\"200\""), responses("\"429\""), refusals) == (4, 3, 3)
            && sum("tidegate_gateway_connections_accepted_total", "") == 7
            && sum("tidegate_gateway_reloads_total", "succeeded") > 0
    });
    gateway.end();
}
