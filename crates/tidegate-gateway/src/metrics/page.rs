//! The metrics page in the Prometheus text format.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate::model::Capacity;
use tidegate::store::Store as _;
use tidegate_net::histogram::{DURATION_BUCKETS, HistogramSum};
use tidegate_net::metrics_page::{MetricKind, MetricLabel, MetricsPage, NanosAsSeconds};
use tidegate_net::process_metrics;

use super::worker::{DisconnectReason, END_OF_STATUSES, FIRST_STATUS, StatusClass, UpstreamFailure};
use super::{GatewayMetrics, lock};
use crate::endpoints::{UpstreamBackend, UpstreamEndpoint};
use crate::limits::{
    self, ClientRuleCounts, ClientRuleUsage, LimitLevel, RateLimitManager, RuleUsage, ScopeUsage,
};

/// The maximum number of backends and of routes on the page, first by name.
pub const MAX_NAMES: usize = 10_000;

impl GatewayMetrics {
    /// Renders the page, including the metrics of limits and endpoints.
    pub fn render(&self, limits: &RateLimitManager, backends: &[Arc<UpstreamBackend>]) -> String {
        let mut page = MetricsPage::default();
        write_build_info(&mut page);
        self.write_requests(&mut page);
        self.write_connections(&mut page);
        self.write_refusals(&mut page);
        self.write_upstreams(&mut page);
        write_endpoints(&mut page, backends);
        write_limits(&mut page, limits);
        self.write_reloads(&mut page);
        process_metrics::write(&mut page);
        page.into_text()
    }

    fn write_requests(&self, page: &mut MetricsPage) {
        let help = "Duration of requests, from the first request byte to the last response byte.";
        let mut family =
            page.family("tidegate_gateway_request_duration_seconds", MetricKind::Histogram, help);
        let sum = HistogramSum::of(self.workers.iter().map(|worker| &worker.durations));
        sum.write(&mut family, &[], &DURATION_BUCKETS, |nanos| NanosAsSeconds(u128::from(nanos)));

        let help = "Responses to clients by status; none means that the client left before a response.";
        let mut family = page.family("tidegate_gateway_responses_total", MetricKind::Counter, help);
        for status in FIRST_STATUS..=END_OF_STATUSES {
            let count: u64 = self.workers.iter().map(|worker| worker.status(status)).sum();
            if count > 0 {
                let code = status.to_string();
                let code = if status == END_OF_STATUSES { "none" } else { code.as_str() };
                family.sample(&[("code", code)], count);
            }
        }

        let help = "Requests by route and by the first digit of the status.";
        let mut family = page.family("tidegate_gateway_requests_total", MetricKind::Counter, help);
        let mut routes: Vec<_> =
            lock(&self.routes).iter().map(|(id, it)| (id.clone(), Arc::clone(it))).collect();
        routes.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        for (id, metrics) in routes.iter().take(MAX_NAMES) {
            for class in StatusClass::ALL {
                let count = metrics.requests(class);
                if count > 0 {
                    family.sample(&[("route", id), ("class", class.as_str())], count);
                }
            }
        }

        let help = "Bytes received in request bodies.";
        let received = self.sum(|worker| &worker.received);
        page.family("tidegate_gateway_received_bytes_total", MetricKind::Counter, help).sample(&[], received);
        let help = "Bytes sent in response bodies.";
        let sent = self.sum(|worker| &worker.sent);
        page.family("tidegate_gateway_sent_bytes_total", MetricKind::Counter, help).sample(&[], sent);
        let help = "Access log lines that could not be written.";
        let lost = self.sum(|worker| &worker.lost_lines);
        page.family("tidegate_gateway_access_log_lost_total", MetricKind::Counter, help).sample(&[], lost);
    }

    fn write_connections(&self, page: &mut MetricsPage) {
        let help = "Open client connections.";
        page.family("tidegate_gateway_connections", MetricKind::Gauge, help)
            .sample(&[], self.open_connections());
        let help = "Accepted client connections.";
        let accepted = self.sum(|worker| &worker.accepted);
        page.family("tidegate_gateway_connections_accepted_total", MetricKind::Counter, help)
            .sample(&[], accepted);
        let help = "Refused client connections.";
        let refused = self.sum(|worker| &worker.refused_connections);
        page.family("tidegate_gateway_connections_refused_total", MetricKind::Counter, help)
            .sample(&[], refused);
        let help = "Client connections closed by the gateway, by reason.";
        let mut family = page.family("tidegate_gateway_connections_cut_total", MetricKind::Counter, help);
        for reason in DisconnectReason::ALL {
            let count = self.sum(|worker| &worker.disconnects[reason as usize]);
            family.sample(&[("reason", reason.as_str())], count);
        }
        let help = "Client connections that were upgraded to tunnels.";
        let upgrades = self.sum(|worker| &worker.upgrades);
        page.family("tidegate_gateway_upgrades_total", MetricKind::Counter, help).sample(&[], upgrades);
    }

