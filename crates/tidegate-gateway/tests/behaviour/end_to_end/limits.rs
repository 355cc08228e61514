//! Limits as clients observe them.

use tidegate_gateway::ConnectionCounter;
use tokio::time::Instant;

use super::fixture::{TestBackend, TestGateway, file, get, response, wait_until};
use super::http_client::{Message, WireClient};

#[track_caller]
fn assert_refused(response: &Message, body: &str, policy: &str) {
    assert_eq!((response.status(), response.text().as_str()), (429, body));
    assert_eq!(response.field("ratelimit-policy"), Some(policy));
    assert!(response.field("ratelimit").is_some_and(|left| left.contains(";r=0")), "{response:?}");
    assert_eq!(response.field("retry-after"), Some("1"));
    assert_eq!(response.field("content-type"), Some("text/plain"));
}

#[test]
fn refusal_response_describes_the_limit() {
    let backend = TestBackend::echo();
    let levels = [
        ("server", "rateLimit: {maxQps: 0}", "", ""),
        ("route", "", "", "rateLimit: {maxQps: 0}"),
        ("backend", "", "rateLimit: {maxQps: 0}", ""),
        ("client", "rateLimit: {maxQpsPerClient: 0}", "", ""),
    ];
    for (level, server, of_backend, route) in levels {
        let text = file(server, of_backend, &[&backend])
            .replace("{backend: b}", &format!("{{backend: b, {route}}}"));
        let gateway = TestGateway::new(&text);
        let mut client = gateway.client();
        for _ in 0..3 {
            let response = client.request(get("a.test"));
            assert_refused(&response, "Too Many Requests", &format!("\"{level}\";q=0;w=1"));
            assert!(!response.closes(), "a request that is refused ends no connection");
        }
        client.send("HEAD / HTTP/1.1\r\nHost: a.test\r\n\r\n");
        let response = client.read_message(true).expect("a head");
        assert_eq!((response.status(), response.field("content-length")), (429, Some("17")));
        drop(client);
        gateway.end();
    }
    assert_eq!(backend.connection_count(), 0);
}

#[test]
fn refused_connections_get_a_reply_and_are_closed() {
    let backend = TestBackend::echo();
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
        let gateway = TestGateway::new(&text);
        let mut open: Vec<WireClient> = (0..2).map(|_| gateway.client()).collect();
        for client in &mut open {
            assert_eq!(client.request(get("a.test")).status(), 200);
        }
        for _ in 0..3 {
            let mut refused = gateway.client();
            let response = refused.request(get("a.test"));
            let policy = format!("\"{level}-connections\";q=2;qu=\"connections\"");
            assert_refused(&response, "Too Many Connections", &policy);
            assert!(response.closes());
            refused.assert_closed();
        }
        for client in &mut open {
            assert_eq!(client.request(get("a.test")).status(), 200, "admitted connections stay");
        }
        open.pop();
        wait_until("there is room again", || gateway.counted(ConnectionCounter::Server) == 1);
        let mut next = gateway.client();
        assert_eq!(next.request(get("a.test")).status(), 200);
        drop((open, next));
        gateway.end();
    }
}

#[test]
fn silent_refused_connections_are_closed() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::new(&file("rateLimit: {maxConnections: 0}", "", &[&backend]));
    let mut silent = gateway.client();
    let mut half = gateway.client();
    half.send("GET / HTTP/1.1\r\n");
    let mut odd = gateway.client();
    assert_eq!(odd.request("nonsense\r\n\r\n").status(), 429);
    odd.assert_closed();
    let mut large = gateway.client();
    large.try_send(format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(100_000)));
    assert_eq!(large.read_message(false).map_or(429, |response| response.status()), 429);
    silent.assert_closed();
    half.assert_closed();
    gateway.client().reset();
    drop(large);
    gateway.end();
    assert_eq!(backend.connection_count(), 0);
}

/// Clients have separate connections and requests.
#[test]
fn client_limits_are_independent() {
    let backend = TestBackend::echo();
    let gateway = TestGateway::new(&file(
        "rateLimit: {maxQpsPerClient: 5, maxConnectionsPerClient: 2}",
        "",
        &[&backend],
    ));
    let mut open = Vec::new();
    for address in 2..6 {
        for turn in 0..3 {
            let mut client = gateway.client_at(address);
            assert_eq!(client.request(get("a.test")).status(), if turn < 2 { 200 } else { 429 });
            open.push(client);
        }
    }
    assert_eq!(gateway.counted(ConnectionCounter::Server), 8);
    drop(open);
    gateway.end();
}

