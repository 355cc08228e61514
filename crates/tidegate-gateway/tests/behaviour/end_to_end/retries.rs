//! Endpoints that fail: who is asked instead, and what is asked twice.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use super::fixture::{Backend, Stage, echo, file, get, response, wait_until};
use super::http_client::{FAR_TOO_LONG, Wire};

const POST: &str = "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\nhello";

/// Replies the first request of every connection with its number, and closes on the second.
fn forgetful() -> (Backend, Arc<AtomicUsize>) {
    let ignored = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ignored);
    let backend = Backend::raw(move |mut wire, number| {
        if wire.message(false).is_ok() {
            wire.shout(response(number.to_string()));
            if wire.message(false).is_ok() {
                count.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    (backend, ignored)
}

#[test]
fn a_kept_connection_that_is_closed_costs_nobody_a_request() {
    let (backend, ignored) = forgetful();
    let stage = Stage::before(&backend);
    let mut client = stage.client();
    for number in 1..=5 {
        assert_eq!(client.ask(get("a.test")).text(), number.to_string());
    }
    assert_eq!(ignored.load(Ordering::SeqCst), 4, "each was asked for again, once");
    drop(client);
    stage.end();
}

#[test]
fn what_may_have_been_done_is_not_done_twice() {
    let (backend, ignored) = forgetful();
    let stage = Stage::before(&backend);
    for request in [
        POST,
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
        "PATCH / HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        let (asked, connections) = (ignored.load(Ordering::SeqCst), backend.connections());
        assert_eq!(stage.ask(get("a.test")).status(), 200);
        assert_eq!(stage.ask(request).status(), 502, "{request:?}");
        assert_eq!(ignored.load(Ordering::SeqCst) - asked, 1);
        assert_eq!(backend.connections() - connections, 1, "nobody else was asked");
    }
    stage.end();
}

/// A connection that was closed while nobody used it is not used.
#[test]
fn a_closed_connection_is_not_used() {
    let backend = Backend::echo();
    let stage = Stage::before(&backend);
    let mut client = stage.client();
    for _ in 0..10 {
        assert_eq!(client.ask(POST).status(), 200);
        backend.hang_up();
    }
    assert_eq!(backend.connections(), 10);
    drop(client);
    stage.end();
}

#[test]
fn whoever_cannot_be_reached_is_passed_over() {
    let mut dead = Backend::echo();
    let alive = Backend::echo();
    let stage = Stage::new(&file("", "", &[&dead, &alive]));
    dead.end();
    for _ in 0..10 {
        assert_eq!(stage.ask(POST).status(), 200);
    }
    assert_eq!(alive.requests(), 10);
    stage.end();
}

#[test]
fn whoever_closes_without_a_word_is_passed_over_if_that_is_harmless() {
    let rude = Backend::closing("");
    let kind = Backend::echo();
    let stage = Stage::new(&file("", "", &[&rude, &kind]));
    for _ in 0..10 {
        assert_eq!(stage.ask(get("a.test")).status(), 200);
    }
    let told: Vec<u16> = (0..10).map(|_| stage.ask(POST).status()).collect();
    assert_eq!(told.iter().filter(|status| **status == 502).count(), 5, "{told:?}");
    assert_eq!(kind.requests(), 15);
    stage.end();
}

#[test]
fn backends_may_die_and_come_back() {
    let (arrived, arrivals) = channel();
    let mut backend = Backend::new(move |_, _| {
        arrived.send(()).expect("somebody waits");
        std::thread::park_timeout(FAR_TOO_LONG);
        false
    });
    let stage = Stage::before(&backend);
    let address = backend.address();
    let mut waiting: Vec<Wire> = (0..5).map(|_| stage.client()).collect();
    for client in &mut waiting {
        client.say(POST);
        arrivals.recv_timeout(FAR_TOO_LONG).expect("it is at the backend");
    }
    backend.end();
    for client in &mut waiting {
        assert_eq!(client.hear().status(), 502);
    }
    drop(waiting);
    assert_eq!(stage.ask(get("a.test")).status(), 502);
    stage.is_empty();
    let again = Backend::new_at(address, echo);
    wait_until("it is found again", || stage.ask(get("a.test")).status() == 200);
    assert!(again.requests() > 0);
    stage.end();
}

/// A place where connections are never accepted, and those that fill it.
fn never_accepting() -> (Socket, Vec<TcpStream>) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).expect("a free port");
    socket.listen(0).expect("it is bound");
    let address = socket.local_addr().expect("it is bound").as_socket().expect("of the Internet");
    let mut waiting = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
        waiting.push(stream);
        assert!(waiting.len() < 100, "it accepts");
    }
    (socket, waiting)
}

#[test]
fn who_takes_too_long_is_told_of() {
    let (socket, _waiting) = never_accepting();
    let port = socket.local_addr().expect("it is bound").as_socket().expect("of the Internet").port();
    let silent = Backend::raw(|mut wire, _| wire.is_over_somehow());
    let text = file("", "connectTimeout: 100ms; responseTimeout: 100ms", &[&silent]);
    let stage = Stage::new(&text.replace(&silent.port().to_string(), &port.to_string()));
    let mut client = stage.client();
    for _ in 0..2 {
        let answer = client.ask(get("a.test"));
        assert_eq!((answer.status(), answer.text().as_str()), (504, "Gateway Timeout"));
    }
    drop(client);
    stage.end();
    let stage = Stage::new(&text);
    for request in [get("a.test"), POST.to_owned()] {
        assert_eq!(stage.ask(request).status(), 504);
    }
    assert_eq!(silent.connections(), 2, "who may have heard is not asked again");
    stage.end();
}

#[test]
fn the_one_with_least_to_do_is_asked() {
    /// Says at whom a request is, and waits for a word before it answers.
    fn waiting(name: usize, told: Sender<usize>) -> (Backend, Sender<()>) {
        let (go, gone): (Sender<()>, Receiver<()>) = channel();
        let gone = Mutex::new(gone);
        let backend = Backend::new(move |_, wire| {
            told.send(name).expect("somebody waits");
            let _gone = gone.lock().expect("no panic").recv();
            wire.shout(response("done"));
            true
        });
        (backend, go)
    }
    let (told, at) = channel();
    let (one, go_one) = waiting(0, told.clone());
    let (two, go_two) = waiting(1, told);
    let stage = Stage::new(&file("", "loadBalance: least-connection", &[&one, &two]));
    let mut open = [Vec::new(), Vec::new()];
    let ask = |open: &mut [Vec<Wire>; 2]| {
        let mut client = stage.client();
        client.say(get("a.test"));
        open[at.recv_timeout(FAR_TOO_LONG).expect("it is somewhere")].push(client);
    };
    for _ in 0..6 {
        ask(&mut open);
    }
    assert_eq!((open[0].len(), open[1].len()), (3, 3));
    for _ in 0..3 {
        go_one.send(()).expect("it waits");
    }
    for mut client in open[0].drain(..) {
        assert_eq!(client.hear().text(), "done");
    }
    wait_until("three are left", || stage.gateway.under_way() == 3);
    for _ in 0..3 {
        ask(&mut open);
    }
    assert_eq!((open[0].len(), open[1].len()), (3, 3), "the one that was free got all");
    drop((go_one, go_two));
    drop(open);
    stage.end();
}
