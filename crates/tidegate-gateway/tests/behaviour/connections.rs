//! Connections: leases at every level, given back once.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tidegate::{Memory, Store, SystemClock};
use tidegate_gateway::{Counted, Kind, Level, RateLimitManager};

use crate::fixture::{DOCUMENT, limits, manager, managing};

#[test]
fn a_refusal_leaves_nothing_behind() {
    let (manager, _clock) = manager();
    manager.update_server_rate_limit_config(Some(limits(-1, 10, -1, 2))).expect("it makes sense");
    let one = manager.try_acquire_connection("b", b"c", Some("r")).expect("the first");
    let two = manager.try_acquire_connection("b", b"c", Some("r")).expect("the second");
    let refusal = manager.try_acquire_connection("b", b"c", Some("r")).expect_err("two are two");
    assert_eq!((refusal.kind, refusal.level, refusal.limit), (Kind::Connections, Level::Client, 2));
    assert_eq!(refusal.kind.body(), "Too Many Connections");
    for whose in [Counted::Server, Counted::Backend("b"), Counted::Route("r"), Counted::Client(b"c")] {
        assert_eq!(manager.current_connections(whose), 2, "{whose:?}");
    }
    drop(one);
    manager.release_connection(two);
    for whose in [Counted::Server, Counted::Backend("b"), Counted::Route("r"), Counted::Client(b"c")] {
        assert_eq!(manager.current_connections(whose), 0, "{whose:?}");
    }
    assert_eq!(manager.store().leases(), 0);
}

#[test]
fn the_first_level_that_refuses_is_told() {
    for (server, route, backend, client, expected) in [
        (0, 0, 0, 0, Level::Server),
        (-1, 0, 0, 0, Level::Route),
        (-1, -1, 0, 0, Level::Backend),
        (-1, -1, -1, 0, Level::Client),
    ] {
        let (manager, _clock) = manager();
        manager
            .update_server_rate_limit_config(Some(limits(-1, server, -1, client)))
            .expect("it makes sense");
        manager.update_route_limiter("r", Some(limits(-1, route, -1, -1))).expect("it makes sense");
        manager.update_backend_limiter("b", Some(limits(-1, backend, -1, -1))).expect("it makes sense");
        let refusal = manager.try_acquire_connection("b", b"c", Some("r")).expect_err("zero is zero");
        assert_eq!(refusal.level, expected);
    }
}

#[test]
fn a_connection_is_counted_at_the_door_and_again_where_it_goes() {
    let (manager, _clock) = managing(DOCUMENT);
    let api = manager.plan("api-service", Some("api.example.com"));
    let other = manager.plan("api-service", Some("other.example.com"));
    let connection = manager.accept(Some(b"c")).expect("nobody is here");
    assert_eq!(manager.current_connections(Counted::Server), 1);
    assert_eq!(manager.current_connections(Counted::Client(b"c")), 1);
    assert_eq!(manager.current_connections(Counted::Backend("api-service")), 0);
    for _ in 0..3 {
        manager.enter(&connection, &api).expect("there is room");
        manager.enter(&connection, &other).expect("there is room");
    }
    assert_eq!(manager.current_connections(Counted::Route("api.example.com")), 1);
    assert_eq!(manager.current_connections(Counted::Route("other.example.com")), 1);
    assert_eq!(manager.current_connections(Counted::Backend("api-service")), 1, "one connection is one");
    assert_eq!(manager.current_connections(Counted::Server), 1);
    drop(connection);
    assert_eq!(manager.store().leases(), 0);
    assert_eq!(manager.current_connections(Counted::Backend("api-service")), 0);
}

#[test]
fn the_door_lets_in_what_the_widest_route_would() {
    let (manager, _clock) = managing(DOCUMENT);
    let open: Vec<_> = (0..20).map(|_| manager.accept(Some(b"c")).expect("20 may come")).collect();
    let refusal = manager.accept(Some(b"c")).expect_err("no route gives more than 20");
    assert_eq!((refusal.level, refusal.limit), (Level::Client, 20));
    let plain = manager.plan("plain", Some("plain.example.com"));
    let entered = open.iter().filter(|connection| manager.enter(connection, &plain).is_ok()).count();
    assert_eq!(entered, 5);
    let api = manager.plan("api-service", Some("api.example.com"));
    assert!(open.iter().all(|connection| manager.enter(connection, &api).is_ok()));
}

#[test]
fn a_proxys_connections_belong_to_no_client() {
    let (manager, _clock) = managing(DOCUMENT);
    let plain = manager.plan("plain", Some("plain.example.com"));
    let open: Vec<_> = (0..100).map(|_| manager.accept(None).expect("there is room")).collect();
    assert!(open.iter().all(|connection| manager.enter(connection, &plain).is_ok()));
    assert_eq!(manager.current_connections(Counted::Backend("plain")), 100);
}

