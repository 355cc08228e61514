//! Proxies before the gateway: who is believed, and about whom.

use tidegate_gateway::Counted;

use super::fixture::{Backend, Stage, file, get};
use super::http_client::{Message, Wire};

const CLAIMS: &str = "X-Forwarded-For: 6.6.6.6, 203.0.113.9\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: outside.test\r\nX-Forwarded-Port: 444\r\nX-Real-IP: 6.6.6.6\r\nForwarded: for=6.6.6.6\r\n";

fn claiming(fields: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n")
}

fn claims(echoed: &Message) -> [Option<&str>; 6] {
    ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-forwarded-port", "x-real-ip", "forwarded"]
        .map(|name| echoed.field(name))
}

#[test]
fn nobody_is_believed_who_is_not_trusted() {
    let backend = Backend::echo();
    for server in ["", "trustedProxies: [10.0.0.0/8]", "trustedProxies: ['127.0.0.9/32']"] {
        let stage = Stage::new(&file(server, "", &[&backend]));
        let echoed = stage.ask(claiming(CLAIMS)).echoed();
        let own = [Some("127.0.0.1"), Some("http"), Some("a.test"), None, None, None];
        assert_eq!(claims(&echoed), own, "{server}");
        stage.end();
    }
}

#[test]
fn trusted_proxies_are_believed_and_added_to() {
    let backend = Backend::echo();
    let stage = Stage::new(&file("trustedProxies: [127.0.0.0/8]", "", &[&backend]));
    let echoed = stage.ask(claiming(CLAIMS)).echoed();
    let all = [
        Some("6.6.6.6, 203.0.113.9, 127.0.0.1"),
        Some("https"),
        Some("outside.test"),
        Some("444"),
        Some("6.6.6.6"),
        Some("for=6.6.6.6"),
    ];
    assert_eq!(claims(&echoed), all);
    // What a proxy names for its own hop does not take away what the gateway says.
    let hop = "Connection: x-forwarded-proto, x-forwarded-for, x-forwarded-host\r\n";
    let echoed = stage.ask(claiming(&format!("{hop}{CLAIMS}"))).echoed();
    assert_eq!(claims(&echoed)[1..3], [Some("http"), Some("a.test")]);
    assert!(echoed.field("x-forwarded-for").is_some_and(|through| through.ends_with("127.0.0.1")));
    stage.end();
}

/// How many of these requests are served, each with its fields.
fn served(stage: &Stage, fields: &[&str]) -> Vec<bool> {
    let mut client = stage.client();
    let served = fields.iter().map(|fields| client.ask(claiming(fields)).status() == 200).collect();
    drop(client);
    served
}

#[test]
fn the_client_is_whom_trusted_proxies_say() {
    let backend = Backend::echo();
    let stage = Stage::new(&file(
        "trustedProxies: [127.0.0.0/8, 10.0.0.0/8]; rateLimit: {maxQpsPerClient: 1, maxConnectionsPerClient: 1}",
        "",
        &[&backend],
    ));
    let asked = [
        ("X-Forwarded-For: 203.0.113.9\r\n", true),
        ("X-Forwarded-For: 203.0.113.9\r\n", false),
        ("X-Forwarded-For: 203.0.113.10\r\n", true),
        // What a client says itself is to the left of what is believed.
        ("X-Forwarded-For: 1.2.3.4, 203.0.113.9\r\n", false),
        ("X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-For: 203.0.113.9, 10.1.1.1\r\n", false),
        ("X-Forwarded-For: 203.0.113.11, 10.1.1.1\r\n", true),
        ("X-Forwarded-For: 203.0.113.11:4711\r\n", false),
        // One household has as many addresses as it likes.
        ("X-Forwarded-For: 2001:db8:0:1::1\r\n", true),
        ("X-Forwarded-For: 2001:db8:0:1:ffff::2\r\n", false),
        ("X-Forwarded-For: [2001:db8:0:1::3]:80\r\n", false),
        ("X-Forwarded-For: 2001:db8:0:2::1\r\n", true),
        ("X-Forwarded-For: ::ffff:203.0.113.9\r\n", false),
        // What cannot be read is nobody's, and so the proxy's.
        ("X-Forwarded-For: nonsense\r\n", true),
        ("", false),
        ("X-Forwarded-For: 203.0.113.77, nonsense\r\n", false),
    ];
    let (fields, expected): (Vec<&str>, Vec<bool>) = asked.into_iter().unzip();
    assert_eq!(served(&stage, &fields), expected);
    stage.end();
}

