//! The access log on standard output: a line for every request, with the rule that refused it.

use serde_json::Value;

use super::backend::Backend;
use super::fixture::{Gateway, Hearing, settings, wait_until};
use super::http_client::Wire;

/// Settings under which every level refuses somebody, by the host that is asked for.
fn refusing(port: u16) -> String {
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

/// A level and what it refused.
type Rule = (&'static str, &'static str);

/// Hosts, what they are answered, and the rule that did it.
const CASES: [(&str, u16, Option<Rule>); 7] = [
    ("open.test", 200, None),
    ("route.test", 429, Some(("route", "requests"))),
    ("backend.test", 429, Some(("backend", "requests"))),
    ("client.test", 429, Some(("client", "requests"))),
    ("full.test", 429, Some(("route", "connections"))),
    ("own.test", 429, Some(("client", "connections"))),
    ("nowhere.test", 404, None),
];

fn ask_all(gateway: &Gateway) {
    for (host, status, _) in CASES {
        let mut wire = Wire::to(gateway.address).expect("it listens");
        assert_eq!(wire.try_ask("GET /a?b=c", host).expect("an answer").status, status, "{host}");
    }
}

#[test]
fn lines_of_text_name_the_rule_that_refused() {
    let backend = Backend::quick();
    let gateway = Gateway::of(&refusing(backend.port()));
    ask_all(&gateway);
    let lines = gateway.out.lines(CASES.len());
    for (host, status, refused) in CASES {
        let line =
            lines.iter().find(|line| line.contains(&format!(" host={host} "))).expect("a line for each");
        assert!(line.starts_with("127.0.0.1 - - ["), "{line}");
        assert!(line.contains(&format!("\"GET /a?b=c HTTP/1.1\" {status} ")), "{line}");
        let told = refused.map(|(level, kind)| format!(" refused={level}/{kind} limit=0"));
        assert_eq!(line.contains(" refused="), told.is_some(), "{line}");
        assert!(line.ends_with(&told.unwrap_or_default()), "{line}");
    }
    assert_eq!(gateway.end().lines().count(), CASES.len(), "and none beside");
}

#[test]
fn lines_of_json_name_the_rule_that_refused() {
    let backend = Backend::quick();
    let gateway = Gateway::with(&refusing(backend.port()), &["--access-log", "json"], Hearing::Out);
    ask_all(&gateway);
    let said = gateway.end();
    let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), CASES.len(), "{said}");
    for (host, status, refused) in CASES {
        let line = lines.iter().find(|line| line["host"] == host).expect("a line for each");
        let told = (&line["client"], &line["method"], &line["path"], &line["status"]);
        assert_eq!(told, (&"127.0.0.1".into(), &"GET".into(), &"/a?b=c".into(), &status.into()), "{line}");
        let wanted = refused.map_or(
            Value::Null,
            |(level, kind)| serde_json::json!({"level": level, "kind": kind, "limit": 0}),
        );
        assert_eq!(line["refused"], wanted, "{line}");
    }
}

#[test]
fn who_wants_none_gets_none() {
    let backend = Backend::quick();
    let gateway = Gateway::with(&refusing(backend.port()), &["--access-log", "off"], Hearing::Out);
    ask_all(&gateway);
    assert_eq!(gateway.end(), "");
}

/// Whoever reads the log may stop reading. That is no reason to stop serving, or not to end.
#[test]
fn nobody_waits_for_whoever_reads_it() {
    /// So many lines of such a length are more than a pipe holds, and more than is kept for it.
    const REQUESTS: usize = 2_000;
    const LENGTH: usize = 7_000;
    let backend = Backend::quick();
    let mut gateway = Gateway::with(&settings(backend.port(), "", ""), &[], Hearing::Nothing);
    let mut wire = Wire::to(gateway.address).expect("it listens");
    let path = format!("/{}", "x".repeat(LENGTH));
    for _ in 0..REQUESTS {
        assert_eq!(wire.get(&path).is(200), "ok");
    }
    // What is lost is counted.
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
fn whoever_reads_it_may_leave() {
    let backend = Backend::quick();
    let mut gateway = Gateway::with(&settings(backend.port(), "", ""), &[], Hearing::Nothing);
    gateway.stop_hearing();
    for _ in 0..20 {
        assert_eq!(gateway.get("/").is(200), "ok");
    }
    gateway.signal("TERM");
    assert_eq!(gateway.ended().code(), Some(0), "{}", gateway.err.text());
}
