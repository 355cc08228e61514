//! Limits, as clients meet them.

use tidegate_gateway::Counted;
use tokio::time::Instant;

use super::fixture::{Backend, Stage, file, get, response, wait_until};
use super::http_client::{Message, Wire};

#[track_caller]
fn is_refused(answer: &Message, body: &str, policy: &str) {
    assert_eq!((answer.status(), answer.text().as_str()), (429, body));
    assert_eq!(answer.field("ratelimit-policy"), Some(policy));
    assert!(answer.field("ratelimit").is_some_and(|left| left.contains(";r=0")), "{answer:?}");
    assert_eq!(answer.field("retry-after"), Some("1"));
    assert_eq!(answer.field("content-type"), Some("text/plain"));
}

#[test]
fn refusals_say_what_was_refused() {
    let backend = Backend::echo();
    let levels = [
        ("server", "rateLimit: {maxQps: 0}", "", ""),
        ("route", "", "", "rateLimit: {maxQps: 0}"),
        ("backend", "", "rateLimit: {maxQps: 0}", ""),
        ("client", "rateLimit: {maxQpsPerClient: 0}", "", ""),
    ];
    for (level, server, of_backend, route) in levels {
        let text = file(server, of_backend, &[&backend])
            .replace("{backend: b}", &format!("{{backend: b, {route}}}"));
        let stage = Stage::new(&text);
        let mut client = stage.client();
        for _ in 0..3 {
            let answer = client.ask(get("a.test"));
            is_refused(&answer, "Too Many Requests", &format!("\"{level}\";q=0;w=1"));
            assert!(!answer.closes(), "a request that is refused ends no connection");
        }
        client.say("HEAD / HTTP/1.1\r\nHost: a.test\r\n\r\n");
        let answer = client.message(true).expect("a head");
        assert_eq!((answer.status(), answer.field("content-length")), (429, Some("17")));
        drop(client);
        stage.end();
    }
    assert_eq!(backend.connections(), 0);
}

#[test]
fn connections_that_are_refused_are_told_and_closed() {
    let backend = Backend::echo();
    let levels = [
        ("server", "rateLimit: {maxConnections: 2}", "", ""),
        ("client", "rateLimit: {maxConnectionsPerClient: 2}", "", ""),
        ("backend", "", "rateLimit: {maxConnections: 2}", ""),
        ("client", "", "rateLimit: {maxConnectionsPerClient: 2}", ""),
        ("route", "", "", "rateLimit: {maxConnections: 2}"),
    ];
    for (level, server, of_backend, route) in levels {
        let text = file(server, of_backend, &[&backend])
            .replace("{backend: b}", &format!("{{backend: b, {route}}}"));
        let stage = Stage::new(&text);
        let mut open: Vec<Wire> = (0..2).map(|_| stage.client()).collect();
        for client in &mut open {
            assert_eq!(client.ask(get("a.test")).status(), 200);
        }
        for _ in 0..3 {
            let mut refused = stage.client();
            let answer = refused.ask(get("a.test"));
            let policy = format!("\"{level}-connections\";q=2;qu=\"connections\"");
            is_refused(&answer, "Too Many Connections", &policy);
            assert!(answer.closes());
            refused.is_over();
        }
        for client in &mut open {
            assert_eq!(client.ask(get("a.test")).status(), 200, "who is in stays in");
        }
        open.pop();
        wait_until("there is room again", || stage.counted(Counted::Server) == 1);
        let mut next = stage.client();
        assert_eq!(next.ask(get("a.test")).status(), 200);
        drop((open, next));
        stage.end();
    }
}

#[test]
fn refused_connections_that_say_nothing_do_not_stay() {
    let backend = Backend::echo();
    let stage = Stage::new(&file("rateLimit: {maxConnections: 0}", "", &[&backend]));
    let mut silent = stage.client();
    let mut half = stage.client();
    half.say("GET / HTTP/1.1\r\n");
    let mut odd = stage.client();
    assert_eq!(odd.ask("nonsense\r\n\r\n").status(), 429);
    odd.is_over();
    let mut large = stage.client();
    large.shout(format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(100_000)));
    assert_eq!(large.message(false).map_or(429, |answer| answer.status()), 429);
    silent.is_over();
    half.is_over();
    stage.client().vanish();
    drop(large);
    stage.end();
    assert_eq!(backend.connections(), 0);
}

/// Each client has its own connections and its own requests.
#[test]
fn clients_do_not_share_what_each_may() {
    let backend = Backend::echo();
    let stage =
        Stage::new(&file("rateLimit: {maxQpsPerClient: 5, maxConnectionsPerClient: 2}", "", &[&backend]));
    let mut open = Vec::new();
    for address in 2..6 {
        for turn in 0..3 {
            let mut client = stage.client_at(address);
            assert_eq!(client.ask(get("a.test")).status(), if turn < 2 { 200 } else { 429 });
            open.push(client);
        }
    }
    assert_eq!(stage.counted(Counted::Server), 8);
    drop(open);
    stage.end();
}

