//! Who of a backend is next, who is well, and what a reload leaves as it was.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tidegate_gateway::endpoints::{Backend, Endpoint, REST};
use tidegate_gateway::settings::{Balance, Probe};

use crate::stage::spec;

const NOW: Duration = Duration::from_secs(100);
const PROBE: Probe = Probe {
    path: String::new(),
    period: Duration::from_secs(10),
    timeout: Duration::from_secs(1),
    successes: 2,
    failures: 3,
};

/// Endpoints at ports from 1 on, with these priorities.
fn backend(more: &str, priorities: &[u8], before: Option<&Backend>) -> Backend {
    let endpoint =
        |(at, priority): (usize, &u8)| format!("{{host: 127.0.0.1, port: {}, priority: {priority}}}", at + 1);
    let endpoints: Vec<String> = priorities.iter().enumerate().map(endpoint).collect();
    let file = spec(&format!(
        "server: {{}}\nbackends: [{{name: b, {more} endpoints: [{}]}}]\nroutes: [{{host: a, backend: b}}]",
        endpoints.join(", ")
    ));
    Backend::new(&file.backends[0], before)
}

fn fail(endpoint: &Endpoint) {
    while endpoint.is_well() {
        endpoint.probed(false, &PROBE);
    }
}

/// The ports of the next so many.
fn picks(backend: &Backend, many: usize) -> Vec<u16> {
    (0..many).map(|_| backend.pick(NOW, &[]).expect("somebody is well").port()).collect()
}

#[test]
fn everybody_has_a_turn() {
    let backend = backend("", &[1, 1, 1], None);
    let first = picks(&backend, 3);
    assert_eq!(picks(&backend, 3), first, "the same order");
    let mut all = first;
    all.sort_unstable();
    assert_eq!(all, [1, 2, 3]);
}

#[test]
fn those_with_the_fewest_connections_are_next() {
    let backend = backend("loadBalance: least-connection,", &[1, 1, 1], None);
    let held = backend.endpoint("127.0.0.1", 1).expect("it is there").hold();
    let mut two = picks(&backend, 2);
    two.sort_unstable();
    assert_eq!(two, [2, 3], "those with none take turns");
    let others: Vec<_> =
        [2, 3].map(|port| backend.endpoint("127.0.0.1", port).expect("it is there").hold()).into();
    drop(held);
    assert_eq!(picks(&backend, 2), [1, 1]);
    drop(others);
    assert!(backend.endpoints().iter().all(|endpoint| endpoint.open() == 0));
}