#[test]
fn a_connection_may_stay_for_years() {
    let (manager, clock) = manager();
    manager.update_server_rate_limit_config(Some(limits(-1, 1, -1, -1))).expect("it makes sense");
    let connection = manager.accept(Some(b"c")).expect("nobody is here");
    clock.advance(Duration::from_secs(20 * 365 * 86_400));
    assert!(manager.accept(Some(b"d")).is_err());
    drop(connection);
    assert!(manager.accept(Some(b"d")).is_ok());
}

#[test]
fn a_count_can_be_set_and_is_never_below_what_is_open() {
    let (manager, _clock) = manager();
    manager.update_server_rate_limit_config(Some(limits(-1, 10, -1, -1))).expect("it makes sense");
    let open = manager.accept(Some(b"c")).expect("nobody is here");
    assert_eq!(manager.set_current_connections(Counted::Server, 7), 7);
    assert_eq!(manager.set_current_connections(Counted::Server, 99), 10, "the limit holds");
    assert!(manager.accept(Some(b"c")).is_err());
    assert_eq!(manager.set_current_connections(Counted::Server, 0), 1);
    drop(open);
    assert_eq!(manager.current_connections(Counted::Server), 0);
    assert_eq!(manager.set_current_connections(Counted::Client(b"d"), 3), 3);
    assert_eq!(manager.set_current_connections(Counted::Client(b"d"), 0), 0);
    assert_eq!(manager.set_current_connections(Counted::Backend("nobody"), 3), 0);
}

#[test]
fn threads_never_pass_a_limit_and_give_back_everything() {
    const MOST: i64 = 8;
    let manager = RateLimitManager::new(SystemClock::new(), Memory::default(), 1000);
    manager.update_server_rate_limit_config(Some(limits(-1, MOST, -1, 5))).expect("it makes sense");
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
                    let _refused_or_not = manager.enter(&connection, &plan);
                    if turn % 100 == 0 {
                        manager
                            .update_server_rate_limit_config(Some(limits(-1, MOST, 1_000_000, 5)))
                            .expect("it makes sense");
                    }
                    open.fetch_sub(1, Ordering::SeqCst);
                    drop(connection);
                }
            });
        }
    });
    assert!(highest.into_inner() <= MOST);
    assert!(granted.into_inner() > 0);
    assert_eq!(manager.current_connections(Counted::Server), 0);
    assert_eq!(manager.current_connections(Counted::Route("r")), 0);
    assert_eq!(manager.store().extent().map(|extent| extent.leases), Some(0));
}

#[test]
fn a_connection_counts_once_for_each_client_that_it_carries() {
    let (manager, _clock) = manager();
    manager.update_server_rate_limit_config(Some(limits(-1, -1, -1, 2))).expect("it makes sense");
    let plan = manager.plan("b", Some("r"));
    let proxies: Vec<_> = (0..3).map(|_| manager.accept(None).expect("a proxy is nobody's")).collect();
    for _ in 0..3 {
        for proxy in &proxies[..2] {
            manager.enter_as(proxy, &plan, b"c").expect("two of two");
        }
    }
    let refusal = manager.enter_as(&proxies[2], &plan, b"c").expect_err("a third");
    assert_eq!((refusal.kind, refusal.level, refusal.limit), (Kind::Connections, Level::Client, 2));
    assert_eq!(manager.current_connections(Counted::Route("r")), 2, "who is refused costs nothing");
    for proxy in &proxies[..2] {
        manager.enter_as(proxy, &plan, b"d").expect("two of two");
    }
    assert_eq!(manager.current_connections(Counted::Client(b"c")), 2);
    assert_eq!(manager.current_connections(Counted::Client(b"d")), 2);
    assert_eq!(manager.current_connections(Counted::Route("r")), 2, "one connection is one");
    assert_eq!(proxies[0].carried(), 2);
    // Another rule for clients holds elsewhere, and asks by itself.
    manager.update_route_limiter("s", Some(limits(-1, -1, -1, 1))).expect("it makes sense");
    let other = manager.plan("b", Some("s"));
    manager.enter_as(&proxies[0], &other, b"c").expect("one of one");
    manager.enter_as(&proxies[1], &other, b"c").expect_err("a second");
    // Who was here before a rule was moved stays where it was counted.
    manager.update_route_limiter("r", Some(limits(-1, -1, -1, 0))).expect("it makes sense");
    manager.enter_as(&proxies[0], &manager.plan("b", Some("r")), b"c").expect("nobody is cut off");
    drop(proxies);
    assert_eq!(manager.store().leases(), 0);
    assert_eq!(manager.current_connections(Counted::Client(b"c")), 0);
}
