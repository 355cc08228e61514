//! Bodies: whatever their length and however they come, they arrive as they were sent.

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

use tokio::time::Instant;

use super::fixture::{Backend, Stage, file, get, response, wait_until};
use super::http_client::Wire;

const MANY: usize = 10 << 20;

/// Bytes that repeat nowhere near each other.
fn bytes(length: usize) -> Vec<u8> {
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

fn sum(bytes: &[u8]) -> u64 {
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
fn large_bodies_pass_both_ways() {
    let backend = Backend::new(|message, wire| {
        // Twice: of known length, then in chunks.
        if message.is_chunked {
            wire.shout("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            wire.shout(chunked(&message.body, 70_001));
            wire.shout("0\r\n\r\n");
        } else {
            wire.shout(response(&message.body));
        }
        true
    });
    let stage = Stage::before(&backend);
    let body = bytes(MANY);
    for is_chunked in [false, true, false] {
        let framing = if is_chunked {
            "Transfer-Encoding: chunked".to_owned()
        } else {
            format!("Content-Length: {}", body.len())
        };
        let mut wire = stage.client();
        let mut out = Wire::new(wire.stream.try_clone().expect("a socket"));
        let answer = std::thread::scope(|threads| {
            threads.spawn(|| {
                out.say(format!("POST / HTTP/1.1\r\nHost: a.test\r\n{framing}\r\n\r\n"));
                if is_chunked {
                    out.say(chunked(&body, 50_001));
                    out.say("0\r\n\r\n");
                } else {
                    out.say(&body);
                }
            });
            wire.hear()
        });
        assert_eq!((answer.is_chunked, answer.body.len()), (is_chunked, MANY));
        assert_eq!(sum(&answer.body), sum(&body));
        assert_eq!(wire.ask(get("a.test")).body, b"", "the connection goes on");
    }
    let heard = backend.heard();
    assert!(heard.iter().step_by(2).all(|request| sum(&request.body) == sum(&body)));
    stage.end();
}

#[test]
fn bytes_are_not_looked_into() {
    let zipped = [b"\x1f\x8b\x08\0".as_slice(), &bytes(500)].concat();
    let mut said = format!(
        "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Type: text/html\r\nContent-Length: {}\r\n\r\n",
        zipped.len()
    )
    .into_bytes();
    said.extend_from_slice(&zipped);
    let backend = Backend::saying(said);
    let stage = Stage::before(&backend);
    let answer = stage.ask("GET / HTTP/1.1\r\nHost: a.test\r\nAccept-Encoding: gzip\r\n\r\n");
    assert_eq!(answer.field("content-encoding"), Some("gzip"));
    assert_eq!(answer.body, zipped);
    assert_eq!(backend.heard()[0].field("accept-encoding"), Some("gzip"));
    stage.end();
}

#[test]
fn fields_behind_bodies_pass() {
    let backend = Backend::new(|message, wire| {
        assert_eq!(message.body, b"hello");
        let mut trailers = String::new();
        for (name, value) in &message.trailers {
            write!(trailers, "Seen-{name}: {value}\r\n").expect("text has room");
        }
        wire.say(format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n{trailers}Content-Length: 7\r\nX-Sum: 2\r\n\r\n"
        ));
        true
    });
    let stage = Stage::before(&backend);
    let mut client = stage.client();
    for _ in 0..2 {
        let answer = client.ask(
            "POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\nHost: evil\r\nAuthorization: evil\r\nTransfer-Encoding: evil\r\n\r\n",
        );
        let names: Vec<&str> = answer.trailers.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!((answer.text().as_str(), names), ("hi", vec!["Seen-X-Sum", "X-Sum"]));
    }
    drop(client);
    stage.end();
}

#[test]
fn a_body_that_ends_with_the_connection_has_an_end() {
    for version in ["1.0", "1.1"] {
        let backend =
            Backend::closing(format!("HTTP/{version} 200 OK\r\nX: y\r\n\r\n{}", "hello".repeat(10_000)));
        let stage = Stage::before(&backend);
        let mut client = stage.client();
        for _ in 0..2 {
            let answer = client.ask(get("a.test"));
            assert_eq!((answer.body.len(), answer.is_chunked, answer.closes()), (50_000, true, false));
        }
        drop(client);
        stage.end();
    }
}

/// What is cut off is seen to be.
#[test]
fn a_body_that_breaks_off_looks_like_it() {
    for (head, broken) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello", true),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", true),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n", true),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloX", true),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", false),
    ] {
        let backend = Backend::closing(head);
        let stage = Stage::before(&backend);
        let mut client = stage.client();
        client.say(get("a.test"));
        let answer = client.message(false);
        assert_eq!(answer.is_err(), broken, "{head:?} {answer:?}");
        if broken {
            client.is_over_somehow();
        }
        drop(client);
        assert_eq!(backend.requests(), 1, "half an answer is not asked for again");
        stage.end();
    }
}

