//! The page: everything that was counted, added up, in the text format of Prometheus.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate::{Capacity, Store as _};
use tidegate_net::histogram::{DURATION_BUCKETS, HistogramSum};
use tidegate_net::metrics_page::{MetricKind, MetricLabel, MetricsPage, NanosAsSeconds};
use tidegate_net::process_metrics;

use super::worker::{Class, Cut, END_OF_STATUSES, FIRST_STATUS, Failure};
use super::{Numbers, lock};
use crate::endpoints::{Backend, Endpoint};
use crate::limits::{self, ClientCounts, ClientRule, Level, RateLimitManager, Rule, Standing};

/// The most backends and the most routes that are told one by one, the first by name.
pub const MOST_NAMES: usize = 10_000;

impl Numbers {
    /// The page, together with what is counted elsewhere.
    pub fn render(&self, limits: &RateLimitManager, backends: &[Arc<Backend>]) -> String {
        let mut page = MetricsPage::default();
        build(&mut page);
        self.requests(&mut page);
        self.connections(&mut page);
        self.refusals(&mut page);
        self.upstreams(&mut page);
        endpoints(&mut page, backends);
        standings(&mut page, limits);
        self.reloads(&mut page);
        process_metrics::write(&mut page);
        page.into_text()
    }

    fn requests(&self, page: &mut MetricsPage) {
        let help = "How long requests take, from their first byte to the last of the response.";
        let mut family = page.family("tidegate_gateway_request_duration_seconds", MetricKind::Histogram, help);
        let sum = HistogramSum::of(self.workers.iter().map(|worker| &worker.durations));
        sum.write(&mut family, &[], &DURATION_BUCKETS, |nanos| NanosAsSeconds(u128::from(nanos)));

        let help = "Responses to clients, by status; none is a client that left before there was one.";
        let mut family = page.family("tidegate_gateway_responses_total", MetricKind::Counter, help);
        for status in FIRST_STATUS..=END_OF_STATUSES {
            let count: u64 = self.workers.iter().map(|worker| worker.status(status)).sum();
            if count > 0 {
                let code = status.to_string();
                let code = if status == END_OF_STATUSES { "none" } else { code.as_str() };
                family.sample(&[("code", code)], count);
            }
        }

        let help = "Requests by route, and by the first digit of their status.";
        let mut family = page.family("tidegate_gateway_requests_total", MetricKind::Counter, help);
        let mut routes: Vec<_> =
            lock(&self.routes).iter().map(|(id, it)| (id.clone(), Arc::clone(it))).collect();
        routes.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        for (id, numbers) in routes.iter().take(MOST_NAMES) {
            for class in Class::ALL {
                let count = numbers.requests(class);
                if count > 0 {
                    family.sample(&[("route", id), ("class", class.word())], count);
                }
            }
        }

        let help = "Bytes of the bodies of requests.";
        let received = self.sum(|worker| &worker.received);
        page.family("tidegate_gateway_received_bytes_total", MetricKind::Counter, help).sample(&[], received);
        let help = "Bytes of the bodies of responses.";
        let sent = self.sum(|worker| &worker.sent);
        page.family("tidegate_gateway_sent_bytes_total", MetricKind::Counter, help).sample(&[], sent);
        let help = "Lines of the access log that could not be written.";
        let lost = self.sum(|worker| &worker.lost_lines);
        page.family("tidegate_gateway_access_log_lost_total", MetricKind::Counter, help).sample(&[], lost);
    }

    fn connections(&self, page: &mut MetricsPage) {
        let help = "Connections of clients that are open.";
        page.family("tidegate_gateway_connections", MetricKind::Gauge, help).sample(&[], self.open_connections());
        let help = "Connections of clients that were accepted.";
        let accepted = self.sum(|worker| &worker.accepted);
        page.family("tidegate_gateway_connections_accepted_total", MetricKind::Counter, help).sample(&[], accepted);
        let help = "Connections of clients that were turned away.";
        let refused = self.sum(|worker| &worker.refused_connections);
        page.family("tidegate_gateway_connections_refused_total", MetricKind::Counter, help).sample(&[], refused);
        let help = "Connections of clients that the gateway ended, by reason.";
        let mut family = page.family("tidegate_gateway_connections_cut_total", MetricKind::Counter, help);
        for reason in Cut::ALL {
            let count = self.sum(|worker| &worker.cuts[reason as usize]);
            family.sample(&[("reason", reason.word())], count);
        }
        let help = "Connections of clients that became tunnels.";
        let upgrades = self.sum(|worker| &worker.upgrades);
        page.family("tidegate_gateway_upgrades_total", MetricKind::Counter, help).sample(&[], upgrades);
    }

