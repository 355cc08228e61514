//! Timeouts: slow and idle clients are disconnected, and other clients are not affected.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tidegate_server::serve::ConnectionBounds;

use crate::resp::fixture::words;
use crate::serve::fixture::{Client, FAR_TOO_LONG, ServerFixture, acquire, wide};

const SHORT: Duration = Duration::from_millis(200);

/// Time between two bytes of a slow client.
const DROP: Duration = Duration::from_millis(20);

/// Sends the beginning, and then a piece at a time until the server disconnects.
#[track_caller]
fn is_cut_off_while_it_drips(mut client: Client, beginning: &[u8], drop: &[u8]) {
    client.say(beginning);
    for _ in 0..FAR_TOO_LONG.as_millis() / DROP.as_millis() {
        if client.is_over_within(DROP) {
            return;
        }
        client.shout(drop);
    }
    panic!("it may drip for ever");
}

#[test]
fn slow_request_is_cut() {
    let fixture = ServerFixture::new(ConnectionBounds { request: SHORT, ..wide() });
    // A head without end, for the fast path and for hyper; a body without end, of known and unknown length.
    let plain_body = b"POST /v1/acquire HTTP/1.1\r\nContent-Length: 1000\r\n\r\n";
    let after_chunks =
        b"POST /v1/peek HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n";
    is_cut_off_while_it_drips(fixture.http(), b"GET / HTTP/1.1\r\nX: ", b"x");
    is_cut_off_while_it_drips(fixture.http(), plain_body, b"x");
    fixture.has_cut("http", "slow_request", 2);
    is_cut_off_while_it_drips(fixture.http(), after_chunks, b"x");
    fixture.has_cut("http", "slow_request", 3);
    let mut both = acquire("free", "ada");
    both.extend(b"GET / HTT");
    is_cut_off_while_it_drips(fixture.http(), &both, b"x");
    is_cut_off_while_it_drips(fixture.resp(), b"*2\r\n$4\r\nECHO\r\n$1000\r\n", b"x");
    is_cut_off_while_it_drips(fixture.resp(), b"PI", b"N");
    let mut both = words("PING");
    both.extend(b"*1\r\n$4\r\nP");
    is_cut_off_while_it_drips(fixture.resp(), &both, b"");
    fixture.has_cut("resp", "slow_request", 3);
    fixture.is_well();
    fixture.end();
}

#[test]
fn slow_body_is_answered_and_cut() {
    let fixture = ServerFixture::new(ConnectionBounds { request: SHORT, ..wide() });
    for head in [
        "POST /v1/acquire HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe",
        "POST /v1/acquire HTTP/1.1\r\nContent-Length: 500000\r\n\r\nhello",
    ] {
        let mut client = fixture.http();
        client.say(head.as_bytes());
        client.answer().expect("an answer").is_problem(408, "request_timeout");
        client.is_cut_off();
    }
    fixture.is_well();
    fixture.end();
}

#[test]
fn slow_request_within_the_deadline_is_answered() {
    let fixture = ServerFixture::new(wide());
    let (mut http, mut resp) = (fixture.http(), fixture.resp());
    for _ in 0..3 {
        let request = acquire("free", "ada");
        for piece in request.chunks(request.len() / 3) {
            assert!(!http.is_over_within(DROP));
            http.say(piece);
        }
        assert_eq!(http.answer().expect("an answer").status, 200);
        for piece in words("PING").chunks(5) {
            assert!(!resp.is_over_within(DROP));
            resp.say(piece);
        }
        assert_eq!(resp.reply().expect("a reply"), "+PONG");
    }
    fixture.end();
}

