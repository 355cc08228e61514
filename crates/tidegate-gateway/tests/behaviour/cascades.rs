//! Whose rule holds for a client: every combination, against the document's sentence.

use tidegate::Capacity;
use tidegate_gateway::settings::Allowance;
use tidegate_gateway::{Kind, Level, Scope, cascade};

use crate::stage::{DOCUMENT, limits, manager, managing};

const WRITTEN: [&str; 6] = ["-1", "0", "7", "9", "inherit", "unlimited"];

/// The document's sentence: the first level that says something else than -1 or inherit.
fn oracle(levels: [&str; 3]) -> (usize, i64) {
    for (place, word) in levels.iter().enumerate() {
        match *word {
            "-1" | "inherit" => {}
            "unlimited" => return (place, -1),
            number => return (place, number.parse().expect("a number")),
        }
    }
    (2, -1)
}

fn read(word: &str) -> Allowance {
    let text = format!(
        "{{server: {{rateLimit: {{maxQpsPerClient: {word}}}}}, backends: [{{name: b, endpoints: [{{host: h, port: 1}}]}}], routes: []}}"
    );
    crate::stage::spec(&text).server.limits.max_qps_per_client
}

#[test]
fn every_combination_is_as_the_oracle_says() {
    for route in WRITTEN {
        for backend in WRITTEN {
            for server in WRITTEN {
                let (place, number) = oracle([route, backend, server]);
                let applied = cascade(read(route), read(backend), read(server));
                let scope = [Scope::Route, Scope::Backend, Scope::Server][place];
                let capacity = u64::try_from(number).map_or(Capacity::Unlimited, Capacity::AtMost);
                assert_eq!(
                    (applied.scope, applied.capacity),
                    (scope, capacity),
                    "{route} {backend} {server}"
                );
            }
        }
    }
}

/// How many requests, and how many connections, a client gets at once.
fn allowed(host: &str, backend: &str) -> (usize, usize) {
    let (manager, _clock) = managing(DOCUMENT);
    let requests = (0..3000).take_while(|_| manager.try_acquire(backend, b"c", Some(host)).is_ok()).count();
    let mut open = Vec::new();
    while let Ok(connection) = manager.try_acquire_connection(backend, b"c", Some(host)) {
        open.push(connection);
    }
    (requests, open.len())
}

#[test]
fn the_documents_vectors() {
    assert_eq!(allowed("api.example.com", "api-service"), (100, 20));
    assert_eq!(allowed("other.example.com", "api-service"), (50, 10));
    assert_eq!(allowed("plain.example.com", "plain"), (10, 5));
    assert_eq!(allowed("mixed.example.com", "api-service"), (100, 10));
}

#[test]
fn limits_of_levels_do_not_cascade() {
    let (manager, _clock) = managing(DOCUMENT);
    let ask = |route: &str, client: u32| {
        manager
            .try_acquire("api-service", &client.to_be_bytes(), Some(route))
            .map_err(|refusal| refusal.level)
    };
    // Each client once, so that no client's rule refuses.
    let at_route = (0..5_000).map(|client| ask("api.example.com", client)).take_while(Result::is_ok).count();
    assert_eq!(at_route, 500);
    assert_eq!(ask("api.example.com", 9999), Err(Level::Route));
    let at_backend =
        (10_000..15_000).map(|client| ask("other.example.com", client)).take_while(Result::is_ok).count();
    assert_eq!(at_backend, 500, "the backend's thousand is shared by its routes");
    assert_eq!(ask("other.example.com", 9999), Err(Level::Backend));
    let plain = (20_000_u32..25_000).map(|client| manager.try_acquire("plain", &client.to_be_bytes(), None));
    assert_eq!(plain.take_while(Result::is_ok).count(), 1000, "the server's two thousand are everybody's");
    let refusal = manager.try_acquire("plain", b"new", None).expect_err("2000 are 2000");
    assert_eq!((refusal.level, refusal.limit, refusal.kind), (Level::Server, 2000, Kind::Requests));
}

#[test]
fn a_block_of_defaults_is_no_block() {
    let (manager, _clock) = manager();
    assert_eq!(manager.update_server_rate_limit_config(Some(limits(-1, -1, -1, -1))), Ok(false));
    assert_eq!(manager.update_server_rate_limit_config(None), Ok(false));
    assert!((0..10_000).all(|_| manager.try_acquire("b", b"c", None).is_ok()));
}

#[test]
fn zero_refuses_everything_and_no_time_helps() {
    let (manager, _clock) = manager();
    manager.update_route_limiter("r", Some(limits(0, 0, -1, -1))).expect("it makes sense");
    let refusal = manager.try_acquire("b", b"c", Some("r")).expect_err("zero is zero");
    assert_eq!((refusal.level, refusal.limit, refusal.retry_after), (Level::Route, 0, None));
    assert!(manager.try_acquire_connection("b", b"c", Some("r")).is_err());
    assert!(manager.try_acquire("b", b"c", None).is_ok(), "without a route the route is not asked");
}