    fn write_refusals(&self, page: &mut MetricsPage) {
        let help = "Refused requests and connections, by the first level that refused.";
        let mut family = page.family("tidegate_gateway_refusals_total", MetricKind::Counter, help);
        for level in LimitLevel::ALL {
            for kind in limits::RefusalKind::ALL {
                let count = self.sum(|worker| &worker.refusals[level as usize][kind as usize]);
                family.sample(&[("level", level.as_str()), ("kind", kind.as_str())], count);
            }
        }
        let help = "Refusals caused by a full client table.";
        let degraded = self.sum(|worker| &worker.degraded);
        page.family("tidegate_gateway_refusals_degraded_total", MetricKind::Counter, help)
            .sample(&[], degraded);
    }

    fn write_upstreams(&self, page: &mut MetricsPage) {
        let help = "Requests retried with another endpoint.";
        let retries = self.sum(|worker| &worker.retries);
        page.family("tidegate_gateway_retries_total", MetricKind::Counter, help).sample(&[], retries);
        let help = "Failures of endpoints, by kind.";
        let mut family = page.family("tidegate_gateway_upstream_failures_total", MetricKind::Counter, help);
        for failure in UpstreamFailure::ALL {
            let count = self.sum(|worker| &worker.failures[failure as usize]);
            family.sample(&[("kind", failure.as_str())], count);
        }
    }

    fn write_reloads(&self, page: &mut MetricsPage) {
        let reloads = &self.reloads;
        let help = "Reloads of the settings, by outcome; the initial load does not count.";
        let mut family = page.family("tidegate_gateway_reloads_total", MetricKind::Counter, help);
        family.sample(&[("outcome", "succeeded")], reloads.succeeded.load(Ordering::Relaxed));
        family.sample(&[("outcome", "failed")], reloads.failed.load(Ordering::Relaxed));
        let help = "1 if the last reload succeeded, 0 if its settings were rejected.";
        page.family("tidegate_gateway_config_last_reload_successful", MetricKind::Gauge, help)
            .sample(&[], u8::from(!reloads.last_failed.load(Ordering::Relaxed)));
        let at = reloads.last_success.load(Ordering::Relaxed);
        if at > 0 {
            let help = "Time of the last successful reload, in seconds since 1970.";
            page.family(
                "tidegate_gateway_config_last_reload_success_timestamp_seconds",
                MetricKind::Gauge,
                help,
            )
            .sample(&[], NanosAsSeconds(u128::from(at)));
        }
    }
}

fn write_build_info(page: &mut MetricsPage) {
    let labels = [
        ("version", env!("CARGO_PKG_VERSION")),
        ("os", std::env::consts::OS),
        ("architecture", std::env::consts::ARCH),
    ];
    page.family("tidegate_build_info", MetricKind::Gauge, "Version of the build; always 1.")
        .sample(&labels, 1);
}

fn write_endpoints(page: &mut MetricsPage, backends: &[Arc<UpstreamBackend>]) {
    let mut backends: Vec<&Arc<UpstreamBackend>> = backends.iter().collect();
    backends.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    let mut write = |name, kind, help, value: &dyn Fn(&UpstreamBackend, &UpstreamEndpoint) -> u64| {
        let mut family = page.family(name, kind, help);
        for backend in backends.iter().take(MAX_NAMES) {
            for endpoint in backend.endpoints() {
                let labels = [("backend", &*backend.name), ("endpoint", endpoint.authority())];
                family.sample(&labels, value(backend, endpoint));
            }
        }
    };
    let help = "1 if the endpoint is healthy, 0 if it failed its probes.";
    write("tidegate_gateway_endpoint_up", MetricKind::Gauge, help, &|backend, endpoint| {
        u64::from(backend.is_healthy(endpoint))
    });
    let help = "Active requests and tunnels at the endpoint.";
    write("tidegate_gateway_endpoint_open", MetricKind::Gauge, help, &|_, endpoint| {
        endpoint.in_flight() as u64
    });
    let help = "Requests and tunnels sent to the endpoint.";
    write("tidegate_gateway_endpoint_requests_total", MetricKind::Counter, help, &|_, endpoint| {
        endpoint.requests()
    });
    let help = "Successful connects to the endpoint.";
    write("tidegate_gateway_endpoint_connects_total", MetricKind::Counter, help, &|_, endpoint| {
        endpoint.connects()
    });
    let help = "Failed connects to the endpoint.";
    write("tidegate_gateway_endpoint_failures_total", MetricKind::Counter, help, &|_, endpoint| {
        endpoint.failures()
    });
}