#[test]
fn idle_connection_is_cut() {
    let fixture = ServerFixture::new(ConnectionBounds { idle: SHORT, ..wide() });
    fixture.http().is_cut_off();
    fixture.resp().is_cut_off();
    let (mut http, mut resp, mut chunks) = (fixture.http(), fixture.resp(), fixture.http());
    assert_eq!(http.ask(&acquire("free", "ada")).status, 200);
    assert_eq!(resp.command("PING"), "+PONG");
    let request = b"POST /v1/peek HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
    assert_eq!(chunks.ask(request).status, 400);
    http.is_cut_off();
    resp.is_cut_off();
    chunks.is_cut_off();
    fixture.has_cut("http", "idle", 3);
    fixture.has_cut("resp", "idle", 2);
    fixture.end();
}

#[test]
fn idle_http2_connection_is_closed() {
    let fixture = ServerFixture::new(ConnectionBounds { idle: SHORT, ..wide() });
    let mut client = fixture.http();
    client.say(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    let output = client.rest();
    assert!(!output.is_empty(), "it says its settings, and that it goes");
    fixture.has_cut("http", "idle", 1);
    fixture.end();
}

/// A client with small receive buffers.
fn unread_client(address: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.set_recv_buffer_size(4096).expect("a socket");
    socket.connect(&address.into()).expect("it listens");
    let stream = TcpStream::from(socket);
    stream.set_write_timeout(Some(FAR_TOO_LONG)).expect("a socket");
    stream
}

/// Bound on the bytes that a server accepts while its output is not read: kernel buffers of both sides and some more.
const MOST_UNHEARD: usize = 64 << 20;

/// Sends requests and reads nothing until disconnected; returns how much was sent.
fn talks_until_cut(mut stream: TcpStream, asks: &[u8]) -> usize {
    let mut output = 0;
    loop {
        match stream.write(asks) {
            Ok(length) => output += length,
            Err(error) => {
                let cut = matches!(
                    error.kind(),
                    std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::ConnectionReset
                );
                assert!(cut, "{error}");
                return output;
            }
        }
        assert!(output < MOST_UNHEARD, "the server hears everything and says nothing");
    }
}

#[test]
fn client_that_does_not_read_is_cut() {
    let fixture = ServerFixture::new(ConnectionBounds { write: SHORT, ..wide() });
    let before = resident();
    for (address, asks) in [
        (fixture.resp_address(), words("COMMAND").repeat(500)),
        (fixture.resp_address(), words("TG.PEEK free ada").repeat(500)),
        (fixture.http_address(), b"GET /openapi.json HTTP/1.1\r\n\r\n".repeat(500)),
        (fixture.http_address(), b"GET /openapi.json HTTP/1.1\r\nTE: x\r\n\r\n".repeat(500)),
    ] {
        talks_until_cut(unread_client(address), &asks);
        fixture.is_well();
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < MOST_KEPT_FOR_THE_DEAF, "{grown} bytes");
    fixture.has_cut("http", "slow_reader", 2);
    fixture.has_cut("resp", "slow_reader", 2);
    fixture.end();
}

/// Bound on the memory for a client that does not read: much less than the replies to one read of its requests.
const MOST_KEPT_FOR_THE_DEAF: usize = 48 << 20;

/// Resident memory of this process in bytes.
pub(crate) fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("this is Linux");
    let pages: usize = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    pages * rustix::param::page_size()
}

#[test]
fn slow_reader_may_be_idle_afterwards() {
    // The deadline of a partial frame must not remain after replies before it took long to write.
    const ASKS: usize = 12_000;
    let fixture = ServerFixture::new(ConnectionBounds { head: SHORT, ..wide() });
    let mut client = Client::over(unread_client(fixture.resp_address()));
    client.say(&b"COMMAND\n".repeat(ASKS));
    let mut length = 0;
    for _ in 0..ASKS {
        length += client.reply().expect("a reply").len();
    }
    assert!(length > 4 << 20, "more than the kernel keeps: {length}");
    assert!(!client.is_over_within(5 * SHORT), "it is only idle");
    assert_eq!(client.command("PING"), "+PONG");
    fixture.end();
}