#[test]
fn a_proxy_may_have_more_connections_than_a_client() {
    let backend = Backend::echo();
    let limits = "rateLimit: {maxConnectionsPerClient: 1}";
    let stage = Stage::new(&file(&format!("trustedProxies: [127.0.0.2/32]; {limits}"), "", &[&backend]));
    let mut open = Vec::new();
    for (address, status) in [(2, 200), (2, 200), (2, 200), (3, 200), (3, 429)] {
        let mut client = stage.client_at(address);
        assert_eq!(client.ask(get("a.test")).status(), status, "127.0.0.{address}");
        open.push(client);
    }
    drop(open);
    stage.end();
}

#[test]
fn a_header_may_name_the_client() {
    let backend = Backend::echo();
    let server = "clientHeader: X-Api-Key; rateLimit: {maxQpsPerClient: 1}";
    let stage = Stage::new(&file(server, "", &[&backend]));
    let long = format!("X-Api-Key: {}\r\n", "k".repeat(200));
    let asked = [
        ("X-Api-Key: one\r\n", true),
        ("x-api-key: one\r\n", false),
        ("X-Api-Key: two\r\n", true),
        // Without a name, or with several, or with one that is too long, it is the address.
        ("", true),
        ("X-Api-Key: \r\n", false),
        ("X-Api-Key: three\r\nX-Api-Key: four\r\n", false),
        (long.as_str(), false),
    ];
    let (fields, expected): (Vec<&str>, Vec<bool>) = asked.into_iter().unzip();
    assert_eq!(served(&stage, &fields), expected);
    stage.end();
}

const VERSION_2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xcb\x00\x71\x09\x0a\0\0\x01\x12\x34\0\x50";

#[test]
fn connections_of_proxies_say_whom_they_are_for() {
    let backend = Backend::echo();
    let server =
        "trustedProxies: [127.0.0.0/8]; proxyProtocol: true; rateLimit: {maxConnectionsPerClient: 1}";
    let stage = Stage::new(&file(server, "", &[&backend]));
    let beginnings: [(&[u8], &str); 5] = [
        (b"PROXY TCP4 203.0.113.1 10.0.0.1 4660 80\r\n", "203.0.113.1"),
        (b"PROXY TCP6 2001:db8::7 2001:db8::1 4660 80\r\n", "2001:db8::7"),
        (VERSION_2, "203.0.113.9"),
        (b"PROXY UNKNOWN\r\n", "127.0.0.1"),
        (b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0", "127.0.0.1"),
    ];
    for (beginning, whom) in beginnings {
        for step in [1, 7, 1000] {
            let mut client = stage.client();
            let all = [beginning, get("a.test").as_bytes()].concat();
            for piece in all.chunks(step) {
                client.say(piece);
            }
            assert_eq!(client.hear().echoed().field("x-forwarded-for"), Some(whom));
            assert_eq!(client.ask(get("a.test")).status(), 200, "it is said once");
            drop(client);
            stage.is_empty();
        }
    }
    // What clients of a proxy claim themselves is not believed.
    let mut client = stage.client();
    client.say(VERSION_2);
    let echoed = client.ask(claiming(CLAIMS)).echoed();
    assert_eq!(echoed.field("x-forwarded-for"), Some("203.0.113.9"));
    // They are clients: each has its own connections.
    let mut second = stage.client();
    second.say(VERSION_2);
    assert_eq!(second.ask(get("a.test")).status(), 429);
    second.is_over();
    drop(client);
    for wrong in [get("a.test").into_bytes(), b"PROXY nonsense\r\n".to_vec(), b"PROXY TCP4 x\r\n".to_vec()] {
        let mut client = stage.client();
        client.shout([&wrong, get("a.test").as_bytes()].concat());
        client.is_over();
    }
    stage.end();
}

#[test]
fn whoever_is_not_trusted_cannot_say_whom_they_are_for() {
    let backend = Backend::echo();
    let stage = Stage::new(&file("trustedProxies: [10.0.0.0/8]; proxyProtocol: true", "", &[&backend]));
    assert_eq!(stage.ask(get("a.test")).status(), 200);
    for beginning in [VERSION_2, b"PROXY TCP4 203.0.113.1 10.0.0.1 4660 80\r\n"] {
        let mut client = stage.client();
        client.shout([beginning, get("a.test").as_bytes()].concat());
        let status = client.hear().status();
        assert!(matches!(status, 400 | 505), "{status}");
        client.is_over();
    }
    assert_eq!(backend.requests(), 1);
    stage.end();
}

/// The statuses of one request on each of so many connections, which stay open, and what was said last.
fn on_connections(stage: &Stage, requests: &[String]) -> (Vec<u16>, Vec<Wire>) {
    let mut open = Vec::new();
    let ask = |request: &String| {
        let mut client = stage.client();
        let status = client.ask(request).status();
        open.push(client);
        status
    };
    (requests.iter().map(ask).collect(), open)
}

#[test]
fn connections_count_for_the_client_that_a_request_names() {
    let backend = Backend::echo();
    let trusted = "trustedProxies: [127.0.0.0/8]";
    let forwarded = "X-Forwarded-For: 203.0.113.9\r\n";
    for (server, route, fields, served) in [
        (format!("{trusted}; rateLimit: {{maxConnectionsPerClient: 2}}"), "", forwarded, 2),
        (trusted.to_owned(), "maxConnectionsPerClient: 2", forwarded, 2),
        (trusted.to_owned(), "maxConnectionsPerClient: 0", forwarded, 0),
        // A proxy that speaks for nobody is not one client.
        (trusted.to_owned(), "maxConnectionsPerClient: 2", "", 4),
        (format!("{trusted}; clientHeader: x-key"), "maxConnectionsPerClient: 2", "X-Key: ada\r\n", 2),
        ("clientHeader: x-key".to_owned(), "maxConnectionsPerClient: 2", "X-Key: ada\r\n", 2),
        ("clientHeader: x-key".to_owned(), "maxConnectionsPerClient: 2", "", 2),
    ] {
        let text = file(&server, "", &[&backend])
            .replace("{backend: b}", &format!("{{backend: b, rateLimit: {{{route}}}}}"));
        let stage = Stage::new(&text);
        let (statuses, open) = on_connections(&stage, &vec![claiming(fields); 4]);
        let expected: Vec<u16> = (0..4).map(|place| if place < served { 200 } else { 429 }).collect();
        assert_eq!(statuses, expected, "{text}");
        drop(open);
        stage.is_empty();
        let (again, open) = on_connections(&stage, &[claiming(fields)]);
        assert_eq!(again, expected[..1], "there is room again");
        drop(open);
        stage.end();
    }
}

#[test]
fn clients_with_names_are_not_taken_for_one_because_they_share_an_address() {
    let backend = Backend::echo();
    let server = "clientHeader: x-key; rateLimit: {maxConnectionsPerClient: 2}";
    let stage = Stage::new(&file(server, "", &[&backend]));
    let named = |name: &str| claiming(&format!("X-Key: {name}\r\n"));
    let (statuses, mut open) = on_connections(&stage, &["a", "b", "c", "d", "d", "d"].map(named));
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429]);
    assert_eq!(stage.counted(Counted::Client(b"nd")), 2);
    assert_eq!(stage.counted(Counted::Client(b"na")), 1);
    open[0].ask(named("d"));
    assert_eq!(stage.counted(Counted::Client(b"nd")), 2);
    drop(open);
    stage.end();
}

