//! Input in arbitrary pieces: equal requests get equal responses, and garbage hangs nothing.

use std::fmt::Write as _;
use std::sync::OnceLock;

use proptest::collection::vec;
use proptest::prelude::*;

use super::fixture::{TestBackend, TestGateway, file, get, response};
use super::http_client::WireClient;

struct SharedGateway {
    _backend: TestBackend,
    gateway: TestGateway,
}

/// One gateway for all cases.
fn shared_gateway() -> &'static SharedGateway {
    static SCENE: OnceLock<SharedGateway> = OnceLock::new();
    SCENE.get_or_init(|| {
        let backend = TestBackend::new(|message, wire| {
            let summary = format!("{} {}", message.line, String::from_utf8_lossy(&message.body));
            if message.line.contains("chunked") {
                wire.try_send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
                for piece in summary.as_bytes().chunks(5) {
                    wire.try_send(format!("{:x}\r\n", piece.len()));
                    wire.try_send(piece);
                    wire.try_send("\r\n");
                }
                wire.try_send("0\r\n\r\n");
            } else {
                wire.try_send(response(summary));
            }
            true
        });
        let text = file("headerTimeout: 2s; bodyTimeout: 2s; idleTimeout: 2s", "", &[&backend])
            .replace("{backend: b}", "{path: /to/**, backend: b}");
        SharedGateway { gateway: TestGateway::new(&text), _backend: backend }
    })
}

/// A request with its expected status and body.
fn request_strategy() -> impl Strategy<Value = (String, u16, String)> {
    let place = prop_oneof![Just("/to/plain"), Just("/to/chunked"), Just("/nowhere")];
    (place, 0..3_u8, "[a-z]{0,40}", 0..3_usize).prop_map(|(place, handler, body, padding)| {
        let pad = format!("X-Pad: {}\r\n", "p".repeat(100)).repeat(padding);
        let (request, line) = match handler {
            0 => (format!("GET {place} HTTP/1.1\r\nHost: a\r\n{pad}\r\n"), format!("GET {place} HTTP/1.1 ")),
            1 => (
                format!("POST {place} HTTP/1.1\r\nHost: a\r\n{pad}Content-Length: {}\r\n\r\n{body}", body.len()),
                format!("POST {place} HTTP/1.1 {body}"),
            ),
            _ => {
                let mut chunks = String::new();
                for chunk in body.as_bytes().chunks(7) {
                    let text = String::from_utf8_lossy(chunk);
                    write!(chunks, "{:x};x\r\n{text}\r\n", chunk.len()).expect("text has room");
                }
                (
                    format!("PUT {place} HTTP/1.1\r\nHost: a\r\n{pad}Transfer-Encoding: chunked\r\n\r\n{chunks}0\r\nX: y\r\n\r\n"),
                    format!("PUT {place} HTTP/1.1 {body}"),
                )
            }
        };
        if place == "/nowhere" { (request, 404, "Not Found".to_owned()) } else { (request, 200, line) }
    })
}

/// Bytes between a request and noise.
fn garbage() -> impl Strategy<Value = Vec<u8>> {
    let noise = vec(any::<u8>(), 0..200);
    let almost = (request_strategy(), vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)).prop_map(
        |((request, ..), edits)| {
            let mut bytes = request.into_bytes();
            for (place, byte) in edits {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            bytes
        },
    );
    let second = vec(any::<u8>(), 0..100)
        .prop_map(|frames| [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &frames].concat());
    prop_oneof![1 => noise, 2 => almost, 1 => second]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn fragmented_requests_get_the_same_responses(
        requests in vec(request_strategy(), 1..8),
        cuts in vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let scene = shared_gateway();
        let all: Vec<u8> = requests.iter().flat_map(|(request, ..)| request.bytes()).collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(all.len())).collect();
        cuts.extend([0, all.len()]);
        cuts.sort_unstable();
        let mut client = scene.gateway.client();
        for piece in cuts.windows(2) {
            client.send(&all[piece[0]..piece[1]]);
            std::thread::yield_now();
        }
        for (request, status, body) in &requests {
            let response = client.read_message(false);
            let actual = response.as_ref().map(|response| (response.status(), response.text()));
            prop_assert!(actual.as_ref().is_ok_and(|actual| *actual == (*status, body.clone())), "{request:?}: {actual:?}");
        }
    }

    #[test]
    fn garbage_does_not_hang_the_gateway(garbage in garbage(), ends in any::<bool>()) {
        let scene = shared_gateway();
        let mut client: WireClient = scene.gateway.client();
        client.try_send(&garbage);
        if ends {
            let _best_effort = client.stream.shutdown(std::net::Shutdown::Write);
            client.assert_closes_eventually();
        }
        drop(client);
        prop_assert_eq!(scene.gateway.request(get("a")).status(), 404);
    }
}

/// After all cases no connection is counted.
#[test]
fn garbage_leaves_no_counts() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::in_front_of(&backend);
    let beginnings: [&[u8]; 6] = [
        b"",
        b"\0",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0",
        b"GET",
        b"\x16\x03\x01\x02\0",
        b"\r\n\r\n\r\n",
    ];
    for beginning in beginnings.into_iter().cycle().take(60) {
        let mut client = gateway.client();
        client.try_send(beginning);
        client.reset();
    }
    gateway.end();
}
