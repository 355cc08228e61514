//! The end: those who are being answered are answered, the others are sent away, and nobody is waited for too long.

use std::net::TcpStream;

use crate::resp::stage::words;
use crate::serve::stage::{Client, Stage, acquire, patient, post, wide};

/// Takes the only place there is, and says by which lease.
fn takes(client: &mut Client) -> String {
    let answer = client.ask(&acquire("builds", "ada"));
    answer.json()["lease"]["id"].as_str().expect("a lease").to_owned()
}

fn release(lease: &str) -> Vec<u8> {
    post("/v1/release", &format!("{{\"lease_id\":\"{lease}\"}}"))
}

#[test]
fn who_says_nothing_is_sent_away_and_nobody_is_let_in() {
    let stage = Stage::new(wide());
    let (mut http, mut resp) = (stage.http(), stage.resp());
    assert_eq!(http.ask(&acquire("free", "ada")).status, 200);
    assert_eq!(resp.tell("PING"), "+PONG");
    let mut silent: Vec<Client> = (0..20).flat_map(|_| [stage.http(), stage.resp()]).collect();
    let mut general = stage.http();
    let request = b"POST /v1/peek HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
    assert_eq!(general.ask(request).status, 400);
    stage.until("all have come in", |stage| stage.server.connections() >= 43);
    let places = [stage.http_address(), stage.resp_address()];
    stage.end();
    http.is_cut_off();
    resp.is_cut_off();
    general.is_cut_off();
    silent.iter_mut().for_each(Client::is_cut_off);
    for place in places {
        TcpStream::connect(place).expect_err("nobody listens there any more");
    }
}

/// Those who waited in line used to be cut off without an answer when the drain was over.
#[test]
fn who_waits_in_line_is_answered_at_once_as_things_stand() {
    let stage = Stage::new(wide());
    let mut holder = stage.http();
    takes(&mut holder);
    let (mut plain, mut general) = (stage.http(), stage.http());
    plain.say(&patient("builds", "bob", 60_000));
    general.say(chunked().as_bytes());
    stage.until("two wait", |stage| stage.limiter.waiting_in_all() == 2);
    let limiter = stage.limiter.clone();
    stage.end();
    for mut waiting in [plain, general] {
        let answer = waiting.answer().expect("an answer");
        let said = answer.json();
        assert_eq!((&said["allowed"], &said["wait"]), (&false.into(), &"on_release".into()));
        assert_eq!(answer.field("connection"), Some("close"));
        waiting.is_cut_off();
    }
    assert_eq!(limiter.waiting_in_all(), 0);
}

#[test]
fn a_request_that_has_begun_may_be_finished() {
    let stage = Stage::new(wide());
    let (mut http, mut resp, mut idle) = (stage.http(), stage.resp(), stage.http());
    let (request, command) = (acquire("free", "ada"), words("TG.PEEK free ada"));
    http.say(&request[..request.len() - 5]);
    resp.say(&command[..command.len() - 5]);
    assert_eq!(idle.ask(&request).status, 200);
    stage.until("they have come in", |stage| stage.server.connections() >= 4);
    stage.is_well();
    let draining = std::thread::spawn(move || stage.end());
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
fn who_never_stops_talking_is_not_listened_to_for_ever() {
    let stage = Stage::new(wide());
    let (mut http, mut resp, mut idle) = (stage.http(), stage.resp(), stage.resp());
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
    assert_eq!(idle.tell("PING"), "+PONG");
    let draining = std::thread::spawn(move || stage.end());
    // Now everybody is being told. Nobody listened until now, so there is little to hear but what is said from here on.
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
fn who_leaves_while_waiting_leaves_the_queue() {
    let stage = Stage::new(wide());
    let mut holder = stage.http();
    let lease = takes(&mut holder);
    let asks = patient("builds", "bob", 60_000);
    let mut followed = asks.clone();
    followed.extend(acquire("free", "bob"));
    followed.extend(b"GET / HTT");
    for asks in [&asks[..], &followed, chunked().as_bytes()] {
        let mut waiting = stage.http();
        waiting.say(asks);
        stage.until("one waits", |stage| stage.limiter.waiting_in_all() == 1);
        drop(waiting);
        stage.until("nobody waits", |stage| stage.limiter.waiting_in_all() == 0);
    }
    // Nobody stands before those who come later.
    assert_eq!(holder.ask(&release(&lease)).text(), "{\"released\":true}");
    takes(&mut holder);
    stage.end();
}

/// What may be said to somebody who never stops talking, when the server was told to end: what the kernel has, and some.
const MOST_LAST_WORDS: usize = 64 << 20;

/// Waits in line, and has to be read by hyper.
fn chunked() -> String {
    let head = "POST /v1/acquire HTTP/1.1\r\nTransfer-Encoding: chunked";
    format!("{head}\r\n\r\n{:x}\r\n{BODY}\r\n0\r\n\r\n", BODY.len())
}

const BODY: &str = "{\"limit_id\":\"builds\",\"limit_key\":\"bob\",\"max_wait_ms\":60000}";

#[test]
fn a_server_that_nobody_holds_ends() {
    let stage = Stage::new(wide());
    let mut client = stage.resp();
    assert_eq!(client.tell("PING"), "+PONG");
    drop(stage.server);
    client.is_cut_off();
}
