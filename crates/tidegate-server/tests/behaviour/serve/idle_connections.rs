//! Thousands of idle connections cost little memory and no latency.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::resp::fixture::words;
use crate::serve::fixture::{Client, ServerFixture, reply_length, wide};
use crate::serve::timeouts::resident;

/// Number of connections if the system has enough sockets; both ends are in this process.
const MANY: usize = 10_000;

/// Descriptors left to other tests of this process.
const SPARE_DESCRIPTORS: u64 = 1_500;

/// Memory bound of an idle connection, including the client's end.
const BYTES_EACH: usize = 16 * 1024;

/// How many connections this process can have both ends of, after raising its descriptor limit.
fn possible() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    let current = if setrlimit(Resource::Nofile, raised).is_ok() { raised.current } else { limit.current };
    let sockets = current.unwrap_or(u64::MAX).saturating_sub(SPARE_DESCRIPTORS);
    usize::try_from(sockets / 2).unwrap_or(usize::MAX).min(MANY)
}

#[test]
fn ten_thousand_idle_connections_cost_little_memory() {
    let fixture = ServerFixture::new(wide());
    fixture.is_well();
    let count = possible();
    assert!(count >= 100, "there are hardly any sockets: raise the limit of open files");
    let before = resident();
    let silent: Vec<std::net::TcpStream> = (0..count)
        .map(|number| {
            let address = if number % 2 == 0 { fixture.http_address() } else { fixture.resp_address() };
            std::net::TcpStream::connect(address).expect("it listens")
        })
        .collect();
    fixture.until("all have come in", |fixture| fixture.server.connections() >= count);
    let each = resident().saturating_sub(before) / count;
    assert!(each <= BYTES_EACH, "{each} bytes for each of {count}");
    for _ in 0..20 {
        fixture.is_well();
    }
    drop(silent);
    fixture.until("all have left", |fixture| fixture.server.connections() <= 2);
    fixture.end();
}

#[test]
fn busy_connection_frees_its_buffers() {
    // Buffers belong to the worker. A connection that was busy once must not keep them.
    const ASKS: usize = 1_024;
    let fixture = ServerFixture::new(wide());
    let count = possible().min(1_000);
    let ask = words("TG.PEEK free ada");
    let mut first = fixture.resp();
    first.say(&ask);
    let length = first.read_until(|received| reply_length(received).map(|length| (length, length)));
    let (asks, length) = (ask.repeat(ASKS), ASKS * length.expect("a reply"));
    let busy = || {
        let mut client = fixture.resp();
        client.say(&asks);
        client
            .read_until(|received| (received.len() == length).then_some(((), length)))
            .expect("all replies");
        client
    };
    let _others: Vec<Client> = (0..10).map(|_| busy()).collect();
    let before = resident();
    let all: Vec<Client> = (0..count).map(|_| busy()).collect();
    let each = resident().saturating_sub(before) / count;
    assert!(each <= 4 * BYTES_EACH, "{each} bytes for each of {count}");
    drop(all);
    fixture.end();
}
