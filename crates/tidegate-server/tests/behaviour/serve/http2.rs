//! HTTP/2, with a correct client and with an abusive one.

use bytes::Bytes;
use http::{Request, Version};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate_server::serve::ConnectionBounds;
use tidegate_server::serve::bounds::MAX_HTTP2_STREAMS;

use crate::serve::fixture::{ServerFixture, wide};

pub(super) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

pub(super) async fn connected(fixture: &ServerFixture) -> SendRequest<Full<Bytes>> {
    let stream = tokio::net::TcpStream::connect(fixture.http_address()).await.expect("it listens");
    let (send, connection) =
        handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("they speak the same language");
    tokio::spawn(connection);
    send
}

pub(super) fn acquire(key: &str, max_wait_ms: u64) -> Request<Full<Bytes>> {
    let limit_id = if max_wait_ms == 0 { "twice" } else { "builds" };
    let body =
        format!("{{\"limit_id\":\"{limit_id}\",\"limit_key\":\"{key}\",\"max_wait_ms\":{max_wait_ms}}}");
    let request = Request::post("http://h/v1/acquire").body(Full::new(Bytes::from(body)));
    request.expect("a request")
}

pub(super) async fn send_request(
    send: &mut SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> (u16, Version, serde_json::Value) {
    let response = send.send_request(request).await.expect("an answer");
    let (status, version) = (response.status().as_u16(), response.version());
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    (status, version, serde_json::from_slice(&body).expect("JSON"))
}

#[test]
fn http2_requests_are_answered() {
    let fixture = ServerFixture::new(wide());
    runtime().block_on(async {
        let mut send = connected(&fixture).await;
        for allowed in [true, true, false] {
            let (status, version, body) = send_request(&mut send, acquire("ada", 0)).await;
            assert_eq!((status, version, &body["allowed"]), (200, Version::HTTP_2, &allowed.into()));
        }
        let many: Vec<_> = (0..100).map(|_| send.clone().send_request(acquire("bob", 0))).collect();
        let mut allowed = 0;
        for answer in many {
            let body = answer.await.expect("an answer").into_body().collect().await.expect("a body");
            let body: serde_json::Value = serde_json::from_slice(&body.to_bytes()).expect("JSON");
            allowed += u32::from(body["allowed"] == true);
        }
        assert_eq!(allowed, 2);
        let huge = Request::post("http://h/v1/acquire").body(Full::new(Bytes::from(vec![b'x'; 2 << 20])));
        let answer = send.send_request(huge.expect("a request")).await.expect("an answer");
        assert_eq!(answer.status(), 413);
        let (status, ..) = send_request(&mut send, acquire("eve", 0)).await;
        assert_eq!(status, 200, "the connection goes on");
    });
    fixture.end();
}

/// For HTTP/1 hyper omits the body itself. For HTTP/2 it did not, and curl reported a stream error.
#[test]
fn head_is_answered_without_a_body() {
    let fixture = ServerFixture::new(wide());
    runtime().block_on(async {
        let mut send = connected(&fixture).await;
        let head = Request::head("http://h/healthz").body(Full::default()).expect("a request");
        let answer = send.send_request(head).await.expect("an answer");
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-length"], "15");
        let body = answer.into_body().collect().await.expect("a whole answer").to_bytes();
        assert!(body.is_empty(), "{body:?}");
    });
    fixture.end();
}

#[test]
fn reset_stream_leaves_the_queue() {
    let fixture = ServerFixture::new(wide());
    runtime().block_on(async {
        let mut send = connected(&fixture).await;
        let (.., body) = send_request(&mut send, acquire("ada", 1)).await;
        assert_eq!(body["allowed"], true);
        let waiting = tokio::spawn(send.send_request(acquire("bob", 60_000)));
        until(&mut send, || fixture.limiter.waiting_in_all() == 1).await;
        waiting.abort();
        until(&mut send, || fixture.limiter.waiting_in_all() == 0).await;
    });
    fixture.end();
}

/// Sends other requests until the condition holds.
async fn until(send: &mut SendRequest<Full<Bytes>>, is_so: impl Fn() -> bool) {
    while !is_so() {
        send_request(send, acquire("clock", 0)).await;
    }
}

#[test]
fn connection_ends_on_shutdown() {
    let fixture = ServerFixture::new(wide());
    let draining = runtime().block_on(async {
        let mut send = connected(&fixture).await;
        assert_eq!(send_request(&mut send, acquire("ada", 0)).await.0, 200);
        let draining = std::thread::spawn(move || fixture.end());
        while send.ready().await.is_ok() {
            tokio::task::yield_now().await;
        }
        draining
    });
    draining.join().expect("the end comes");
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const GOAWAY: u8 = 7;
const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";

/// A frame of this type with these flags on this stream.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short");
    let mut bytes = length.to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A HEADERS frame with `GET http://h/` from the static table.
fn get(stream: u32) -> Vec<u8> {
    frame(HEADERS, 0x05, stream, b"\x82\x86\x84\x01\x01h")
}

#[test]
fn preface_may_arrive_in_pieces() {
    let fixture = ServerFixture::single(wide());
    for split in 0..PREFACE.len() {
        let mut client = fixture.http();
        client.say(&PREFACE[..split]);
        // Another connection is answered in between, so that the pieces arrive alone.
        fixture.is_well();
        let mut rest = PREFACE[split..].to_vec();
        rest.extend(SETTINGS);
        rest.extend(get(1));
        client.say(&rest);
        let answered =
            |output: &[u8]| frames(output).any(|frame| frame == (HEADERS, 1)).then_some(((), output.len()));
        client.read_until(answered).unwrap_or_else(|| panic!("split at {split}: no answer"));
    }
    fixture.end();
}

#[test]
fn rapid_resets_end_the_connection() {
    // Opening and resetting streams costs the client nothing (rapid reset); it must not cost the server much.
    let fixture = ServerFixture::new(wide());
    let mut client = fixture.http();
    client.say(PREFACE);
    client.say(SETTINGS);
    for call in 0..200_000_u32 {
        let stream = call * 2 + 1;
        let mut bytes = get(stream);
        bytes.extend(frame(RESET, 0, stream, &[0, 0, 0, 8]));
        client.shout(&bytes);
    }
    client.has_said_everything();
    let output = client.rest();
    assert!(frames(&output).any(|(kind, _)| kind == GOAWAY), "it says goodbye");
    fixture.is_well();
    fixture.end();
}

#[test]
fn zero_window_bounds_open_streams() {
    // With a window of zero no response can be sent, so streams stay open; their number is bounded.
    let fixture =
        ServerFixture::new(ConnectionBounds { idle: std::time::Duration::from_millis(500), ..wide() });
    let mut client = fixture.http();
    client.say(PREFACE);
    client.say(&frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]));
    for call in 0..4 * MAX_HTTP2_STREAMS {
        client.shout(&get(call * 2 + 1));
    }
    // HEADERS frames are not flow-controlled; streams over the bound are reset.
    let output = client.rest();
    let resets = frames(&output).filter(|(kind, _)| *kind == RESET).count();
    assert!(resets >= MAX_HTTP2_STREAMS as usize, "{resets}");
    fixture.is_well();
    fixture.end();
}

/// Types and streams of all frames.
fn frames(mut output: &[u8]) -> impl Iterator<Item = (u8, u32)> {
    std::iter::from_fn(move || {
        let head = output.get(..9)?;
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let found = (head[3], u32::from_be_bytes([head[5], head[6], head[7], head[8]]));
        output = output.get(9 + length..)?;
        Some(found)
    })
}
