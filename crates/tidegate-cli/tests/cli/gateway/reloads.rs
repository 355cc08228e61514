//! Reloads by a file change, by SIGHUP and by `POST /reload`.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::Value;

use super::backend::TestBackend;
use super::fixture::{TestGateway, settings, wait_until};
use super::http_client::HttpClient;

/// The server's current request limit.
fn server_qps_limit(gateway: &TestGateway) -> Value {
    gateway.limits()["server"]["maxQps"]["limit"].clone()
}

#[test]
fn every_reload_trigger_applies_at_once() {
    let backend = TestBackend::immediate();
    let of = |most: i64| settings(backend.port(), &format!("maxQps: {most}"), "");
    let gateway = TestGateway::of(&of(-1));
    let mut client = HttpClient::to(gateway.address).expect("it listens");
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
    wait_until("SIGHUP is processed", || server_qps_limit(&gateway) == 1000);
    assert_eq!(client.get("/").is(200), "ok");

    gateway.write(&of(0));
    wait_until("the edit was seen", || server_qps_limit(&gateway) == 0);
    assert_eq!(client.get("/").is(429), "Too Many Requests");
    // The same connection stays open through all reloads.
    gateway.write(&of(-1));
    gateway.manage("POST /reload").is(200);
    assert_eq!(client.get("/").is(200), "ok");
    drop(client);
    gateway.end();
}

/// Invalid settings leave the previous ones in effect, and all errors are reported.
#[test]
fn invalid_settings_change_nothing() {
    let backend = TestBackend::immediate();
    let good = settings(backend.port(), "maxQps: 1000, maxQpsPerClient: 500", "");
    let gateway = TestGateway::of(&good);
    let wrong = good
        .replace("maxQps: 1000", "maxQps: -7")
        .replace("routes: [{backend: b}]", "routes: [{backend: c}, {backend: d}]");
    gateway.write(&wrong);
    let response = gateway.manage("POST /reload").json(422);
    let errors: Vec<&str> =
        response["errors"].as_array().expect("errors").iter().filter_map(Value::as_str).collect();
    assert_eq!(errors.len(), 4, "{response}");
    for part in
        ["server.rateLimit.maxQps: must be -1", "no backend is called 'c'", "no backend is called 'd'"]
    {
        assert!(errors.iter().any(|error| error.contains(part)), "{part} is not in: {response}");
        gateway.err.wait_for(part);
    }
    assert_eq!(server_qps_limit(&gateway), 1000, "nothing of it is in force");

    // A truncated file, as left by a killed editor.
    for part in 1..8 {
        gateway.write(&good[..good.len() * part / 8]);
        let response = gateway.manage("POST /reload").json(422);
        assert!(
            response["errors"][0].as_str().is_some_and(|error| error.contains("gateway.yaml")),
            "{response}"
        );
        assert_eq!(gateway.get("/").is(200), "ok");
    }
    let before = gateway.err.text().len();
    gateway.signal("HUP");
    wait_until("the log tells it", || {
        gateway.err.text()[before..].contains("the previous settings stay in effect")
    });
    gateway.write(&good.replace("maxQps: 1000", "maxQps: minus"));
    wait_until("an edit is reported too", || gateway.err.text()[before..].contains("found 'minus'"));
    assert_eq!((server_qps_limit(&gateway), gateway.get("/").status), (Value::from(1000), 200));

    gateway.write(&good.replace("maxQps: 1000", "maxQps: 2000"));
    wait_until("it is mended", || server_qps_limit(&gateway) == 2000);
    gateway.end();
}

#[test]
fn missing_certificate_is_reported_and_changes_nothing() {
    let backend = TestBackend::immediate();
    let good = settings(backend.port(), "maxQps: 1000", "");
    let gateway = TestGateway::of(&good);
    gateway.write(&format!(
        "tls: {{certificate: /nonexistent/c.pem, key: k.pem}}\n{}",
        good.replace("1000", "0")
    ));
    let response = gateway.manage("POST /reload").json(422);
    assert!(
        response["errors"][0].as_str().is_some_and(|error| error.contains("/nonexistent/c.pem")),
        "{response}"
    );
    assert_eq!((server_qps_limit(&gateway), gateway.get("/").status), (Value::from(1000), 200));
    // The listen address cannot change at run time; the log says so.
    gateway.write(&good.replacen("listen: 127.0.0.1:0", "listen: 127.0.0.1:1", 1));
    gateway.manage("POST /reload").is(200);
    gateway.err.wait_for("restart the gateway to apply it");
    assert_eq!(gateway.get("/").is(200), "ok");
    gateway.end();
}

#[test]
fn settings_can_use_environment_variables() {
    let backend = TestBackend::immediate();
    let of = |variable: &str| settings(backend.port(), &format!("maxQps: \"{variable}\""), "");
    let gateway = TestGateway::of(&of("${env:LIMIT_OF_ALL}"));
    assert_eq!(server_qps_limit(&gateway), 7);
    gateway.write(&of("${env:TIDEGATE_TEST_NONE:-11}"));
    gateway.manage("POST /reload").is(200);
    assert_eq!(server_qps_limit(&gateway), 11);
    gateway.end();
}

/// A limit below the open connections keeps them, logs a warning and refuses new ones.
#[test]
fn limit_below_open_connections_keeps_them() {
    let backend = TestBackend::immediate();
    let of = |most: i64| settings(backend.port(), &format!("maxConnections: {most}"), "");
    let gateway = TestGateway::of(&of(-1));
    let mut clients: Vec<HttpClient> = (0..10)
        .map(|_| {
            let mut client = HttpClient::to(gateway.address).expect("it listens");
            client.get("/").is(200);
            client
        })
        .collect();
    gateway.write(&of(5));
    let response = gateway.manage("POST /reload").json(200);
    assert_eq!(
        (&response["overfull"][0]["most"], &response["overfull"][0]["open"]),
        (&5.into(), &10.into()),
        "{response}"
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
    wait_until("all connections are closed", || gateway.connections() == Some(0));
    gateway.end();
}

#[test]
fn hundred_reloads_drop_no_request() {
    const CLIENTS: usize = 4;
    const RELOADS: usize = 100;
    let backend = TestBackend::immediate();
    let of = |number: usize| {
        let rates = format!("maxQps: {}, maxConnections: {}", 1_000_000 + number, 1000 + number);
        settings(backend.port(), &rates, &format!("  idleTimeout: {}s", 60 + number))
    };
    let gateway = TestGateway::with(&of(0), &["--access-log", "off"], super::fixture::LogCapture::Stdout);
    let (is_over, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (is_over, served, address) = (&is_over, &served, gateway.address);
            scope.spawn(move || {
                let mut wire = HttpClient::to(address).expect("it listens");
                while !is_over.load(Ordering::SeqCst) {
                    // Half of the clients stay; the others reconnect every time.
                    if number % 2 == 0 {
                        wire = HttpClient::to(address).expect("it listens");
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
        // Stop the clients even if the test fails.
        let reloaded =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (1..=RELOADS).for_each(reload)));
        is_over.store(true, Ordering::SeqCst);
        reloaded.expect("every reload is taken");
    });
    assert_eq!(server_qps_limit(&gateway), 1_000_000 + RELOADS);
    assert_eq!(served.load(Ordering::SeqCst), backend.requests(), "each was made once");
    wait_until("all connections are closed", || gateway.connections() == Some(0));
    gateway.end();
}
