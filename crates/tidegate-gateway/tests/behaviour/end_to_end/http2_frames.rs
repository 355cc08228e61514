//! HTTP/2 frame by frame, as only bad clients speak it.

use std::sync::Mutex;
use std::sync::mpsc::channel;

use super::fixture::{Backend, Stage, file, get, response, wait_until};
use super::http_client::{FAR_TOO_LONG, Wire};

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

/// Fields, each written out.
fn fields(fields: &[(&str, &str)]) -> Vec<u8> {
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

/// The head of a request, with more fields behind the usual.
pub(super) fn head(stream: u32, ends: bool, more: &[(&str, &str)]) -> Vec<u8> {
    let usual = [(":method", "POST"), (":scheme", "http"), (":authority", "a.test"), (":path", "/")];
    let flags = END_HEADERS | if ends { END_STREAM } else { 0 };
    frame(HEADERS, flags, stream, &fields(&[&usual, more].concat()))
}

pub(super) fn begin(stage: &Stage) -> Wire {
    let mut wire = stage.client();
    wire.say(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    wire
}

/// The next frame of one of these kinds: its kind, its stream, what is in it. `None` at the end.
fn next(wire: &mut Wire, kinds: &[u8]) -> Option<(u8, u32, Vec<u8>)> {
    loop {
        let head = wire.exactly(9).ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let payload = wire.exactly(length as usize).ok()?;
        if kinds.contains(&head[3]) {
            return Some((head[3], stream, payload));
        }
    }
}

#[test]
fn frames_are_answered() {
    let backend = Backend::saying(response("ok"));
    let stage = Stage::before(&backend);
    let mut wire = begin(&stage);
    wire.say(head(1, true, &[]));
    let (_, stream, block) = next(&mut wire, &[HEADERS]).expect("a head");
    assert_eq!((stream, block[0]), (1, 0x88), "200");
    assert_eq!(next(&mut wire, &[DATA]).expect("a body").2, b"ok");
    drop(wire);
    stage.end();
}

/// What a body is said to have must be what it has; nothing of it reaches the backend as a request.
#[test]
fn lengths_that_are_not_true_are_refused() {
    let backend = Backend::saying(response("ok"));
    let stage = Stage::before(&backend);
    for frames in [
        head(1, true, &[("content-length", "5")]),
        [head(1, false, &[("content-length", "5")]), frame(DATA, END_STREAM, 1, b"hello world")].concat(),
        [head(1, false, &[("content-length", "50")]), frame(DATA, END_STREAM, 1, b"hello")].concat(),
        [
            head(1, false, &[("content-length", "5")]),
            frame(DATA, 0, 1, b"hello"),
            frame(DATA, END_STREAM, 1, b"GET /"),
        ]
        .concat(),
        [
            head(1, false, &[("content-length", "5"), ("content-length", "6")]),
            frame(DATA, END_STREAM, 1, b"hello"),
        ]
        .concat(),
        [head(1, false, &[("content-length", "+5")]), frame(DATA, END_STREAM, 1, b"hello")].concat(),
        [head(1, false, &[("transfer-encoding", "chunked")]), frame(DATA, END_STREAM, 1, b"0\r\n\r\n")]
            .concat(),
        [head(1, false, &[("connection", "close")]), frame(DATA, END_STREAM, 1, b"hello")].concat(),
        [head(1, false, &[("upgrade", "h2c")]), frame(DATA, END_STREAM, 1, b"hello")].concat(),
        head(1, true, &[("x", "a\r\nY: b")]),
        head(1, true, &[("X-Upper", "1")]),
        head(1, true, &[(":path", "/two")]),
        head(1, true, &[("x y", "1")]),
    ] {
        let mut wire = begin(&stage);
        wire.say(&frames);
        let shown = frames.escape_ascii().to_string();
        match next(&mut wire, &[HEADERS, RST_STREAM, GOAWAY]) {
            Some((HEADERS, _, block)) => assert_ne!(block[0], 0x88, "{shown}"),
            Some((RST_STREAM | GOAWAY, ..)) | None => {}
            other => panic!("{other:?}"),
        }
        drop(wire);
        stage.is_empty();
        assert_eq!(backend.requests(), 0, "{shown}");
    }
    stage.end();
}

/// A request counts when it is here; who takes it back gets nothing back.
#[test]
fn requests_that_are_taken_back_stay_counted() {
    let backend = Backend::raw(|mut wire, _| wire.is_over_somehow());
    let stage = Stage::new(&file("rateLimit: {maxQps: 2}", "", &[&backend]));
    let mut wire = begin(&stage);
    for number in 0..2 {
        let stream = 2 * number + 1;
        wire.say(head(stream, true, &[]));
        wait_until("it is at the backend", || stage.gateway.under_way() == 1);
        wire.say(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
        wait_until("it is not any more", || stage.gateway.under_way() == 0);
    }
    assert_eq!(stage.ask(get("a.test")).status(), 429, "two are two");
    drop(wire);
    stage.end();
}

/// Rapid reset: whoever does nothing else is cut off, and others are served meanwhile.
#[test]
fn who_takes_everything_back_is_cut_off() {
    let backend = Backend::saying(response("ok"));
    let stage = Stage::before(&backend);
    let mut wire = begin(&stage);
    let mut all = Vec::new();
    for number in 0..2_000 {
        let stream = 2 * number + 1;
        all.extend(head(stream, true, &[]));
        all.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
    }
    wire.shout(&all);
    assert_eq!(stage.ask(get("a.test")).status(), 200);
    let (_, _, why) = next(&mut wire, &[GOAWAY]).unwrap_or_default();
    assert!(why.is_empty() || why[4..8] == 11_u32.to_be_bytes(), "enhance your calm: {why:?}");
    wire.is_over_somehow();
    stage.end();
    assert!(backend.requests() < 1_000, "{}", backend.requests());
}

/// Open without end: only so many at once.
#[test]
fn only_so_many_calls_are_open_at_once() {
    let backend = Backend::raw(|mut wire, _| wire.is_over_somehow());
    let stage = Stage::before(&backend);
    let mut wire = begin(&stage);
    for number in 0..400 {
        wire.shout(head(2 * number + 1, false, &[]));
    }
    let first = next(&mut wire, &[RST_STREAM, GOAWAY]);
    assert!(first.is_some(), "those above are refused");
    assert!(stage.gateway.under_way() <= 128, "{}", stage.gateway.under_way());
    drop(wire);
    stage.end();
}

/// Half a head, frame after frame, without an end.
#[test]
fn a_head_without_an_end_is_cut_off() {
    const CONTINUATION: u8 = 9;
    let backend = Backend::saying(response("ok"));
    let stage = Stage::before(&backend);
    let mut wire = begin(&stage);
    wire.say(frame(HEADERS, END_STREAM, 1, &fields(&[(":method", "GET")])));
    for _ in 0..20_000 {
        wire.shout(frame(CONTINUATION, 0, 1, &fields(&[("x", &"y".repeat(100))])));
    }
    wire.is_over_somehow();
    stage.end();
    assert_eq!(backend.requests(), 0);
}

/// Who is turned away is told so in the protocol that it speaks, however its greeting arrives.
#[test]
fn a_greeting_may_arrive_in_pieces() {
    let backend = Backend::saying(response("ok"));
    for (server, status) in [("", 0x88), ("rateLimit: {maxConnections: 0}", 0x48)] {
        let stage = Stage::new(&file(server, "", &[&backend]));
        let mut wire = stage.client();
        for piece in b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".chunks(5) {
            wire.say(piece);
            wire.is_silent_for_a_moment();
        }
        wire.say(head(1, true, &[]));
        let (_, _, block) = next(&mut wire, &[HEADERS]).expect("a head");
        assert_eq!(block[0], status, "{server}");
        drop(wire);
        stage.end();
    }
}

/// Who has a call under way is told that the gateway ends, and the call is finished.
#[test]
fn clients_are_told_that_the_gateway_ends() {
    const ACK: u8 = 1;
    let (go, may_go) = channel::<()>();
    let may_go = Mutex::new(may_go);
    let backend = Backend::new(move |_, wire| {
        let _told = may_go.lock().expect("no panic").recv_timeout(FAR_TOO_LONG);
        wire.shout(response("done"));
        true
    });
    let stage = Stage::before(&backend);
    let (mut wire, mut idle) = (begin(&stage), begin(&stage));
    wire.say(head(1, true, &[]));
    wait_until("it is at the backend", || stage.gateway.under_way() == 1);
    let ending = std::thread::spawn(move || stage.drain());
    for (wire, is_idle) in [(&mut wire, false), (&mut idle, true)] {
        next(wire, &[GOAWAY]).expect("it is told");
        if !is_idle {
            let (_, _, ping) = next(wire, &[PING]).expect("it is asked whether it has heard");
            wire.say(frame(PING, ACK, 0, &ping));
        }
    }
    go.send(()).expect("it waits");
    assert_eq!(next(&mut wire, &[HEADERS]).expect("a head").2[0], 0x88);
    assert_eq!(next(&mut wire, &[DATA]).expect("a body").2, b"done");
    drop((wire, idle));
    ending.join().expect("it ends");
}

/// However a call ends, it has a line and is counted.
#[test]
fn calls_that_their_clients_give_up_have_a_line() {
    let backend = Backend::raw(|mut wire, _| {
        wire.head();
        wire.is_over_somehow();
    });
    for is_reset in [true, false] {
        let (stage, lines) = Stage::logged(&file("", "", &[&backend]));
        let mut wire = begin(&stage);
        wire.say(head(1, true, &[]));
        wait_until("it is at the backend", || stage.gateway.under_way() == 1);
        assert_eq!(lines.all(), [""; 0]);
        let kept = is_reset.then(|| {
            wire.say(frame(RST_STREAM, 0, 1, &8_u32.to_be_bytes()));
            wire
        });
        let line = lines.first();
        assert!(line.contains("\"POST / HTTP/2.0\" 499 0 "), "{line}");
        assert!(line.contains(" backend=b endpoint="), "{line}");
        drop(kept);
        stage.end();
    }
}

#[test]
fn what_is_wrong_with_a_request_is_in_its_line() {
    let backend = Backend::saying(response("ok"));
    let (stage, lines) = Stage::logged(&file("", "", &[&backend]));
    assert_eq!(stage.ask("GET /a?b HTTP/1.1\r\n\r\n").status(), 400);
    let line = lines.first();
    assert!(
        line.contains("\"GET /a?b HTTP/1.1\" 400 ") && line.contains(" why=\"there is no Host\""),
        "{line}"
    );
    stage.end();
}

#[test]
fn of_nonsense_the_line_tells_a_little() {
    let backend = Backend::saying(response("ok"));
    let (stage, lines) = Stage::logged(&file("", "", &[&backend]));
    let long = format!("HEAD /{} HTTP/1.1\r\nHost: h\r\n\r\n", "a".repeat(20_000));
    let mut client = stage.client();
    client.say(long);
    assert_eq!(client.message(true).map(|heard| heard.status()).ok(), Some(414));
    client.is_over();
    let line = lines.first();
    let told = format!("\"HEAD /{} HTTP/1.1\" 414 0 ", "a".repeat(255));
    assert!(line.contains(&told), "{line}");
    stage.end();
}

#[test]
fn that_a_request_did_not_come_in_time_is_in_its_line() {
    let backend = Backend::saying(response("ok"));
    let (stage, lines) = Stage::logged(&file("headerTimeout: 200ms", "", &[&backend]));
    assert_eq!(stage.ask("GET / HTTP/1.1\r\n").status(), 408);
    let line = lines.first();
    assert!(
        line.contains("\"GET / HTTP/1.1\" 408 ") && line.contains(" why=\"it did not come in time\""),
        "{line}"
    );
    stage.end();
}