#[test]
fn whoever_waits_to_be_asked_for_a_body_is_asked() {
    let backend = Backend::echo();
    let stage = Stage::before(&backend);
    let mut client = stage.client();
    for framing in ["Content-Length: 5", "Transfer-Encoding: chunked"] {
        client.say(format!("POST / HTTP/1.1\r\nHost: a.test\r\nExpect: 100-continue\r\n{framing}\r\n\r\n"));
        assert_eq!(client.hear().line, "HTTP/1.1 100 Continue");
        client.say(if framing.starts_with('C') { "hello" } else { "5\r\nhello\r\n0\r\n\r\n" });
        let echoed = client.hear().echoed();
        assert_eq!((echoed.body.as_slice(), echoed.field("expect")), (&b"hello"[..], None));
    }
    // Who does not wait is not asked.
    let answer = client
        .ask("POST / HTTP/1.1\r\nHost: a.test\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello");
    assert_eq!(answer.status(), 200);
    drop(client);
    stage.end();
    // Who is refused is told so instead.
    let stage = Stage::new(&file("rateLimit: {maxQps: 0}", "", &[&backend]));
    let mut client = stage.client();
    let answer =
        client.ask("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    assert_eq!((answer.status(), answer.closes()), (429, true));
    drop(client);
    stage.end();
}

#[test]
fn a_response_may_come_while_the_request_is_sent() {
    let backend = Backend::raw(|mut wire, _| {
        let _head = wire.head();
        wire.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        for _ in 0..20 {
            let piece = wire.exactly(10).expect("a piece");
            wire.say("a\r\n");
            wire.say(piece);
            wire.say("\r\n");
        }
        wire.say("0\r\n\r\n");
        let _until_the_end = wire.rest();
    });
    let stage = Stage::before(&backend);
    let mut client = stage.client();
    client.say("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 200\r\n\r\n");
    assert!(client.head().starts_with("HTTP/1.1 200 OK\r\n"), "before anything was sent");
    for number in 0..20 {
        let piece = format!("{number:010}");
        client.say(&piece);
        assert_eq!(client.exactly(15).expect("an echo"), format!("a\r\n{piece}\r\n").as_bytes());
    }
    assert_eq!(client.exactly(5).expect("the end"), b"0\r\n\r\n");
    drop(client);
    stage.end();
}

/// A response before all of the request was read is passed on, and the connection ends: nobody knows where the next request begins.
#[test]
fn an_early_response_is_passed_on() {
    let backend = Backend::raw(|mut wire, _| {
        let _head = wire.head();
        wire.say("HTTP/1.1 413 Too Much\r\nContent-Length: 2\r\n\r\nno");
    });
    let stage = Stage::before(&backend);
    let mut client = stage.client();
    client.say(format!("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: {MANY}\r\n\r\n"));
    client.say("GET /smuggled HTTP/1.1\r\nHost: a.test\r\n\r\n");
    let answer = client.hear();
    assert_eq!((answer.status(), answer.text().as_str()), (413, "no"));
    client.is_over();
    stage.end();
    assert_eq!(backend.connections(), 1);
}

#[test]
fn a_body_is_no_longer_than_it_may_be() {
    let backend = Backend::echo();
    let stage = Stage::new(&file("maxBodyBytes: 10", "", &[&backend]));
    let ten = stage.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n0123456789");
    assert_eq!(ten.status(), 200);
    for request in [
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n0123456789x",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n0123456789x\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n6\r\n01234x\r\n0\r\n\r\n",
    ] {
        let mut client = stage.client();
        assert_eq!(client.ask(request).status(), 413);
        client.is_over();
    }
    assert_eq!(backend.requests(), 1);
    stage.end();
}

/// What nobody wants is read over if it is little, so that the connection goes on.
#[test]
fn a_body_that_nobody_wants_is_no_request() {
    let backend = Backend::echo();
    let text = file("", "", &[&backend]).replace("{backend: b}", "{path: /to, backend: b}");
    let stage = Stage::new(&text);
    let mut client = stage.client();
    let inner = get("a.test");
    for framing in [
        format!("Content-Length: {}\r\n\r\n{inner}", inner.len()),
        format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{inner}\r\n0\r\nX: y\r\n\r\n", inner.len()),
    ] {
        let answer = client.ask(format!("POST /nowhere HTTP/1.1\r\nHost: a\r\n{framing}"));
        assert_eq!((answer.status(), answer.closes()), (404, false));
    }
    assert_eq!(client.ask("GET /to HTTP/1.1\r\nHost: a\r\n\r\n").status(), 200);
    let answer = client.ask("POST /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
    assert_eq!((answer.status(), answer.closes()), (404, true));
    client.is_over();
    stage.end();
}

/// A head that is larger than usual, with a body of many small chunks right behind it.
#[test]
fn a_large_head_does_not_hold_its_body_back() {
    let mut said =
        format!("HTTP/1.1 200 OK\r\nX: {}\r\nTransfer-Encoding: chunked\r\n\r\n", "x".repeat(20_000));
    said.push_str(&"1\r\na\r\n".repeat(7_000));
    said.push_str("0\r\n\r\n");
    let backend = Backend::saying(said);
    let stage = Stage::before(&backend);
    let mut client = stage.client();
    let started = Instant::now();
    for _ in 0..3 {
        assert_eq!(client.ask(get("a.test")).body.len(), 7_000);
    }
    // What is held back waits for the next time that somebody looks, which is after five seconds.
    assert!(started.elapsed() < Duration::from_secs(12), "{:?}", started.elapsed());
    drop(client);
    stage.end();
}

#[test]
fn a_large_head_of_a_request_passes_whole() {
    let backend = Backend::echo();
    let stage = Stage::before(&backend);
    let mut client = stage.client();
    for length in [10_000, 16_000, 16_384, 40_000, 60_000] {
        let value = "x".repeat(length);
        let request =
            format!("POST / HTTP/1.1\r\nHost: a.test\r\nX: {value}\r\nContent-Length: 5\r\n\r\nhello");
        let echoed = client.ask(request).echoed();
        assert_eq!((echoed.field("x").map(str::len), echoed.body.as_slice()), (Some(length), &b"hello"[..]));
    }
    drop(client);
    stage.end();
}

#[test]
fn a_client_that_leaves_in_the_middle_takes_its_request_with_it() {
    let backend = Backend::raw(|mut wire, _| {
        let _head = wire.head();
        let _until_the_end = wire.rest();
    });
    let stage = Stage::before(&backend);
    let mut open: Vec<Wire> = Vec::new();
    for request in [
        get("a.test"),
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhal".to_owned(),
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nha".to_owned(),
        "GET / HT".to_owned(),
        String::new(),
    ] {
        for _ in 0..4 {
            let mut client = stage.client();
            client.say(&request);
            open.push(client);
        }
    }
    wait_until("twelve are at the backend", || stage.gateway.under_way() == 12);
    wait_until("all are known", || stage.gateway.connections() == 20);
    for (number, client) in open.into_iter().enumerate() {
        if number % 2 == 0 { client.vanish() } else { drop(client) }
    }
    stage.end();
}
