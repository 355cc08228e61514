//! Probes: who is not well is not asked.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_gateway::{Gateway, Means};

use super::fixture::{Backend, Stage, get, response, wait_until};
use crate::fixture::spec;

/// Replies with its name, and to probes with how it is.
fn patient(name: &'static str, is_well: &Arc<AtomicBool>) -> Backend {
    let is_well = Arc::clone(is_well);
    Backend::new(move |message, wire| {
        if message.line.starts_with("GET /health ") {
            assert_eq!(message.field("user-agent"), Some("tidegate-probe"));
            let status = if is_well.load(Ordering::SeqCst) { "204 Well" } else { "500 Ill" };
            wire.shout(format!("HTTP/1.1 {status}\r\n\r\n"));
            return false;
        }
        wire.shout(response(name));
        true
    })
}

fn probes(backend: &Backend) -> usize {
    backend.heard().iter().filter(|request| request.line.contains("/health")).count()
}

/// A gateway that probes as often as it can.
fn probing(backends: &[&Backend], successes: u64, failures: u64) -> Stage {
    let endpoints: Vec<String> = (1..)
        .zip(backends)
        .map(|(priority, each)| format!("{{host: 127.0.0.1, port: {}, priority: {priority}}}", each.port()))
        .collect();
    let mut spec = spec(&format!(
        "{{server: {{port: 1}}, routes: [{{backend: b}}], backends: [{{name: b, endpoints: [{}], probe: {{path: /health, \
         successThreshold: {successes}, failureThreshold: {failures}}}}}]}}",
        endpoints.join(", ")
    ));
    spec.server.listen = SocketAddr::from(([127, 0, 0, 1], 0));
    spec.backends[0].probe.as_mut().expect("there is one").period = Duration::from_millis(1);
    Stage { gateway: Gateway::start(spec, Means::default()).expect("it starts") }
}

#[test]
fn who_is_ill_is_not_asked_until_well() {
    let is_well = Arc::new(AtomicBool::new(true));
    let backend = patient("one", &is_well);
    let stage = probing(&[&backend], 2, 3);
    assert_eq!(stage.ask(get("a.test")).text(), "one", "who was not probed yet is well");
    wait_until("it is probed", || probes(&backend) >= 2);
    is_well.store(false, Ordering::SeqCst);
    let before = probes(&backend);
    wait_until("it is ill", || stage.ask(get("a.test")).status() == 503);
    // One may have been on its way when it fell ill.
    assert!(probes(&backend) - before >= 2, "{} probes", probes(&backend) - before);
    let answer = stage.ask(get("a.test"));
    assert_eq!((answer.text().as_str(), answer.field("retry-after")), ("Service Unavailable", Some("1")));
    let before = probes(&backend);
    is_well.store(true, Ordering::SeqCst);
    wait_until("it is well", || stage.ask(get("a.test")).status() == 200);
    assert!(probes(&backend) - before >= 2, "{} probes", probes(&backend) - before);
    stage.end();
}

#[test]
fn those_behind_help_out_until_those_before_are_well() {
    let (first, second) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(true)));
    let (one, two) = (patient("one", &first), patient("two", &second));
    let stage = probing(&[&one, &two], 1, 1);
    for _ in 0..5 {
        assert_eq!(stage.ask(get("a.test")).text(), "one");
    }
    first.store(false, Ordering::SeqCst);
    wait_until("the second helps out", || stage.ask(get("a.test")).text() == "two");
    assert_eq!(stage.ask(get("a.test")).text(), "two");
    second.store(false, Ordering::SeqCst);
    wait_until("nobody is well", || stage.ask(get("a.test")).status() == 503);
    first.store(true, Ordering::SeqCst);
    wait_until("the first is back", || stage.ask(get("a.test")).text() == "one");
    stage.end();
}

#[test]
fn who_does_not_answer_probes_is_not_well() {
    let is_well = Arc::new(AtomicBool::new(true));
    let mut one = patient("one", &is_well);
    let two = patient("two", &is_well);
    let stage = probing(&[&one, &two], 1, 1);
    wait_until("it is probed", || probes(&one) >= 1);
    let address = one.address();
    one.end();
    wait_until("the second helps out", || stage.ask(get("a.test")).text() == "two");
    let again = Backend::new_at(address, |message, wire| {
        wire.shout(response(if message.line.contains("/health") { "" } else { "again" }));
        true
    });
    wait_until("the first is back", || stage.ask(get("a.test")).text() == "again");
    assert!(again.connections() > 0);
    stage.end();
}
