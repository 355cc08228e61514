//! Malformed and oversized input is answered or disconnected, and other clients are not affected.

use tidegate_server::http::MAX_BODY_BYTES;
use tidegate_server::resp::frame::{MAX_FRAME_BYTES, MAX_INLINE_BYTES};
use tidegate_server::serve::bounds::{MAX_HEAD_BYTES, MAX_HEADER_FIELDS};
use tidegate_testkit::test_scale::scaled;

use crate::resp::fixture::{encode, words};
use crate::serve::fixture::{ServerFixture, acquire, wide};

/// The first line of every HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The beginning of a TLS client hello.
const CLIENT_HELLO: &[u8] =
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x1f\x8b\x00\x00\r\n\r\n\x00\x13\x01";

/// Sends this over RESP; returns the whole reply.
fn to_resp(fixture: &ServerFixture, bytes: &[u8]) -> String {
    let mut client = fixture.resp();
    client.shout(bytes);
    let output = client.rest();
    String::from_utf8(output).expect("replies are text")
}

/// Sends this over HTTP and closes the write side after the response; returns all output.
fn to_http(fixture: &ServerFixture, bytes: &[u8]) -> String {
    let mut client = fixture.http();
    client.shout(bytes);
    let first = client.answer().expect("an answer");
    client.has_said_everything();
    first.head + &String::from_utf8_lossy(&client.rest())
}

#[test]
fn oversized_resp_input_is_refused_with_a_reason() {
    let fixture = ServerFixture::new(wide());
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
        assert_eq!(to_resp(&fixture, &bomb), reason, "{start}");
        fixture.is_well();
    }
    fixture.until("both are counted", |fixture| {
        fixture.cuts("resp", "protocol") > 0 && fixture.cuts("resp", "too_large") > 0
    });
    fixture.end();
}

#[test]
fn commands_before_oversized_input_are_answered() {
    let fixture = ServerFixture::new(wide());
    let mut bytes = words("PING");
    bytes.extend(words("TG.ACQUIRE free ada"));
    bytes.extend(b"*1000000000\r\n");
    bytes.extend(words("PING").repeat(10_000));
    let output = to_resp(&fixture, &bytes);
    assert!(output.starts_with("+PONG\r\n*7\r\n:1\r\n"), "{output}");
    assert!(output.ends_with("-ERR Protocol error: invalid multibulk length\r\n"), "{output}");
    assert_eq!(output.matches("PONG").count(), 1);
    fixture.end();
}

#[test]
fn other_protocols_on_the_resp_port_are_closed() {
    let fixture = ServerFixture::new(wide());
    for stranger in [
        PREFACE,
        CLIENT_HELLO,
        b"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
        b"\0\0\0\0\r\n",
        b"POST / HTTP/1.1\n\nFLUSHALL\n",
    ] {
        let output = to_resp(&fixture, stranger);
        assert!(output.starts_with("-ERR ") && output.matches("\r\n").count() == 1, "{output:?}");
        fixture.is_well();
    }
    fixture.end();
}

#[test]
fn extreme_numbers_are_handled() {
    // This one command stops the only worker of another server.
    let fixture = ServerFixture::new(wide());
    let mut client = fixture.resp();
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
        let reply = client.command(command);
        assert!(
            reply.starts_with('[') || reply.starts_with("-ERR ") || reply == "nil2",
            "{command}: {reply}"
        );
        assert_eq!(client.command("THROTTLE fine 10 10 60"), client.command("THROTTLE fine2 10 10 60"));
        client.command("TG.RELEASE nothing");
        fixture.is_well();
    }
    fixture.end();
}

#[test]
fn oversized_http_input_is_refused_with_a_status() {
    let fixture = ServerFixture::new(wide());
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
        let output = to_http(&fixture, bomb.as_bytes());
        let status = output.get(9..12).unwrap_or_else(|| panic!("{start}: {output:?}"));
        assert!(statuses.contains(&status), "{start}: {output}");
        assert_eq!(output.matches("HTTP/1.1 ").count(), 1, "{start}: {output}");
        fixture.is_well();
    }
    assert!(to_http(&fixture, CLIENT_HELLO).starts_with("HTTP/1.1 400"));
    fixture.is_well();
    fixture.until("both are counted", |fixture| {
        fixture.cuts("http", "protocol") > 0 && fixture.cuts("http", "too_large") > 0
    });
    fixture.end();
}

#[test]
fn oversized_request_gets_its_response_while_sending() {
    // Closing a connection with unread input makes the kernel drop the response.
    let fixture = ServerFixture::new(wide());
    let mut client = fixture.http();
    let head = format!("POST /v1/acquire HTTP/1.1\r\nContent-Length: {}\r\n\r\n", 8 * MAX_BODY_BYTES);
    client.shout(head.as_bytes());
    client.shout(&vec![b'x'; 4 * MAX_BODY_BYTES]);
    client.answer().expect("an answer").is_problem(413, "too_large");
    drop(client);
    fixture.is_well();
    fixture.end();
}

#[test]
fn line_may_end_with_lf() {
    let fixture = ServerFixture::new(wide());
    assert!(to_http(&fixture, b"GET /healthz HTTP/1.1\nHost: h\n\n").starts_with("HTTP/1.1 200"));
    assert_eq!(to_resp(&fixture, b"PING\nQUIT\n"), "+PONG\r\n+OK\r\n");
    fixture.end();
}

/// Pseudorandom numbers, the same in every run.
struct Rng(u64);

impl Rng {
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
fn random_input_breaks_nothing() {
    let fixture = ServerFixture::new(wide());
    let mut rng = Rng(0x5eed_2026);
    let mut sound = acquire("twice", "ada");
    sound.extend(b"POST /v1/peek HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
    let mut resp = words("TG.ACQUIRE twice ada");
    resp.extend(b"THROTTLE a 1 1 1\r\n");
    resp.extend(words("HELLO 3 AUTH default x"));
    for round in 0..scaled(1_500) {
        let mut bytes = match round % 3 {
            // Random bytes.
            0 => (0..rng.below(300)).map(|_| u8::try_from(rng.next() & 0xff).expect("a byte")).collect(),
            // A valid request with a few bytes changed.
            1 => sound.clone(),
            _ => resp.clone(),
        };
        for _ in 0..rng.below(4) {
            if !bytes.is_empty() {
                let at = rng.below(bytes.len());
                bytes[at] = u8::try_from(rng.next() & 0xff).expect("a byte");
            }
        }
        for mut client in [fixture.http(), fixture.resp()] {
            client.shout(&bytes);
            client.has_said_everything();
            client.rest();
        }
        if round % 250 == 0 {
            fixture.is_well();
        }
    }
    fixture.is_well();
    fixture.until("all clients have disconnected", |fixture| fixture.server.connections() <= 2);
    fixture.end();
}
