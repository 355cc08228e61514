//! Bodies of every length and framing arrive unchanged.

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

use tokio::time::Instant;

use super::fixture::{TestBackend, TestGateway, file, get, response, wait_until};
use super::http_client::WireClient;

const LARGE_BODY: usize = 10 << 20;

/// Bytes without short repetitions.
fn pseudo_random_bytes(length: usize) -> Vec<u8> {
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    let mut all = Vec::with_capacity(length + 8);
    while all.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        all.extend_from_slice(&state.to_le_bytes());
    }
    all.truncate(length);
    all
}

fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

fn chunked(bytes: &[u8], size: usize) -> Vec<u8> {
    let mut all = Vec::new();
    for chunk in bytes.chunks(size) {
        all.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        all.extend_from_slice(chunk);
        all.extend_from_slice(b"\r\n");
    }
    all
}

#[test]
fn large_bodies_pass_in_both_directions() {
    let backend = TestBackend::new(|message, wire| {
        // Twice: with a length, then chunked.
        if message.is_chunked {
            wire.try_send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            wire.try_send(chunked(&message.body, 70_001));
            wire.try_send("0\r\n\r\n");
        } else {
            wire.try_send(response(&message.body));
        }
        true
    });
    let gateway = TestGateway::in_front_of(&backend);
    let body = pseudo_random_bytes(LARGE_BODY);
    for is_chunked in [false, true, false] {
        let framing = if is_chunked {
            "Transfer-Encoding: chunked".to_owned()
        } else {
            format!("Content-Length: {}", body.len())
        };
        let mut wire = gateway.client();
        let mut out = WireClient::new(wire.stream.try_clone().expect("a socket"));
        let response = std::thread::scope(|threads| {
            threads.spawn(|| {
                out.send(format!("POST / HTTP/1.1\r\nHost: a.test\r\n{framing}\r\n\r\n"));
                if is_chunked {
                    out.send(chunked(&body, 50_001));
                    out.send("0\r\n\r\n");
                } else {
                    out.send(&body);
                }
            });
            wire.read_response()
        });
        assert_eq!((response.is_chunked, response.body.len()), (is_chunked, LARGE_BODY));
        assert_eq!(checksum(&response.body), checksum(&body));
        assert_eq!(wire.request(get("a.test")).body, b"", "the connection goes on");
    }
    let received = backend.requests_received();
    assert!(received.iter().step_by(2).all(|request| checksum(&request.body) == checksum(&body)));
    gateway.end();
}

#[test]
fn body_bytes_are_forwarded_unchanged() {
    let zipped = [b"\x1f\x8b\x08\0".as_slice(), &pseudo_random_bytes(500)].concat();
    let mut said = format!(
        "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n",
        zipped.len()
    )
    .into_bytes();
    said.extend_from_slice(&zipped);
    let backend = TestBackend::always(said);
    let gateway = TestGateway::in_front_of(&backend);
    let response = gateway.request("GET / HTTP/1.1\r\nHost: a.test\r\nAccept-Encoding: gzip\r\n\r\n");
    assert_eq!(response.field("content-encoding"), Some("gzip"));
    assert_eq!(response.body, zipped);
    assert_eq!(backend.requests_received()[0].field("accept-encoding"), Some("gzip"));
    gateway.end();
}

#[test]
fn trailers_are_forwarded() {
    let backend = TestBackend::new(|message, wire| {
        assert_eq!(message.body, b"hello");
        let mut trailers = String::new();
        for (name, value) in &message.trailers {
            write!(trailers, "Seen-{name}: {value}\r\n").expect("text has room");
        }
        wire.send(format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n{trailers}Content-Length: 7\r\nX-Sum: 2\r\n\r\n"
        ));
        true
    });
    let gateway = TestGateway::in_front_of(&backend);
    let mut client = gateway.client();
    for _ in 0..2 {
        let response = client.request(
            "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\nHost: evil\r\nAuthorization: evil\r\nTransfer-Encoding: evil\r\n\r\n",
        );
        let names: Vec<&str> = response.trailers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!((response.text().as_str(), names), ("hi", vec!["Seen-X-Sum", "X-Sum"]));
    }
    drop(client);
    gateway.end();
}

