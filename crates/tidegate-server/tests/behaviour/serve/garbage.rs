//! Bombs and garbage: whatever comes, it is answered or cut off, and nobody else notices.

use tidegate_server::http::MAX_BODY_BYTES;
use tidegate_server::resp::frame::{MAX_FRAME_BYTES, MAX_INLINE_BYTES};
use tidegate_server::serve::bounds::{MAX_HEAD_BYTES, MAX_HEADER_FIELDS};
use tidegate_testkit::test_scale::scaled;

use crate::resp::stage::{encode, words};
use crate::serve::stage::{Stage, acquire, wide};

/// What every HTTP/2 connection begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The beginning of what a client says that wants TLS.
const CLIENT_HELLO: &[u8] =
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x1f\x8b\x00\x00\r\n\r\n\x00\x13\x01";

/// Says this to the RESP door; what is answered, all of it.
fn to_resp(stage: &Stage, bytes: &[u8]) -> String {
    let mut client = stage.resp();
    client.shout(bytes);
    let said = client.rest();
    String::from_utf8(said).expect("replies are text")
}

/// Says this to the HTTP door, and nothing more when it was answered; everything that is answered.
fn to_http(stage: &Stage, bytes: &[u8]) -> String {
    let mut client = stage.http();
    client.shout(bytes);
    let first = client.answer().expect("an answer");
    client.has_said_everything();
    first.head + &String::from_utf8_lossy(&client.rest())
}

#[test]
fn bombs_at_the_resp_door_are_refused_with_a_reason() {
    let stage = Stage::new(wide());
    let huge = vec![b'x'; MAX_FRAME_BYTES];
    let million = vec![b'x'; 1 << 20];
    for (bomb, reason) in [
        (b"*1000000000\r\n".to_vec(), "-ERR Protocol error: invalid multibulk length\r\n"),
        (b"*1025\r\n".to_vec(), "-ERR Protocol error: invalid multibulk length\r\n"),
        (b"*99999999999999999999999\r\n".to_vec(), "-ERR Protocol error: too big mbulk count string\r\n"),
        (b"*1\r\n$2147483648\r\n".to_vec(), "-ERR Protocol error: a frame has at most 65536 bytes\r\n"),
        (
            b"*1\r\n$9223372036854775807\r\n".to_vec(),
            "-ERR Protocol error: a frame has at most 65536 bytes\r\n",
        ),
        (b"*1\r\n$-1\r\n".to_vec(), "-ERR Protocol error: invalid bulk length\r\n"),
        (b"*1\r\n:5\r\n".to_vec(), "-ERR Protocol error: expected '$', got ':'\r\n"),
        (encode(&[&b"ECHO"[..], &huge]), "-ERR Protocol error: a frame has at most 65536 bytes\r\n"),
        (encode(&[&b"ECHO"[..], &million]), "-ERR Protocol error: a frame has at most 65536 bytes\r\n"),
        (vec![b'x'; MAX_INLINE_BYTES + 1], "-ERR Protocol error: too big inline request\r\n"),
        (million.clone(), "-ERR Protocol error: too big inline request\r\n"),
        (b"\"\\x00\\\"\r\n".to_vec(), "-ERR Protocol error: unbalanced quotes in request\r\n"),
    ] {
        let start = bomb[..bomb.len().min(40)].escape_ascii().to_string();
        assert_eq!(to_resp(&stage, &bomb), reason, "{start}");
        stage.is_well();
    }
    stage.until("both are counted", |stage| {
        stage.cuts("resp", "protocol") > 0 && stage.cuts("resp", "too_large") > 0
    });
    stage.end();
}

#[test]
fn what_was_asked_before_the_bomb_is_answered() {
    let stage = Stage::new(wide());
    let mut bytes = words("PING");
    bytes.extend(words("TG.ACQUIRE free ada"));
    bytes.extend(b"*1000000000\r\n");
    bytes.extend(words("PING").repeat(10_000));
    let said = to_resp(&stage, &bytes);
    assert!(said.starts_with("+PONG\r\n*7\r\n:1\r\n"), "{said}");
    assert!(said.ends_with("-ERR Protocol error: invalid multibulk length\r\n"), "{said}");
    assert_eq!(said.matches("PONG").count(), 1);
    stage.end();
}

#[test]
fn strangers_at_the_resp_door_are_sent_away() {
    let stage = Stage::new(wide());
    for stranger in [
        PREFACE,
        CLIENT_HELLO,
        b"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
        b"\0\0\0\0\r\n",
        b"POST / HTTP/1.1\n\nFLUSHALL\n",
    ] {
        let said = to_resp(&stage, stranger);
        assert!(said.starts_with("-ERR ") && said.matches("\r\n").count() == 1, "{said:?}");
        stage.is_well();
    }
    stage.end();
}

#[test]
fn numbers_that_break_others_are_only_numbers() {
    // This one command ends a peer's only worker for good.
    let stage = Stage::new(wide());
    let mut client = stage.resp();
    for command in [
        "THROTTLE boom 4294967296 1 9223372036",
        "THROTTLE boom 9223372036854775807 9223372036854775807 9223372036854775807 9223372036854775807",
        "CL.THROTTLE boom 9223372036854775807 1 9223372036854775807",
        "CL.THROTTLE boom -9223372036854775808 -1 -1 -1",
        "CL.THROTTLE boom 0 0 0 0",
        "TG.ACQUIRE free ada 18446744073709551615",
        "TG.ACQUIRE free ada -1",
        "TG.RENEW x 18446744073709551615",
    ] {
        let reply = client.tell(command);
        assert!(
            reply.starts_with('[') || reply.starts_with("-ERR ") || reply == "nil2",
            "{command}: {reply}"
        );
        assert_eq!(client.tell("THROTTLE fine 10 10 60"), client.tell("THROTTLE fine2 10 10 60"));
        client.tell("TG.RELEASE nothing");
        stage.is_well();
    }
    stage.end();
}

