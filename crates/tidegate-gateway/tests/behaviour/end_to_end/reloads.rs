//! Reloads under load: connections stay open and counts are kept.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use tidegate_gateway::ConnectionCounter;

use super::fixture::{TestBackend, TestGateway, file, get, response, wait_until};
use super::http_client::{TEST_TIMEOUT, WireClient};

/// A new limit counts connections opened before it.
#[test]
fn new_limit_counts_existing_connections() {
    let backend = TestBackend::echo();
    let text = |most: i64| file("", &format!("rateLimit: {{maxConnections: {most}}}"), &[&backend]);
    let gateway = TestGateway::new(&text(-1));
    let mut open: Vec<WireClient> = (0..10).map(|_| gateway.client()).collect();
    for client in &mut open {
        assert_eq!(client.request(get("a.test")).status(), 200);
    }
    let reloaded = gateway.reload(&text(5));
    assert_eq!(reloaded.overfull.len(), 1, "{reloaded:?}");
    assert_eq!((reloaded.overfull[0].most, reloaded.overfull[0].open), (5, 10));
    while open.len() > 4 {
        let response = gateway.request(get("a.test"));
        assert_eq!(
            (response.status(), response.text().as_str()),
            (429, "Too Many Connections"),
            "{}",
            open.len()
        );
        for client in &mut open {
            assert_eq!(client.request(get("a.test")).status(), 200, "open connections stay");
        }
        open.pop();
        let left = open.len() as u64;
        wait_until("one has left", || gateway.counted(ConnectionCounter::Backend("b")) == left);
    }
    assert_eq!(gateway.request(get("a.test")).status(), 200, "four are left");
    drop(open);
    gateway.end();
}

/// One hundred reloads under load never exceed the limit and drop no request.
#[test]
fn hundred_reloads_under_load_never_exceed_the_limit() {
    const MOST: usize = 6;
    let backend = TestBackend::always(response("ok"));
    let text = |turn: usize| {
        let extra = if turn.is_multiple_of(2) { "" } else { ", {host: other.test, backend: b}" };
        file(
            &format!("rateLimit: {{maxQps: {}}}", 10_000_000 + turn),
            &format!("rateLimit: {{maxConnections: {MOST}, maxQps: {}}}", 20_000_000 + turn / 3),
            &[&backend],
        )
        .replace("{backend: b}", &format!("{{backend: b}}{extra}"))
    };
    let gateway = TestGateway::with_workers(&text(0), 2);
    let (live, highest, refused, served) =
        (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for _ in 0..10 {
            threads.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    let mut client = gateway.client();
                    let response = client.request(get("a.test"));
                    if response.status() == 429 {
                        assert_eq!(response.text(), "Too Many Connections");
                        refused.fetch_add(1, Ordering::SeqCst);
                        continue;
                    }
                    highest.fetch_max(live.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    for _ in 0..5 {
                        assert_eq!(
                            client.request(get("a.test")).status(),
                            200,
                            "admitted connections are served"
                        );
                        served.fetch_add(1, Ordering::SeqCst);
                    }
                    live.fetch_sub(1, Ordering::SeqCst);
                }
            });
        }
        for turn in 1..=100 {
            let before = served.load(Ordering::SeqCst);
            gateway.reload(&text(turn));
            wait_until("it goes on", || served.load(Ordering::SeqCst) > before + 10);
        }
        is_over.store(true, Ordering::SeqCst);
    });
    assert!(highest.load(Ordering::SeqCst) <= MOST, "{highest:?}");
    assert!(refused.load(Ordering::SeqCst) > 0, "there were more than may be");
    gateway.end();
}

/// An active request completes at its backend; the next one follows the new settings.
#[test]
fn active_requests_keep_their_backend() {
    let (arrived, arrivals) = channel();
    let (go, may_go) = channel::<()>();
    let may_go = Mutex::new(may_go);
    let old = TestBackend::new(move |_, wire| {
        arrived.send(()).expect("the test waits");
        let _told = may_go.lock().expect("no panic").recv_timeout(TEST_TIMEOUT);
        wire.try_send(response("old"));
        true
    });
    let new = TestBackend::always(response("new"));
    let gateway = TestGateway::new(&file("", "", &[&old]));
    let mut client = gateway.client();
    client.send(get("a.test"));
    arrivals.recv_timeout(TEST_TIMEOUT).expect("it is at the old one");
    gateway.reload(&file("", "", &[&new]));
    assert_eq!(gateway.request(get("a.test")).text(), "new");
    go.send(()).expect("it waits");
    assert_eq!(client.read_response().text(), "old");
    assert_eq!(client.request(get("a.test")).text(), "new", "the same connection");
    drop(client);
    gateway.end();
}

