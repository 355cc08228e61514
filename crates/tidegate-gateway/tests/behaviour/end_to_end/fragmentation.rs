//! Whatever arrives, in whatever pieces: the same requests have the same answers, and nonsense hangs nothing.

use std::fmt::Write as _;
use std::sync::OnceLock;

use proptest::collection::vec;
use proptest::prelude::*;

use super::fixture::{Backend, Stage, file, get, response};
use super::http_client::Wire;

struct Scene {
    _backend: Backend,
    stage: Stage,
}

/// One for all cases.
fn scene() -> &'static Scene {
    static SCENE: OnceLock<Scene> = OnceLock::new();
    SCENE.get_or_init(|| {
        let backend = Backend::new(|message, wire| {
            let said = format!("{} {}", message.line, String::from_utf8_lossy(&message.body));
            if message.line.contains("chunked") {
                wire.shout("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
                for piece in said.as_bytes().chunks(5) {
                    wire.shout(format!("{:x}\r\n", piece.len()));
                    wire.shout(piece);
                    wire.shout("\r\n");
                }
                wire.shout("0\r\n\r\n");
            } else {
                wire.shout(response(said));
            }
            true
        });
        let text = file("headerTimeout: 2s; bodyTimeout: 2s; idleTimeout: 2s", "", &[&backend])
            .replace("{backend: b}", "{path: /to/**, backend: b}");
        Scene { stage: Stage::new(&text), _backend: backend }
    })
}

/// A request, its bytes, and what is answered.
fn one() -> impl Strategy<Value = (String, u16, String)> {
    let place = prop_oneof![Just("/to/plain"), Just("/to/chunked"), Just("/nowhere")];
    (place, 0..3_u8, "[a-z]{0,40}", 0..3_usize).prop_map(|(place, manner, body, padding)| {
        let pad = format!("X-Pad: {}\r\n", "p".repeat(100)).repeat(padding);
        let (request, line) = match manner {
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

/// Something between a request and noise.
fn garbage() -> impl Strategy<Value = Vec<u8>> {
    let noise = vec(any::<u8>(), 0..200);
    let almost =
        (one(), vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)).prop_map(|((request, ..), edits)| {
            let mut bytes = request.into_bytes();
            for (place, byte) in edits {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            bytes
        });
    let second = vec(any::<u8>(), 0..100)
        .prop_map(|frames| [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &frames].concat());
    prop_oneof![1 => noise, 2 => almost, 1 => second]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn requests_are_the_same_however_they_arrive(
        requests in vec(one(), 1..8),
        cuts in vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let scene = scene();
        let all: Vec<u8> = requests.iter().flat_map(|(request, ..)| request.bytes()).collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(all.len())).collect();
        cuts.extend([0, all.len()]);
        cuts.sort_unstable();
        let mut client = scene.stage.client();
        for piece in cuts.windows(2) {
            client.say(&all[piece[0]..piece[1]]);
            std::thread::yield_now();
        }
        for (request, status, body) in &requests {
            let answer = client.message(false);
            let told = answer.as_ref().map(|answer| (answer.status(), answer.text()));
            prop_assert!(told.as_ref().is_ok_and(|told| *told == (*status, body.clone())), "{request:?}: {told:?}");
        }
    }

    #[test]
    fn nonsense_hangs_nothing(garbage in garbage(), ends in any::<bool>()) {
        let scene = scene();
        let mut client: Wire = scene.stage.client();
        client.shout(&garbage);
        if ends {
            let _open_or_not = client.stream.shutdown(std::net::Shutdown::Write);
            client.is_over_somehow();
        }
        drop(client);
        prop_assert_eq!(scene.stage.ask(get("a")).status(), 404);
    }
}

/// After all that, nobody is counted who is not there.
#[test]
fn nothing_is_left_of_nonsense() {
    let backend = Backend::echo();
    let stage = Stage::before(&backend);
    let beginnings: [&[u8]; 6] = [
        b"",
        b"\0",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0",
        b"GET",
        b"\x16\x03\x01\x02\0",
        b"\r\n\r\n\r\n",
    ];
    for beginning in beginnings.into_iter().cycle().take(60) {
        let mut client = stage.client();
        client.shout(beginning);
        client.vanish();
    }
    stage.end();
}
