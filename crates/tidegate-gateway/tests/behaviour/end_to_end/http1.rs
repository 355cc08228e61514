//! HTTP/1 forwarding: routing, and changes to requests and responses.

use std::fmt::Write;

use super::fixture::{TestBackend, TestGateway, get, response};
use super::http_client::Message;
use crate::fixture::EXAMPLE;

#[test]
fn request_and_response_are_forwarded() {
    let backend = TestBackend::new(|_, wire| {
        wire.send("HTTP/1.1 201 Made up\r\nX-One: 1\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Length: 2\r\n\r\nhi");
        true
    });
    let gateway = TestGateway::in_front_of(&backend);
    let mut client = gateway.client();
    for _ in 0..3 {
        let response =
            client.request("GET /a/b?c=d&e HTTP/1.1\r\nHost: One.Test:80\r\nX-Two: 2\r\nAccept: */*\r\n\r\n");
        assert_eq!((response.line.as_str(), response.text().as_str()), ("HTTP/1.1 201 Made up", "hi"));
        assert_eq!(response.values("set-cookie"), ["a=1", "b=2"]);
        assert_eq!((response.field("x-one"), response.field("connection")), (Some("1"), None));
    }
    let received = backend.requests_received();
    assert_eq!((received.len(), backend.connection_count()), (3, 1), "one connection serves all");
    assert_eq!(received[0].line, "GET /a/b?c=d&e HTTP/1.1");
    assert_eq!(received[0].field("host"), Some("One.Test:80"));
    assert_eq!((received[0].field("x-two"), received[0].field("accept")), (Some("2"), Some("*/*")));
    assert_eq!(received[0].field("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(received[0].field("x-forwarded-proto"), Some("http"));
    assert_eq!(received[0].field("x-forwarded-host"), Some("One.Test:80"));
    assert_eq!(received[0].field("via"), Some("1.1 tidegate"));
    drop(client);
    gateway.end();
}

/// Three backends that send their names, and settings with their ports.
fn example_gateway() -> (Vec<TestBackend>, TestGateway) {
    let backends = vec![TestBackend::always(response("api")), TestBackend::always(response("plain"))];
    let text = EXAMPLE
        .replace("8080", &backends[0].port().to_string())
        .replace("8081", &backends[1].port().to_string());
    (backends, TestGateway::new(&text))
}

/// Limits at every level with the example settings.
#[test]
fn example_settings_limits_hold() {
    for (host, most) in [
        ("api.example.com", 100),
        ("other.example.com", 50),
        ("plain.example.com", 10),
        ("mixed.example.com", 100),
    ] {
        let (backends, gateway) = example_gateway();
        let mut client = gateway.client();
        client.send(get(host).repeat(5 * most));
        let responses: Vec<Message> = (0..5 * most).map(|_| client.read_response()).collect();
        let served = responses.iter().filter(|response| response.status() == 200).count();
        // A run of more than one second may serve more, never less.
        assert!(served >= most, "{host}: {served}");
        let first = responses.iter().position(|response| response.status() == 429);
        assert!(first.is_none_or(|first| first >= most), "{host}: {first:?}");
        let refused =
            responses.iter().find(|response| response.status() == 429).expect("so many in one second");
        assert_eq!(refused.text(), "Too Many Requests");
        assert_eq!(refused.field("retry-after"), Some("1"));
        assert_eq!(refused.field("ratelimit-policy"), Some(format!("\"client\";q={most};w=1").as_str()));
        assert!(refused.field("ratelimit").is_some_and(|left| left.starts_with("\"client\";r=0")));
        assert_eq!(
            backends.iter().map(TestBackend::request_count).sum::<usize>(),
            served,
            "nothing refused goes on"
        );
        drop(client);
        gateway.end();
    }
}

#[test]
fn example_settings_connection_limits_hold() {
    for (host, most) in [("plain.example.com", 5), ("other.example.com", 10), ("mixed.example.com", 10)] {
        let (_backends, gateway) = example_gateway();
        let mut open: Vec<_> = (0..=most).map(|_| gateway.client()).collect();
        let served =
            open.iter_mut().map(|client| client.request(get(host))).take_while(|it| it.status() == 200);
        assert_eq!(served.count(), most, "{host}");
        let last = &mut open[most];
        last.assert_closed();
        drop(open);
        gateway.end();
    }
}

/// Each request is routed and counted by its own host.
#[test]
fn each_request_of_a_connection_is_routed_separately() {
    let (backends, gateway) = example_gateway();
    let mut client = gateway.client();
    for _ in 0..5 {
        assert_eq!(client.request(get("plain.example.com")).text(), "plain");
        assert_eq!(client.request(get("API.example.com:443")).text(), "api");
        let nowhere = client.request(get("unknown.example.org"));
        assert_eq!((nowhere.status(), nowhere.closes()), (404, false));
    }
    assert_eq!((backends[0].request_count(), backends[1].request_count()), (5, 5));
    let limits = gateway.inner.limits();
    for counter in [
        tidegate_gateway::ConnectionCounter::Route("plain.example.com"),
        tidegate_gateway::ConnectionCounter::Backend("api-service"),
        tidegate_gateway::ConnectionCounter::Server,
    ] {
        assert_eq!(limits.current_connections(counter), 1, "{counter:?}");
    }
    drop(client);
    gateway.end();
}

#[test]
fn unusual_targets_and_hosts_are_routed_or_refused() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::in_front_of(&backend);
    for (line, host, line_passed, host_passed) in [
        ("GET http://b.test/x?y HTTP/1.1", "a.test", "GET /x?y HTTP/1.1", "b.test"),
        ("GET HTTP://b.test:81 HTTP/1.1", "a.test", "GET / HTTP/1.1", "b.test:81"),
        ("OPTIONS * HTTP/1.1", "a.test", "OPTIONS * HTTP/1.1", "a.test"),
        ("GET /a//b;c/%20 HTTP/1.1", "[::1]:80", "GET /a//b;c/%20 HTTP/1.1", "[::1]:80"),
        ("PATCH /?/../ HTTP/1.1", "a.test.", "PATCH /?/../ HTTP/1.1", "a.test."),
        ("M-SEARCH / HTTP/1.1", "a.test", "M-SEARCH / HTTP/1.1", "a.test"),
    ] {
        let response = gateway.request(format!("{line}\r\nHost: {host}\r\n\r\n")).echoed();
        assert_eq!(
            (response.line.as_str(), response.field("host")),
            (line_passed, Some(host_passed)),
            "{line}"
        );
        assert_eq!(response.field("x-forwarded-host"), Some(host_passed));
    }
    let served = backend.request_count();
    for (request, status) in [
        ("CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n", 405),
        ("TRACE / HTTP/1.1\r\nHost: a.test\r\n\r\n", 405),
        ("GET ftp://b.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET http:///x HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET http://me@b.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET b.test HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET * HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost:\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a.test\r\nHost: a.test\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: me@a.test\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a.test/x\r\n\r\n", 400),
        ("GET / HTTP/2.0\r\nHost: a.test\r\n\r\n", 505),
        ("GET / HTTP/1.2\r\nHost: a.test\r\n\r\n", 505),
        ("nonsense\r\n\r\n", 400),
    ] {
        let mut client = gateway.client();
        assert_eq!(client.request(request).status(), status, "{request:?}");
        client.assert_closed();
    }
    assert_eq!(backend.request_count(), served, "none of it went on");
    gateway.end();
}

#[test]
fn http_1_0_clients_are_served() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::in_front_of(&backend);
    let mut client = gateway.client();
    let response = client.request("GET / HTTP/1.0\r\n\r\n");
    assert_eq!((response.status(), response.closes()), (200, true));
    assert_eq!(response.echoed().field("via"), Some("1.0 tidegate"));
    client.assert_closed();
    let mut client = gateway.client();
    for _ in 0..2 {
        let response = client.request("GET / HTTP/1.0\r\nHost: a.test\r\nConnection: Keep-Alive\r\n\r\n");
        assert_eq!(response.field("connection"), Some("keep-alive"));
    }
    drop(client);
    let mut client = gateway.client();
    assert!(client.request("GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n").closes());
    client.assert_closed();
    gateway.end();
}