/// Removed routes and backends are gone for open connections too.
#[test]
fn removed_route_returns_404() {
    let backend = TestBackend::always(response("ok"));
    let gateway = TestGateway::new(&file("", "", &[&backend]));
    let mut client = gateway.client();
    assert_eq!(client.request(get("a.test")).status(), 200);
    let other = file("", "", &[&backend])
        .replace("name: b", "name: c")
        .replace("{backend: b}", "{path: /x, backend: c}");
    gateway.reload(&other);
    assert_eq!(client.request(get("a.test")).status(), 404);
    assert_eq!(client.request("GET /x HTTP/1.1\r\nHost: a\r\n\r\n").status(), 200);
    gateway.reload(&file("", "", &[&backend]));
    assert_eq!(client.request(get("a.test")).status(), 200);
    drop(client);
    gateway.end();
}

/// A new limit applies to the next request on open connections.
#[test]
fn new_limit_applies_to_open_connections() {
    let backend = TestBackend::always(response("ok"));
    let gateway = TestGateway::new(&file("", "", &[&backend]));
    let mut client = gateway.client();
    for _ in 0..3 {
        gateway.reload(&file("rateLimit: {maxQps: 0}", "", &[&backend]));
        assert_eq!(client.request(get("a.test")).status(), 429);
        gateway.reload(&file("", "", &[&backend]));
        assert_eq!(client.request(get("a.test")).status(), 200);
        gateway.reload(&file("rateLimit: {maxQpsPerClient: 0}", "", &[&backend]));
        assert_eq!(client.request(get("a.test")).status(), 429);
        gateway.reload(&file(
            "rateLimit: {maxQpsPerClient: 0}",
            "rateLimit: {maxQpsPerClient: unlimited}",
            &[&backend],
        ));
        assert_eq!(client.request(get("a.test")).status(), 200);
    }
    drop(client);
    gateway.end();
}

/// A file with any error changes nothing.
#[test]
fn invalid_settings_change_nothing() {
    let backend = TestBackend::always(response("ok"));
    let directory = std::env::temp_dir().join(format!("tidegate-over-sockets-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory");
    let path = directory.join("gateway.yaml");
    let good = file("rateLimit: {maxConnections: 100}", "", &[&backend]);
    std::fs::write(&path, &good).expect("a file");
    let gateway = TestGateway::new(&good);
    let reloader = Arc::new(gateway.inner.reloader(&path, Box::new(|_| None)));
    let mut client = gateway.client();
    for (invalid, error_count) in [
        ("server: {rateLimit: {maxQps: -2}}\nbackends: [{name: x}]\nroutes: [{backend: y}]\n", 3),
        ("server: {rateLimit", 1),
        ("", 1),
    ] {
        std::fs::write(&path, invalid).expect("a file");
        let rejected = reloader.reload_now().expect_err("it makes no sense");
        assert!(rejected.errors.len() >= error_count, "{rejected:?}");
        assert_eq!(client.request(get("a.test")).status(), 200);
    }
    let tls = good.clone() + "tls: {certificate: /nowhere/cert.pem, key: /nowhere/key.pem}\n";
    std::fs::write(&path, tls.replace("maxConnections: 100", "maxConnections: 0")).expect("a file");
    let rejected = reloader.reload_now().expect_err("there is no certificate");
    assert!(rejected.text.contains("/nowhere/cert.pem"), "{rejected}");
    assert_eq!(gateway.request(get("a.test")).status(), 200, "no half of it is in force");
    std::fs::write(&path, good.replace("maxConnections: 100", "maxConnections: 0")).expect("a file");
    assert_eq!(reloader.reload_now().expect("valid").changed, 1);
    assert_eq!(gateway.request(get("a.test")).status(), 429);
    assert_eq!(client.request(get("a.test")).status(), 200);
    std::fs::remove_dir_all(&directory).expect("it is there");
    drop((client, reloader));
    gateway.end();
}

/// A pending restart is reported until the restart or until the settings match again.
#[test]
fn pending_restart_is_reported_until_resolved() {
    let backend = TestBackend::echo();
    let text = file("", "", &[&backend]);
    let gateway = TestGateway::new(&text);
    let elsewhere = text.replace("listen: 127.0.0.1:0", "listen: 127.0.0.1:19");
    let restarts =
        [&elsewhere, &elsewhere, &text, &text, &elsewhere].map(|text| gateway.reload(text).needs_restart);
    assert_eq!(restarts, [true, true, false, false, true]);
    gateway.end();
}