/// C-F1: what one client is refused is taken from nobody.
#[test]
fn an_abuser_takes_nothing_from_honest_clients() {
    const HONEST: u8 = 9;
    let backend = Backend::saying(response("ok"));
    // Room for everybody, and for nobody more.
    let most = 10 + 5 * u64::from(HONEST);
    let limits = format!("rateLimit: {{maxQps: {most}, maxQpsPerClient: 10}}");
    let stage = Stage::new(&file(&limits, &limits, &[&backend]));
    let started = Instant::now();
    let mut abuser = stage.client_at(200);
    let mut honest: Vec<Wire> = (0..HONEST).map(|number| stage.client_at(number + 2)).collect();
    let mut abused = 0;
    for _ in 0..5 {
        abuser.say(get("a.test").repeat(500));
        for _ in 0..500 {
            abused += u64::from(abuser.hear().status() == 200);
        }
        for client in &mut honest {
            assert_eq!(client.ask(get("a.test")).status(), 200, "honest clients are always served");
        }
    }
    let seconds = started.elapsed().as_secs() + 1;
    assert!((10..=10 * seconds).contains(&abused), "{abused} in {seconds} s");
    drop((abuser, honest));
    stage.end();
}

/// C-F2: a connection for every request gains nothing.
#[test]
fn a_connection_for_each_request_gains_nothing() {
    let backend = Backend::saying(response("ok"));
    let stage = Stage::new(&file("rateLimit: {maxQpsPerClient: 10}", "", &[&backend]));
    let started = Instant::now();
    let statuses: Vec<u16> = (0..200).map(|_| stage.ask(get("a.test")).status()).collect();
    let seconds = usize::try_from(started.elapsed().as_secs()).expect("few") + 1;
    let admitted = statuses.iter().filter(|status| **status == 200).count();
    assert!((10..=10 * seconds).contains(&admitted), "{admitted} in {seconds} s");
    assert_eq!(backend.requests(), admitted);
    stage.end();
}

/// C-F4: any second, not only those of the clock.
#[test]
fn no_second_has_more_than_its_share() {
    let backend = Backend::saying(response("ok"));
    let stage = Stage::new(&file("rateLimit: {maxQps: 20}", "", &[&backend]));
    let mut client = stage.client();
    let mut admitted: Vec<(Instant, Instant)> = Vec::new();
    let started = Instant::now();
    while started.elapsed().as_millis() < 1500 {
        let asked = Instant::now();
        if client.ask(get("a.test")).status() == 200 {
            admitted.push((asked, Instant::now()));
        }
    }
    assert!(admitted.len() > 20, "there was a second of them");
    for (number, (asked, _)) in admitted.iter().enumerate() {
        // All that were answered within a second of when this was asked for were decided within it.
        let within = admitted[number..]
            .iter()
            .take_while(|(_, answered)| answered.duration_since(*asked).as_millis() < 1000)
            .count();
        assert!(within <= 20, "{within} within a second");
    }
    drop(client);
    stage.end();
}

#[test]
fn hundreds_of_connections_come_and_go() {
    const MANY: usize = 500;
    let backend = Backend::echo();
    let stage = Stage::with(&file("", "", &[&backend]), 2);
    let mut open: Vec<Wire> = (0..MANY).map(|_| stage.client()).collect();
    for client in &mut open {
        assert_eq!(client.ask(get("a.test")).status(), 200);
    }
    assert_eq!(stage.counted(Counted::Server), MANY as u64);
    assert_eq!(stage.counted(Counted::Backend("b")), MANY as u64);
    for (number, mut client) in open.into_iter().enumerate() {
        match number % 4 {
            0 => client.vanish(),
            1 => client.say("GET / HTTP/1.1\r\nHalf"),
            2 => client.say_no_more(),
            _ => {}
        }
    }
    stage.is_empty();
    assert_eq!(stage.counted(Counted::Backend("b")), 0);
    stage.end();
}

/// Half-open sockets: the client will say nothing more, and hears what it asked for.
#[test]
fn clients_that_have_said_everything_are_gone_sooner_or_later() {
    let backend = Backend::raw(|mut wire, _| {
        let _head = wire.head();
        wire.is_over_somehow();
    });
    let stage = Stage::before(&backend);
    let mut open: Vec<Wire> = Vec::new();
    for said in [String::new(), "GET / HT".to_owned(), get("a.test"), get("a.test").repeat(3)] {
        let mut client = stage.client();
        client.say(said);
        client.say_no_more();
        open.push(client);
    }
    stage.is_empty();
    drop(open);
    stage.end();
}
