//! Ambiguous requests are refused and nothing of them is forwarded.

use super::fixture::{TestBackend, TestGateway, get};

/// Follows every case. A response to it would mean that a request was smuggled.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: a.test\r\n\r\n";

/// Invalid heads, the bytes after them, and the status. Nothing reaches the backend.
const AMBIGUOUS_HEADS: &[(&str, &str, u16)] = &[
    ("Content-Length: 5\r\nTransfer-Encoding: chunked", "0\r\n\r\n", 400),
    ("Transfer-Encoding: chunked\r\nContent-Length: 5", "0\r\n\r\n", 400),
    ("Content-Length: 5\r\nContent-Length: 5", "hello", 400),
    ("Content-Length: 5\r\nContent-Length: 6", "hello!", 400),
    ("Content-Length: 5, 5", "hello", 400),
    ("Content-Length: +5", "hello", 400),
    ("Content-Length: -5", "hello", 400),
    ("Content-Length: 0x5", "hello", 400),
    ("Content-Length: 5 5", "hello", 400),
    ("Content-Length: 5;", "hello", 400),
    ("Content-Length: ", "hello", 400),
    ("Content-Length: 1e1", "hello", 400),
    ("Content-Length: 99999999999999999999", "hello", 413),
    ("Content-Length: 18446744073709551621", "hello", 413),
    ("Transfer-Encoding: chunked, chunked", "0\r\n\r\n", 501),
    ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "0\r\n\r\n", 501),
    ("Transfer-Encoding: xchunked", "0\r\n\r\n", 501),
    ("Transfer-Encoding: chunked;q=1", "0\r\n\r\n", 501),
    ("Transfer-Encoding: gzip, chunked", "0\r\n\r\n", 501),
    ("Transfer-Encoding: identity", "0\r\n\r\n", 501),
    ("Transfer-Encoding: ", "0\r\n\r\n", 501),
    ("Transfer-Encoding: \"chunked\"", "0\r\n\r\n", 501),
    ("Transfer-Encoding: chunked\x0b", "0\r\n\r\n", 400),
    ("Transfer-Encoding : chunked", "0\r\n\r\n", 400),
    ("Transfer-Encoding\t: chunked", "0\r\n\r\n", 400),
    ("Content-Length : 5", "hello", 400),
    ("Content-Length\0: 5", "hello", 400),
    ("X: 1\r\n Content-Length: 5", "hello", 400),
    ("X: 1\r\n\tfolded", "", 400),
    ("Transfer-Encoding:\r\n chunked", "0\r\n\r\n", 400),
    ("X: a\0b", "", 400),
    ("X: a\rb", "", 400),
    ("X: a\r\rContent-Length: 5", "hello", 400),
    ("X: a\nTransfer-Encoding: chunked", "0\r\n\r\n", 400),
    ("X: a\nY: b", "", 400),
    ("X: a\x7fb", "", 400),
    ("nocolon", "", 400),
    (": novalue", "", 400),
    ("X(y): 1", "", 400),
    ("X y: 1", "", 400),
    ("\u{e9}: 1", "", 400),
    ("Expect: 200-ok", "", 400),
];

#[test]
fn ambiguous_heads_are_refused() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::in_front_of(&backend);
    for (fields, body, status) in AMBIGUOUS_HEADS {
        for method in ["POST", "GET"] {
            let request = format!("{method} / HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n\r\n{body}{SMUGGLED}");
            let mut client = gateway.client();
            let response = client.request(&request);
            assert_eq!(response.status(), *status, "{request:?}");
            assert!(response.closes());
            client.assert_closed();
        }
    }
    assert_eq!(backend.connection_count(), 0, "nothing was forwarded");
    gateway.end();
}

