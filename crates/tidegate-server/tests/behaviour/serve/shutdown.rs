//! Shutdown: requests in progress finish, idle connections close, and the drain time is bounded.

use std::net::TcpStream;

use crate::resp::fixture::words;
use crate::serve::fixture::{Client, ServerFixture, acquire, patient, post, wide};

/// Takes the only slot; returns the lease.
fn takes(client: &mut Client) -> String {
    let answer = client.ask(&acquire("builds", "ada"));
    answer.json()["lease"]["id"].as_str().expect("a lease").to_owned()
}

fn release(lease: &str) -> Vec<u8> {
    post("/v1/release", &format!("{{\"lease_id\":\"{lease}\"}}"))
}

#[test]
fn shutdown_closes_idle_connections_and_stops_accepting() {
    let fixture = ServerFixture::new(wide());
    let (mut http, mut resp) = (fixture.http(), fixture.resp());
    assert_eq!(http.ask(&acquire("free", "ada")).status, 200);
    assert_eq!(resp.command("PING"), "+PONG");
    let mut silent: Vec<Client> = (0..20).flat_map(|_| [fixture.http(), fixture.resp()]).collect();
    let mut general = fixture.http();
    let request = b"POST /v1/peek HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
    assert_eq!(general.ask(request).status, 400);
    fixture.until("all have come in", |fixture| fixture.server.connections() >= 43);
    let places = [fixture.http_address(), fixture.resp_address()];
    fixture.end();
    http.is_cut_off();
    resp.is_cut_off();
    general.is_cut_off();
    silent.iter_mut().for_each(Client::is_cut_off);
    for place in places {
        TcpStream::connect(place).expect_err("the listener is closed");
    }
}

/// Regression test: waiting requests used to be cut without a response after the drain time.
#[test]
fn shutdown_answers_waiting_requests_immediately() {
    let fixture = ServerFixture::new(wide());
    let mut holder = fixture.http();
    takes(&mut holder);
    let (mut plain, mut general) = (fixture.http(), fixture.http());
    plain.say(&patient("builds", "bob", 60_000));
    general.say(chunked().as_bytes());
    fixture.until("two wait", |fixture| fixture.limiter.waiting_in_all() == 2);
    let limiter = fixture.limiter.clone();
    fixture.end();
    for mut waiting in [plain, general] {
        let answer = waiting.answer().expect("an answer");
        let output = answer.json();
        assert_eq!((&output["allowed"], &output["wait"]), (&false.into(), &"on_release".into()));
        assert_eq!(answer.field("connection"), Some("close"));
        waiting.is_cut_off();
    }
    assert_eq!(limiter.waiting_in_all(), 0);
}

#[test]
fn shutdown_lets_requests_in_progress_finish() {
    let fixture = ServerFixture::new(wide());
    let (mut http, mut resp, mut idle) = (fixture.http(), fixture.resp(), fixture.http());
    let (request, command) = (acquire("free", "ada"), words("TG.PEEK free ada"));
    http.say(&request[..request.len() - 5]);
    resp.say(&command[..command.len() - 5]);
    assert_eq!(idle.ask(&request).status, 200);
    fixture.until("they have come in", |fixture| fixture.server.connections() >= 4);
    fixture.is_well();
    let draining = std::thread::spawn(move || fixture.end());
    idle.is_cut_off();
    http.say(&request[request.len() - 5..]);
    let answer = http.answer().expect("an answer");
    assert_eq!((answer.status, answer.field("connection")), (200, Some("close")));
    http.is_cut_off();
    resp.say(&command[command.len() - 5..]);
    assert_eq!(resp.reply().expect("a reply"), "[1, -1, -1, -1, -1, '', '']");
    resp.is_cut_off();
    draining.join().expect("the end comes");
}

#[test]
fn shutdown_ends_connections_that_never_stop_sending() {
    let fixture = ServerFixture::new(wide());
    let (mut http, mut resp, mut idle) = (fixture.http(), fixture.resp(), fixture.resp());
    let (requests, commands) = (acquire("free", "ada").repeat(20), words("TG.PEEK free ada").repeat(100));
    let talkers =
        [(http.stream.try_clone(), requests), (resp.stream.try_clone(), commands)].map(|(stream, asks)| {
            let mut client = Client::over(stream.expect("a socket"));
            std::thread::spawn(move || {
                use std::io::Write as _;
                while client.stream.write_all(&asks).is_ok() {}
            })
        });
    assert_eq!(http.answer().expect("an answer").status, 200);
    assert!(resp.reply().is_some());
    assert_eq!(idle.command("PING"), "+PONG");
    let draining = std::thread::spawn(move || fixture.end());
    // The shutdown was triggered while nothing read the output, so little of it is left.
    idle.is_cut_off();
    for mut client in [http, resp] {
        client.listen_to_the_end(MOST_LAST_WORDS);
    }
    for talker in talkers {
        talker.join().expect("it sees the end");
    }
    draining.join().expect("the end comes");
}

#[test]
fn disconnected_waiter_leaves_the_queue() {
    let fixture = ServerFixture::new(wide());
    let mut holder = fixture.http();
    let lease = takes(&mut holder);
    let asks = patient("builds", "bob", 60_000);
    let mut followed = asks.clone();
    followed.extend(acquire("free", "bob"));
    followed.extend(b"GET / HTT");
    for asks in [&asks[..], &followed, chunked().as_bytes()] {
        let mut waiting = fixture.http();
        waiting.say(asks);
        fixture.until("one waits", |fixture| fixture.limiter.waiting_in_all() == 1);
        drop(waiting);
        fixture.until("the queue is empty", |fixture| fixture.limiter.waiting_in_all() == 0);
    }
    // The next waiter is first in the queue.
    assert_eq!(holder.ask(&release(&lease)).text(), "{\"released\":true}");
    takes(&mut holder);
    fixture.end();
}

/// Bound on the output to a client that never stops sending: kernel buffers and some more.
const MOST_LAST_WORDS: usize = 64 << 20;

/// A waiting request in a form that hyper has to parse.
fn chunked() -> String {
    let head = "POST /v1/acquire HTTP/1.1\r\nTransfer-Encoding: chunked";
    format!("{head}\r\n\r\n{:x}\r\n{BODY}\r\n0\r\n\r\n", BODY.len())
}

const BODY: &str = "{\"limit_id\":\"builds\",\"limit_key\":\"bob\",\"max_wait_ms\":60000}";

#[test]
fn dropped_server_shuts_down() {
    let fixture = ServerFixture::new(wide());
    let mut client = fixture.resp();
    assert_eq!(client.command("PING"), "+PONG");
    drop(fixture.server);
    client.is_cut_off();
}