#[test]
fn close_delimited_body_is_terminated() {
    for version in ["1.0", "1.1"] {
        let backend = TestBackend::always_then_close(format!(
            "HTTP/{version} 200 OK\r\nX: y\r\n\r\n{}",
            "hello".repeat(10_000)
        ));
        let gateway = TestGateway::in_front_of(&backend);
        let mut client = gateway.client();
        for _ in 0..2 {
            let response = client.request(get("a.test"));
            assert_eq!((response.body.len(), response.is_chunked, response.closes()), (50_000, true, false));
        }
        drop(client);
        gateway.end();
    }
}

/// A truncated body is recognizable.
#[test]
fn truncated_body_is_visible_to_the_client() {
    for (head, broken) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello", true),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", true),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n", true),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloX", true),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", false),
    ] {
        let backend = TestBackend::always_then_close(head);
        let gateway = TestGateway::in_front_of(&backend);
        let mut client = gateway.client();
        client.send(get("a.test"));
        let response = client.read_message(false);
        assert_eq!(response.is_err(), broken, "{head:?} {response:?}");
        if broken {
            client.assert_closes_eventually();
        }
        drop(client);
        assert_eq!(backend.request_count(), 1, "half an response is not asked for again");
        gateway.end();
    }
}

#[test]
fn expect_continue_gets_100_continue() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::in_front_of(&backend);
    let mut client = gateway.client();
    for framing in ["Content-Length: 5", "Transfer-Encoding: chunked"] {
        client.send(format!("POST / HTTP/1.1\r\nHost: a.test\r\nExpect: 100-continue\r\n{framing}\r\n\r\n"));
        assert_eq!(client.read_response().line, "HTTP/1.1 100 Continue");
        client.send(if framing.starts_with('C') { "hello" } else { "5\r\nhello\r\n0\r\n\r\n" });
        let echoed = client.read_response().echoed();
        assert_eq!((echoed.body.as_slice(), echoed.field("expect")), (&b"hello"[..], None));
    }
    // Without `Expect` there is no 100 response.
    let response = client
        .request("POST / HTTP/1.1\r\nHost: a.test\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello");
    assert_eq!(response.status(), 200);
    drop(client);
    gateway.end();
    // A refused request gets its refusal instead of 100.
    let gateway = TestGateway::new(&file("rateLimit: {maxQps: 0}", "", &[&backend]));
    let mut client = gateway.client();
    let response =
        client.request("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    assert_eq!((response.status(), response.closes()), (429, true));
    drop(client);
    gateway.end();
}

#[test]
fn response_streams_while_request_is_sent() {
    let backend = TestBackend::with_connections(|mut wire, _| {
        let _head = wire.head();
        wire.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        for _ in 0..20 {
            let piece = wire.read_exactly(10).expect("a piece");
            wire.send("a\r\n");
            wire.send(piece);
            wire.send("\r\n");
        }
        wire.send("0\r\n\r\n");
        let _until_the_end = wire.read_to_end();
    });
    let gateway = TestGateway::in_front_of(&backend);
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 200\r\n\r\n");
    assert!(client.head().starts_with("HTTP/1.1 200 OK\r\n"), "before anything was sent");
    for number in 0..20 {
        let piece = format!("{number:010}");
        client.send(&piece);
        assert_eq!(client.read_exactly(15).expect("an echo"), format!("a\r\n{piece}\r\n").as_bytes());
    }
    assert_eq!(client.read_exactly(5).expect("the end"), b"0\r\n\r\n");
    drop(client);
    gateway.end();
}

/// A response before the end of the request is forwarded, and the connection closes because the next
/// request's start is unknown.
#[test]
fn early_response_is_forwarded_and_closes() {
    let backend = TestBackend::with_connections(|mut wire, _| {
        let _head = wire.head();
        wire.send("HTTP/1.1 413 Too Much\r\nContent-Length: 2\r\n\r\nno");
    });
    let gateway = TestGateway::in_front_of(&backend);
    let mut client = gateway.client();
    client.send(format!("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: {LARGE_BODY}\r\n\r\n"));
    client.send("GET /smuggled HTTP/1.1\r\nHost: a.test\r\n\r\n");
    let response = client.read_response();
    assert_eq!((response.status(), response.text().as_str()), (413, "no"));
    client.assert_closed();
    gateway.end();
    assert_eq!(backend.connection_count(), 1);
}

