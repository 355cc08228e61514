//! Trusted proxies: which forwarding information is used.

use tidegate_gateway::ConnectionCounter;

use super::fixture::{TestBackend, TestGateway, file, get};
use super::http_client::{Message, WireClient};

const FORWARDING_FIELDS: &str = "X-Forwarded-For: 6.6.6.6, 203.0.113.9\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: outside.test\r\nX-Forwarded-Port: 444\r\nX-Real-IP: 6.6.6.6\r\nForwarded: for=6.6.6.6\r\n";

fn request_with(fields: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n")
}

fn forwarding_fields(echoed: &Message) -> [Option<&str>; 6] {
    ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-forwarded-port", "x-real-ip", "forwarded"]
        .map(|name| echoed.field(name))
}

#[test]
fn untrusted_forwarding_fields_are_ignored() {
    let backend = TestBackend::echo();
    for server in ["", "trustedProxies: [10.0.0.0/8]", "trustedProxies: ['127.0.0.9/32']"] {
        let gateway = TestGateway::new(&file(server, "", &[&backend]));
        let echoed = gateway.request(request_with(FORWARDING_FIELDS)).echoed();
        let own = [Some("127.0.0.1"), Some("http"), Some("a.test"), None, None, None];
        assert_eq!(forwarding_fields(&echoed), own, "{server}");
        gateway.end();
    }
}

#[test]
fn trusted_forwarding_fields_are_extended() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::new(&file("trustedProxies: [127.0.0.0/8]", "", &[&backend]));
    let echoed = gateway.request(request_with(FORWARDING_FIELDS)).echoed();
    let all = [
        Some("6.6.6.6, 203.0.113.9, 127.0.0.1"),
        Some("https"),
        Some("outside.test"),
        Some("444"),
        Some("6.6.6.6"),
        Some("for=6.6.6.6"),
    ];
    assert_eq!(forwarding_fields(&echoed), all);
    // Fields named by the proxy's `Connection` do not remove the gateway's own.
    let hop = "Connection: x-forwarded-proto, x-forwarded-for, x-forwarded-host\r\n";
    let echoed = gateway.request(request_with(&format!("{hop}{FORWARDING_FIELDS}"))).echoed();
    assert_eq!(forwarding_fields(&echoed)[1..3], [Some("http"), Some("a.test")]);
    assert!(echoed.field("x-forwarded-for").is_some_and(|through| through.ends_with("127.0.0.1")));
    gateway.end();
}

/// Whether each request is served, by its fields.
fn served(gateway: &TestGateway, fields: &[&str]) -> Vec<bool> {
    let mut client = gateway.client();
    let served = fields.iter().map(|fields| client.request(request_with(fields)).status() == 200).collect();
    drop(client);
    served
}

#[test]
fn trusted_proxy_determines_the_client() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::new(&file(
        "trustedProxies: [127.0.0.0/8, 10.0.0.0/8]; rateLimit: {maxQpsPerClient: 1, maxConnectionsPerClient: 1}",
        "",
        &[&backend],
    ));
    let cases = [
        ("X-Forwarded-For: 203.0.113.9\r\n", true),
        ("X-Forwarded-For: 203.0.113.9\r\n", false),
        ("X-Forwarded-For: 203.0.113.10\r\n", true),
        // The client's own entry is to the left of the trusted ones.
        ("X-Forwarded-For: 1.2.3.4, 203.0.113.9\r\n", false),
        ("X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-For: 203.0.113.9, 10.1.1.1\r\n", false),
        ("X-Forwarded-For: 203.0.113.11, 10.1.1.1\r\n", true),
        ("X-Forwarded-For: 203.0.113.11:4711\r\n", false),
        // One household controls a whole /64.
        ("X-Forwarded-For: 2001:db8:0:1::1\r\n", true),
        ("X-Forwarded-For: 2001:db8:0:1:ffff::2\r\n", false),
        ("X-Forwarded-For: [2001:db8:0:1::3]:80\r\n", false),
        ("X-Forwarded-For: 2001:db8:0:2::1\r\n", true),
        ("X-Forwarded-For: ::ffff:203.0.113.9\r\n", false),
        // An unreadable entry counts for the proxy.
        ("X-Forwarded-For: nonsense\r\n", true),
        ("", false),
        ("X-Forwarded-For: 203.0.113.77, nonsense\r\n", false),
    ];
    let (fields, expected): (Vec<&str>, Vec<bool>) = cases.into_iter().unzip();
    assert_eq!(served(&gateway, &fields), expected);
    gateway.end();
}

#[test]
fn proxy_connections_exceed_the_client_limit() {
    let backend = TestBackend::echo();
    let limits = "rateLimit: {maxConnectionsPerClient: 1}";
    let gateway =
        TestGateway::new(&file(&format!("trustedProxies: [127.0.0.2/32]; {limits}"), "", &[&backend]));
    let mut open = Vec::new();
    for (address, status) in [(2, 200), (2, 200), (2, 200), (3, 200), (3, 429)] {
        let mut client = gateway.client_at(address);
        assert_eq!(client.request(get("a.test")).status(), status, "127.0.0.{address}");
        open.push(client);
    }
    drop(open);
    gateway.end();
}

