//! Settings that change while the gateway runs: by an edit, by SIGHUP, by `POST /reload`.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::Value;

use super::backend::Backend;
use super::fixture::{Gateway, settings, wait_until};
use super::http_client::Wire;

/// What the server's limit of requests is now.
fn limit(gateway: &Gateway) -> Value {
    gateway.limits()["server"]["maxQps"]["limit"].clone()
}

#[test]
fn every_way_to_reload_acts_at_once() {
    let backend = Backend::quick();
    let of = |most: i64| settings(backend.port(), &format!("maxQps: {most}"), "");
    let gateway = Gateway::of(&of(-1));
    let mut client = Wire::to(gateway.address).expect("it listens");
    assert_eq!(client.get("/").is(200), "ok");

    gateway.write(&of(0));
    gateway.manage("POST /reload").is(200);
    assert_eq!(
        client.get("/").is(429),
        "Too Many Requests",
        "with the next request of a connection that stays"
    );

    gateway.write(&of(1000));
    gateway.signal("HUP");
    wait_until("SIGHUP was heard", || limit(&gateway) == 1000);
    assert_eq!(client.get("/").is(200), "ok");

    gateway.write(&of(0));
    wait_until("the edit was seen", || limit(&gateway) == 0);
    assert_eq!(client.get("/").is(429), "Too Many Requests");
    // Nobody was cut off: it was the same connection all the time, and it goes on.
    gateway.write(&of(-1));
    gateway.manage("POST /reload").is(200);
    assert_eq!(client.get("/").is(200), "ok");
    drop(client);
    gateway.end();
}

/// Settings that are of no use leave the former ones in force, whoever asks for them, and are told with all that is wrong.
#[test]
fn what_is_of_no_use_changes_nothing() {
    let backend = Backend::quick();
    let good = settings(backend.port(), "maxQps: 1000, maxQpsPerClient: 500", "");
    let gateway = Gateway::of(&good);
    let wrong = good
        .replace("maxQps: 1000", "maxQps: -7")
        .replace("routes: [{backend: b}]", "routes: [{backend: c}, {backend: d}]");
    gateway.write(&wrong);
    let told = gateway.manage("POST /reload").json(422);
    let errors: Vec<&str> =
        told["errors"].as_array().expect("errors").iter().filter_map(Value::as_str).collect();
    assert_eq!(errors.len(), 4, "{told}");
    for part in
        ["server.rateLimit.maxQps: must be -1", "no backend is called 'c'", "no backend is called 'd'"]
    {
        assert!(errors.iter().any(|error| error.contains(part)), "{part} is not in: {told}");
        gateway.err.wait_for(part);
    }
    assert_eq!(limit(&gateway), 1000, "nothing of it is in force");

    // Half a file, as an editor leaves it that is killed.
    for part in 1..8 {
        gateway.write(&good[..good.len() * part / 8]);
        let told = gateway.manage("POST /reload").json(422);
        assert!(told["errors"][0].as_str().is_some_and(|error| error.contains("gateway.yaml")), "{told}");
        assert_eq!(gateway.get("/").is(200), "ok");
    }
    let before = gateway.err.text().len();
    gateway.signal("HUP");
    wait_until("the log tells it", || gateway.err.text()[before..].contains("the former ones stay in force"));
    gateway.write(&good.replace("maxQps: 1000", "maxQps: minus"));
    wait_until("an edit is told too", || gateway.err.text()[before..].contains("found 'minus'"));
    assert_eq!((limit(&gateway), gateway.get("/").status), (Value::from(1000), 200));

    gateway.write(&good.replace("maxQps: 1000", "maxQps: 2000"));
    wait_until("it is mended", || limit(&gateway) == 2000);
    gateway.end();
}