    fn refusals(&self, page: &mut MetricsPage) {
        let help = "Requests and connections that were refused, by the first level that did.";
        let mut family = page.family("tidegate_gateway_refusals_total", MetricKind::Counter, help);
        for level in Level::ALL {
            for kind in limits::Kind::ALL {
                let count = self.sum(|worker| &worker.refusals[level as usize][kind as usize]);
                family.sample(&[("level", level.word()), ("kind", kind.word())], count);
            }
        }
        let help = "Those among the refusals that there was no room to count a client for.";
        let degraded = self.sum(|worker| &worker.degraded);
        page.family("tidegate_gateway_refusals_degraded_total", MetricKind::Counter, help).sample(&[], degraded);
    }

    fn upstreams(&self, page: &mut MetricsPage) {
        let help = "Requests that were sent to another endpoint, because one could not take them.";
        let retries = self.sum(|worker| &worker.retries);
        page.family("tidegate_gateway_retries_total", MetricKind::Counter, help).sample(&[], retries);
        let help = "What endpoints are to blame for.";
        let mut family = page.family("tidegate_gateway_upstream_failures_total", MetricKind::Counter, help);
        for failure in Failure::ALL {
            let count = self.sum(|worker| &worker.failures[failure as usize]);
            family.sample(&[("kind", failure.word())], count);
        }
    }

    fn reloads(&self, page: &mut MetricsPage) {
        let reloads = &self.reloads;
        let help = "Reloads of the settings, by how they ended; the start is none of them.";
        let mut family = page.family("tidegate_gateway_reloads_total", MetricKind::Counter, help);
        family.sample(&[("outcome", "succeeded")], reloads.succeeded.load(Ordering::Relaxed));
        family.sample(&[("outcome", "failed")], reloads.failed.load(Ordering::Relaxed));
        let help = "1 if the settings in use are those that were read last, 0 if those were refused.";
        page.family("tidegate_gateway_config_last_reload_successful", MetricKind::Gauge, help)
            .sample(&[], u8::from(!reloads.last_failed.load(Ordering::Relaxed)));
        let at = reloads.last_success.load(Ordering::Relaxed);
        if at > 0 {
            let help = "When settings were last read again and used, in seconds since 1970.";
            page.family("tidegate_gateway_config_last_reload_success_timestamp_seconds", MetricKind::Gauge, help)
                .sample(&[], NanosAsSeconds(u128::from(at)));
        }
    }
}

fn build(page: &mut MetricsPage) {
    let labels = [
        ("version", env!("CARGO_PKG_VERSION")),
        ("os", std::env::consts::OS),
        ("architecture", std::env::consts::ARCH),
    ];
    page.family("tidegate_build_info", MetricKind::Gauge, "Which build this is; always 1.").sample(&labels, 1);
}

fn endpoints(page: &mut MetricsPage, backends: &[Arc<Backend>]) {
    let mut backends: Vec<&Arc<Backend>> = backends.iter().collect();
    backends.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    let mut tell = |name, kind, help, value: &dyn Fn(&Backend, &Endpoint) -> u64| {
        let mut family = page.family(name, kind, help);
        for backend in backends.iter().take(MOST_NAMES) {
            for endpoint in backend.endpoints() {
                let labels = [("backend", &*backend.name), ("endpoint", endpoint.authority())];
                family.sample(&labels, value(backend, endpoint));
            }
        }
    };
    let help = "1 if requests may go to an endpoint, 0 if its probes say that it is not well.";
    tell("tidegate_gateway_endpoint_up", MetricKind::Gauge, help, &|backend, endpoint| {
        u64::from(backend.is_well(endpoint))
    });
    let help = "Requests and tunnels that are at an endpoint.";
    tell("tidegate_gateway_endpoint_open", MetricKind::Gauge, help, &|_, endpoint| endpoint.open() as u64);
    let help = "Requests and tunnels that went to an endpoint.";
    tell("tidegate_gateway_endpoint_requests_total", MetricKind::Counter, help, &|_, endpoint| endpoint.requests());
    let help = "Connections that were made to an endpoint.";
    tell("tidegate_gateway_endpoint_connects_total", MetricKind::Counter, help, &|_, endpoint| endpoint.connects());
    let help = "Connections that could not be made to an endpoint.";
    tell("tidegate_gateway_endpoint_failures_total", MetricKind::Counter, help, &|_, endpoint| endpoint.failures());
}

