//! HTTP/2 frame by frame, for invalid and hostile clients.

use std::sync::Mutex;
use std::sync::mpsc::channel;

use super::fixture::{TestBackend, TestGateway, file, get, response, wait_until};
use super::http_client::{TEST_TIMEOUT, WireClient};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a small frame").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Encodes fields as HPACK literals.
fn encode_fields(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            block.push(u8::try_from(text.len()).expect("short").min(126));
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// A HEADERS frame with additional fields.
pub(super) fn headers_frame(stream: u32, ends: bool, more: &[(&str, &str)]) -> Vec<u8> {
    let usual = [(":method", "POST"), (":scheme", "http"), (":authority", "a.test"), (":path", "/")];
    let flags = END_HEADERS | if ends { END_STREAM } else { 0 };
    frame(HEADERS, flags, stream, &encode_fields(&[&usual, more].concat()))
}

pub(super) fn open_connection(gateway: &TestGateway) -> WireClient {
    let mut wire = gateway.client();
    wire.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    wire
}

/// The next frame of one of these kinds: its kind, stream and payload. `None` at the end.
fn next(wire: &mut WireClient, kinds: &[u8]) -> Option<(u8, u32, Vec<u8>)> {
    loop {
        let head = wire.read_exactly(9).ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let payload = wire.read_exactly(length as usize).ok()?;
        if kinds.contains(&head[3]) {
            return Some((head[3], stream, payload));
        }
    }
}

#[test]
fn frames_are_answered() {
    let backend = TestBackend::always(response("ok"));
    let gateway = TestGateway::in_front_of(&backend);
    let mut wire = open_connection(&gateway);
    wire.send(headers_frame(1, true, &[]));
    let (_, stream, block) = next(&mut wire, &[HEADERS]).expect("a head");
    assert_eq!((stream, block[0]), (1, 0x88), "200");
    assert_eq!(next(&mut wire, &[DATA]).expect("a body").2, b"ok");
    drop(wire);
    gateway.end();
}

/// A body must match its declared length. Nothing of it may reach the backend as a request.
#[test]
fn wrong_content_length_is_refused() {
    let backend = TestBackend::always(response("ok"));
    let gateway = TestGateway::in_front_of(&backend);
    for frames in [
        headers_frame(1, true, &[("content-length", "5")]),
        [headers_frame(1, false, &[("content-length", "5")]), frame(DATA, END_STREAM, 1, b"hello world")]
            .concat(),
        [headers_frame(1, false, &[("content-length", "50")]), frame(DATA, END_STREAM, 1, b"hello")].concat(),
        [
            headers_frame(1, false, &[("content-length", "5")]),
            frame(DATA, 0, 1, b"hello"),
            frame(DATA, END_STREAM, 1, b"GET /"),
        ]
        .concat(),
        [
            headers_frame(1, false, &[("content-length", "5"), ("content-length", "6")]),
            frame(DATA, END_STREAM, 1, b"hello"),
        ]
        .concat(),
        [headers_frame(1, false, &[("content-length", "+5")]), frame(DATA, END_STREAM, 1, b"hello")].concat(),
        [
            headers_frame(1, false, &[("transfer-encoding", "chunked")]),
            frame(DATA, END_STREAM, 1, b"0\r\n\r\n"),
        ]
        .concat(),
        [headers_frame(1, false, &[("connection", "close")]), frame(DATA, END_STREAM, 1, b"hello")].concat(),
        [headers_frame(1, false, &[("upgrade", "h2c")]), frame(DATA, END_STREAM, 1, b"hello")].concat(),
        headers_frame(1, true, &[("x", "a\r\nY: b")]),
        headers_frame(1, true, &[("X-Upper", "1")]),
        headers_frame(1, true, &[(":path", "/two")]),
        headers_frame(1, true, &[("x y", "1")]),
    ] {
        let mut wire = open_connection(&gateway);
        wire.send(&frames);
        let shown = frames.escape_ascii().to_string();
        match next(&mut wire, &[HEADERS, RST_STREAM, GOAWAY]) {
            Some((HEADERS, _, block)) => assert_ne!(block[0], 0x88, "{shown}"),
            Some((RST_STREAM | GOAWAY, ..)) | None => {}
            other => panic!("{other:?}"),
        }
        drop(wire);
        gateway.wait_until_empty();
        assert_eq!(backend.request_count(), 0, "{shown}");
    }
    gateway.end();
}

/// A request counts when its head arrives, even if it is reset.
#[test]
fn reset_requests_stay_counted() {
    let backend = TestBackend::with_connections(|mut wire, _| wire.assert_closes_eventually());
    let gateway = TestGateway::new(&file("rateLimit: {maxQps: 2}", "", &[&backend]));
    let mut wire = open_connection(&gateway);
    for number in 0..2 {
        let stream = 2 * number + 1;
        wire.send(headers_frame(stream, true, &[]));
        wait_until("it is at the backend", || gateway.inner.active_requests() == 1);
        wire.send(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
        wait_until("it is not any more", || gateway.inner.active_requests() == 0);
    }
    assert_eq!(gateway.request(get("a.test")).status(), 429, "two are two");
    drop(wire);
    gateway.end();
}

/// Rapid reset: such a client is disconnected and others are served meanwhile.
#[test]
fn rapid_reset_is_disconnected() {
    let backend = TestBackend::always(response("ok"));
    let gateway = TestGateway::in_front_of(&backend);
    let mut wire = open_connection(&gateway);
    let mut all = Vec::new();
    for number in 0..2_000 {
        let stream = 2 * number + 1;
        all.extend(headers_frame(stream, true, &[]));
        all.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
    }
    wire.try_send(&all);
    assert_eq!(gateway.request(get("a.test")).status(), 200);
    let (_, _, why) = next(&mut wire, &[GOAWAY]).unwrap_or_default();
    assert!(why.is_empty() || why[4..8] == 11_u32.to_be_bytes(), "enhance your calm: {why:?}");
    wire.assert_closes_eventually();
    gateway.end();
    assert!(backend.request_count() < 1_000, "{}", backend.request_count());
}

/// Unfinished calls are bounded per connection.
#[test]
fn concurrent_streams_are_bounded() {
    let backend = TestBackend::with_connections(|mut wire, _| wire.assert_closes_eventually());
    let gateway = TestGateway::in_front_of(&backend);
    let mut wire = open_connection(&gateway);
    for number in 0..400 {
        wire.try_send(headers_frame(2 * number + 1, false, &[]));
    }
    let first = next(&mut wire, &[RST_STREAM, GOAWAY]);
    assert!(first.is_some(), "those above are refused");
    assert!(gateway.inner.active_requests() <= 128, "{}", gateway.inner.active_requests());
    drop(wire);
    gateway.end();
}

/// A header block that continues without an end.
#[test]
fn endless_header_block_is_disconnected() {
    const CONTINUATION: u8 = 9;
    let backend = TestBackend::always(response("ok"));
    let gateway = TestGateway::in_front_of(&backend);
    let mut wire = open_connection(&gateway);
    wire.send(frame(HEADERS, END_STREAM, 1, &encode_fields(&[(":method", "GET")])));
    for _ in 0..20_000 {
        wire.try_send(frame(CONTINUATION, 0, 1, &encode_fields(&[("x", &"y".repeat(100))])));
    }
    wire.assert_closes_eventually();
    gateway.end();
    assert_eq!(backend.request_count(), 0);
}

/// A refused client gets its reply over HTTP/2, even if the preface arrives in pieces.
#[test]
fn preface_may_arrive_in_pieces() {
    let backend = TestBackend::always(response("ok"));
    for (server, status) in [("", 0x88), ("rateLimit: {maxConnections: 0}", 0x48)] {
        let gateway = TestGateway::new(&file(server, "", &[&backend]));
        let mut wire = gateway.client();
        for piece in b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".chunks(5) {
            wire.send(piece);
            wire.let_peer_read();
        }
        wire.send(headers_frame(1, true, &[]));
        let (_, _, block) = next(&mut wire, &[HEADERS]).expect("a head");
        assert_eq!(block[0], status, "{server}");
        drop(wire);
        gateway.end();
    }
}

/// A client with an active call gets GOAWAY, and the call completes.
#[test]
fn drain_sends_goaway_and_completes_calls() {
    const ACK: u8 = 1;
    let (go, may_go) = channel::<()>();
    let may_go = Mutex::new(may_go);
    let backend = TestBackend::new(move |_, wire| {
        let _told = may_go.lock().expect("no panic").recv_timeout(TEST_TIMEOUT);
        wire.try_send(response("done"));
        true
    });
    let gateway = TestGateway::in_front_of(&backend);
    let (mut wire, mut idle) = (open_connection(&gateway), open_connection(&gateway));
    wire.send(headers_frame(1, true, &[]));
    wait_until("it is at the backend", || gateway.inner.active_requests() == 1);
    let ending = std::thread::spawn(move || gateway.drain());
    for (wire, is_idle) in [(&mut wire, false), (&mut idle, true)] {
        next(wire, &[GOAWAY]).expect("GOAWAY is sent");
        if !is_idle {
            let (_, _, ping) = next(wire, &[PING]).expect("a PING follows GOAWAY");
            wire.send(frame(PING, ACK, 0, &ping));
        }
    }
    go.send(()).expect("it waits");
    assert_eq!(next(&mut wire, &[HEADERS]).expect("a head").2[0], 0x88);
    assert_eq!(next(&mut wire, &[DATA]).expect("a body").2, b"done");
    drop((wire, idle));
    ending.join().expect("it ends");
}

/// Every call is logged and counted, however it ends.
#[test]
fn abandoned_calls_are_logged() {
    let backend = TestBackend::with_connections(|mut wire, _| {
        wire.head();
        wire.assert_closes_eventually();
    });
    for is_reset in [true, false] {
        let (gateway, lines) = TestGateway::with_access_log(&file("", "", &[&backend]));
        let mut wire = open_connection(&gateway);
        wire.send(headers_frame(1, true, &[]));
        wait_until("it is at the backend", || gateway.inner.active_requests() == 1);
        assert_eq!(lines.all(), [""; 0]);
        let kept = is_reset.then(|| {
            wire.send(frame(RST_STREAM, 0, 1, &8_u32.to_be_bytes()));
            wire
        });
        let line = lines.first();
        assert!(line.contains("\"POST / HTTP/2.0\" 499 0 "), "{line}");
        assert!(line.contains(" backend=b endpoint="), "{line}");
        drop(kept);
        gateway.end();
    }
}

#[test]
fn log_line_contains_the_error_of_a_bad_request() {
    let backend = TestBackend::always(response("ok"));
    let (gateway, lines) = TestGateway::with_access_log(&file("", "", &[&backend]));
    assert_eq!(gateway.request("GET /a?b HTTP/1.1\r\n\r\n").status(), 400);
    let line = lines.first();
    assert!(
        line.contains("\"GET /a?b HTTP/1.1\" 400 ") && line.contains(" why=\"there is no Host\""),
        "{line}"
    );
    gateway.end();
}

#[test]
fn log_line_truncates_a_malformed_request() {
    let backend = TestBackend::always(response("ok"));
    let (gateway, lines) = TestGateway::with_access_log(&file("", "", &[&backend]));
    let long = format!("HEAD /{} HTTP/1.1\r\nHost: h\r\n\r\n", "a".repeat(20_000));
    let mut client = gateway.client();
    client.send(long);
    assert_eq!(client.read_message(true).map(|received| received.status()).ok(), Some(414));
    client.assert_closed();
    let line = lines.first();
    let expected = format!("\"HEAD /{} HTTP/1.1\" 414 0 ", "a".repeat(255));
    assert!(line.contains(&expected), "{line}");
    gateway.end();
}

#[test]
fn log_line_contains_the_timeout() {
    let backend = TestBackend::always(response("ok"));
    let (gateway, lines) = TestGateway::with_access_log(&file("headerTimeout: 200ms", "", &[&backend]));
    assert_eq!(gateway.request("GET / HTTP/1.1\r\n").status(), 408);
    let line = lines.first();
    assert!(
        line.contains("\"GET / HTTP/1.1\" 408 ") && line.contains(" why=\"it did not come in time\""),
        "{line}"
    );
    gateway.end();
}
