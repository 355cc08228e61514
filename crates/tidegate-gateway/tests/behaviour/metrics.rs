//! What the gateway counts, and the page that says so.

use std::sync::Arc;
use std::time::Duration;

use tidegate_gateway::endpoints::Backend;
use tidegate_gateway::metrics::{Class, Cut, Failure, Numbers};
use tidegate_gateway::{Kind, Level, Refusal};

use crate::fixture::{DOCUMENT, managing, spec};

/// The page of these numbers and document 002's file; endpoint 8081 is unwell.
fn page(numbers: &Numbers) -> String {
    let (manager, _clock) = managing(DOCUMENT);
    let _connection = manager.try_acquire_connection("plain", b"a", Some("plain.example.com")).expect("room");
    for _ in 0..12 {
        let _ten_may = manager.try_acquire("plain", b"a", Some("plain.example.com"));
    }
    let mut file = spec(DOCUMENT);
    let probe = "{name: p, probe: {path: /}, endpoints: [{host: '::1', port: 1}]}";
    let probed = spec(&format!("server: {{}}\nbackends: [{probe}]\nroutes: [{{host: a, backend: p}}]"));
    file.backends.extend(probed.backends);
    let backends: Vec<Arc<Backend>> =
        file.backends.iter().map(|backend| Arc::new(Backend::new(backend, None))).collect();
    let [.., probed] = &backends[..] else { panic!("there are some") };
    let probe = probed.probe.clone().expect("it is probed");
    while probed.endpoints()[0].probed(false, &probe).is_none() {}
    let _held = backends[0].endpoints()[0].hold();
    numbers.render(&manager, &backends)
}

#[track_caller]
fn says(page: &str, line: &str) {
    assert!(page.lines().any(|each| each == line), "{line} is not in\n{page}");
}

#[test]
fn workers_are_added_up() {
    let numbers = Numbers::new(2);
    let (one, other) = (numbers.worker(0), numbers.worker(1));
    let routes = numbers.routes(["a.example.com", "b.example.com"]);
    let route = Some(&*routes[1]);
    one.finished(route, 200, Duration::from_millis(1), 10, 100);
    other.finished(route, 204, Duration::from_millis(3), 0, 0);
    other.finished(None, 404, Duration::from_nanos(500), 1, 2);
    one.finished(route, 0, Duration::ZERO, 0, 0);
    one.finished(route, 999, Duration::ZERO, 0, 0);
    let refusal =
        Refusal { kind: Kind::Requests, level: Level::Client, limit: 1, retry_after: None, degraded: true };
    other.refused(&refusal);
    other.refused(&Refusal { kind: Kind::Connections, level: Level::Server, degraded: false, ..refusal });
    one.accepted();
    other.accepted();
    other.closed();
    other.cut(Cut::SlowHeader);
    one.refused_connection();
    one.retried();
    one.upstream_failed(Failure::Timeout);
    one.upgraded();
    one.lost_lines(7);
    assert_eq!((numbers.open_connections(), routes[1].requests(Class::Successful)), (1, 2));

    let page = page(&numbers);
    for line in [
        "tidegate_gateway_requests_total{route=\"b.example.com\",class=\"2xx\"} 2",
        "tidegate_gateway_requests_total{route=\"b.example.com\",class=\"none\"} 1",
        "tidegate_gateway_requests_total{route=\"b.example.com\",class=\"5xx\"} 1",
        "tidegate_gateway_responses_total{code=\"204\"} 1",
        "tidegate_gateway_responses_total{code=\"404\"} 1",
        "tidegate_gateway_responses_total{code=\"none\"} 2",
        "tidegate_gateway_request_duration_seconds_bucket{le=\"0.001\"} 4",
        "tidegate_gateway_request_duration_seconds_count 5",
        "tidegate_gateway_request_duration_seconds_sum 0.0040005",
        "tidegate_gateway_received_bytes_total 11",
        "tidegate_gateway_sent_bytes_total 102",
        "tidegate_gateway_refusals_total{level=\"client\",kind=\"requests\"} 1",
        "tidegate_gateway_refusals_total{level=\"server\",kind=\"connections\"} 1",
        "tidegate_gateway_refusals_total{level=\"route\",kind=\"requests\"} 0",
        "tidegate_gateway_refusals_degraded_total 1",
        "tidegate_gateway_connections 1",
        "tidegate_gateway_connections_accepted_total 2",
        "tidegate_gateway_connections_refused_total 1",
        "tidegate_gateway_connections_cut_total{reason=\"slow_header\"} 1",
        "tidegate_gateway_connections_cut_total{reason=\"draining\"} 0",
        "tidegate_gateway_retries_total 1",
        "tidegate_gateway_upstream_failures_total{kind=\"timeout\"} 1",
        "tidegate_gateway_upgrades_total 1",
        "tidegate_gateway_access_log_lost_total 7",
    ] {
        says(&page, line);
    }
    assert!(!page.contains("a.example.com"), "nothing is said of what never happened");
}

