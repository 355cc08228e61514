//! Connections: leases at every level, released exactly once.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tidegate::clock::SystemClock;
use tidegate::store::{Memory, Store};
use tidegate_gateway::{ConnectionCounter, LimitLevel, RateLimitManager, RefusalKind};

use crate::fixture::{EXAMPLE, limits, manager, manager_with};

#[test]
fn refused_connection_leaves_no_leases() {
    let (manager, _clock) = manager();
    manager.update_server_rate_limit_config(Some(limits(-1, 10, -1, 2))).expect("valid");
    let one = manager.try_acquire_connection("b", b"c", Some("r")).expect("the first");
    let two = manager.try_acquire_connection("b", b"c", Some("r")).expect("the second");
    let refusal = manager.try_acquire_connection("b", b"c", Some("r")).expect_err("two are two");
    assert_eq!(
        (refusal.kind, refusal.level, refusal.limit),
        (RefusalKind::Connections, LimitLevel::Client, 2)
    );
    assert_eq!(refusal.kind.body(), "Too Many Connections");
    for whose in [
        ConnectionCounter::Server,
        ConnectionCounter::Backend("b"),
        ConnectionCounter::Route("r"),
        ConnectionCounter::Client(b"c"),
    ] {
        assert_eq!(manager.current_connections(whose), 2, "{whose:?}");
    }
    drop(one);
    manager.release_connection(two);
    for whose in [
        ConnectionCounter::Server,
        ConnectionCounter::Backend("b"),
        ConnectionCounter::Route("r"),
        ConnectionCounter::Client(b"c"),
    ] {
        assert_eq!(manager.current_connections(whose), 0, "{whose:?}");
    }
    assert_eq!(manager.store().leases(), 0);
}

#[test]
fn refusal_reports_the_first_refusing_level() {
    for (server, route, backend, client, expected) in [
        (0, 0, 0, 0, LimitLevel::Server),
        (-1, 0, 0, 0, LimitLevel::Route),
        (-1, -1, 0, 0, LimitLevel::Backend),
        (-1, -1, -1, 0, LimitLevel::Client),
    ] {
        let (manager, _clock) = manager();
        manager.update_server_rate_limit_config(Some(limits(-1, server, -1, client))).expect("valid");
        manager.update_route_limiter("r", Some(limits(-1, route, -1, -1))).expect("valid");
        manager.update_backend_limiter("b", Some(limits(-1, backend, -1, -1))).expect("valid");
        let refusal = manager.try_acquire_connection("b", b"c", Some("r")).expect_err("zero is zero");
        assert_eq!(refusal.level, expected);
    }
}

#[test]
fn connection_is_counted_at_accept_and_at_each_route() {
    let (manager, _clock) = manager_with(EXAMPLE);
    let api = manager.plan("api-service", Some("api.example.com"));
    let other = manager.plan("api-service", Some("other.example.com"));
    let connection = manager.accept(Some(b"c")).expect("no connection is open");
    assert_eq!(manager.current_connections(ConnectionCounter::Server), 1);
    assert_eq!(manager.current_connections(ConnectionCounter::Client(b"c")), 1);
    assert_eq!(manager.current_connections(ConnectionCounter::Backend("api-service")), 0);
    for _ in 0..3 {
        manager.admit_to_route(&connection, &api).expect("there is room");
        manager.admit_to_route(&connection, &other).expect("there is room");
    }
    assert_eq!(manager.current_connections(ConnectionCounter::Route("api.example.com")), 1);
    assert_eq!(manager.current_connections(ConnectionCounter::Route("other.example.com")), 1);
    assert_eq!(
        manager.current_connections(ConnectionCounter::Backend("api-service")),
        1,
        "one connection is one"
    );
    assert_eq!(manager.current_connections(ConnectionCounter::Server), 1);
    drop(connection);
    assert_eq!(manager.store().leases(), 0);
    assert_eq!(manager.current_connections(ConnectionCounter::Backend("api-service")), 0);
}

#[test]
fn accept_admits_up_to_the_largest_route_limit() {
    let (manager, _clock) = manager_with(EXAMPLE);
    let open: Vec<_> = (0..20).map(|_| manager.accept(Some(b"c")).expect("20 may come")).collect();
    let refusal = manager.accept(Some(b"c")).expect_err("no route gives more than 20");
    assert_eq!((refusal.level, refusal.limit), (LimitLevel::Client, 20));
    let plain = manager.plan("plain", Some("plain.example.com"));
    let entered = open.iter().filter(|connection| manager.admit_to_route(connection, &plain).is_ok()).count();
    assert_eq!(entered, 5);
    let api = manager.plan("api-service", Some("api.example.com"));
    assert!(open.iter().all(|connection| manager.admit_to_route(connection, &api).is_ok()));
}

#[test]
fn proxy_connections_count_for_no_client() {
    let (manager, _clock) = manager_with(EXAMPLE);
    let plain = manager.plan("plain", Some("plain.example.com"));
    let open: Vec<_> = (0..100).map(|_| manager.accept(None).expect("there is room")).collect();
    assert!(open.iter().all(|connection| manager.admit_to_route(connection, &plain).is_ok()));
    assert_eq!(manager.current_connections(ConnectionCounter::Backend("plain")), 100);
}