#[test]
fn configured_header_names_the_client() {
    let backend = TestBackend::echo();
    let server = "clientHeader: X-Api-Key; rateLimit: {maxQpsPerClient: 1}";
    let gateway = TestGateway::new(&file(server, "", &[&backend]));
    let long = format!("X-Api-Key: {}\r\n", "k".repeat(200));
    let cases = [
        ("X-Api-Key: one\r\n", true),
        ("x-api-key: one\r\n", false),
        ("X-Api-Key: two\r\n", true),
        // Without a name, with several, or with one that is too long, the address counts.
        ("", true),
        ("X-Api-Key: \r\n", false),
        ("X-Api-Key: three\r\nX-Api-Key: four\r\n", false),
        (long.as_str(), false),
    ];
    let (fields, expected): (Vec<&str>, Vec<bool>) = cases.into_iter().unzip();
    assert_eq!(served(&gateway, &fields), expected);
    gateway.end();
}

const VERSION_2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xcb\x00\x71\x09\x0a\0\0\x01\x12\x34\0\x50";

#[test]
fn proxy_header_determines_the_client() {
    let backend = TestBackend::echo();
    let server =
        "trustedProxies: [127.0.0.0/8]; proxyProtocol: true; rateLimit: {maxConnectionsPerClient: 1}";
    let gateway = TestGateway::new(&file(server, "", &[&backend]));
    let beginnings: [(&[u8], &str); 5] = [
        (b"PROXY TCP4 203.0.113.1 10.0.0.1 4660 80\r\n", "203.0.113.1"),
        (b"PROXY TCP6 2001:db8::7 2001:db8::1 4660 80\r\n", "2001:db8::7"),
        (VERSION_2, "203.0.113.9"),
        (b"PROXY UNKNOWN\r\n", "127.0.0.1"),
        (b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0", "127.0.0.1"),
    ];
    for (beginning, expected) in beginnings {
        for step in [1, 7, 1000] {
            let mut client = gateway.client();
            let all = [beginning, get("a.test").as_bytes()].concat();
            for piece in all.chunks(step) {
                client.send(piece);
            }
            assert_eq!(client.read_response().echoed().field("x-forwarded-for"), Some(expected));
            assert_eq!(client.request(get("a.test")).status(), 200, "the header is read once");
            drop(client);
            gateway.wait_until_empty();
        }
    }
    // Entries from the proxy's clients are not trusted.
    let mut client = gateway.client();
    client.send(VERSION_2);
    let echoed = client.request(request_with(FORWARDING_FIELDS)).echoed();
    assert_eq!(echoed.field("x-forwarded-for"), Some("203.0.113.9"));
    // Each client has its own connections.
    let mut second = gateway.client();
    second.send(VERSION_2);
    assert_eq!(second.request(get("a.test")).status(), 429);
    second.assert_closed();
    drop(client);
    for wrong in [get("a.test").into_bytes(), b"PROXY nonsense\r\n".to_vec(), b"PROXY TCP4 x\r\n".to_vec()] {
        let mut client = gateway.client();
        client.try_send([&wrong, get("a.test").as_bytes()].concat());
        client.assert_closed();
    }
    gateway.end();
}

#[test]
fn untrusted_proxy_header_is_refused() {
    let backend = TestBackend::echo();
    let gateway =
        TestGateway::new(&file("trustedProxies: [10.0.0.0/8]; proxyProtocol: true", "", &[&backend]));
    assert_eq!(gateway.request(get("a.test")).status(), 200);
    for beginning in [VERSION_2, b"PROXY TCP4 203.0.113.1 10.0.0.1 4660 80\r\n"] {
        let mut client = gateway.client();
        client.try_send([beginning, get("a.test").as_bytes()].concat());
        let status = client.read_response().status();
        assert!(matches!(status, 400 | 505), "{status}");
        client.assert_closed();
    }
    assert_eq!(backend.request_count(), 1);
    gateway.end();
}

/// The status of one request on each of several open connections, and the clients.
fn on_connections(gateway: &TestGateway, requests: &[String]) -> (Vec<u16>, Vec<WireClient>) {
    let mut open = Vec::new();
    let ask = |request: &String| {
        let mut client = gateway.client();
        let status = client.request(request).status();
        open.push(client);
        status
    };
    (requests.iter().map(ask).collect(), open)
}

#[test]
fn connection_counts_for_the_named_client() {
    let backend = TestBackend::echo();
    let trusted = "trustedProxies: [127.0.0.0/8]";
    let forwarded = "X-Forwarded-For: 203.0.113.9\r\n";
    for (server, route, fields, served) in [
        (format!("{trusted}; rateLimit: {{maxConnectionsPerClient: 2}}"), "", forwarded, 2),
        (trusted.to_owned(), "maxConnectionsPerClient: 2", forwarded, 2),
        (trusted.to_owned(), "maxConnectionsPerClient: 0", forwarded, 0),
        // A proxy without forwarding fields is not one client.
        (trusted.to_owned(), "maxConnectionsPerClient: 2", "", 4),
        (format!("{trusted}; clientHeader: x-key"), "maxConnectionsPerClient: 2", "X-Key: ada\r\n", 2),
        ("clientHeader: x-key".to_owned(), "maxConnectionsPerClient: 2", "X-Key: ada\r\n", 2),
        ("clientHeader: x-key".to_owned(), "maxConnectionsPerClient: 2", "", 2),
    ] {
        let text = file(&server, "", &[&backend])
            .replace("{backend: b}", &format!("{{backend: b, rateLimit: {{{route}}}}}"));
        let gateway = TestGateway::new(&text);
        let (statuses, open) = on_connections(&gateway, &vec![request_with(fields); 4]);
        let expected: Vec<u16> = (0..4).map(|place| if place < served { 200 } else { 429 }).collect();
        assert_eq!(statuses, expected, "{text}");
        drop(open);
        gateway.wait_until_empty();
        let (again, open) = on_connections(&gateway, &[request_with(fields)]);
        assert_eq!(again, expected[..1], "there is room again");
        drop(open);
        gateway.end();
    }
}

#[test]
fn named_clients_behind_one_address_are_separate() {
    let backend = TestBackend::echo();
    let server = "clientHeader: x-key; rateLimit: {maxConnectionsPerClient: 2}";
    let gateway = TestGateway::new(&file(server, "", &[&backend]));
    let named = |name: &str| request_with(&format!("X-Key: {name}\r\n"));
    let (statuses, mut open) = on_connections(&gateway, &["a", "b", "c", "d", "d", "d"].map(named));
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
    assert_eq!(gateway.counted(ConnectionCounter::Client(b"nd")), 2);
    assert_eq!(gateway.counted(ConnectionCounter::Client(b"na")), 1);
    open[0].request(named("d"));
    assert_eq!(gateway.counted(ConnectionCounter::Client(b"nd")), 2);
    drop(open);
    gateway.end();
}

/// A proxy's connection stays open when one of its clients exceeds a limit, and closes after many clients.
#[test]
fn proxy_connection_is_closed_after_many_clients() {
    let backend = TestBackend::echo();
    let server = "trustedProxies: [127.0.0.0/8]; rateLimit: {maxConnectionsPerClient: 1}";
    let gateway = TestGateway::new(&file(server, "", &[&backend]));
    let from = |last: u32| request_with(&format!("X-Forwarded-For: 203.0.{}.{}\r\n", last / 200, last % 200));
    let (statuses, open) = on_connections(&gateway, &[from(0)]);
    assert_eq!(statuses, [200]);
    let mut proxy = gateway.client();
    let refused = proxy.request(from(0));
    assert_eq!((refused.status(), refused.closes()), (429, false));
    for client in 1..256 {
        let response = proxy.request(from(client));
        assert_eq!((response.status(), response.closes()), (200, false), "{client}");
    }
    let last = proxy.request(from(256));
    assert_eq!((last.status(), last.closes()), (200, true));
    proxy.assert_closed();
    drop(open);
    gateway.end();
}

#[test]
fn untrusted_forwarding_fields_are_never_forwarded() {
    let backend = TestBackend::echo();
    let names = [
        "X-Forwarded-Prefix",
        "X-Forwarded-Server",
        "x-forwarded-ssl",
        "X-Forwarded-Anything-At-All",
        "X-Forwarded-Port",
    ];
    let hidden = ["X_Forwarded_Prefix", "X_Forwarded-Anything_At_All", "Proxy", "proxy"];
    let all: Vec<String> = names.iter().chain(&hidden).map(|name| format!("{name}: /x\r\n")).collect();
    let all = all.concat();
    for (server, is_trusted) in [("", false), ("trustedProxies: [127.0.0.0/8]", true)] {
        let gateway = TestGateway::new(&file(server, "", &[&backend]));
        let echoed = gateway.request(request_with(&format!("{all}X-Forward: kept\r\n"))).echoed();
        for name in names {
            assert_eq!(echoed.field(&name.to_lowercase()), is_trusted.then_some("/x"), "{name}");
        }
        for name in hidden {
            assert_eq!(echoed.field(&name.to_lowercase()), None, "{name}");
        }
        assert_eq!(echoed.field("x-forward"), Some("kept"));
        let echoed = super::http2::run(async {
            let mut sender = super::http2::connect(gateway.inner.address()).await;
            let mut request = super::http2::request_for("http://a.test/", super::http2::empty());
            for name in names.iter().chain(&hidden) {
                let name: http::HeaderName = name.parse().expect("a name");
                request.headers_mut().insert(name, http::HeaderValue::from_static("/x"));
            }
            super::http2::send(&mut sender, request).await.echoed()
        });
        for name in names {
            assert_eq!(echoed.field(&name.to_lowercase()), is_trusted.then_some("/x"), "{name}");
        }
        for name in hidden {
            assert_eq!(echoed.field(&name.to_lowercase()), None, "{name}");
        }
        gateway.end();
    }
}