#[test]
fn http_1_0_clients_get_close_delimited_bodies() {
    let backend = TestBackend::always(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n",
    );
    let gateway = TestGateway::in_front_of(&backend);
    let mut client = gateway.client();
    let response = client.request("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert_eq!((response.text().as_str(), response.closes(), response.is_chunked), ("hello", true, false));
    assert_eq!(response.field("transfer-encoding"), None);
    gateway.end();
}

#[test]
fn bodiless_responses_have_no_body() {
    for (head, length) in [
        ("HTTP/1.1 204 No Content\r\n\r\n", None),
        ("HTTP/1.1 304 Not Modified\r\nContent-Length: 500\r\nETag: \"x\"\r\n\r\n", Some("500")),
        ("HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", None),
    ] {
        let backend = TestBackend::always(head);
        let gateway = TestGateway::in_front_of(&backend);
        let mut client = gateway.client();
        for _ in 0..2 {
            let response = client.request(get("a.test"));
            assert_eq!(
                (response.field("content-length"), response.field("transfer-encoding")),
                (length, None)
            );
        }
        assert_eq!(backend.connection_count(), 1);
        drop(client);
        gateway.end();
    }
    for head in ["Content-Length: 12345", "Transfer-Encoding: chunked", "X: y"] {
        let backend = TestBackend::always(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n"));
        let gateway = TestGateway::in_front_of(&backend);
        let mut client = gateway.client();
        for _ in 0..2 {
            client.send("HEAD / HTTP/1.1\r\nHost: a.test\r\n\r\n");
            let response = client.read_message(true).expect("a head");
            assert_eq!(response.status(), 200);
            assert_eq!(response.field("content-length"), head.strip_prefix("Content-Length: "));
        }
        drop(client);
        gateway.end();
    }
}

#[test]
fn hop_by_hop_fields_are_removed() {
    let backend = TestBackend::new(|message, wire| {
        let fields = "Connection: close, X-Mine\r\nKeep-Alive: 5\r\nX-Mine: 1\r\nProxy-Authenticate: x\r\nUpgrade: h2c\r\nX-Kept: 1";
        wire.send(format!("HTTP/1.1 200 OK\r\n{fields}\r\nContent-Length: {}\r\n\r\n", message.line.len()));
        wire.send(&message.line);
        false
    });
    let gateway = TestGateway::in_front_of(&backend);
    let mut client = gateway.client();
    let request = "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: X-Secret, keep-alive, host, x-forwarded-for\r\nConnection: via,content-length, x-forwarded-proto\r\nX-Secret: 1\r\nKeep-Alive: 3\r\nProxy-Connection: x\r\nProxy-Authorization: x\r\nTE: trailers\r\nTrailer: X\r\nUpgrade: websocket\r\nX-Kept: 2\r\nContent-Length: 3\r\n\r\nabc";
    for _ in 0..2 {
        let response = client.request(request);
        let names: Vec<String> = response.fields.iter().map(|(name, _)| name.to_ascii_lowercase()).collect();
        assert_eq!(names, ["x-kept", "content-length"], "the client's own connection goes on");
    }
    assert_eq!(backend.connection_count(), 2, "the backend's does not");
    let received = &backend.requests_received()[0];
    let mut names: Vec<String> = received.fields.iter().map(|(name, _)| name.to_ascii_lowercase()).collect();
    names.sort();
    let expected = [
        "content-length",
        "host",
        "via",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-proto",
        "x-kept",
    ];
    assert_eq!(names, expected);
    assert_eq!(received.body, b"abc");
    drop(client);
    gateway.end();
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let backend = TestBackend::new(|message, wire| {
        wire.send(response(&message.line));
        true
    });
    let text =
        super::fixture::file("", "", &[&backend]).replace("{backend: b}", "{path: /to/**, backend: b}");
    let gateway = TestGateway::new(&text);
    let mut client = gateway.client();
    let mut all = String::new();
    for number in 0..50 {
        let place = if number % 3 == 0 { "nowhere" } else { "to" };
        let (method, body) = if number % 5 == 0 { ("POST", "hello") } else { ("GET", "") };
        let length = body.len();
        write!(
            all,
            "{method} /{place}/{number} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .expect("text has room");
    }
    client.send(all);
    for number in 0..50 {
        let response = client.read_response();
        if number % 3 == 0 {
            assert_eq!(response.status(), 404, "{number}");
        } else {
            let method = if number % 5 == 0 { "POST" } else { "GET" };
            assert_eq!(response.text(), format!("{method} /to/{number} HTTP/1.1"));
        }
    }
    drop(client);
    gateway.end();
}

/// A local reply is not lost when more requests follow it.
#[test]
fn local_reply_precedes_the_next_response() {
    let mut dead = TestBackend::echo();
    let gateway = TestGateway::in_front_of(&dead);
    dead.end();
    let mut client = gateway.client();
    client.send(get("a.test").repeat(3));
    for _ in 0..3 {
        assert_eq!(client.read_response().status(), 502);
    }
    drop(client);
    gateway.end();
}

/// A local reply is sent although half of another request has arrived.
#[test]
fn partial_request_does_not_delay_a_reply() {
    let backend = TestBackend::echo();
    let text = super::fixture::file("", "", &[&backend]).replace("{backend: b}", "{path: /to, backend: b}");
    let gateway = TestGateway::new(&text);
    let mut client = gateway.client();
    client.send(get("a.test") + "GET /to HTTP/1.1\r\nHo");
    assert_eq!(client.read_response().status(), 404);
    client.send("st: a\r\n\r\n");
    assert_eq!(client.read_response().status(), 200);
    drop(client);
    gateway.end();
}

#[test]
fn interim_responses_are_not_forwarded() {
    let backend = TestBackend::always(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi",
    );
    let gateway = TestGateway::in_front_of(&backend);
    let mut client = gateway.client();
    for _ in 0..3 {
        let mut response = client.request(get("a.test"));
        while response.status() < 200 {
            response = client.read_response();
        }
        assert_eq!(response.text(), "hi");
    }
    drop(client);
    gateway.end();
}

#[test]
fn malformed_responses_are_not_forwarded() {
    let head = |field: &str| format!("HTTP/1.1 200 OK\r\n{field}\r\n\r\nhello");
    let many = "X-Many: 1\r\n".repeat(200);
    let large = format!("X: {}", "x".repeat(70_000));
    for bytes in [
        "nonsense\r\n\r\n".to_owned(),
        "HTTP/2.0 200 OK\r\n\r\n".to_owned(),
        head("Content-Length: 5\r\nContent-Length: 6"),
        head("Content-Length: 5\r\nTransfer-Encoding: chunked"),
        head("Transfer-Encoding: gzip, chunked"),
        head("Content-Length: -5"),
        head("Content-Length : 5"),
        head("X: a\rb\r\nContent-Length: 5"),
        head("X: a\0b\r\nContent-Length: 5"),
        head(&many),
        head(&large),
        "HTTP/1.1 200 O".to_owned(),
        String::new(),
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n".to_owned(),
    ] {
        let backend = TestBackend::always_then_close(&bytes);
        let gateway = TestGateway::in_front_of(&backend);
        let response = gateway.request(get("a.test"));
        assert_eq!((response.status(), response.text().as_str()), (502, "Bad Gateway"), "{bytes:?}");
        gateway.end();
    }
}

/// An unsolicited response is never delivered to another client.
#[test]
fn unsolicited_response_is_never_delivered() {
    let twice = TestBackend::new(|message, wire| {
        let path = message.line.split(' ').nth(1).unwrap_or_default();
        wire.try_send([response(path), response("stray")].concat());
        true
    });
    let later = TestBackend::new(|message, wire| {
        let path = message.line.split(' ').nth(1).unwrap_or_default();
        wire.try_send(response(path));
        wire.let_peer_read();
        wire.try_send(response("stray"));
        true
    });
    for backend in [twice, later] {
        let gateway = TestGateway::in_front_of(&backend);
        let mut client = gateway.client();
        for number in 0..5 {
            let response = client.request(format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n"));
            assert_eq!(response.text(), format!("/{number}"));
            client.assert_silent_for(std::time::Duration::from_millis(50));
        }
        assert_eq!(backend.connection_count(), 5, "a connection with extra bytes is not reused");
        drop(client);
        gateway.end();
    }
    // A body in response to HEAD also counts as unsolicited.
    let backend = TestBackend::new(|message, wire| {
        wire.try_send(response(&message.line));
        true
    });
    let gateway = TestGateway::in_front_of(&backend);
    let mut client = gateway.client();
    client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.read_message(true).expect("a head").status(), 200);
    assert_eq!(client.request(get("a")).text(), "GET / HTTP/1.1");
    drop(client);
    gateway.end();
}
