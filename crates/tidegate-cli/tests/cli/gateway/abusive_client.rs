//! The demonstration: an abuser beside honest clients takes nothing from them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::backend::Backend;
use super::fixture::{Gateway, Hearing, settings};
use super::http_client::Wire;

/// What everybody together may ask for in a second, and what one client may.
const ALL: u64 = 200;
const EACH: u64 = 10;

const HONEST: u8 = 10;
/// How often an honest client asks, and how many times: five times a second for three seconds.
const PAUSE: Duration = Duration::from_millis(200);
const TIMES: usize = 15;

/// The address of an abuser, and how many connections it has.
const ABUSER: u8 = 66;
const CONNECTIONS: usize = 3;

#[expect(clippy::disallowed_methods, reason = "how long the gateway was really asked")]
fn now() -> Instant {
    Instant::now()
}

/// Asks as often as it can until it is told to stop; how many were served and how many refused.
fn abuse(gateway: &Gateway, is_over: &AtomicBool, served: &AtomicU64, refused: &AtomicU64) {
    let mut wire = Wire::from(ABUSER, gateway.address).expect("it listens");
    while !is_over.load(Ordering::SeqCst) {
        let told = wire.get("/");
        let count = if told.status == 429 { refused } else { served };
        count.fetch_add(1, Ordering::SeqCst);
    }
}

/// Asks now and then; how often it was not served.
fn ask_honestly(gateway: &Gateway, last: u8) -> usize {
    let mut wire = Wire::from(last, gateway.address).expect("it listens");
    let asked = (0..TIMES).map(|_| {
        let told = wire.get("/");
        std::thread::park_timeout(PAUSE);
        told.status
    });
    asked.filter(|status| *status != 200).count()
}

#[test]
fn an_abuser_takes_nothing_from_honest_clients() {
    let backend = Backend::quick();
    let rates = format!("maxQps: {ALL}, maxQpsPerClient: {EACH}");
    let gateway =
        Gateway::with(&settings(backend.port(), &rates, ""), &["--access-log", "off"], Hearing::Out);
    let (is_over, served, refused) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let begin = now();
    let unserved: usize = std::thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            scope.spawn(|| abuse(&gateway, &is_over, &served, &refused));
        }
        let honest: Vec<_> = (1..=HONEST)
            .map(|number| {
                let gateway = &gateway;
                scope.spawn(move || ask_honestly(gateway, 100 + number))
            })
            .collect();
        let unserved = honest.into_iter().map(|asking| asking.join().unwrap_or(TIMES)).sum();
        is_over.store(true, Ordering::SeqCst);
        unserved
    });
    let seconds = begin.elapsed().as_secs() + 1;
    assert_eq!(unserved, 0, "of {} honest requests", usize::from(HONEST) * TIMES);
    let (served, refused) = (served.into_inner(), refused.into_inner());
    assert!(served <= EACH * (seconds + 1), "{served} in {seconds} s");
    assert!(refused > served, "{refused} refused, {served} served: it did not try hard");
    is_the_hottest(&gateway, refused);
    gateway.end();
}

/// Whoever looks sees who it is.
#[track_caller]
fn is_the_hottest(gateway: &Gateway, refused: u64) {
    let limits = gateway.limits();
    let hottest = &limits["hottestClients"]["clients"][0];
    assert_eq!(hottest["client"], format!("127.0.0.{ABUSER}"), "{limits}");
    // What is long ago weighs less.
    let seen = hottest["refused"].as_u64().unwrap_or(0);
    assert!(seen > 0 && seen <= refused, "{hottest}");
    assert_eq!(limits["server"]["maxQpsPerClient"]["refused"], refused, "{limits}");
    assert_eq!(
        limits["server"]["maxQps"]["refused"], 0,
        "nobody was refused for what the abuser did: {limits}"
    );
}

/// A connection for each request does not get around the limit of a client.
#[test]
fn a_connection_for_each_request_gains_nothing() {
    const REQUESTS: u64 = 300;
    let backend = Backend::quick();
    let gateway = Gateway::of(&settings(backend.port(), &format!("maxQpsPerClient: {EACH}"), ""));
    let begin = now();
    let admitted = (0..REQUESTS).filter(|_| gateway.get("/").status == 200).count() as u64;
    let seconds = begin.elapsed().as_secs() + 1;
    assert!(admitted >= EACH && admitted <= EACH * (seconds + 1), "{admitted} of {REQUESTS} in {seconds} s");
    assert_eq!(backend.requests() as u64, admitted);
    gateway.end();
}
