//! How the limits stand, for those who look.

use tidegate::Capacity;
use tidegate_gateway::Scope;
use tidegate_gateway::limits::{ClientCounts, ClientRule, Rule, Standing};

use crate::fixture::{DOCUMENT, managing};

fn named<'s>(all: &'s [Standing], name: &str) -> &'s Standing {
    all.iter().find(|standing| &*standing.name == name).expect("it is there")
}

#[test]
fn every_level_tells_its_limit_its_use_and_its_refusals() {
    let (manager, _clock) = managing(DOCUMENT);
    let connection = manager.try_acquire_connection("plain", b"a", Some("plain.example.com")).expect("room");
    for _ in 0..12 {
        let _ten_may = manager.try_acquire("plain", b"a", Some("plain.example.com"));
    }
    for _ in 0..7 {
        manager.try_acquire("api-service", b"b", Some("api.example.com")).expect("they may");
    }

    let all = manager.standings();
    let at_most = Capacity::AtMost;
    assert_eq!(all.server.requests, Rule { limit: at_most(2000), used: 17, refused: 0 });
    assert_eq!(all.server.connections, Rule { limit: at_most(10_000), used: 1, refused: 0 });
    let counts = |clients, refused| Some(ClientCounts { clients, refused });
    let own = ClientRule { limit: at_most(10), from: Scope::Server, counts: counts(1, 2) };
    assert_eq!(all.server.client_requests, own);
    assert_eq!((all.door.limit, all.door.counts), (at_most(20), counts(1, 0)));

    let plain = named(&all.backends, "plain");
    assert_eq!(plain.requests, Rule { limit: Capacity::Unlimited, used: 10, refused: 0 });
    assert_eq!(plain.connections, Rule { limit: Capacity::Unlimited, used: 1, refused: 0 });
    let inherited = ClientRule { limit: at_most(10), from: Scope::Server, counts: None };
    assert_eq!(plain.client_requests, inherited);

    assert_eq!(named(&all.backends, "api-service").requests.used, 7);
    let api = named(&all.routes, "api.example.com");
    assert_eq!((api.scope, api.backend.as_deref()), (Scope::Route, Some("api-service")));
    assert_eq!(api.requests, Rule { limit: at_most(500), used: 7, refused: 0 });
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
    assert_eq!(manager.standings().server.connections.used, 0);
}

#[test]
fn a_rule_that_is_no_longer_written_here_tells_nothing_here() {
    let (manager, _clock) = managing(DOCUMENT);
    let _held = manager.try_acquire_connection("api-service", b"a", Some("api.example.com")).expect("room");
    manager.update_route_limiter("api.example.com", None).expect("it makes sense");
    let all = manager.standings();
    let api = named(&all.routes, "api.example.com");
    let inherited = ClientRule { limit: Capacity::AtMost(10), from: Scope::Backend, counts: None };
    assert_eq!(api.client_connections, inherited);
    assert_eq!(api.connections.used, 1, "it is still counted");
}
