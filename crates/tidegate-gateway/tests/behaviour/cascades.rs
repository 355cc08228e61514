//! The cascade of client rules: every combination against an oracle.

use tidegate::model::Capacity;
use tidegate_gateway::settings::Allowance;
use tidegate_gateway::{LimitLevel, RefusalKind, Scope, cascade};

use crate::fixture::{EXAMPLE, limits, manager, manager_with};

const CONFIGURED: [&str; 6] = ["-1", "0", "7", "9", "inherit", "unlimited"];

/// The oracle: the first level that is not -1 or inherit.
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
    crate::fixture::spec(&text).server.limits.max_qps_per_client
}

#[test]
fn every_combination_matches_the_oracle() {
    for route in CONFIGURED {
        for backend in CONFIGURED {
            for server in CONFIGURED {
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

/// The number of requests and of connections that one client gets at once.
fn allowed(host: &str, backend: &str) -> (usize, usize) {
    let (manager, _clock) = manager_with(EXAMPLE);
    let requests = (0..3000).take_while(|_| manager.try_acquire(backend, b"c", Some(host)).is_ok()).count();
    let mut open = Vec::new();
    while let Ok(connection) = manager.try_acquire_connection(backend, b"c", Some(host)) {
        open.push(connection);
    }
    (requests, open.len())
}

#[test]
fn example_hosts_get_the_expected_client_limits() {
    assert_eq!(allowed("api.example.com", "api-service"), (100, 20));
    assert_eq!(allowed("other.example.com", "api-service"), (50, 10));
    assert_eq!(allowed("plain.example.com", "plain"), (10, 5));
    assert_eq!(allowed("mixed.example.com", "api-service"), (100, 10));
}

#[test]
fn level_limits_do_not_cascade() {
    let (manager, _clock) = manager_with(EXAMPLE);
    let ask = |route: &str, client: u32| {
        manager
            .try_acquire("api-service", &client.to_be_bytes(), Some(route))
            .map_err(|refusal| refusal.level)
    };
    // Each client sends one request, so that no client rule refuses.
    let at_route = (0..5_000).map(|client| ask("api.example.com", client)).take_while(Result::is_ok).count();
    assert_eq!(at_route, 500);
    assert_eq!(ask("api.example.com", 9999), Err(LimitLevel::Route));
    let at_backend =
        (10_000..15_000).map(|client| ask("other.example.com", client)).take_while(Result::is_ok).count();
    assert_eq!(at_backend, 500, "the backend's thousand is shared by its routes");
    assert_eq!(ask("other.example.com", 9999), Err(LimitLevel::Backend));
    let plain = (20_000_u32..25_000).map(|client| manager.try_acquire("plain", &client.to_be_bytes(), None));
    assert_eq!(plain.take_while(Result::is_ok).count(), 1000, "the server limit is shared");
    let refusal = manager.try_acquire("plain", b"new", None).expect_err("2000 are 2000");
    assert_eq!(
        (refusal.level, refusal.limit, refusal.kind),
        (LimitLevel::Server, 2000, RefusalKind::Requests)
    );
}

#[test]
fn block_of_defaults_sets_no_limits() {
    let (manager, _clock) = manager();
    assert_eq!(manager.update_server_rate_limit_config(Some(limits(-1, -1, -1, -1))), Ok(false));
    assert_eq!(manager.update_server_rate_limit_config(None), Ok(false));
    assert!((0..10_000).all(|_| manager.try_acquire("b", b"c", None).is_ok()));
}

#[test]
fn limit_of_zero_refuses_everything_without_retry_time() {
    let (manager, _clock) = manager();
    manager.update_route_limiter("r", Some(limits(0, 0, -1, -1))).expect("valid");
    let refusal = manager.try_acquire("b", b"c", Some("r")).expect_err("zero is zero");
    assert_eq!((refusal.level, refusal.limit, refusal.retry_after), (LimitLevel::Route, 0, None));
    assert!(manager.try_acquire_connection("b", b"c", Some("r")).is_err());
    assert!(manager.try_acquire("b", b"c", None).is_ok(), "without a route its limit does not apply");
}
