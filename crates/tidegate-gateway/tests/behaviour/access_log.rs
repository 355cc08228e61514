//! Access log lines: their content, and that no client can forge a line.

use std::net::IpAddr;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};
use tidegate_gateway::access_log::{AccessLogEntry, AccessLogFormat};
use tidegate_gateway::{LimitLevel, LimitRefusal, RefusalKind};

/// 2026-03-01T09:00:06.000123Z plus 456 ns.
const AT: Duration = Duration::new(1_772_355_606, 123_456);

fn entry<'a>() -> AccessLogEntry<'a> {
    AccessLogEntry {
        at: AT,
        client: IpAddr::from([203, 0, 113, 9]),
        client_name: None,
        method: "GET",
        host: "api.example.com",
        path: "/a?b",
        protocol: "HTTP/1.1",
        status: 200,
        sent_bytes: 12,
        received_bytes: 3,
        took: Duration::from_micros(1_000_042),
        route: Some("api.example.com"),
        backend: Some("api"),
        endpoint: Some("10.0.0.1:80"),
        retries: 0,
        refused: None,
        why: None,
        user_agent: Some(b"curl/8 (x)"),
        referer: None,
    }
}

fn refusal() -> LimitRefusal {
    LimitRefusal {
        kind: RefusalKind::Requests,
        level: LimitLevel::Client,
        limit: 10,
        retry_after: None,
        degraded: false,
    }
}

fn line(entry: &AccessLogEntry<'_>, format: AccessLogFormat) -> String {
    let mut out = b"before\n".to_vec();
    entry.write(format, &mut out);
    let text = String::from_utf8(out).expect("text");
    text.strip_prefix("before\n").expect("what was there stays").to_owned()
}

#[test]
fn text_line_contains_all_fields() {
    assert_eq!(
        line(&entry(), AccessLogFormat::Text),
        "203.0.113.9 - - [2026-03-01T09:00:06.000123Z] \"GET /a?b HTTP/1.1\" 200 12 \"-\" \"curl/8 (x)\" \
         host=api.example.com took=1.000042 received=3 route=api.example.com backend=api endpoint=10.0.0.1:80\n"
    );
    let refused = AccessLogEntry {
        client: "2001:db8::1".parse().expect("an address"),
        client_name: Some(b"ada lovelace"),
        status: 429,
        endpoint: None,
        retries: 2,
        refused: Some(refusal()),
        referer: Some(b"https://a/\"\n"),
        ..entry()
    };
    assert_eq!(
        line(&refused, AccessLogFormat::Text),
        "2001:db8::1 - ada\\x20lovelace [2026-03-01T09:00:06.000123Z] \"GET /a?b HTTP/1.1\" 429 12 \
         \"https://a/\\x22\\x0a\" \"curl/8 (x)\" host=api.example.com took=1.000042 received=3 route=api.example.com \
         backend=api retries=2 refused=client/requests limit=10\n"
    );
}

#[test]
fn json_line_contains_the_same_fields() {
    let refused = AccessLogEntry {
        client_name: Some(b"a\xffb"),
        retries: 2,
        refused: Some(LimitRefusal { degraded: true, ..refusal() }),
        ..entry()
    };
    let parsed: Value = serde_json::from_str(&line(&refused, AccessLogFormat::Json)).expect("JSON");
    let meant = json!({
        "time": "2026-03-01T09:00:06.000123Z", "client": "203.0.113.9", "name": "a\u{fffd}b", "method": "GET",
        "host": "api.example.com", "path": "/a?b", "protocol": "HTTP/1.1", "status": 200, "sent_bytes": 12,
        "received_bytes": 3, "took": 1.000_042, "route": "api.example.com", "backend": "api",
        "endpoint": "10.0.0.1:80", "user_agent": "curl/8 (x)", "retries": 2,
        "refused": {"level": "client", "kind": "requests", "limit": 10, "degraded": true},
    });
    assert_eq!(parsed, meant);
    let plain: Value = serde_json::from_str(&line(&entry(), AccessLogFormat::Json)).expect("JSON");
    assert!(
        ["name", "refused", "referer", "retries"].iter().all(|name| plain.get(name).is_none()),
        "{plain}"
    );
}

#[test]
fn time_out_of_range_is_written_as_the_maximum() {
    let late = AccessLogEntry { at: Duration::MAX, ..entry() };
    assert!(line(&late, AccessLogFormat::Text).contains("[9999-12-30T22:00:00.999999Z]"));
}

/// Bytes that have a special meaning to log readers.
fn hostile_bytes() -> impl Strategy<Value = Vec<u8>> {
    let sign = prop::sample::select(b"\"\\ =\n\r\t\0\x1b\x7f[]{},:x\xff\xc3\x80\xe2\x28\xa1".to_vec());
    prop::collection::vec(prop_oneof![sign, any::<u8>()], 0..40)
}

/// Text that has a special meaning to log readers.
fn hostile_text() -> impl Strategy<Value = String> {
    let sign = prop::sample::select(
        "\"\\ =\n\r\t\0\u{1b}\u{7f}\u{85}\u{2028}\u{2029}{},:ü".chars().collect::<Vec<_>>(),
    );
    prop::collection::vec(prop_oneof![sign, any::<char>()], 0..40).prop_map(String::from_iter)
}

/// The number of words in a line; quotes and brackets group words.
fn words(line: &str) -> usize {
    let (mut words, mut quoted) = (1, false);
    for letter in line.chars() {
        match letter {
            '"' => quoted = !quoted,
            ' ' if !quoted => words += 1,
            _ => {}
        }
    }
    assert!(!quoted, "every quote is closed");
    words
}

proptest! {
    #[test]
    fn client_input_cannot_forge_a_line_or_a_field(
        (name, agent, referer) in (hostile_bytes(), hostile_bytes(), hostile_bytes()),
        (method, host, path, protocol, route) in
            (hostile_text(), hostile_text(), hostile_text(), hostile_text(), hostile_text()),
    ) {
        let nasty = AccessLogEntry {
            client_name: Some(&name),
            method: &method,
            host: &host,
            path: &path,
            protocol: &protocol,
            route: Some(&route),
            refused: Some(refusal()),
            user_agent: Some(&agent),
            referer: Some(&referer),
            ..entry()
        };
        let text = line(&nasty, AccessLogFormat::Text);
        let inside = text.strip_suffix('\n').expect("an end");
        prop_assert!(inside.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{text:?}");
        prop_assert_eq!(words(inside), 17, "{}", text);

        let text = line(&nasty, AccessLogFormat::Json);
        let inside = text.strip_suffix('\n').expect("an end");
        let ends = |letter: char| letter.is_control() || matches!(letter, '\u{2028}' | '\u{2029}');
        prop_assert!(!inside.contains(ends), "{text:?}");
        let parsed: Value = serde_json::from_str(inside).expect("JSON");
        prop_assert_eq!(&parsed["path"], &path);
        prop_assert_eq!(&parsed["host"], &host);
        prop_assert_eq!(&parsed["user_agent"], &*String::from_utf8_lossy(&agent));
        prop_assert_eq!(parsed.as_object().map(serde_json::Map::len), Some(17));
    }
}
