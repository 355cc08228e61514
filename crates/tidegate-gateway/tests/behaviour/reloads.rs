//! Reloads: counts are kept, only changes are applied, and tightened limits are reported.

use std::time::Duration;

use tidegate_gateway::limits::OverfullLimit;
use tidegate_gateway::{ConnectionCounter, ReloadSummary};

use crate::fixture::{EXAMPLE, limits, manager, manager_with, spec};

#[test]
fn equal_settings_change_nothing() {
    let (manager, _clock) = manager_with(EXAMPLE);
    assert_eq!(manager.reload(&spec(EXAMPLE)), Ok(ReloadSummary::default()));
    assert_eq!(manager.update_backend_limiter("api-service", Some(limits(1000, 5000, 50, 10))), Ok(false));
    assert_eq!(manager.update_backend_limiter("api-service", Some(limits(1001, 5000, 50, 10))), Ok(true));
    let back = manager.reload(&spec(EXAMPLE)).expect("valid");
    assert_eq!(back.changed, 1, "only what changed");
}

#[test]
fn hundred_reloads_never_exceed_the_limit() {
    let (manager, _clock) = manager();
    let mut open = Vec::new();
    for round in 0..100 {
        // Every reload changes something, so that none is skipped.
        manager.update_backend_limiter("b", Some(limits(round, 100, -1, -1))).expect("valid");
        while let Ok(connection) = manager.try_acquire_connection("b", b"c", None) {
            open.push(connection);
        }
        assert!(open.len() <= 100, "{}", open.len());
        open.truncate(90);
    }
    open.clear();
    assert_eq!(manager.current_connections(ConnectionCounter::Backend("b")), 0);
}

#[test]
fn new_connection_limit_counts_existing_connections() {
    let (manager, _clock) = manager();
    let mut open: Vec<_> =
        (0..10).map(|_| manager.try_acquire_connection("b", b"c", Some("r")).expect("no limit")).collect();
    manager.update_backend_limiter("b", Some(limits(-1, 5, -1, -1))).expect("valid");
    while open.len() > 4 {
        assert!(manager.try_acquire_connection("b", b"c", Some("r")).is_err(), "{} are open", open.len());
        open.pop();
    }
    open.push(manager.try_acquire_connection("b", b"c", Some("r")).expect("four are left"));
    assert!(manager.try_acquire_connection("b", b"c", Some("r")).is_err());
    open.clear();
    assert_eq!(manager.current_connections(ConnectionCounter::Backend("b")), 0);
    assert_eq!(manager.store().leases(), 0);
}

#[test]
fn new_server_client_limit_counts_existing_connections() {
    let (manager, _clock) = manager();
    let mut open: Vec<_> =
        (0..10).map(|_| manager.try_acquire_connection("b", b"c", None).expect("no limit")).collect();
    manager.update_server_rate_limit_config(Some(limits(-1, -1, -1, 5))).expect("valid");
    assert!(manager.try_acquire_connection("b", b"d", None).is_ok());
    open.truncate(5);
    assert!(manager.try_acquire_connection("b", b"c", None).is_err());
    open.truncate(4);
    assert!(manager.try_acquire_connection("b", b"c", None).is_ok());
}

/// The same for client rules at routes and backends, in either order.
#[test]
fn new_route_or_backend_client_limit_counts_existing_connections() {
    for at_route in [true, false] {
        let (manager, _clock) = manager();
        manager.update_backend_limiter("b", None).expect("valid");
        manager.update_route_limiter("r", None).expect("valid");
        let come = || manager.try_acquire_connection("b", b"c", Some("r"));
        let mut open: Vec<_> = (0..10).map(|_| come().expect("there is no limit")).collect();
        let five = Some(limits(-1, -1, -1, 5));
        let changed = if at_route {
            manager.update_route_limiter("r", five)
        } else {
            manager.update_backend_limiter("b", five)
        };
        assert_eq!(changed, Ok(true));
        while open.len() > 4 {
            assert!(come().is_err(), "{} are there", open.len());
            open.pop();
        }
        open.push(come().expect("the fifth"));
        assert!(come().is_err());
        let other = manager.try_acquire_connection("b", b"d", Some("r"));
        assert!(other.is_ok(), "another client is another");
        drop((other, open));
        assert_eq!(manager.store().leases(), 0);
    }
}

