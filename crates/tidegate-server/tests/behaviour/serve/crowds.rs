//! Crowds: thousands of connections that say nothing cost little, and nobody waits for them.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::resp::stage::words;
use crate::serve::slow::resident;
use crate::serve::stage::{Client, Stage, reply_length, wide};

/// How many there are, if the system has as many sockets; both ends of each are here.
const MANY: usize = 10_000;

/// Descriptors that are left to other tests of this process.
const SPARE_DESCRIPTORS: u64 = 1_500;

/// What a connection that says nothing may cost, with its client's end.
const BYTES_EACH: usize = 16 * 1024;

/// How many connections this process may have both ends of, after it has asked for as many as it may have.
fn possible() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    let current = if setrlimit(Resource::Nofile, raised).is_ok() { raised.current } else { limit.current };
    let sockets = current.unwrap_or(u64::MAX).saturating_sub(SPARE_DESCRIPTORS);
    usize::try_from(sockets / 2).unwrap_or(usize::MAX).min(MANY)
}

#[test]
fn ten_thousand_connections_that_say_nothing_cost_little() {
    let stage = Stage::new(wide());
    stage.is_well();
    let count = possible();
    assert!(count >= 100, "there are hardly any sockets: raise the limit of open files");
    let before = resident();
    let silent: Vec<std::net::TcpStream> = (0..count)
        .map(|number| {
            let address = if number % 2 == 0 { stage.http_address() } else { stage.resp_address() };
            std::net::TcpStream::connect(address).expect("it listens")
        })
        .collect();
    stage.until("all have come in", |stage| stage.server.connections() >= count);
    let each = resident().saturating_sub(before) / count;
    assert!(each <= BYTES_EACH, "{each} bytes for each of {count}");
    for _ in 0..20 {
        stage.is_well();
    }
    drop(silent);
    stage.until("all have left", |stage| stage.server.connections() <= 2);
    stage.end();
}

#[test]
fn who_asked_for_much_once_keeps_little_afterwards() {
    // Buffers belong to the worker. A connection that was busy once must not keep them for the rest of its life.
    const ASKS: usize = 1_024;
    let stage = Stage::new(wide());
    let count = possible().min(1_000);
    let ask = words("TG.PEEK free ada");
    let mut first = stage.resp();
    first.say(&ask);
    let length = first.hear_until(|heard| reply_length(heard).map(|length| (length, length)));
    let (asks, length) = (ask.repeat(ASKS), ASKS * length.expect("a reply"));
    let busy = || {
        let mut client = stage.resp();
        client.say(&asks);
        client.hear_until(|heard| (heard.len() == length).then_some(((), length))).expect("all replies");
        client
    };
    let _others: Vec<Client> = (0..10).map(|_| busy()).collect();
    let before = resident();
    let all: Vec<Client> = (0..count).map(|_| busy()).collect();
    let each = resident().saturating_sub(before) / count;
    assert!(each <= 4 * BYTES_EACH, "{each} bytes for each of {count}");
    drop(all);
    stage.end();
}
