//! The counters and the metrics page.

use std::sync::Arc;
use std::time::Duration;

use tidegate_gateway::endpoints::UpstreamBackend;
use tidegate_gateway::metrics::{DisconnectReason, GatewayMetrics, StatusClass, UpstreamFailure};
use tidegate_gateway::{LimitLevel, LimitRefusal, RefusalKind};

use crate::fixture::{EXAMPLE, manager_with, spec};

/// The page of these metrics with the example settings; endpoint 8081 is unhealthy.
fn page(metrics: &GatewayMetrics) -> String {
    let (manager, _clock) = manager_with(EXAMPLE);
    let _connection = manager.try_acquire_connection("plain", b"a", Some("plain.example.com")).expect("room");
    for _ in 0..12 {
        let _ten_may = manager.try_acquire("plain", b"a", Some("plain.example.com"));
    }
    let mut file = spec(EXAMPLE);
    let probe = "{name: p, probe: {path: /}, endpoints: [{host: '::1', port: 1}]}";
    let probed = spec(&format!("server: {{}}\nbackends: [{probe}]\nroutes: [{{host: a, backend: p}}]"));
    file.backends.extend(probed.backends);
    let backends: Vec<Arc<UpstreamBackend>> =
        file.backends.iter().map(|backend| Arc::new(UpstreamBackend::new(backend, None))).collect();
    let [.., probed] = &backends[..] else { panic!("there are some") };
    let probe = probed.probe.clone().expect("it is probed");
    while probed.endpoints()[0].record_probe(false, &probe).is_none() {}
    let _held = backends[0].endpoints()[0].begin_request();
    metrics.render(&manager, &backends)
}

#[track_caller]
fn assert_has_line(page: &str, line: &str) {
    assert!(page.lines().any(|each| each == line), "{line} is not in\n{page}");
}

#[test]
fn counters_of_workers_are_summed() {
    let metrics = GatewayMetrics::new(2);
    let (one, other) = (metrics.worker(0), metrics.worker(1));
    let routes = metrics.set_routes(["a.example.com", "b.example.com"]);
    let route = Some(&*routes[1]);
    one.count_request(route, 200, Duration::from_millis(1), 10, 100);
    other.count_request(route, 204, Duration::from_millis(3), 0, 0);
    other.count_request(None, 404, Duration::from_nanos(500), 1, 2);
    one.count_request(route, 0, Duration::ZERO, 0, 0);
    one.count_request(route, 999, Duration::ZERO, 0, 0);
    let refusal = LimitRefusal {
        kind: RefusalKind::Requests,
        level: LimitLevel::Client,
        limit: 1,
        retry_after: None,
        degraded: true,
    };
    other.count_refusal(&refusal);
    other.count_refusal(&LimitRefusal {
        kind: RefusalKind::Connections,
        level: LimitLevel::Server,
        degraded: false,
        ..refusal
    });
    one.count_accepted();
    other.count_accepted();
    other.count_closed();
    other.count_disconnect(DisconnectReason::SlowHeader);
    one.count_refused_connection();
    one.count_retry();
    one.count_upstream_failure(UpstreamFailure::Timeout);
    one.count_upgrade();
    one.count_lost_lines(7);
    assert_eq!((metrics.open_connections(), routes[1].requests(StatusClass::Successful)), (1, 2));

    let page = page(&metrics);
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
        assert_has_line(&page, line);
    }
    assert!(!page.contains("a.example.com"), "removed routes are not reported");
}

#[test]
fn endpoints_and_limits_are_labeled_by_name() {
    let page = page(&GatewayMetrics::new(1));
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
        assert_has_line(&page, line);
    }
    let absent = "tidegate_gateway_limit{scope=\"backend\",name=\"plain\"";
    assert!(!page.contains(absent), "it has no limits of its own");
}

#[test]
fn every_metric_family_is_contiguous() {
    let page = page(&GatewayMetrics::new(1));
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
fn route_counts_survive_reloads_until_removed() {
    let metrics = GatewayMetrics::new(1);
    let worker = metrics.worker(5);
    let first = metrics.set_routes(["a", "b"]);
    worker.count_request(Some(&first[0]), 200, Duration::ZERO, 0, 0);
    let second = metrics.set_routes(["c", "a"]);
    assert!(Arc::ptr_eq(&first[0], &second[1]));
    assert_eq!(second[1].requests(StatusClass::Successful), 1);
    let third = metrics.set_routes(["c"]);
    assert!(Arc::ptr_eq(&second[0], &third[0]));
    assert_eq!(metrics.set_routes(["a"])[0].requests(StatusClass::Successful), 0, "it was gone");
}

#[test]
fn reload_results_are_reported() {
    let metrics = GatewayMetrics::new(1);
    assert!(!page(&metrics).contains("success_timestamp"));
    metrics.record_reload(true, Duration::from_millis(1_500));
    metrics.record_reload(false, Duration::from_millis(2_500));
    let text = page(&metrics);
    assert_has_line(&text, "tidegate_gateway_reloads_total{outcome=\"succeeded\"} 1");
    assert_has_line(&text, "tidegate_gateway_reloads_total{outcome=\"failed\"} 1");
    assert_has_line(&text, "tidegate_gateway_config_last_reload_successful 0");
    assert_has_line(&text, "tidegate_gateway_config_last_reload_success_timestamp_seconds 1.5");
    metrics.record_reload(true, Duration::from_millis(3_500));
    assert_has_line(&page(&metrics), "tidegate_gateway_config_last_reload_successful 1");
}

#[test]
fn hottest_clients_of_all_workers_are_merged() {
    let metrics = GatewayMetrics::new(2);
    (0..3).for_each(|_| metrics.worker(0).count_client_request(b"a", false));
    (0..4).for_each(|_| metrics.worker(1).count_client_request(b"a", true));
    (0..5).for_each(|_| metrics.worker(1).count_client_request(b"b", false));
    let hottest = metrics.hottest(10);
    let clients: Vec<_> =
        hottest.iter().map(|each| (&each.client[..], each.admitted, each.refused)).collect();
    assert_eq!(clients, [(&b"a"[..], 3, 4), (&b"b"[..], 5, 0)]);
    metrics.halve_client_counts();
    assert_eq!(metrics.hottest(1)[0].admitted, 1);
}