#[test]
fn body_above_maximum_is_refused() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::new(&file("maxBodyBytes: 10", "", &[&backend]));
    let ten = gateway.request("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n0123456789");
    assert_eq!(ten.status(), 200);
    for request in [
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n0123456789x",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n0123456789x\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n6\r\n01234x\r\n0\r\n\r\n",
    ] {
        let mut client = gateway.client();
        assert_eq!(client.request(request).status(), 413);
        client.assert_closed();
    }
    assert_eq!(backend.request_count(), 1);
    gateway.end();
}

/// A small unwanted body is discarded, so that the connection stays open.
#[test]
fn unwanted_body_is_discarded() {
    let backend = TestBackend::echo();
    let text = file("", "", &[&backend]).replace("{backend: b}", "{path: /to, backend: b}");
    let gateway = TestGateway::new(&text);
    let mut client = gateway.client();
    let inner = get("a.test");
    for framing in [
        format!("Content-Length: {}\r\n\r\n{inner}", inner.len()),
        format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{inner}\r\n0\r\nX: y\r\n\r\n", inner.len()),
    ] {
        let response = client.request(format!("POST /nowhere HTTP/1.1\r\nHost: a\r\n{framing}"));
        assert_eq!((response.status(), response.closes()), (404, false));
    }
    assert_eq!(client.request("GET /to HTTP/1.1\r\nHost: a\r\n\r\n").status(), 200);
    let response = client.request("POST /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
    assert_eq!((response.status(), response.closes()), (404, true));
    client.assert_closed();
    gateway.end();
}

/// A large head followed by a body of many small chunks.
#[test]
fn large_head_does_not_delay_its_body() {
    let mut said =
        format!("HTTP/1.1 200 OK\r\nX: {}\r\nTransfer-Encoding: chunked\r\n\r\n", "x".repeat(20_000));
    said.push_str(&"1\r\na\r\n".repeat(7_000));
    said.push_str("0\r\n\r\n");
    let backend = TestBackend::always(said);
    let gateway = TestGateway::in_front_of(&backend);
    let mut client = gateway.client();
    let started = Instant::now();
    for _ in 0..3 {
        assert_eq!(client.request(get("a.test")).body.len(), 7_000);
    }
    // Delayed data would wait for the next timer event, after five seconds.
    assert!(started.elapsed() < Duration::from_secs(12), "{:?}", started.elapsed());
    drop(client);
    gateway.end();
}

#[test]
fn large_request_head_is_forwarded_complete() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::in_front_of(&backend);
    let mut client = gateway.client();
    for length in [10_000, 16_000, 16_384, 40_000, 60_000] {
        let value = "x".repeat(length);
        let request =
            format!("POST / HTTP/1.1\r\nHost: a.test\r\nX: {value}\r\nContent-Length: 5\r\n\r\nhello");
        let echoed = client.request(request).echoed();
        assert_eq!((echoed.field("x").map(str::len), echoed.body.as_slice()), (Some(length), &b"hello"[..]));
    }
    drop(client);
    gateway.end();
}

#[test]
fn client_disconnect_aborts_its_request() {
    let backend = TestBackend::with_connections(|mut wire, _| {
        let _head = wire.head();
        let _until_the_end = wire.read_to_end();
    });
    let gateway = TestGateway::in_front_of(&backend);
    let mut open: Vec<WireClient> = Vec::new();
    for request in [
        get("a.test"),
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhal".to_owned(),
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nha".to_owned(),
        "GET / HT".to_owned(),
        String::new(),
    ] {
        for _ in 0..4 {
            let mut client = gateway.client();
            client.send(&request);
            open.push(client);
        }
    }
    wait_until("twelve are at the backend", || gateway.inner.active_requests() == 12);
    wait_until("all are known", || gateway.inner.connections() == 20);
    for (number, client) in open.into_iter().enumerate() {
        if number % 2 == 0 { client.reset() } else { drop(client) }
    }
    gateway.end();
}