#[test]
fn a_certificate_that_is_missing_is_told_and_nothing_changes() {
    let backend = Backend::quick();
    let good = settings(backend.port(), "maxQps: 1000", "");
    let gateway = Gateway::of(&good);
    gateway.write(&format!(
        "tls: {{certificate: /nonexistent/c.pem, key: k.pem}}\n{}",
        good.replace("1000", "0")
    ));
    let told = gateway.manage("POST /reload").json(422);
    assert!(told["errors"][0].as_str().is_some_and(|error| error.contains("/nonexistent/c.pem")), "{told}");
    assert_eq!((limit(&gateway), gateway.get("/").status), (Value::from(1000), 200));
    // Where it listens cannot change while it runs, and it says so.
    gateway.write(&good.replacen("listen: 127.0.0.1:0", "listen: 127.0.0.1:1", 1));
    gateway.manage("POST /reload").is(200);
    gateway.err.wait_for("waits for a restart");
    assert_eq!(gateway.get("/").is(200), "ok");
    gateway.end();
}

#[test]
fn values_may_come_from_the_environment() {
    let backend = Backend::quick();
    let of = |variable: &str| settings(backend.port(), &format!("maxQps: \"{variable}\""), "");
    let gateway = Gateway::of(&of("${env:LIMIT_OF_ALL}"));
    assert_eq!(limit(&gateway), 7);
    gateway.write(&of("${env:TIDEGATE_TEST_NONE:-11}"));
    gateway.manage("POST /reload").is(200);
    assert_eq!(limit(&gateway), 11);
    gateway.end();
}

/// A limit below what is open disconnects nobody, says so, and refuses until there is room.
#[test]
fn a_limit_below_what_is_open_lets_everybody_stay() {
    let backend = Backend::quick();
    let of = |most: i64| settings(backend.port(), &format!("maxConnections: {most}"), "");
    let gateway = Gateway::of(&of(-1));
    let mut clients: Vec<Wire> = (0..10)
        .map(|_| {
            let mut client = Wire::to(gateway.address).expect("it listens");
            client.get("/").is(200);
            client
        })
        .collect();
    gateway.write(&of(5));
    let told = gateway.manage("POST /reload").json(200);
    assert_eq!(
        (&told["overfull"][0]["most"], &told["overfull"][0]["open"]),
        (&5.into(), &10.into()),
        "{told}"
    );
    for client in &mut clients {
        client.get("/").is(200);
    }
    assert_eq!(gateway.get("/").is(429), "Too Many Connections");
    clients.truncate(5);
    wait_until("five have left", || gateway.connections() == Some(5));
    assert_eq!(gateway.get("/").status, 429);
    clients.truncate(4);
    wait_until("there is room", || gateway.connections() == Some(4));
    gateway.get("/").is(200);
    drop(clients);
    wait_until("everybody has left", || gateway.connections() == Some(0));
    gateway.end();
}

#[test]
fn a_hundred_reloads_drop_no_request() {
    const CLIENTS: usize = 4;
    const RELOADS: usize = 100;
    let backend = Backend::quick();
    let of = |number: usize| {
        let rates = format!("maxQps: {}, maxConnections: {}", 1_000_000 + number, 1000 + number);
        settings(backend.port(), &rates, &format!("  idleTimeout: {}s", 60 + number))
    };
    let gateway = Gateway::with(&of(0), &["--access-log", "off"], super::fixture::Hearing::Out);
    let (is_over, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (is_over, served, address) = (&is_over, &served, gateway.address);
            scope.spawn(move || {
                let mut wire = Wire::to(address).expect("it listens");
                while !is_over.load(Ordering::SeqCst) {
                    // Half of them stay, the others come anew every time.
                    if number % 2 == 0 {
                        wire = Wire::to(address).expect("it listens");
                    }
                    assert_eq!(wire.get("/").is(200), "ok");
                    served.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let reload = |number: usize| {
            let before = served.load(Ordering::SeqCst);
            gateway.write(&of(number));
            gateway.manage("POST /reload").is(200);
            wait_until("requests were served meanwhile", || served.load(Ordering::SeqCst) > before);
        };
        // Whatever goes wrong, those who ask are told to stop.
        let reloaded =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (1..=RELOADS).for_each(reload)));
        is_over.store(true, Ordering::SeqCst);
        reloaded.expect("every reload is taken");
    });
    assert_eq!(limit(&gateway), 1_000_000 + RELOADS);
    assert_eq!(served.load(Ordering::SeqCst), backend.requests(), "each was made once");
    wait_until("everybody has left", || gateway.connections() == Some(0));
    gateway.end();
}