/// The values of one field of one scope.
struct GatewayLimitSample<'a> {
    labels: [MetricLabel<'a>; 3],
    limit: Option<u64>,
    used: Option<u64>,
    clients: Option<u64>,
    refused: Option<u64>,
}

impl<'a> GatewayLimitSample<'a> {
    fn shared(scope_usage: &'a ScopeUsage, field: &'static str, rule: &RuleUsage) -> GatewayLimitSample<'a> {
        GatewayLimitSample {
            labels: labels(scope_usage, field),
            limit: finite(rule.limit),
            used: Some(rule.used),
            clients: None,
            refused: Some(rule.refused),
        }
    }

    /// `None` for an inherited rule, which is reported at its own scope.
    fn per_client(
        scope_usage: &'a ScopeUsage,
        field: &'static str,
        rule: &ClientRuleUsage,
    ) -> Option<GatewayLimitSample<'a>> {
        let ClientRuleCounts { clients, refused } = rule.counts?;
        Some(GatewayLimitSample {
            labels: labels(scope_usage, field),
            limit: finite(rule.limit),
            used: None,
            clients: Some(clients),
            refused: Some(refused),
        })
    }
}

fn labels<'a>(scope_usage: &'a ScopeUsage, field: &'static str) -> [MetricLabel<'a>; 3] {
    [("scope", scope_usage.scope.as_str()), ("name", &scope_usage.name), ("field", field)]
}

const fn finite(limit: Capacity) -> Option<u64> {
    match limit {
        Capacity::AtMost(most) => Some(most),
        Capacity::Unlimited => None,
    }
}

fn write_limits(page: &mut MetricsPage, limits: &RateLimitManager) {
    let all = limits.usage();
    let mut samples = Vec::new();
    let scopes = all.backends.iter().take(MAX_NAMES).chain(all.routes.iter().take(MAX_NAMES));
    for scope_usage in std::iter::once(&all.server).chain(scopes) {
        samples.push(GatewayLimitSample::shared(scope_usage, "maxQps", &scope_usage.requests));
        samples.push(GatewayLimitSample::shared(scope_usage, "maxConnections", &scope_usage.connections));
        samples.extend(GatewayLimitSample::per_client(
            scope_usage,
            "maxQpsPerClient",
            &scope_usage.client_requests,
        ));
        samples.extend(GatewayLimitSample::per_client(
            scope_usage,
            "maxConnectionsPerClient",
            &scope_usage.client_connections,
        ));
    }
    let accept = all.accept.counts.map(|ClientRuleCounts { clients, refused }| GatewayLimitSample {
        labels: [("scope", "accept"), ("name", ""), ("field", "maxConnectionsPerClient")],
        limit: finite(all.accept.limit),
        used: None,
        clients: Some(clients),
        refused: Some(refused),
    });
    samples.extend(accept);
    let mut write = |name, kind, help, value: fn(&GatewayLimitSample<'_>) -> Option<u64>| {
        let mut family = page.family(name, kind, help);
        for each in &samples {
            if let Some(value) = value(each) {
                family.sample(&each.labels, value);
            }
        }
    };
    let help = "The limit; absent if unlimited.";
    write("tidegate_gateway_limit", MetricKind::Gauge, help, |sample| sample.limit);
    let help = "Current usage of the limit: requests within a second, or open connections.";
    write("tidegate_gateway_limit_used", MetricKind::Gauge, help, |sample| sample.used);
    let help = "Clients tracked by a per-client limit.";
    write("tidegate_gateway_limit_clients", MetricKind::Gauge, help, |sample| sample.clients);
    let help = "Refusals by the limit; with several refusing limits, the one with the longest wait counts.";
    write("tidegate_gateway_limit_refused_total", MetricKind::Counter, help, |sample| sample.refused);
    if let Some(size) = limits.store().size() {
        let help = "Approximate memory used by the counters of all limits.";
        page.family("tidegate_gateway_limits_bytes", MetricKind::Gauge, help).sample(&[], size.bytes);
        let help = "Memory budget of the counters of all limits.";
        page.family("tidegate_gateway_limits_budget_bytes", MetricKind::Gauge, help)
            .sample(&[], size.budget_bytes);
    }
}