#[test]
fn endpoints_and_limits_are_told_by_name() {
    let page = page(&Numbers::new(1));
    for line in [
        "tidegate_gateway_endpoint_up{backend=\"plain\",endpoint=\"127.0.0.1:8081\"} 1",
        "tidegate_gateway_endpoint_up{backend=\"p\",endpoint=\"[::1]:1\"} 0",
        "tidegate_gateway_endpoint_open{backend=\"api-service\",endpoint=\"127.0.0.1:8080\"} 1",
        "tidegate_gateway_endpoint_requests_total{backend=\"api-service\",endpoint=\"127.0.0.1:8080\"} 1",
        "tidegate_gateway_limit{scope=\"server\",name=\"\",field=\"maxQps\"} 2000",
        "tidegate_gateway_limit_used{scope=\"server\",name=\"\",field=\"maxQps\"} 10",
        "tidegate_gateway_limit_used{scope=\"backend\",name=\"plain\",field=\"maxConnections\"} 1",
        "tidegate_gateway_limit_refused_total{scope=\"server\",name=\"\",field=\"maxQpsPerClient\"} 2",
        "tidegate_gateway_limit_clients{scope=\"accept\",name=\"\",field=\"maxConnectionsPerClient\"} 1",
        "tidegate_gateway_limit{scope=\"route\",name=\"api.example.com\",field=\"maxConnectionsPerClient\"} 20",
    ] {
        says(&page, line);
    }
    let absent = "tidegate_gateway_limit{scope=\"backend\",name=\"plain\"";
    assert!(!page.contains(absent), "it has no limits of its own");
}

#[test]
fn every_family_is_in_one_piece() {
    let page = page(&Numbers::new(1));
    let introduced: Vec<&str> = page.lines().filter(|line| line.starts_with("# TYPE ")).collect();
    let mut once = introduced.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(introduced.len(), once.len());
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        assert!(name.starts_with("tidegate_") || name.starts_with("process_"), "{line}");
        assert!(value.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'), "{line}");
    }
}

#[test]
fn routes_keep_their_counts_for_as_long_as_they_are_there() {
    let numbers = Numbers::new(1);
    let worker = numbers.worker(5);
    let first = numbers.routes(["a", "b"]);
    worker.finished(Some(&first[0]), 200, Duration::ZERO, 0, 0);
    let second = numbers.routes(["c", "a"]);
    assert!(Arc::ptr_eq(&first[0], &second[1]));
    assert_eq!(second[1].requests(Class::Successful), 1);
    let third = numbers.routes(["c"]);
    assert!(Arc::ptr_eq(&second[0], &third[0]));
    assert_eq!(numbers.routes(["a"])[0].requests(Class::Successful), 0, "it was gone");
}

#[test]
fn reloads_are_told() {
    let numbers = Numbers::new(1);
    assert!(!page(&numbers).contains("success_timestamp"));
    numbers.reloaded(true, Duration::from_millis(1_500));
    numbers.reloaded(false, Duration::from_millis(2_500));
    let text = page(&numbers);
    says(&text, "tidegate_gateway_reloads_total{outcome=\"succeeded\"} 1");
    says(&text, "tidegate_gateway_reloads_total{outcome=\"failed\"} 1");
    says(&text, "tidegate_gateway_config_last_reload_successful 0");
    says(&text, "tidegate_gateway_config_last_reload_success_timestamp_seconds 1.5");
    numbers.reloaded(true, Duration::from_millis(3_500));
    says(&page(&numbers), "tidegate_gateway_config_last_reload_successful 1");
}

#[test]
fn the_hottest_clients_of_all_workers_are_known() {
    let numbers = Numbers::new(2);
    (0..3).for_each(|_| numbers.worker(0).asked(b"a", false));
    (0..4).for_each(|_| numbers.worker(1).asked(b"a", true));
    (0..5).for_each(|_| numbers.worker(1).asked(b"b", false));
    let hottest = numbers.hottest(10);
    let told: Vec<_> = hottest.iter().map(|each| (&each.client[..], each.admitted, each.refused)).collect();
    assert_eq!(told, [(&b"a"[..], 3, 4), (&b"b"[..], 5, 0)]);
    numbers.fade();
    assert_eq!(numbers.hottest(1)[0].admitted, 1);
}
