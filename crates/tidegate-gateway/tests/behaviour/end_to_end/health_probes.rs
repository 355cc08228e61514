//! Health probes: unhealthy endpoints get no requests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_gateway::{Gateway, GatewayOptions};

use super::fixture::{TestBackend, TestGateway, get, response, wait_until};
use crate::fixture::spec;

/// Responds with its name, and to probes with its health.
fn probed_backend(name: &'static str, is_well: &Arc<AtomicBool>) -> TestBackend {
    let is_well = Arc::clone(is_well);
    TestBackend::new(move |message, wire| {
        if message.line.starts_with("GET /health ") {
            assert_eq!(message.field("user-agent"), Some("tidegate-probe"));
            let status = if is_well.load(Ordering::SeqCst) { "204 Well" } else { "500 Ill" };
            wire.try_send(format!("HTTP/1.1 {status}\r\n\r\n"));
            return false;
        }
        wire.try_send(response(name));
        true
    })
}

fn count_probes(backend: &TestBackend) -> usize {
    backend.requests_received().iter().filter(|request| request.line.contains("/health")).count()
}

/// A gateway with the shortest probe period.
fn probing_gateway(backends: &[&TestBackend], successes: u64, failures: u64) -> TestGateway {
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
    TestGateway { inner: Gateway::start(spec, GatewayOptions::default()).expect("it starts") }
}

#[test]
fn unhealthy_endpoint_gets_no_requests_until_healthy() {
    let is_well = Arc::new(AtomicBool::new(true));
    let backend = probed_backend("one", &is_well);
    let gateway = probing_gateway(&[&backend], 2, 3);
    assert_eq!(gateway.request(get("a.test")).text(), "one", "an unprobed endpoint is healthy");
    wait_until("it is probed", || count_probes(&backend) >= 2);
    is_well.store(false, Ordering::SeqCst);
    let before = count_probes(&backend);
    wait_until("it is ill", || gateway.request(get("a.test")).status() == 503);
    // One probe may have been in transit when the health changed.
    assert!(count_probes(&backend) - before >= 2, "{} probes", count_probes(&backend) - before);
    let response = gateway.request(get("a.test"));
    assert_eq!((response.text().as_str(), response.field("retry-after")), ("Service Unavailable", Some("1")));
    let before = count_probes(&backend);
    is_well.store(true, Ordering::SeqCst);
    wait_until("it is well", || gateway.request(get("a.test")).status() == 200);
    assert!(count_probes(&backend) - before >= 2, "{} probes", count_probes(&backend) - before);
    gateway.end();
}

#[test]
fn lower_priority_serves_until_higher_is_healthy() {
    let (first, second) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(true)));
    let (one, two) = (probed_backend("one", &first), probed_backend("two", &second));
    let gateway = probing_gateway(&[&one, &two], 1, 1);
    for _ in 0..5 {
        assert_eq!(gateway.request(get("a.test")).text(), "one");
    }
    first.store(false, Ordering::SeqCst);
    wait_until("the second helps out", || gateway.request(get("a.test")).text() == "two");
    assert_eq!(gateway.request(get("a.test")).text(), "two");
    second.store(false, Ordering::SeqCst);
    wait_until("no endpoint is healthy", || gateway.request(get("a.test")).status() == 503);
    first.store(true, Ordering::SeqCst);
    wait_until("the first is back", || gateway.request(get("a.test")).text() == "one");
    gateway.end();
}

#[test]
fn endpoint_without_probe_response_is_unhealthy() {
    let is_well = Arc::new(AtomicBool::new(true));
    let mut one = probed_backend("one", &is_well);
    let two = probed_backend("two", &is_well);
    let gateway = probing_gateway(&[&one, &two], 1, 1);
    wait_until("it is probed", || count_probes(&one) >= 1);
    let address = one.address();
    one.end();
    wait_until("the second helps out", || gateway.request(get("a.test")).text() == "two");
    let again = TestBackend::new_at(address, |message, wire| {
        wire.try_send(response(if message.line.contains("/health") { "" } else { "again" }));
        true
    });
    wait_until("the first is back", || gateway.request(get("a.test")).text() == "again");
    assert!(again.connection_count() > 0);
    gateway.end();
}