#[test]
fn ambiguous_line_ends_are_refused() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::in_front_of(&backend);
    let long = format!("GET /{} HTTP/1.1\r\nHost: a.test\r\n\r\n", "x".repeat(20_000));
    let large = format!("GET / HTTP/1.1\r\nHost: a.test\r\nX: {}\r\n\r\n", "x".repeat(100_000));
    let endless = format!("GET / HTTP/1.1\r\nHost: a.test\r\nX: {}", "x".repeat(70_000));
    let many = "X-Many: 1\r\n".repeat(200);
    let many = format!("GET / HTTP/1.1\r\nHost: a.test\r\n{many}\r\n");
    let named = format!("GET / HTTP/1.1\r\nHost: a.test\r\nConnection: {}\r\n\r\n", "x,".repeat(20_000));
    for (request, status) in [
        (named.as_str(), 400),
        ("GET / HTTP/1.1\nHost: a.test\n\n", 400),
        ("GET / HTTP/1.1\r\nHost: a.test\n\r\n", 400),
        ("GET / HTTP/1.1\r\nHost: a.test\r\n\n", 400),
        ("GET / HTTP/1.1\rHost: a.test\r\r", 400),
        ("GET  / HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET / HTTP/1.1 \r\nHost: a.test\r\n\r\n", 400),
        ("GET\t/ HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET /a b HTTP/1.1\r\nHost: a.test\r\n\r\n", 505),
        ("G\0ET / HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET /\0 HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET /\u{e9} HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET /#x HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET /a/../b HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET /.. HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET /%2e%2E/b HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET /a%2f..%2fb HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET /a/..;x/b HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET /a\\..\\b HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("GET http://a.test/a/../b HTTP/1.1\r\nHost: a.test\r\n\r\n", 400),
        ("POST / HTTP/1.0\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501),
        ("GET /\r\n\r\n", 400),
        (long.as_str(), 414),
        (large.as_str(), 431),
        (endless.as_str(), 431),
        (many.as_str(), 431),
    ] {
        let mut client = gateway.client();
        client.try_send(request);
        let shown = &request[..request.len().min(80)];
        let actual = client.read_message(false).map_or(0, |response| response.status());
        assert_eq!(actual, status, "{shown:?}");
        client.assert_closed();
    }
    assert_eq!(backend.connection_count(), 0, "nothing was forwarded");
    gateway.end();
}

/// Invalid bodies. The backend may receive the start, never the end.
#[test]
fn ambiguous_chunks_are_refused() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::in_front_of(&backend);
    let long = format!("5;{}\r\nhello\r\n0\r\n\r\n", "x".repeat(5000));
    let trailers = format!("0\r\nX: {}\r\n\r\n", "x".repeat(10_000));
    for chunks in [
        "-5\r\nhello\r\n0\r\n\r\n",
        "+5\r\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        " 5\r\nhello\r\n0\r\n\r\n",
        "5\nhello\r\n0\r\n\r\n",
        "5\rhello\r\n0\r\n\r\n",
        "5\r\nhello0\r\n\r\n",
        "5\r\nhello!\r\n0\r\n\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "5;\nx\r\nhello\r\n0\r\n\r\n",
        "5;\rx\r\nhello\r\n0\r\n\r\n",
        "10000000000000005\r\nhello\r\n0\r\n\r\n",
        "fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
        "\r\nhello\r\n0\r\n\r\n",
        "g\r\nhello\r\n0\r\n\r\n",
        "0\r\nnocolon\r\n\r\n",
        "0\r\n folded: 1\r\n\r\n",
        "0\r\nX : 1\r\n\r\n",
        "0\r\nX: a\0\r\n\r\n",
        "0\r\n\n",
        "0\r\nX: 1\n\r\n",
        "0\r\nX: 1\r\n\n",
        long.as_str(),
        trailers.as_str(),
    ] {
        let head = "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n";
        let mut client = gateway.client();
        let response = client.request(format!("{head}{chunks}{SMUGGLED}"));
        let shown = &chunks[..chunks.len().min(80)];
        assert_eq!((response.status(), response.closes()), (400, true), "{shown:?}");
        client.assert_closed();
    }
    assert_eq!(backend.request_count(), 0, "no request was whole");
    gateway.end();
}

/// Unusual but unambiguous requests.
#[test]
fn unusual_but_unambiguous_requests_are_served() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::in_front_of(&backend);
    for (fields, body, received) in [
        ("Content-Length: 5 ", "hello", "hello"),
        ("Content-Length:5", "hello", "hello"),
        ("Content-Length: \t 005", "hello", "hello"),
        ("content-LENGTH: 5", "hello", "hello"),
        ("Transfer-Encoding: Chunked", "5\r\nhello\r\n0\r\n\r\n", "hello"),
        ("transfer-encoding:\tchunked \t", "5;a=\"b\"\r\nhello\r\n00\r\n\r\n", "hello"),
        ("Transfer_Encoding: chunked\r\nContent-Length: 5", "hello", "hello"),
        ("X:", "", ""),
        ("X: \u{e9}", "", ""),
        ("Connection: content-length, transfer-encoding\r\nContent-Length: 5", "hello", "hello"),
        (
            "Connection: content-length, transfer-encoding\r\nTransfer-Encoding: chunked",
            "5\r\nhello\r\n0\r\n\r\n",
            "hello",
        ),
    ] {
        let mut client = gateway.client();
        let head = format!("POST /odd HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n\r\n{body}");
        let echoed = client.request(&head).echoed();
        assert_eq!(String::from_utf8_lossy(&echoed.body), received, "{fields:?}");
        let lengths = echoed.values("content-length").len() + echoed.values("transfer-encoding").len();
        assert_eq!(lengths, usize::from(!body.is_empty()), "one framing, the gateway's own: {fields:?}");
        assert_eq!(client.request(get("a.test")).echoed().line, "GET / HTTP/1.1", "{fields:?}");
    }
    // An empty line before a request is ignored.
    let mut client = gateway.client();
    assert_eq!(client.request("\r\n".to_owned() + &get("a.test")).status(), 200);
    drop(client);
    gateway.end();
}

/// Plaintext HTTP/2 starts with the first byte or not at all. An h2c upgrade would bypass the gateway.
#[test]
fn upgrade_to_http2_is_not_forwarded() {
    let backend = TestBackend::new(|message, wire| {
        if message.field("upgrade").is_some() {
            wire.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n");
            return true;
        }
        super::fixture::echo(message, wire)
    });
    let gateway = TestGateway::in_front_of(&backend);
    for upgrade in
        ["h2c", "H2C", "websocket, h2c", "h2c, websocket", " h2c ", "HTTP/2.0", "http/1.1", "TLS/1.0, h2c"]
    {
        let response = gateway.request(format!(
            "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: {upgrade}\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
        ));
        assert_eq!(response.status(), 200, "{upgrade}");
        let echoed = response.echoed();
        for gone in ["upgrade", "connection", "http2-settings"] {
            assert_eq!(echoed.field(gone), None, "{upgrade}");
        }
    }
    gateway.end();
}
