//! Requests: combined levels, windows, retry times, scopes and bounds.

use std::time::Duration;

use tidegate::clock::SystemClock;
use tidegate::store::Memory;
use tidegate_gateway::settings::{Allowance, RateLimits};
use tidegate_gateway::{LimitLevel, RateLimitManager, RefusalKind};

use crate::fixture::{limits, manager, manager_with};

const MILLI: Duration = Duration::from_millis(1);

#[test]
fn request_above_limit_is_refused() {
    let (manager, clock) = manager();
    manager.update_server_rate_limit_config(Some(limits(3, -1, -1, -1))).expect("valid");
    for _ in 0..3 {
        assert!(manager.try_acquire("b", b"c", None).is_ok());
    }
    let refusal = manager.try_acquire("b", b"c", None).expect_err("three are three");
    assert_eq!((refusal.kind, refusal.level, refusal.limit), (RefusalKind::Requests, LimitLevel::Server, 3));
    let wait = refusal.retry_after.expect("time helps");
    clock.advance(wait.saturating_sub(Duration::from_nanos(1)));
    assert!(manager.try_acquire("b", b"c", None).is_err());
    clock.advance(Duration::from_nanos(1));
    assert!(manager.try_acquire("b", b"c", None).is_ok());
}

#[test]
fn refused_request_spends_nothing() {
    let (manager, _clock) = manager();
    manager.update_server_rate_limit_config(Some(limits(10, -1, 2, -1))).expect("valid");
    manager.update_backend_limiter("b", Some(limits(5, -1, -1, -1))).expect("valid");
    let greedy = (0..1000).filter(|_| manager.try_acquire("b", b"greedy", None).is_ok()).count();
    assert_eq!(greedy, 2);
    // The backend has three left, the server eight.
    let others = (0_u8..8).filter(|client| manager.try_acquire("b", &[*client], None).is_ok()).count();
    assert_eq!(others, 3);
    let elsewhere =
        (0_u8..8).filter(|client| manager.try_acquire("other", &[*client, 0], None).is_ok()).count();
    assert_eq!(elsewhere, 5);
}

#[test]
fn sliding_window_moves_and_fixed_window_follows_the_clock() {
    for (window, expected) in [("sliding", 100), ("fixed", 200)] {
        let text = format!(
            "{{server: {{rateLimit: {{maxQps: 100, window: {window}}}}}, backends: [{{name: b, endpoints: [{{host: h, port: 1}}]}}], routes: []}}"
        );
        let (manager, clock) = manager_with(&text);
        clock.advance(Duration::from_millis(999));
        let mut granted = (0..300).filter(|_| manager.try_acquire("b", b"c", None).is_ok()).count();
        clock.advance(MILLI);
        granted += (0..300).filter(|_| manager.try_acquire("b", b"c", None).is_ok()).count();
        assert_eq!(granted, expected, "{window}");
    }
}

#[test]
fn client_has_one_count_per_rule() {
    let (manager, _clock) = manager();
    manager.update_server_rate_limit_config(Some(limits(-1, -1, 2, -1))).expect("valid");
    manager.update_route_limiter("wide", Some(limits(-1, -1, 4, -1))).expect("valid");
    let count = |route| (0..10).filter(|_| manager.try_acquire("b", b"c", route).is_ok()).count();
    assert_eq!(count(Some("wide")), 4);
    assert_eq!(count(None), 2, "the route's rule is not the server's");
    assert_eq!(count(Some("other")), 0, "two routes under one rule share its count");
}

#[test]
fn client_count_outlives_its_connections() {
    let (manager, _clock) = manager();
    manager.update_server_rate_limit_config(Some(limits(-1, -1, 10, 5))).expect("valid");
    let admitted = (0..1000).filter(|_| {
        let connection = manager.try_acquire_connection("b", b"c", None).expect("one at a time");
        let granted = manager.try_acquire("b", b"c", None).is_ok();
        manager.release_connection(connection);
        granted
    });
    assert_eq!(admitted.count(), 10);
}

#[test]
fn kept_plan_follows_rule_changes() {
    let (manager, _clock) = manager();
    manager.update_server_rate_limit_config(Some(limits(-1, -1, 100, -1))).expect("valid");
    let plan = manager.plan("b", Some("r"));
    assert!(manager.is_current(&plan));
    manager.update_route_limiter("r", Some(limits(-1, -1, 0, -1))).expect("valid");
    assert!(!manager.is_current(&plan));
    assert!(manager.try_request(&plan, b"c").is_err(), "the rule of the route holds at once");
    manager.clear_route_limiters().expect("valid");
    assert!(manager.try_request(&plan, b"c").is_ok());
    manager.update_server_rate_limit_config(None).expect("valid");
    assert!(manager.try_request(&plan, b"c").is_ok(), "the limit that it knew is gone");
}

#[test]
fn unlimited_exempts_one_route_from_the_server_rule() {
    let (manager, _clock) = manager();
    manager.update_server_rate_limit_config(Some(limits(-1, -1, 1, -1))).expect("valid");
    assert_eq!(manager.update_route_limiter("r", None), Ok(false), "no limits were set before");
    let plan = manager.plan("b", Some("r"));
    assert!(manager.try_request(&plan, b"c").is_ok());
    assert!(manager.try_request(&plan, b"c").is_err());
    let unlimited = RateLimits { max_qps_per_client: Allowance::Unlimited, ..RateLimits::default() };
    assert_eq!(manager.update_route_limiter("r", Some(unlimited)), Ok(true));
    assert!((0..100).all(|_| manager.try_request(&plan, b"c").is_ok()));
    assert!(manager.try_acquire("b", b"c", None).is_err());
}

#[test]
fn clear_client_limiters_resets_client_counts() {
    let (manager, _clock) = manager();
    manager.update_server_rate_limit_config(Some(limits(-1, -1, 1, 1))).expect("valid");
    let _open = manager.try_acquire_connection("b", b"c", None).expect("the first");
    assert!(manager.try_acquire("b", b"c", None).is_ok());
    assert!(manager.try_acquire("b", b"c", None).is_err());
    manager.clear_client_limiters();
    assert!(manager.try_acquire("b", b"c", None).is_ok());
    assert!(
        manager.try_acquire_connection("b", b"c", None).is_err(),
        "connections that are open stay counted"
    );
}

#[test]
fn client_table_size_is_bounded() {
    let memory = Memory { capacity_bytes: 4 << 20, secret: [1, 2] };
    let manager = RateLimitManager::new(SystemClock::new(), memory, 100);
    manager.update_server_rate_limit_config(Some(limits(-1, -1, -1, 3))).expect("valid");
    let mut open = Vec::new();
    let mut refused = None;
    for client in 0_u32..5_000 {
        match manager.try_acquire_connection("b", &client.to_be_bytes(), None) {
            Ok(connection) => open.push(connection),
            Err(refusal) => refused = Some(refusal),
        }
    }
    assert!(open.len() >= 100 && open.len() < 5_000, "{}", open.len());
    assert!(refused.is_some_and(|refusal| refusal.degraded && refusal.level == LimitLevel::Client));
    assert!(
        manager.try_acquire_connection("b", &0_u32.to_be_bytes(), None).is_ok(),
        "tracked clients are served"
    );
}

#[test]
fn uncountable_client_is_refused() {
    let (manager, _clock) = manager();
    manager.update_server_rate_limit_config(Some(limits(-1, -1, 3, -1))).expect("valid");
    let refusal = manager.try_acquire("b", &[b'x'; 2000], None).expect_err("too long for a key");
    assert!(refusal.degraded);
}