/// A proxy's connection is not one client's: it goes on when one of them has too many, and ends after it has carried many.
#[test]
fn a_connection_of_a_proxy_carries_many_but_not_for_ever() {
    let backend = Backend::echo();
    let server = "trustedProxies: [127.0.0.0/8]; rateLimit: {maxConnectionsPerClient: 1}";
    let stage = Stage::new(&file(server, "", &[&backend]));
    let from = |last: u32| claiming(&format!("X-Forwarded-For: 203.0.{}.{}\r\n", last / 200, last % 200));
    let (statuses, open) = on_connections(&stage, &[from(0)]);
    assert_eq!(statuses, [200]);
    let mut proxy = stage.client();
    let refused = proxy.ask(from(0));
    assert_eq!((refused.status(), refused.closes()), (429, false));
    for client in 1..256 {
        let answer = proxy.ask(from(client));
        assert_eq!((answer.status(), answer.closes()), (200, false), "{client}");
    }
    let last = proxy.ask(from(256));
    assert_eq!((last.status(), last.closes()), (200, true));
    proxy.is_over();
    drop(open);
    stage.end();
}

#[test]
fn no_field_about_forwarding_comes_from_those_who_are_not_trusted() {
    let backend = Backend::echo();
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
        let stage = Stage::new(&file(server, "", &[&backend]));
        let echoed = stage.ask(claiming(&format!("{all}X-Forward: kept\r\n"))).echoed();
        for name in names {
            assert_eq!(echoed.field(&name.to_lowercase()), is_trusted.then_some("/x"), "{name}");
        }
        for name in hidden {
            assert_eq!(echoed.field(&name.to_lowercase()), None, "{name}");
        }
        assert_eq!(echoed.field("x-forward"), Some("kept"));
        let echoed = super::http2::run(async {
            let mut sender = super::http2::connect(stage.gateway.address()).await;
            let mut request = super::http2::asking("http://a.test/", super::http2::empty());
            for name in names.iter().chain(&hidden) {
                let name: http::HeaderName = name.parse().expect("a name");
                request.headers_mut().insert(name, http::HeaderValue::from_static("/x"));
            }
            super::http2::ask(&mut sender, request).await.echoed()
        });
        for name in names {
            assert_eq!(echoed.field(&name.to_lowercase()), is_trusted.then_some("/x"), "{name}");
        }
        for name in hidden {
            assert_eq!(echoed.field(&name.to_lowercase()), None, "{name}");
        }
        stage.end();
    }
}
