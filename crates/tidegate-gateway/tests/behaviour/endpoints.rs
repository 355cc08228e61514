//! Endpoint selection, health, and state across reloads.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tidegate_gateway::endpoints::{CONNECT_COOLDOWN, UpstreamBackend, UpstreamEndpoint};
use tidegate_gateway::settings::{Balance, ProbeSpec};

use crate::fixture::spec;

const NOW: Duration = Duration::from_secs(100);
const PROBE: ProbeSpec = ProbeSpec {
    path: String::new(),
    period: Duration::from_secs(10),
    timeout: Duration::from_secs(1),
    successes: 2,
    failures: 3,
};

/// Endpoints with ports from 1 on and these priorities.
fn backend(more: &str, priorities: &[u8], before: Option<&UpstreamBackend>) -> UpstreamBackend {
    let endpoint =
        |(at, priority): (usize, &u8)| format!("{{host: 127.0.0.1, port: {}, priority: {priority}}}", at + 1);
    let endpoints: Vec<String> = priorities.iter().enumerate().map(endpoint).collect();
    let file = spec(&format!(
        "server: {{}}\nbackends: [{{name: b, {more} endpoints: [{}]}}]\nroutes: [{{host: a, backend: b}}]",
        endpoints.join(", ")
    ));
    UpstreamBackend::new(&file.backends[0], before)
}

fn fail_probes(endpoint: &UpstreamEndpoint) {
    while endpoint.is_healthy() {
        endpoint.record_probe(false, &PROBE);
    }
}

/// The ports of the next picks.
fn pick_ports(backend: &UpstreamBackend, many: usize) -> Vec<u16> {
    (0..many).map(|_| backend.pick(NOW, &[]).expect("a healthy endpoint").port()).collect()
}

#[test]
fn round_robin_visits_every_endpoint() {
    let backend = backend("", &[1, 1, 1], None);
    let first = pick_ports(&backend, 3);
    assert_eq!(pick_ports(&backend, 3), first, "the same order");
    let mut all = first;
    all.sort_unstable();
    assert_eq!(all, [1, 2, 3]);
}

#[test]
fn least_connection_picks_the_least_loaded() {
    let backend = backend("loadBalance: least-connection,", &[1, 1, 1], None);
    let held = backend.endpoint("127.0.0.1", 1).expect("it is there").begin_request();
    let mut two = pick_ports(&backend, 2);
    two.sort_unstable();
    assert_eq!(two, [2, 3], "those with none take turns");
    let others: Vec<_> =
        [2, 3].map(|port| backend.endpoint("127.0.0.1", port).expect("it is there").begin_request()).into();
    drop(held);
    assert_eq!(pick_ports(&backend, 2), [1, 1]);
    drop(others);
    assert!(backend.endpoints().iter().all(|endpoint| endpoint.in_flight() == 0));
}