#[test]
fn lower_priorities_wait_until_nobody_else_is_well() {
    let backend = backend("probe: {path: /},", &[2, 1], None);
    assert_eq!(backend.endpoints().iter().map(|each| each.port()).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(picks(&backend, 2), [2, 2]);
    fail(&backend.endpoints()[0]);
    assert_eq!(picks(&backend, 2), [1, 1]);
    fail(&backend.endpoints()[1]);
    assert!(backend.pick(NOW, &[]).is_none());
}

#[test]
fn who_could_not_be_connected_to_rests_for_a_second() {
    let backend = backend("", &[1, 2], None);
    let first = &backend.endpoints()[0];
    first.failed(NOW);
    assert_eq!(first.failures(), 1);
    assert_eq!(picks(&backend, 1), [2]);
    let at = |now| backend.pick(now, &[]).expect("somebody is well").port();
    assert_eq!(at(NOW + Duration::from_nanos(999_999_999)), 2);
    assert_eq!(at(NOW + REST), 1, "it has rested");

    first.failed(NOW);
    first.succeeded();
    assert_eq!(at(NOW), 1, "it answered meanwhile");

    // If everybody rests, the first priority is tried all the same.
    backend.endpoints().iter().for_each(|endpoint| endpoint.failed(NOW));
    assert_eq!(at(NOW), 1);
    assert_eq!(backend.pick(NOW, &[Arc::clone(first)]).expect("one is left").port(), 2);
    assert!(backend.pick(NOW, backend.endpoints()).is_none(), "everybody was tried");
    first.connected();
    assert_eq!((first.connects(), first.rests(NOW)), (1, false));
}

#[test]
fn thresholds_are_counted_in_a_row() {
    let backend = backend("probe: {path: /},", &[1], None);
    let endpoint = &backend.endpoints()[0];
    let probe = |well| endpoint.probed(well, &PROBE);
    assert!([false, false, true, false, false].into_iter().all(|well| probe(well).is_none()));
    assert_eq!(probe(false), Some(false), "three in a row");
    assert!(!endpoint.is_well());
    assert!([false, true, false, true].into_iter().all(|well| probe(well).is_none()));
    assert_eq!(probe(true), Some(true), "two in a row");
    assert_eq!(probe(true), None, "that is known");
    assert!(endpoint.is_well());
}

#[test]
fn a_reload_keeps_what_is_known_of_an_endpoint() {
    let before = backend("probe: {path: /},", &[1, 1], None);
    let [first, second] = before.endpoints() else { panic!("there are two") };
    fail(first);
    let held = second.hold();

    let after = backend("probe: {path: /other},", &[9, 1, 1], Some(&before));
    let same = after.endpoint("127.0.0.1", 1).expect("it is there");
    assert!(Arc::ptr_eq(first, same) && !same.is_well());
    assert_eq!((second.open(), second.requests()), (1, 1));
    assert!(!picks(&after, 4).contains(&1));
    let third = after.endpoint("127.0.0.1", 3).expect("it is there");
    assert!(third.is_well(), "who is new is well");
    assert!(third.id() != first.id() && third.id() != second.id());

    let unprobed = backend("", &[1, 1], Some(&after));
    assert!(unprobed.endpoints().iter().all(|endpoint| endpoint.is_well()), "nobody can say otherwise");
    // A probe that was under way comes too late.
    fail(first);
    assert!(unprobed.is_well(first) && picks(&unprobed, 2).contains(&1));
    drop(held);
    assert_eq!((second.open(), second.requests()), (0, 1));
}

#[test]
fn an_address_of_ipv6_is_written_in_brackets() {
    let file = spec(
        "server: {}\nbackends: [{name: b, endpoints: [{host: '::1', port: 80}, {host: a.example, port: 81}]}]\nroutes: [{host: a, backend: b}]",
    );
    let backend = Backend::new(&file.backends[0], None);
    let said: Vec<_> = backend.endpoints().iter().map(|each| (each.host(), each.authority())).collect();
    assert_eq!(said, [("::1", "[::1]:80"), ("a.example", "a.example:81")]);
}

/// One endpoint of a made-up backend.
#[derive(Debug, Clone)]
struct Made {
    priority: u8,
    well: bool,
    rests: bool,
    tried: bool,
    open: usize,
}

fn made() -> impl Strategy<Value = Made> {
    (1_u8..4, any::<bool>(), any::<bool>(), any::<bool>(), 0_usize..3)
        .prop_map(|(priority, well, rests, tried, open)| Made { priority, well, rests, tried, open })
}

/// The ports that may be picked, by the words of the contract.
fn allowed(all: &[Made], balance: Balance) -> Vec<u16> {
    let left = |made: &&(u16, &Made)| made.1.well && !made.1.tried;
    let all: Vec<(u16, &Made)> = (1..).zip(all).collect();
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
    fn picks_are_those_of_the_contract(
        all in prop::collection::vec(made(), 1..7),
        balance in prop::sample::select(Balance::ALL.to_vec()),
    ) {
        let priorities: Vec<u8> = all.iter().map(|made| made.priority).collect();
        let backend = backend(&format!("loadBalance: {}, probe: {{path: /}},", balance.word()), &priorities, None);
        let (mut held, mut tried) = (Vec::new(), Vec::new());
        for (port, made) in (1..).zip(&all) {
            let endpoint = backend.endpoint("127.0.0.1", port).expect("it is there");
            if !made.well {
                fail(endpoint);
            }
            if made.rests {
                endpoint.failed(NOW);
            }
            if made.tried {
                tried.push(Arc::clone(endpoint));
            }
            held.extend((0..made.open).map(|_| endpoint.hold()));
        }
        let allowed = allowed(&all, balance);
        if allowed.is_empty() {
            prop_assert!(backend.pick(NOW, &tried).is_none());
            return Ok(());
        }
        let rounds = if balance == Balance::Random { 200 } else { 3 };
        let mut counts = vec![0; all.len() + 1];
        for _ in 0..rounds * allowed.len() {
            let port = backend.pick(NOW, &tried).expect("somebody is allowed").port();
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
