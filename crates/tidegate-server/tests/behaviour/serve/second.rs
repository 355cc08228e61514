//! HTTP/2, with a client that knows it and with one that abuses it.

use bytes::Bytes;
use http::{Request, Version};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate_server::serve::ConnectionBounds;
use tidegate_server::serve::bounds::MAX_HTTP2_STREAMS;

use crate::serve::stage::{Stage, wide};

pub(super) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

pub(super) async fn connected(stage: &Stage) -> SendRequest<Full<Bytes>> {
    let stream = tokio::net::TcpStream::connect(stage.http_address()).await.expect("it listens");
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

pub(super) async fn told(
    send: &mut SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> (u16, Version, serde_json::Value) {
    let response = send.send_request(request).await.expect("an answer");
    let (status, version) = (response.status().as_u16(), response.version());
    let body = response.into_body().collect().await.expect("a body").to_bytes();
    (status, version, serde_json::from_slice(&body).expect("JSON"))
}

#[test]
fn calls_are_answered_over_http_2() {
    let stage = Stage::new(wide());
    runtime().block_on(async {
        let mut send = connected(&stage).await;
        for allowed in [true, true, false] {
            let (status, version, body) = told(&mut send, acquire("ada", 0)).await;
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
        let (status, ..) = told(&mut send, acquire("eve", 0)).await;
        assert_eq!(status, 200, "the connection goes on");
    });
    stage.end();
}

/// ConnectionEnd HTTP/1 hyper leaves the body out by itself. ConnectionEnd HTTP/2 it did not, and curl took the answer for a broken stream.
#[test]
fn head_is_answered_without_a_body() {
    let stage = Stage::new(wide());
    runtime().block_on(async {
        let mut send = connected(&stage).await;
        let head = Request::head("http://h/healthz").body(Full::default()).expect("a request");
        let answer = send.send_request(head).await.expect("an answer");
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-length"], "15");
        let body = answer.into_body().collect().await.expect("a whole answer").to_bytes();
        assert!(body.is_empty(), "{body:?}");
    });
    stage.end();
}

#[test]
fn a_call_that_is_given_up_leaves_the_queue() {
    let stage = Stage::new(wide());
    runtime().block_on(async {
        let mut send = connected(&stage).await;
        let (.., body) = told(&mut send, acquire("ada", 1)).await;
        assert_eq!(body["allowed"], true);
        let waiting = tokio::spawn(send.send_request(acquire("bob", 60_000)));
        until(&mut send, || stage.limiter.waiting_in_all() == 1).await;
        waiting.abort();
        until(&mut send, || stage.limiter.waiting_in_all() == 0).await;
    });
    stage.end();
}

/// Asks for something else, until it is so.
async fn until(send: &mut SendRequest<Full<Bytes>>, is_so: impl Fn() -> bool) {
    while !is_so() {
        told(send, acquire("clock", 0)).await;
    }
}

#[test]
fn a_connection_ends_with_the_server() {
    let stage = Stage::new(wide());
    let draining = runtime().block_on(async {
        let mut send = connected(&stage).await;
        assert_eq!(told(&mut send, acquire("ada", 0)).await.0, 200);
        let draining = std::thread::spawn(move || stage.end());
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

/// A frame of this kind with these flags on this stream.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short");
    let mut bytes = length.to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// `GET http://h/`, whole, as the static table writes it.
fn get(stream: u32) -> Vec<u8> {
    frame(HEADERS, 0x05, stream, b"\x82\x86\x84\x01\x01h")
}

#[test]
fn the_preface_may_come_in_pieces() {
    let stage = Stage::single(wide());
    for split in 0..PREFACE.len() {
        let mut client = stage.http();
        client.say(&PREFACE[..split]);
        // Somebody else is answered meanwhile, so that the pieces arrive one by one.
        stage.is_well();
        let mut rest = PREFACE[split..].to_vec();
        rest.extend(SETTINGS);
        rest.extend(get(1));
        client.say(&rest);
        let answered =
            |said: &[u8]| frames(said).any(|frame| frame == (HEADERS, 1)).then_some(((), said.len()));
        client.hear_until(answered).unwrap_or_else(|| panic!("split at {split}: no answer"));
    }
    stage.end();
}

#[test]
fn calls_that_are_given_up_at_once_end_the_connection() {
    // FramePrefix calls and giving them up costs the client nothing; it must not cost the server much.
    let stage = Stage::new(wide());
    let mut client = stage.http();
    client.say(PREFACE);
    client.say(SETTINGS);
    for call in 0..200_000_u32 {
        let stream = call * 2 + 1;
        let mut bytes = get(stream);
        bytes.extend(frame(RESET, 0, stream, &[0, 0, 0, 8]));
        client.shout(&bytes);
    }
    client.has_said_everything();
    let said = client.rest();
    assert!(frames(&said).any(|(kind, _)| kind == GOAWAY), "it says goodbye");
    stage.is_well();
    stage.end();
}

#[test]
fn who_takes_no_answers_has_few_of_them_waiting() {
    // With a window of nothing no answer can be sent, so calls stay open; there may only be so many.
    let stage = Stage::new(ConnectionBounds { idle: std::time::Duration::from_millis(500), ..wide() });
    let mut client = stage.http();
    client.say(PREFACE);
    client.say(&frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]));
    for call in 0..4 * MAX_HTTP2_STREAMS {
        client.shout(&get(call * 2 + 1));
    }
    // Heads are not held back by the window; what is beyond the bound is refused with a reset.
    let said = client.rest();
    let resets = frames(&said).filter(|(kind, _)| *kind == RESET).count();
    assert!(resets >= MAX_HTTP2_STREAMS as usize, "{resets}");
    stage.is_well();
    stage.end();
}

/// The kinds and streams of all frames.
fn frames(mut said: &[u8]) -> impl Iterator<Item = (u8, u32)> {
    std::iter::from_fn(move || {
        let head = said.get(..9)?;
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let found = (head[3], u32::from_be_bytes([head[5], head[6], head[7], head[8]]));
        said = said.get(9 + length..)?;
        Some(found)
    })
}