#[test]
fn lower_priority_is_used_only_when_higher_ones_are_unhealthy() {
    let backend = backend("probe: {path: /},", &[2, 1], None);
    assert_eq!(backend.endpoints().iter().map(|each| each.port()).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(pick_ports(&backend, 2), [2, 2]);
    fail_probes(&backend.endpoints()[0]);
    assert_eq!(pick_ports(&backend, 2), [1, 1]);
    fail_probes(&backend.endpoints()[1]);
    assert!(backend.pick(NOW, &[]).is_none());
}

#[test]
fn failed_connect_cools_down_for_a_second() {
    let backend = backend("", &[1, 2], None);
    let first = &backend.endpoints()[0];
    first.record_connect_failure(NOW);
    assert_eq!(first.failures(), 1);
    assert_eq!(pick_ports(&backend, 1), [2]);
    let at = |now| backend.pick(now, &[]).expect("a healthy endpoint").port();
    assert_eq!(at(NOW + Duration::from_nanos(999_999_999)), 2);
    assert_eq!(at(NOW + CONNECT_COOLDOWN), 1, "it has rested");

    first.record_connect_failure(NOW);
    first.record_success();
    assert_eq!(at(NOW), 1, "it answered meanwhile");

    // If all endpoints cool down, the first priority is used anyway.
    backend.endpoints().iter().for_each(|endpoint| endpoint.record_connect_failure(NOW));
    assert_eq!(at(NOW), 1);
    assert_eq!(backend.pick(NOW, &[Arc::clone(first)]).expect("one is left").port(), 2);
    assert!(backend.pick(NOW, backend.endpoints()).is_none(), "all were tried");
    first.record_connect();
    assert_eq!((first.connects(), first.is_cooling_down(NOW)), (1, false));
}

#[test]
fn probe_thresholds_need_consecutive_results() {
    let backend = backend("probe: {path: /},", &[1], None);
    let endpoint = &backend.endpoints()[0];
    let probe = |well| endpoint.record_probe(well, &PROBE);
    assert!([false, false, true, false, false].into_iter().all(|well| probe(well).is_none()));
    assert_eq!(probe(false), Some(false), "three in a row");
    assert!(!endpoint.is_healthy());
    assert!([false, true, false, true].into_iter().all(|well| probe(well).is_none()));
    assert_eq!(probe(true), Some(true), "two in a row");
    assert_eq!(probe(true), None, "that is known");
    assert!(endpoint.is_healthy());
}

#[test]
fn reload_keeps_endpoint_state() {
    let before = backend("probe: {path: /},", &[1, 1], None);
    let [first, second] = before.endpoints() else { panic!("there are two") };
    fail_probes(first);
    let held = second.begin_request();

    let after = backend("probe: {path: /other},", &[9, 1, 1], Some(&before));
    let same = after.endpoint("127.0.0.1", 1).expect("it is there");
    assert!(Arc::ptr_eq(first, same) && !same.is_healthy());
    assert_eq!((second.in_flight(), second.requests()), (1, 1));
    assert!(!pick_ports(&after, 4).contains(&1));
    let third = after.endpoint("127.0.0.1", 3).expect("it is there");
    assert!(third.is_healthy(), "a new endpoint is healthy");
    assert!(third.id() != first.id() && third.id() != second.id());

    let unprobed = backend("", &[1, 1], Some(&after));
    assert!(
        unprobed.endpoints().iter().all(|endpoint| endpoint.is_healthy()),
        "without probes all are healthy"
    );
    // A probe result from before the change arrives late.
    fail_probes(first);
    assert!(unprobed.is_healthy(first) && pick_ports(&unprobed, 2).contains(&1));
    drop(held);
    assert_eq!((second.in_flight(), second.requests()), (0, 1));
}

#[test]
fn ipv6_authority_has_brackets() {
    let file = spec(
        "server: {}\nbackends: [{name: b, endpoints: [{host: '::1', port: 80}, {host: a.example, port: 81}]}]\nroutes: [{host: a, backend: b}]",
    );
    let backend = UpstreamBackend::new(&file.backends[0], None);
    let addresses: Vec<_> = backend.endpoints().iter().map(|each| (each.host(), each.authority())).collect();
    assert_eq!(addresses, [("::1", "[::1]:80"), ("a.example", "a.example:81")]);
}

/// An endpoint of the model.
#[derive(Debug, Clone)]
struct ModelEndpoint {
    priority: u8,
    well: bool,
    rests: bool,
    tried: bool,
    open: usize,
}

fn endpoint_strategy() -> impl Strategy<Value = ModelEndpoint> {
    (1_u8..4, any::<bool>(), any::<bool>(), any::<bool>(), 0_usize..3)
        .prop_map(|(priority, well, rests, tried, open)| ModelEndpoint { priority, well, rests, tried, open })
}

/// The ports that the model allows.
fn eligible_ports(all: &[ModelEndpoint], balance: Balance) -> Vec<u16> {
    let left = |made: &&(u16, &ModelEndpoint)| made.1.well && !made.1.tried;
    let all: Vec<(u16, &ModelEndpoint)> = (1..).zip(all).collect();
    let has_awake = all.iter().filter(left).any(|(_, made)| !made.rests);
    let mut of = all.iter().filter(left).filter(|(_, made)| !has_awake || !made.rests).collect::<Vec<_>>();
    let lowest = of.iter().map(|(_, made)| made.priority).min();
    of.retain(|(_, made)| Some(made.priority) == lowest);
    if balance == Balance::LeastConnection {
        let fewest = of.iter().map(|(_, made)| made.open).min();
        of.retain(|(_, made)| Some(made.open) == fewest);
    }
    of.into_iter().map(|(port, _)| *port).collect()
}

proptest! {
    #[test]
    fn picks_match_the_model(
        all in prop::collection::vec(endpoint_strategy(), 1..7),
        balance in prop::sample::select(Balance::ALL.to_vec()),
    ) {
        let priorities: Vec<u8> = all.iter().map(|made| made.priority).collect();
        let backend = backend(&format!("loadBalance: {}, probe: {{path: /}},", balance.word()), &priorities, None);
        let (mut held, mut tried) = (Vec::new(), Vec::new());
        for (port, made) in (1..).zip(&all) {
            let endpoint = backend.endpoint("127.0.0.1", port).expect("it is there");
            if !made.well {
                fail_probes(endpoint);
            }
            if made.rests {
                endpoint.record_connect_failure(NOW);
            }
            if made.tried {
                tried.push(Arc::clone(endpoint));
            }
            held.extend((0..made.open).map(|_| endpoint.begin_request()));
        }
        let allowed = eligible_ports(&all, balance);
        if allowed.is_empty() {
            prop_assert!(backend.pick(NOW, &tried).is_none());
            return Ok(());
        }
        let rounds = if balance == Balance::Random { 200 } else { 3 };
        let mut counts = vec![0; all.len() + 1];
        for _ in 0..rounds * allowed.len() {
            let port = backend.pick(NOW, &tried).expect("an eligible endpoint").port();
            prop_assert!(allowed.contains(&port), "{port} is none of {allowed:?}");
            counts[usize::from(port)] += 1;
        }
        for port in allowed {
            let count = counts[usize::from(port)];
            let is_fair = if balance == Balance::Random { count > 100 } else { count == rounds };
            prop_assert!(is_fair, "{port} was picked {count} times");
        }
    }
}
