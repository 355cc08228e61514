//! The access log on standard output: one line per request, with the refusing rule.

use serde_json::Value;

use super::backend::TestBackend;
use super::fixture::{LogCapture, TestGateway, settings, wait_until};
use super::http_client::HttpClient;

/// Settings in which each level refuses the requests of one host.
fn refusing_settings(port: u16) -> String {
    let routes = "routes:
  - {host: open.test, backend: b}
  - {host: route.test, backend: b, rateLimit: {maxQps: 0}}
  - {host: backend.test, backend: shut}
  - {host: client.test, backend: b, rateLimit: {maxQpsPerClient: 0}}
  - {host: full.test, backend: b, rateLimit: {maxConnections: 0}}
  - {host: own.test, backend: b, rateLimit: {maxConnectionsPerClient: 0}}
";
    let backend = format!("  - {{name: b, endpoints: [{{host: 127.0.0.1, port: {port}}}]}}");
    let shut = backend.replace("name: b", "name: shut, rateLimit: {maxQps: 0}");
    format!(
        "server: {{listen: 127.0.0.1:0}}\nmanagement: {{listen: 127.0.0.1:0}}\nbackends:\n{backend}\n{shut}\n{routes}"
    )
}

/// A level and the kind of refusal.
type Rule = (&'static str, &'static str);

/// Hosts, their status and the refusing rule.
const CASES: [(&str, u16, Option<Rule>); 7] = [
    ("open.test", 200, None),
    ("route.test", 429, Some(("route", "requests"))),
    ("backend.test", 429, Some(("backend", "requests"))),
    ("client.test", 429, Some(("client", "requests"))),
    ("full.test", 429, Some(("route", "connections"))),
    ("own.test", 429, Some(("client", "connections"))),
    ("nowhere.test", 404, None),
];

fn send_all_cases(gateway: &TestGateway) {
    for (host, status, _) in CASES {
        let mut wire = HttpClient::to(gateway.address).expect("it listens");
        assert_eq!(wire.try_request("GET /a?b=c", host).expect("an answer").status, status, "{host}");
    }
}

#[test]
fn text_lines_name_the_refusing_rule() {
    let backend = TestBackend::immediate();
    let gateway = TestGateway::of(&refusing_settings(backend.port()));
    send_all_cases(&gateway);
    let lines = gateway.out.lines(CASES.len());
    for (host, status, refused) in CASES {
        let line =
            lines.iter().find(|line| line.contains(&format!(" host={host} "))).expect("a line for each");
        assert!(line.starts_with("127.0.0.1 - - ["), "{line}");
        assert!(line.contains(&format!("\"GET /a?b=c HTTP/1.1\" {status} ")), "{line}");
        let expected = refused.map(|(level, kind)| format!(" refused={level}/{kind} limit=0"));
        assert_eq!(line.contains(" refused="), expected.is_some(), "{line}");
        assert!(line.ends_with(&expected.unwrap_or_default()), "{line}");
    }
    assert_eq!(gateway.end().lines().count(), CASES.len(), "and none beside");
}

#[test]
fn json_lines_name_the_refusing_rule() {
    let backend = TestBackend::immediate();
    let gateway =
        TestGateway::with(&refusing_settings(backend.port()), &["--access-log", "json"], LogCapture::Stdout);
    send_all_cases(&gateway);
    let output = gateway.end();
    let lines: Vec<Value> = output.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), CASES.len(), "{output}");
    for (host, status, refused) in CASES {
        let line = lines.iter().find(|line| line["host"] == host).expect("a line for each");
        let expected = (&line["client"], &line["method"], &line["path"], &line["status"]);
        assert_eq!(
            expected,
            (&"127.0.0.1".into(), &"GET".into(), &"/a?b=c".into(), &status.into()),
            "{line}"
        );
        let wanted = refused.map_or(
            Value::Null,
            |(level, kind)| serde_json::json!({"level": level, "kind": kind, "limit": 0}),
        );
        assert_eq!(line["refused"], wanted, "{line}");
    }
}

#[test]
fn access_log_off_writes_nothing() {
    let backend = TestBackend::immediate();
    let gateway =
        TestGateway::with(&refusing_settings(backend.port()), &["--access-log", "off"], LogCapture::Stdout);
    send_all_cases(&gateway);
    assert_eq!(gateway.end(), "");
}

/// A reader may stop reading the log. Requests and the shutdown must not block.
#[test]
fn blocked_log_reader_does_not_block_requests() {
    /// More lines than the pipe and the queue hold.
    const REQUESTS: usize = 2_000;
    const LENGTH: usize = 7_000;
    let backend = TestBackend::immediate();
    let mut gateway = TestGateway::with(&settings(backend.port(), "", ""), &[], LogCapture::Nothing);
    let mut wire = HttpClient::to(gateway.address).expect("it listens");
    let path = format!("/{}", "x".repeat(LENGTH));
    for _ in 0..REQUESTS {
        assert_eq!(wire.get(&path).is(200), "ok");
    }
    // Lost lines are counted.
    wait_until("lines are lost", || {
        let page = gateway.manage("GET /metrics").is(200);
        page.lines().any(|line| {
            line.strip_prefix("tidegate_gateway_access_log_lost_total ").is_some_and(|lost| lost != "0")
        })
    });
    gateway.signal("TERM");
    assert_eq!(gateway.ended().code(), Some(0), "{}", gateway.err.text());
    let rest = gateway.rest();
    assert!(rest.starts_with("127.0.0.1 - - [") && rest.contains(&path), "what was written is whole");
}

#[test]
fn closed_log_pipe_does_not_stop_the_gateway() {
    let backend = TestBackend::immediate();
    let mut gateway = TestGateway::with(&settings(backend.port(), "", ""), &[], LogCapture::Nothing);
    gateway.close_log_pipe();
    for _ in 0..20 {
        assert_eq!(gateway.get("/").is(200), "ok");
    }
    gateway.signal("TERM");
    assert_eq!(gateway.ended().code(), Some(0), "{}", gateway.err.text());
}
