//! Sums of the workers' counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_net::histogram::{DURATION_BUCKETS, HistogramSum};
use tidegate_net::metrics_page::{MetricKind, MetricsPage, NanosAsSeconds};

use super::status_counts::StatusCounts;
use super::worker_metrics::{BATCH_SIZES, CutReason, Protocol, ProtocolCounts, WorkerMetrics};

pub(super) fn write(page: &mut MetricsPage, workers: &[Arc<WorkerMetrics>]) {
    let totals = WorkerTotals { workers };
    totals.durations(page);
    totals.requests(page);
    totals.decisions(page);
    totals.connections(page);
}

struct WorkerTotals<'a> {
    workers: &'a [Arc<WorkerMetrics>],
}

impl WorkerTotals<'_> {
    fn sum(&self, protocol: Protocol, count: impl Fn(&ProtocolCounts) -> &AtomicU64) -> u64 {
        self.workers.iter().map(|worker| count(worker.protocol(protocol)).load(Ordering::Relaxed)).sum()
    }

    fn durations(&self, page: &mut MetricsPage) {
        let help = "Time from reading a request to its answer; for resp, of a batch of commands.";
        let mut family = page.family("tidegate_request_duration_seconds", MetricKind::Histogram, help);
        for protocol in Protocol::ALL {
            let sum =
                HistogramSum::of(self.workers.iter().map(|worker| &worker.protocol(protocol).durations));
            let format = |nanos| NanosAsSeconds(u128::from(nanos));
            sum.write(&mut family, &[("door", protocol.word())], &DURATION_BUCKETS, format);
        }
        let help = "Commands per batch.";
        let mut family = page.family("tidegate_resp_batch_size", MetricKind::Histogram, help);
        let sum = HistogramSum::of(self.workers.iter().map(|worker| &worker.batch_sizes));
        sum.write(&mut family, &[], &BATCH_SIZES, |size| size);
    }

    fn requests(&self, page: &mut MetricsPage) {
        let help = "HTTP requests by route and status.";
        let mut family = page.family("tidegate_http_requests_total", MetricKind::Counter, help);
        for (route, code, count) in StatusCounts::sum(self.workers.iter().map(|worker| &worker.statuses)) {
            family.sample(&[("route", route.template()), ("code", code)], count);
        }
    }

    fn decisions(&self, page: &mut MetricsPage) {
        let help = "Decided acquire requests by protocol; peeks are not counted.";
        let mut family = page.family("tidegate_door_decisions_total", MetricKind::Counter, help);
        for protocol in Protocol::ALL {
            let label = ("door", protocol.word());
            family.sample(&[label, ("outcome", "granted")], self.sum(protocol, |counts| &counts.granted));
            family.sample(&[label, ("outcome", "refused")], self.sum(protocol, |counts| &counts.refused));
        }
    }

    fn connections(&self, page: &mut MetricsPage) {
        let help = "Open connections.";
        let mut family = page.family("tidegate_connections", MetricKind::Gauge, help);
        for protocol in Protocol::ALL {
            // Reading `closed` first keeps the difference from going below zero.
            let closed = self.sum(protocol, |counts| &counts.closed);
            let open = self.sum(protocol, |counts| &counts.opened).saturating_sub(closed);
            family.sample(&[("door", protocol.word())], open);
        }
        self.write_by_protocol(
            page,
            "tidegate_connections_accepted_total",
            "Accepted connections.",
            |counts| &counts.opened,
        );
        let help = "Connections rejected by the connection limit.";
        self.write_by_protocol(page, "tidegate_connections_refused_total", help, |counts| {
            &counts.refused_connections
        });
        let help = "Connections closed by the server, by reason.";
        let mut family = page.family("tidegate_connections_cut_total", MetricKind::Counter, help);
        for protocol in Protocol::ALL {
            for reason in CutReason::ALL {
                let count = self.sum(protocol, |counts| &counts.cut[reason as usize]);
                family.sample(&[("door", protocol.word()), ("reason", reason.word())], count);
            }
        }
        let help = "Requests and commands with a missing or invalid token.";
        self.write_by_protocol(page, "tidegate_authentication_failures_total", help, |counts| {
            &counts.failed_auths
        });
    }

    fn write_by_protocol(
        &self,
        page: &mut MetricsPage,
        name: &'static str,
        help: &'static str,
        count: impl Fn(&ProtocolCounts) -> &AtomicU64,
    ) {
        let mut family = page.family(name, MetricKind::Counter, help);
        for protocol in Protocol::ALL {
            family.sample(&[("door", protocol.word())], self.sum(protocol, &count));
        }
    }
}