/// A new request limit counts the second before it, at every level, exact or bucketed.
#[test]
fn new_request_limit_counts_the_previous_second() {
    for most in [5, 5_000] {
        let (manager, clock) = manager();
        manager.update_backend_limiter("b", None).expect("valid");
        manager.update_route_limiter("r", None).expect("valid");
        let ask = || manager.try_acquire("b", b"c", Some("r"));
        let update = |level: &str, most| match level {
            "server" => {
                manager.update_server_rate_limit_config(Some(limits(most, -1, -1, -1))).expect("a limit")
            }
            "backend" => {
                manager.update_backend_limiter("b", Some(limits(most, -1, -1, -1))).expect("a limit")
            }
            _ => manager.update_route_limiter("r", Some(limits(most, -1, -1, -1))).expect("a limit"),
        };
        for level in ["server", "backend", "route"] {
            update(level, 1_000_000);
            update(level, -1);
            clock.advance(Duration::from_secs(5));
            (0..most).for_each(|_| ask().expect("there is no limit"));
            clock.advance(Duration::from_millis(500));
            update(level, most);
            let refusal = ask().expect_err("as many were let through in this second");
            let wait = refusal.retry_after.expect("time helps");
            assert!(
                (Duration::from_millis(500)..Duration::from_millis(520)).contains(&wait),
                "{level}: {wait:?}"
            );
            clock.advance(wait);
            ask().expect("they are a second old");
            update(level, -1);
        }
    }
}

#[test]
fn tightened_limit_reports_overfull_and_keeps_connections() {
    let text = |most: &str| {
        spec(&format!(
            "{{server: {{rateLimit: {{maxConnections: {most}}}}}, backends: [{{name: b, endpoints: [{{host: h, port: 1}}]}}], routes: []}}"
        ))
    };
    let (manager, _clock) = manager();
    assert!(manager.reload(&text("10000")).expect("valid").overfull.is_empty());
    let mut open: Vec<_> = (0..6000).map(|_| manager.accept(None).expect("there is room")).collect();
    let reloaded = manager.reload(&text("5000")).expect("valid");
    let warning = OverfullLimit { limit_id: "server/connections".to_owned(), most: 5000, open: 6000 };
    assert_eq!(reloaded.overfull, [warning]);
    assert_eq!(manager.current_connections(ConnectionCounter::Server), 6000);
    open.truncate(5000);
    assert!(manager.accept(None).is_err());
    open.truncate(4999);
    assert!(manager.accept(None).is_ok());
    assert!(manager.reload(&text("-1")).expect("valid").overfull.is_empty(), "no limit is not below");
}

#[test]
fn request_counts_survive_reloads_except_on_a_fixed_window() {
    for (window, expected) in [("sliding", 20), ("fixed", 20 + 10 + 20)] {
        let text = |most: u64| {
            spec(&format!(
                "{{server: {{rateLimit: {{maxQps: {most}, window: {window}}}}}, backends: [{{name: b, endpoints: [{{host: h, port: 1}}]}}], routes: []}}"
            ))
        };
        let (manager, clock) = manager();
        manager.reload(&text(20)).expect("valid");
        clock.advance(Duration::from_millis(10));
        let mut granted = 0;
        for most in [20, 10, 20] {
            manager.reload(&text(most)).expect("valid");
            granted += (0..100).filter(|_| manager.try_acquire("b", b"c", None).is_ok()).count();
        }
        assert_eq!(granted, expected, "{window}");
    }
}

#[test]
fn restored_route_counts_its_open_connections() {
    let without = EXAMPLE.replace("  - {host: plain.example.com, backend: plain}\n", "");
    assert_ne!(without, EXAMPLE);
    let (manager, _clock) = manager_with(EXAMPLE);
    let plan = manager.plan("plain", Some("plain.example.com"));
    let mut open = Vec::new();
    for client in 0_u8..2 {
        let connection = manager.accept(Some(&[client])).expect("there is room");
        manager.admit_to_route(&connection, &plan).expect("there is room");
        open.push(connection);
    }
    manager.reload(&spec(&without)).expect("valid");
    assert_eq!(
        manager.current_connections(ConnectionCounter::Route("plain.example.com")),
        0,
        "the name is unknown"
    );
    open.pop();
    manager.reload(&spec(EXAMPLE)).expect("valid");
    assert_eq!(manager.current_connections(ConnectionCounter::Route("plain.example.com")), 1);
    open.pop();
    assert_eq!(manager.current_connections(ConnectionCounter::Route("plain.example.com")), 0);
    assert_eq!(manager.store().leases(), 0);
}

#[test]
fn long_and_unusual_names_get_distinct_limits() {
    let (manager, _clock) = manager();
    let long = "x/*".repeat(300);
    for name in ["a b", "a:20b", "a/b", "a::b", "é", "*", long.as_str(), &format!("{long}y")] {
        manager.update_backend_limiter(name, Some(limits(1, -1, -1, -1))).expect("valid");
        assert!(manager.try_acquire(name, b"c", None).is_ok(), "{name} is a name of its own");
        assert!(manager.try_acquire(name, b"c", None).is_err(), "{name}");
    }
}
