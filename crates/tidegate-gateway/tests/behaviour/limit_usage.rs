//! The usage report of all limits.

use tidegate::model::Capacity;
use tidegate_gateway::Scope;
use tidegate_gateway::limits::{ClientRuleCounts, ClientRuleUsage, RuleUsage, ScopeUsage};

use crate::fixture::{EXAMPLE, manager_with};

fn named<'s>(all: &'s [ScopeUsage], name: &str) -> &'s ScopeUsage {
    all.iter().find(|standing| &*standing.name == name).expect("it is there")
}

#[test]
fn usage_reports_limit_count_and_refusals_of_every_level() {
    let (manager, _clock) = manager_with(EXAMPLE);
    let connection = manager.try_acquire_connection("plain", b"a", Some("plain.example.com")).expect("room");
    for _ in 0..12 {
        let _ten_may = manager.try_acquire("plain", b"a", Some("plain.example.com"));
    }
    for _ in 0..7 {
        manager.try_acquire("api-service", b"b", Some("api.example.com")).expect("below the limit");
    }

    let all = manager.usage();
    let at_most = Capacity::AtMost;
    assert_eq!(all.server.requests, RuleUsage { limit: at_most(2000), used: 17, refused: 0 });
    assert_eq!(all.server.connections, RuleUsage { limit: at_most(10_000), used: 1, refused: 0 });
    let counts = |clients, refused| Some(ClientRuleCounts { clients, refused });
    let own = ClientRuleUsage { limit: at_most(10), from: Scope::Server, counts: counts(1, 2) };
    assert_eq!(all.server.client_requests, own);
    assert_eq!((all.accept.limit, all.accept.counts), (at_most(20), counts(1, 0)));

    let plain = named(&all.backends, "plain");
    assert_eq!(plain.requests, RuleUsage { limit: Capacity::Unlimited, used: 10, refused: 0 });
    assert_eq!(plain.connections, RuleUsage { limit: Capacity::Unlimited, used: 1, refused: 0 });
    let inherited = ClientRuleUsage { limit: at_most(10), from: Scope::Server, counts: None };
    assert_eq!(plain.client_requests, inherited);

    assert_eq!(named(&all.backends, "api-service").requests.used, 7);
    let api = named(&all.routes, "api.example.com");
    assert_eq!((api.scope, api.backend.as_deref()), (Scope::Route, Some("api-service")));
    assert_eq!(api.requests, RuleUsage { limit: at_most(500), used: 7, refused: 0 });
    assert_eq!(api.client_requests.counts, counts(1, 0));
    let other = named(&all.routes, "other.example.com");
    assert_eq!((other.client_requests.limit, other.client_requests.from), (at_most(50), Scope::Backend));
    let mixed = named(&all.routes, "mixed.example.com");
    assert_eq!((mixed.client_requests.limit, mixed.client_requests.from), (at_most(100), Scope::Route));
    assert_eq!(
        (mixed.client_connections.limit, mixed.client_connections.from),
        (at_most(10), Scope::Backend)
    );

    let names: Vec<&str> = all.routes.iter().map(|route| &*route.name).collect();
    assert!(names.is_sorted() && names.len() == 4, "{names:?}");
    drop(connection);
    assert_eq!(manager.usage().server.connections.used, 0);
}

#[test]
fn removed_client_rule_reports_no_counts() {
    let (manager, _clock) = manager_with(EXAMPLE);
    let _held = manager.try_acquire_connection("api-service", b"a", Some("api.example.com")).expect("room");
    manager.update_route_limiter("api.example.com", None).expect("valid");
    let all = manager.usage();
    let api = named(&all.routes, "api.example.com");
    let inherited = ClientRuleUsage { limit: Capacity::AtMost(10), from: Scope::Backend, counts: None };
    assert_eq!(api.client_connections, inherited);
    assert_eq!(api.connections.used, 1, "it is still counted");
}
