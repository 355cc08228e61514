//! The slow and the silent: who takes too long is cut off, and nobody else waits for them.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tidegate_server::serve::ConnectionBounds;

use crate::resp::stage::words;
use crate::serve::stage::{Client, FAR_TOO_LONG, Stage, acquire, wide};

const SHORT: Duration = Duration::from_millis(200);

/// How long a dripping client waits between two drops.
const DROP: Duration = Duration::from_millis(20);

/// Says the beginning, and then a drop at a time until somebody has enough.
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
fn who_drips_a_request_is_cut_off() {
    let stage = Stage::new(ConnectionBounds { request: SHORT, ..wide() });
    // A head without an end, for the lane and for hyper; a body without an end, of known and unknown length.
    let plain_body = b"POST /v1/acquire HTTP/1.1\r\nContent-Length: 1000\r\n\r\n";
    let after_chunks =
        b"POST /v1/peek HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n";
    is_cut_off_while_it_drips(stage.http(), b"GET / HTTP/1.1\r\nX: ", b"x");
    is_cut_off_while_it_drips(stage.http(), plain_body, b"x");
    stage.has_cut("http", "slow_request", 2);
    is_cut_off_while_it_drips(stage.http(), after_chunks, b"x");
    stage.has_cut("http", "slow_request", 3);
    let mut both = acquire("free", "ada");
    both.extend(b"GET / HTT");
    is_cut_off_while_it_drips(stage.http(), &both, b"x");
    is_cut_off_while_it_drips(stage.resp(), b"*2\r\n$4\r\nECHO\r\n$1000\r\n", b"x");
    is_cut_off_while_it_drips(stage.resp(), b"PI", b"N");
    let mut both = words("PING");
    both.extend(b"*1\r\n$4\r\nP");
    is_cut_off_while_it_drips(stage.resp(), &both, b"");
    stage.has_cut("resp", "slow_request", 3);
    stage.is_well();
    stage.end();
}

#[test]
fn who_drips_a_body_is_told_and_cut_off() {
    let stage = Stage::new(ConnectionBounds { request: SHORT, ..wide() });
    for head in [
        "POST /v1/acquire HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe",
        "POST /v1/acquire HTTP/1.1\r\nContent-Length: 500000\r\n\r\nhello",
    ] {
        let mut client = stage.http();
        client.say(head.as_bytes());
        client.answer().expect("an answer").is_problem(408, "request_timeout");
        client.is_cut_off();
    }
    stage.is_well();
    stage.end();
}

#[test]
fn who_is_slow_but_in_time_is_answered() {
    let stage = Stage::new(wide());
    let (mut http, mut resp) = (stage.http(), stage.resp());
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
    stage.end();
}

#[test]
fn who_says_nothing_is_cut_off() {
    let stage = Stage::new(ConnectionBounds { idle: SHORT, ..wide() });
    stage.http().is_cut_off();
    stage.resp().is_cut_off();
    let (mut http, mut resp, mut chunks) = (stage.http(), stage.resp(), stage.http());
    assert_eq!(http.ask(&acquire("free", "ada")).status, 200);
    assert_eq!(resp.tell("PING"), "+PONG");
    let request = b"POST /v1/peek HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
    assert_eq!(chunks.ask(request).status, 400);
    http.is_cut_off();
    resp.is_cut_off();
    chunks.is_cut_off();
    stage.has_cut("http", "idle", 3);
    stage.has_cut("resp", "idle", 2);
    stage.end();
}

#[test]
fn a_second_of_http_2_without_a_call_is_idle_too() {
    let stage = Stage::new(ConnectionBounds { idle: SHORT, ..wide() });
    let mut client = stage.http();
    client.say(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
    let said = client.rest();
    assert!(!said.is_empty(), "it says its settings, and that it goes");
    stage.has_cut("http", "idle", 1);
    stage.end();
}

/// A client whose kernel keeps little of what it does not read.
fn deaf(address: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.set_recv_buffer_size(4096).expect("a socket");
    socket.connect(&address.into()).expect("it listens");
    let stream = TcpStream::from(socket);
    stream.set_write_timeout(Some(FAR_TOO_LONG)).expect("a socket");
    stream
}

/// The most that may be said to a server that nobody listens to: the kernel's buffers, both sides, and some.
const MOST_UNHEARD: usize = 64 << 20;

/// Asks and asks and reads nothing, until it is cut off; how much it could say.
fn talks_until_cut(mut stream: TcpStream, asks: &[u8]) -> usize {
    let mut said = 0;
    loop {
        match stream.write(asks) {
            Ok(length) => said += length,
            Err(error) => {
                let cut = matches!(
                    error.kind(),
                    std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::ConnectionReset
                );
                assert!(cut, "{error}");
                return said;
            }
        }
        assert!(said < MOST_UNHEARD, "the server hears everything and says nothing");
    }
}

#[test]
fn who_asks_much_and_reads_nothing_is_cut_off() {
    let stage = Stage::new(ConnectionBounds { write: SHORT, ..wide() });
    let before = resident();
    for (address, asks) in [
        (stage.resp_address(), words("COMMAND").repeat(500)),
        (stage.resp_address(), words("TG.PEEK free ada").repeat(500)),
        (stage.http_address(), b"GET /openapi.json HTTP/1.1\r\n\r\n".repeat(500)),
        (stage.http_address(), b"GET /openapi.json HTTP/1.1\r\nTE: x\r\n\r\n".repeat(500)),
    ] {
        talks_until_cut(deaf(address), &asks);
        stage.is_well();
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < MOST_KEPT_FOR_THE_DEAF, "{grown} bytes");
    stage.has_cut("http", "slow_reader", 2);
    stage.has_cut("resp", "slow_reader", 2);
    stage.end();
}

/// What a server may keep for a client that does not read: much less than all the answers to what it could ask in one reading.
const MOST_KEPT_FOR_THE_DEAF: usize = 48 << 20;

/// How many bytes of memory this process has now.
pub(crate) fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("this is Linux");
    let pages: usize = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    pages * rustix::param::page_size()
}

#[test]
fn who_took_long_to_read_may_be_idle_afterwards() {
    // The bound for half a frame must not be left behind when the answers to what was read with it took their time.
    const ASKS: usize = 12_000;
    let stage = Stage::new(ConnectionBounds { head: SHORT, ..wide() });
    let mut client = Client::over(deaf(stage.resp_address()));
    client.say(&b"COMMAND\n".repeat(ASKS));
    let mut length = 0;
    for _ in 0..ASKS {
        length += client.reply().expect("a reply").len();
    }
    assert!(length > 4 << 20, "more than the kernel keeps: {length}");
    assert!(!client.is_over_within(5 * SHORT), "it is only idle");
    assert_eq!(client.tell("PING"), "+PONG");
    stage.end();
}