/// Requests refused to one client do not affect others.
#[test]
fn abusive_client_does_not_affect_other_clients() {
    const HONEST: u8 = 9;
    let backend = TestBackend::always(response("ok"));
    // Enough for all clients and no more.
    let most = 10 + 5 * u64::from(HONEST);
    let limits = format!("rateLimit: {{maxQps: {most}, maxQpsPerClient: 10}}");
    let gateway = TestGateway::new(&file(&limits, &limits, &[&backend]));
    let started = Instant::now();
    let mut abuser = gateway.client_at(200);
    let mut honest: Vec<WireClient> = (0..HONEST).map(|number| gateway.client_at(number + 2)).collect();
    let mut abuser_admitted = 0;
    for _ in 0..5 {
        abuser.send(get("a.test").repeat(500));
        for _ in 0..500 {
            abuser_admitted += u64::from(abuser.read_response().status() == 200);
        }
        for client in &mut honest {
            assert_eq!(client.request(get("a.test")).status(), 200, "honest clients are always served");
        }
    }
    let seconds = started.elapsed().as_secs() + 1;
    assert!((10..=10 * seconds).contains(&abuser_admitted), "{abuser_admitted} in {seconds} s");
    drop((abuser, honest));
    gateway.end();
}

/// A new connection for every request does not evade the limit.
#[test]
fn connection_per_request_does_not_evade_client_limit() {
    let backend = TestBackend::always(response("ok"));
    let gateway = TestGateway::new(&file("rateLimit: {maxQpsPerClient: 10}", "", &[&backend]));
    let started = Instant::now();
    let statuses: Vec<u16> = (0..200).map(|_| gateway.request(get("a.test")).status()).collect();
    let seconds = usize::try_from(started.elapsed().as_secs()).expect("few") + 1;
    let admitted = statuses.iter().filter(|status| **status == 200).count();
    assert!((10..=10 * seconds).contains(&admitted), "{admitted} in {seconds} s");
    assert_eq!(backend.request_count(), admitted);
    gateway.end();
}

/// The limit holds for every sliding second, not only for clock seconds.
#[test]
fn no_sliding_second_exceeds_the_limit() {
    let backend = TestBackend::always(response("ok"));
    let gateway = TestGateway::new(&file("rateLimit: {maxQps: 20}", "", &[&backend]));
    let mut client = gateway.client();
    let mut admitted: Vec<(Instant, Instant)> = Vec::new();
    let started = Instant::now();
    while started.elapsed().as_millis() < 1500 {
        let sent_at = Instant::now();
        if client.request(get("a.test")).status() == 200 {
            admitted.push((sent_at, Instant::now()));
        }
    }
    assert!(admitted.len() > 20, "there was a second of them");
    for (number, (sent_at, _)) in admitted.iter().enumerate() {
        // All requests answered within one second after this one was sent were decided within that second.
        let within = admitted[number..]
            .iter()
            .take_while(|(_, answered)| answered.duration_since(*sent_at).as_millis() < 1000)
            .count();
        assert!(within <= 20, "{within} within a second");
    }
    drop(client);
    gateway.end();
}

#[test]
fn many_connections_leave_no_counts() {
    const MANY: usize = 500;
    let backend = TestBackend::echo();
    let gateway = TestGateway::with_workers(&file("", "", &[&backend]), 2);
    let mut open: Vec<WireClient> = (0..MANY).map(|_| gateway.client()).collect();
    for client in &mut open {
        assert_eq!(client.request(get("a.test")).status(), 200);
    }
    assert_eq!(gateway.counted(ConnectionCounter::Server), MANY as u64);
    assert_eq!(gateway.counted(ConnectionCounter::Backend("b")), MANY as u64);
    for (number, mut client) in open.into_iter().enumerate() {
        match number % 4 {
            0 => client.reset(),
            1 => client.send("GET / HTTP/1.1\r\nHalf"),
            2 => client.shutdown_write(),
            _ => {}
        }
    }
    gateway.wait_until_empty();
    assert_eq!(gateway.counted(ConnectionCounter::Backend("b")), 0);
    gateway.end();
}

/// Half-closed clients still receive their responses.
#[test]
fn half_closed_clients_are_served_and_released() {
    let backend = TestBackend::with_connections(|mut wire, _| {
        let _head = wire.head();
        wire.assert_closes_eventually();
    });
    let gateway = TestGateway::in_front_of(&backend);
    let mut open: Vec<WireClient> = Vec::new();
    for bytes in [String::new(), "GET / HT".to_owned(), get("a.test"), get("a.test").repeat(3)] {
        let mut client = gateway.client();
        client.send(bytes);
        client.shutdown_write();
        open.push(client);
    }
    gateway.wait_until_empty();
    drop(open);
    gateway.end();
}