#[test]
fn connection_lease_does_not_expire_for_years() {
    let (manager, clock) = manager();
    manager.update_server_rate_limit_config(Some(limits(-1, 1, -1, -1))).expect("valid");
    let connection = manager.accept(Some(b"c")).expect("no connection is open");
    clock.advance(Duration::from_secs(20 * 365 * 86_400));
    assert!(manager.accept(Some(b"d")).is_err());
    drop(connection);
    assert!(manager.accept(Some(b"d")).is_ok());
}

#[test]
fn set_count_never_drops_open_connections() {
    let (manager, _clock) = manager();
    manager.update_server_rate_limit_config(Some(limits(-1, 10, -1, -1))).expect("valid");
    let open = manager.accept(Some(b"c")).expect("no connection is open");
    assert_eq!(manager.set_current_connections(ConnectionCounter::Server, 7), 7);
    assert_eq!(manager.set_current_connections(ConnectionCounter::Server, 99), 10, "the limit holds");
    assert!(manager.accept(Some(b"c")).is_err());
    assert_eq!(manager.set_current_connections(ConnectionCounter::Server, 0), 1);
    drop(open);
    assert_eq!(manager.current_connections(ConnectionCounter::Server), 0);
    assert_eq!(manager.set_current_connections(ConnectionCounter::Client(b"d"), 3), 3);
    assert_eq!(manager.set_current_connections(ConnectionCounter::Client(b"d"), 0), 0);
    assert_eq!(manager.set_current_connections(ConnectionCounter::Backend("unknown"), 3), 0);
}

#[test]
fn concurrent_connections_never_exceed_a_limit_and_release_all() {
    const MOST: i64 = 8;
    let manager = RateLimitManager::new(SystemClock::new(), Memory::default(), 1000);
    manager.update_server_rate_limit_config(Some(limits(-1, MOST, -1, 5))).expect("valid");
    let (open, highest, granted) = (AtomicI64::new(0), AtomicI64::new(0), AtomicI64::new(0));
    std::thread::scope(|threads| {
        for thread in 0_u8..8 {
            let (manager, open, highest, granted) = (&manager, &open, &highest, &granted);
            threads.spawn(move || {
                let plan = manager.plan("b", Some("r"));
                for turn in 0_u32..2_000 {
                    let Ok(connection) = manager.accept(Some(&[thread % 3])) else { continue };
                    let now = open.fetch_add(1, Ordering::SeqCst) + 1;
                    highest.fetch_max(now, Ordering::SeqCst);
                    granted.fetch_add(1, Ordering::SeqCst);
                    let _refused_or_not = manager.admit_to_route(&connection, &plan);
                    if turn % 100 == 0 {
                        manager
                            .update_server_rate_limit_config(Some(limits(-1, MOST, 1_000_000, 5)))
                            .expect("valid");
                    }
                    open.fetch_sub(1, Ordering::SeqCst);
                    drop(connection);
                }
            });
        }
    });
    assert!(highest.into_inner() <= MOST);
    assert!(granted.into_inner() > 0);
    assert_eq!(manager.current_connections(ConnectionCounter::Server), 0);
    assert_eq!(manager.current_connections(ConnectionCounter::Route("r")), 0);
    assert_eq!(manager.store().size().map(|size| size.leases), Some(0));
}

#[test]
fn connection_counts_once_for_each_forwarded_client() {
    let (manager, _clock) = manager();
    manager.update_server_rate_limit_config(Some(limits(-1, -1, -1, 2))).expect("valid");
    let plan = manager.plan("b", Some("r"));
    let proxies: Vec<_> = (0..3).map(|_| manager.accept(None).expect("no client limit applies")).collect();
    for _ in 0..3 {
        for proxy in &proxies[..2] {
            manager.admit_client_to_route(proxy, &plan, b"c").expect("two of two");
        }
    }
    let refusal = manager.admit_client_to_route(&proxies[2], &plan, b"c").expect_err("a third");
    assert_eq!(
        (refusal.kind, refusal.level, refusal.limit),
        (RefusalKind::Connections, LimitLevel::Client, 2)
    );
    assert_eq!(manager.current_connections(ConnectionCounter::Route("r")), 2, "a refusal spends nothing");
    for proxy in &proxies[..2] {
        manager.admit_client_to_route(proxy, &plan, b"d").expect("two of two");
    }
    assert_eq!(manager.current_connections(ConnectionCounter::Client(b"c")), 2);
    assert_eq!(manager.current_connections(ConnectionCounter::Client(b"d")), 2);
    assert_eq!(manager.current_connections(ConnectionCounter::Route("r")), 2, "one connection is one");
    assert_eq!(proxies[0].forwarded_clients(), 2);
    // The client rule of another scope applies separately.
    manager.update_route_limiter("s", Some(limits(-1, -1, -1, 1))).expect("valid");
    let other = manager.plan("b", Some("s"));
    manager.admit_client_to_route(&proxies[0], &other, b"c").expect("one of one");
    manager.admit_client_to_route(&proxies[1], &other, b"c").expect_err("a second");
    // A connection admitted before its rule moved stays where it was counted.
    manager.update_route_limiter("r", Some(limits(-1, -1, -1, 0))).expect("valid");
    manager
        .admit_client_to_route(&proxies[0], &manager.plan("b", Some("r")), b"c")
        .expect("open connections stay");
    drop(proxies);
    assert_eq!(manager.store().leases(), 0);
    assert_eq!(manager.current_connections(ConnectionCounter::Client(b"c")), 0);
}
