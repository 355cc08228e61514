//! An abusive client does not affect other clients.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::backend::TestBackend;
use super::fixture::{LogCapture, TestGateway, settings};
use super::http_client::HttpClient;

/// The limits per second: for the server and for one client.
const SERVER_QPS: u64 = 200;
const CLIENT_QPS: u64 = 10;

const HONEST: u8 = 10;
/// An honest client sends five requests per second for three seconds.
const PAUSE: Duration = Duration::from_millis(200);
const REQUESTS_EACH: usize = 15;

/// The address of the abusive client and the number of its connections.
const ABUSER: u8 = 66;
const CONNECTIONS: usize = 3;

#[expect(clippy::disallowed_methods, reason = "measures the real duration of the load")]
fn now() -> Instant {
    Instant::now()
}

/// Sends requests as fast as possible until stopped and counts the results.
fn flood(gateway: &TestGateway, is_over: &AtomicBool, served: &AtomicU64, refused: &AtomicU64) {
    let mut wire = HttpClient::from(ABUSER, gateway.address).expect("it listens");
    while !is_over.load(Ordering::SeqCst) {
        let response = wire.get("/");
        let count = if response.status == 429 { refused } else { served };
        count.fetch_add(1, Ordering::SeqCst);
    }
}

/// Sends requests at a steady rate and returns how many were refused.
fn count_refusals_of_honest_client(gateway: &TestGateway, last: u8) -> usize {
    let mut wire = HttpClient::from(last, gateway.address).expect("it listens");
    let statuses = (0..REQUESTS_EACH).map(|_| {
        let response = wire.get("/");
        std::thread::park_timeout(PAUSE);
        response.status
    });
    statuses.filter(|status| *status != 200).count()
}

#[test]
fn abusive_client_does_not_affect_other_clients() {
    let backend = TestBackend::immediate();
    let rates = format!("maxQps: {SERVER_QPS}, maxQpsPerClient: {CLIENT_QPS}");
    let gateway = TestGateway::with(
        &settings(backend.port(), &rates, ""),
        &["--access-log", "off"],
        LogCapture::Stdout,
    );
    let (is_over, served, refused) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let begin = now();
    let unserved: usize = std::thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            scope.spawn(|| flood(&gateway, &is_over, &served, &refused));
        }
        let honest: Vec<_> = (1..=HONEST)
            .map(|number| {
                let gateway = &gateway;
                scope.spawn(move || count_refusals_of_honest_client(gateway, 100 + number))
            })
            .collect();
        let unserved = honest.into_iter().map(|thread| thread.join().unwrap_or(REQUESTS_EACH)).sum();
        is_over.store(true, Ordering::SeqCst);
        unserved
    });
    let seconds = begin.elapsed().as_secs() + 1;
    assert_eq!(unserved, 0, "of {} honest requests", usize::from(HONEST) * REQUESTS_EACH);
    let (served, refused) = (served.into_inner(), refused.into_inner());
    assert!(served <= CLIENT_QPS * (seconds + 1), "{served} in {seconds} s");
    assert!(refused > served, "{refused} refused, {served} served: it did not try hard");
    assert_is_hottest(&gateway, refused);
    gateway.end();
}

/// `/limits` shows the abusive client.
#[track_caller]
fn assert_is_hottest(gateway: &TestGateway, refused: u64) {
    let limits = gateway.limits();
    let hottest = &limits["hottestClients"]["clients"][0];
    assert_eq!(hottest["client"], format!("127.0.0.{ABUSER}"), "{limits}");
    // Older requests weigh less.
    let seen = hottest["refused"].as_u64().unwrap_or(0);
    assert!(seen > 0 && seen <= refused, "{hottest}");
    assert_eq!(limits["server"]["maxQpsPerClient"]["refused"], refused, "{limits}");
    assert_eq!(limits["server"]["maxQps"]["refused"], 0, "only the abusive client was refused: {limits}");
}

/// A new connection for each request does not evade the client's limit.
#[test]
fn connection_per_request_does_not_evade_client_limit() {
    const REQUESTS: u64 = 300;
    let backend = TestBackend::immediate();
    let gateway = TestGateway::of(&settings(backend.port(), &format!("maxQpsPerClient: {CLIENT_QPS}"), ""));
    let begin = now();
    let admitted = (0..REQUESTS).filter(|_| gateway.get("/").status == 200).count() as u64;
    let seconds = begin.elapsed().as_secs() + 1;
    assert!(
        admitted >= CLIENT_QPS && admitted <= CLIENT_QPS * (seconds + 1),
        "{admitted} of {REQUESTS} in {seconds} s"
    );
    assert_eq!(backend.requests() as u64, admitted);
    gateway.end();
}