#[test]
fn bombs_at_the_http_door_are_refused_with_a_status() {
    let stage = Stage::new(wide());
    let long = "x".repeat(MAX_HEAD_BYTES);
    let fields = "a: b\r\n".repeat(MAX_HEADER_FIELDS + 1);
    let many = "a: b\r\n".repeat(700);
    let body = "x".repeat(MAX_BODY_BYTES + 1);
    let chunk = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    for (bomb, statuses) in [
        (format!("GET /{long} HTTP/1.1\r\n\r\n"), &["414", "431"][..]),
        (format!("GET / HTTP/1.1\r\nX: {long}\r\n\r\n"), &["431"]),
        (format!("GET / HTTP/1.1\r\nX: {long}{long}{long}{long}{long}\r\n\r\n"), &["431"]),
        (format!("GET / HTTP/1.1\r\n{fields}\r\n"), &["431"]),
        (format!("GET / HTTP/1.1\r\n{many}\r\n"), &["431"]),
        (format!("POST /v1/acquire HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}", body.len()), &["413"]),
        (format!("POST /v1/acquire HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}"), &["413"]),
        ("POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n".to_owned(), &["400"]),
        ("POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n".to_owned(), &["400"]),
        (
            "POST /v1/peek HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n".to_owned(),
            &["400"],
        ),
        ("GET / HTTP/1.1\r\nA: \0\r\n\r\n".to_owned(), &["400"]),
        ("GET /\0 HTTP/1.1\r\n\r\n".to_owned(), &["400"]),
        ("GET / HTTP/9.9\r\n\r\n".to_owned(), &["400", "505"]),
        ("GET / HTTP/1.1\r\nno colon here\r\n\r\n".to_owned(), &["400"]),
        ("*1\r\n$4\r\nPING\r\n".to_owned(), &["400"]),
        ("\0\0\0\0".to_owned(), &["400"]),
    ] {
        let start = bomb[..bomb.len().min(60)].escape_debug().to_string();
        let said = to_http(&stage, bomb.as_bytes());
        let status = said.get(9..12).unwrap_or_else(|| panic!("{start}: {said:?}"));
        assert!(statuses.contains(&status), "{start}: {said}");
        assert_eq!(said.matches("HTTP/1.1 ").count(), 1, "{start}: {said}");
        stage.is_well();
    }
    assert!(to_http(&stage, CLIENT_HELLO).starts_with("HTTP/1.1 400"));
    stage.is_well();
    stage.until("both are counted", |stage| {
        stage.cuts("http", "protocol") > 0 && stage.cuts("http", "too_large") > 0
    });
    stage.end();
}

#[test]
fn whoever_is_refused_for_their_size_hears_it_while_they_still_talk() {
    // Closing a connection on which something is unread makes the kernel throw away the answer as well.
    let stage = Stage::new(wide());
    let mut client = stage.http();
    let head = format!("POST /v1/acquire HTTP/1.1\r\nContent-Length: {}\r\n\r\n", 8 * MAX_BODY_BYTES);
    client.shout(head.as_bytes());
    client.shout(&vec![b'x'; 4 * MAX_BODY_BYTES]);
    client.answer().expect("an answer").is_problem(413, "too_large");
    drop(client);
    stage.is_well();
    stage.end();
}

#[test]
fn a_line_may_end_in_one_character() {
    let stage = Stage::new(wide());
    assert!(to_http(&stage, b"GET /healthz HTTP/1.1\nHost: h\n\n").starts_with("HTTP/1.1 200"));
    assert_eq!(to_resp(&stage, b"PING\nQUIT\n"), "+PONG\r\n+OK\r\n");
    stage.end();
}

/// Numbers in no order, the same ones in every run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(bound).expect("small")).expect("small")
    }
}

#[test]
fn noise_breaks_nothing() {
    let stage = Stage::new(wide());
    let mut noise = Noise(0x5eed_2026);
    let mut sound = acquire("twice", "ada");
    sound.extend(b"POST /v1/peek HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
    let mut resp = words("TG.ACQUIRE twice ada");
    resp.extend(b"THROTTLE a 1 1 1\r\n");
    resp.extend(words("HELLO 3 AUTH default x"));
    for round in 0..scaled(1_500) {
        let mut bytes = match round % 3 {
            // Nonsense.
            0 => (0..noise.below(300)).map(|_| u8::try_from(noise.next() & 0xff).expect("a byte")).collect(),
            // Something sensible with a few bytes changed.
            1 => sound.clone(),
            _ => resp.clone(),
        };
        for _ in 0..noise.below(4) {
            if !bytes.is_empty() {
                let at = noise.below(bytes.len());
                bytes[at] = u8::try_from(noise.next() & 0xff).expect("a byte");
            }
        }
        for mut client in [stage.http(), stage.resp()] {
            client.shout(&bytes);
            client.has_said_everything();
            client.rest();
        }
        if round % 250 == 0 {
            stage.is_well();
        }
    }
    stage.is_well();
    stage.until("everybody has left", |stage| stage.server.connections() <= 2);
    stage.end();
}