/// One field of one scope, as it is told.
struct Told<'a> {
    labels: [MetricLabel<'a>; 3],
    limit: Option<u64>,
    used: Option<u64>,
    clients: Option<u64>,
    refused: Option<u64>,
}

impl<'a> Told<'a> {
    fn of_all(standing: &'a Standing, field: &'static str, rule: &Rule) -> Told<'a> {
        Told {
            labels: labels(standing, field),
            limit: number(rule.limit),
            used: Some(rule.used),
            clients: None,
            refused: Some(rule.refused),
        }
    }

    /// What is written elsewhere is told there.
    fn of_clients(standing: &'a Standing, field: &'static str, rule: &ClientRule) -> Option<Told<'a>> {
        let ClientCounts { clients, refused } = rule.counts?;
        Some(Told {
            labels: labels(standing, field),
            limit: number(rule.limit),
            used: None,
            clients: Some(clients),
            refused: Some(refused),
        })
    }
}

fn labels<'a>(standing: &'a Standing, field: &'static str) -> [MetricLabel<'a>; 3] {
    [("scope", standing.scope.word()), ("name", &standing.name), ("field", field)]
}

const fn number(limit: Capacity) -> Option<u64> {
    match limit {
        Capacity::AtMost(most) => Some(most),
        Capacity::Unlimited => None,
    }
}

fn standings(page: &mut MetricsPage, limits: &RateLimitManager) {
    let all = limits.standings();
    let mut told = Vec::new();
    let scopes = all.backends.iter().take(MOST_NAMES).chain(all.routes.iter().take(MOST_NAMES));
    for standing in std::iter::once(&all.server).chain(scopes) {
        told.push(Told::of_all(standing, "maxQps", &standing.requests));
        told.push(Told::of_all(standing, "maxConnections", &standing.connections));
        told.extend(Told::of_clients(standing, "maxQpsPerClient", &standing.client_requests));
        told.extend(Told::of_clients(standing, "maxConnectionsPerClient", &standing.client_connections));
    }
    let accept = all.door.counts.map(|ClientCounts { clients, refused }| Told {
        labels: [("scope", "accept"), ("name", ""), ("field", "maxConnectionsPerClient")],
        limit: number(all.door.limit),
        used: None,
        clients: Some(clients),
        refused: Some(refused),
    });
    told.extend(accept);
    let mut tell = |name, kind, help, value: fn(&Told<'_>) -> Option<u64>| {
        let mut family = page.family(name, kind, help);
        for each in &told {
            if let Some(value) = value(each) {
                family.sample(&each.labels, value);
            }
        }
    };
    let help = "What a limit says; nothing is said of what has none.";
    tell("tidegate_gateway_limit", MetricKind::Gauge, help, |told| told.limit);
    let help = "How much of a limit is used: requests within a second, connections that are open.";
    tell("tidegate_gateway_limit_used", MetricKind::Gauge, help, |told| told.used);
    let help = "Clients that a limit for each of them remembers.";
    tell("tidegate_gateway_limit_clients", MetricKind::Gauge, help, |told| told.clients);
    let help = "What a limit refused, and for longest of all that did, since it is there.";
    tell("tidegate_gateway_limit_refused_total", MetricKind::Counter, help, |told| told.refused);
    if let Some(extent) = limits.store().extent() {
        let help = "About how many bytes everything takes that limits count.";
        page.family("tidegate_gateway_limits_bytes", MetricKind::Gauge, help).sample(&[], extent.bytes);
        let help = "The most bytes that it may take.";
        page.family("tidegate_gateway_limits_budget_bytes", MetricKind::Gauge, help)
            .sample(&[], extent.budget_bytes);
    }
}
