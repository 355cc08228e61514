//! Counts and sizes from the store, by limit.
//!
//! Described buckets (`cl.throttle/…`) come and go, and an evicted one takes its counts with it. A counter that falls looks like a restart
//! to Prometheus. So the last counts of each are remembered here, and only the growth is added to the total.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate::Limiter;
use tidegate::limiter::LimitOverview;
use tidegate::model::Limit;
use tidegate::store::{ItemCount, LimitStats, Reach};
use tidegate_net::metrics_page::{MetricKind, MetricLabel, MetricsPage};

use crate::resp::described_buckets::{self, RESERVED_PREFIX};
use crate::tokens::Permissions;

/// The most limits with their own samples, the first by id. The number of others is a metric too.
pub const MOST_LIMITS: usize = 10_000;

/// The item label of described buckets; their own item names contain the period.
const DESCRIBED_ITEM: &str = "key/bucket";

/// The totals of all described buckets.
#[derive(Debug, Default)]
pub(super) struct DescribedTotals {
    last_counts: HashMap<Box<str>, DecisionCounts>,
    total: DecisionCounts,
    rows: Option<u64>,
    bytes: Option<usize>,
}

/// Granted and refused requests.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct DecisionCounts {
    granted: u64,
    refused: u64,
}

impl DescribedTotals {
    /// Adds the growth since the last scrape. Described buckets have no waiters and no shadow mode.
    fn update<'a>(&mut self, limits: impl Iterator<Item = (&'a str, LimitOverview)>) {
        let mut last_counts = HashMap::new();
        (self.rows, self.bytes) = (None, None);
        for (id, overview) in limits {
            let now = DecisionCounts { granted: overview.granted, refused: overview.refused };
            let before = self.last_counts.get(id).copied().unwrap_or_default();
            // Evicted and described again in between: counts start at zero.
            let is_same = before.granted <= now.granted && before.refused <= now.refused;
            let before = if is_same { before } else { DecisionCounts::default() };
            self.total.granted += now.granted - before.granted;
            self.total.refused += now.refused - before.refused;
            self.rows = add_known(self.rows, overview.rows);
            self.bytes = add_known(self.bytes, overview.bytes);
            last_counts.insert(id.into(), now);
        }
        self.last_counts = last_counts;
    }
}

/// The samples of one limit.
struct LimitSample {
    id: String,
    overview: LimitOverview,
}

pub(super) fn write(
    page: &mut MetricsPage,
    limiter: &Limiter,
    permissions: &Permissions,
    described: &mut DescribedTotals,
) {
    let (reserved, named): (Vec<_>, Vec<_>) =
        limiter.store().list().into_iter().partition(|limit| described_buckets::is_reserved(limit.id()));
    let named: Vec<Arc<Limit>> = named.into_iter().filter(|limit| permissions.covers(limit.id())).collect();
    let observed = |limit: &'_ Arc<Limit>| limiter.observe(limit.id());
    described.update(reserved.iter().filter_map(|limit| Some((limit.id(), observed(limit)?))));
    let samples = named.iter().take(MOST_LIMITS);
    let samples = samples
        .filter_map(|limit| Some(LimitSample { id: limit.id().to_owned(), overview: observed(limit)? }));
    let mut samples: Vec<LimitSample> = samples.collect();
    if permissions.covers(RESERVED_PREFIX)
        && (!reserved.is_empty() || described.total != DecisionCounts::default())
    {
        samples.push(described.sample());
    }
    decisions(page, &samples);
    sizes(page, &samples);
    let help = "Number of limits without described buckets.";
    page.family("tidegate_limits", MetricKind::Gauge, help).sample(&[], named.len());
    let help = "Limits beyond the first 10000, which have no samples of their own.";
    let left_out = named.len().saturating_sub(MOST_LIMITS);
    page.family("tidegate_limits_left_out", MetricKind::Gauge, help).sample(&[], left_out);
    let help = "Number of rates described by CL.THROTTLE and THROTTLE.";
    page.family("tidegate_described_buckets", MetricKind::Gauge, help).sample(&[], reserved.len());
    store(page, limiter);
}

impl DescribedTotals {
    /// The totals as the samples of one limit.
    fn sample(&self) -> LimitSample {
        let DecisionCounts { granted, refused } = self.total;
        let items = vec![ItemCount { item: DESCRIBED_ITEM.to_owned(), refused }];
        let stats = LimitStats { granted, refused, shadowed: 0, items, rows: self.rows, bytes: self.bytes };
        let overview = LimitOverview::new(stats, 0);
        LimitSample { id: RESERVED_PREFIX.trim_end_matches('/').to_owned(), overview }
    }
}

fn decisions(page: &mut MetricsPage, samples: &[LimitSample]) {
    let help = "Orders at each limit: granted, refused by the item that binds, \
                or granted although a shadow would have refused; those are among the granted too.";
    let mut family = page.family("tidegate_decisions_total", MetricKind::Counter, help);
    for LimitSample { id, overview } in samples {
        let mut count = |item: &str, outcome: &'static str, count: u64| {
            let labels: [MetricLabel<'_>; 3] = [("limit", id), ("item", item), ("outcome", outcome)];
            family.sample(&labels, count);
        };
        count("", "granted", overview.granted);
        for item in &overview.items {
            count(&item.item, "refused", item.refused);
        }
        count("", "shadowed", overview.shadowed);
    }
}

fn sizes(page: &mut MetricsPage, samples: &[LimitSample]) {
    let mut gauge = |name: &'static str, help: &'static str, value: fn(&LimitOverview) -> Option<u64>| {
        let mut family = page.family(name, MetricKind::Gauge, help);
        for LimitSample { id, overview } in samples {
            if let Some(value) = value(overview) {
                family.sample(&[("limit", id)], value);
            }
        }
    };
    let help = "Rows of keys, including expired ones that are not removed yet.";
    gauge("tidegate_limit_rows", help, |overview| overview.rows);
    gauge("tidegate_limit_bytes", "Estimated memory of a limit in bytes.", |overview| {
        overview.bytes.map(|bytes| bytes as u64)
    });
    gauge("tidegate_limit_waiters", "Requests that wait in the queue of a limit.", |overview| {
        Some(overview.waiting as u64)
    });
}

/// Samples of the store as a whole.
fn store(page: &mut MetricsPage, limiter: &Limiter) {
    if let Some(size) = limiter.store().size() {
        let help = "Estimated memory of all rows in bytes.";
        page.family("tidegate_store_bytes", MetricKind::Gauge, help).sample(&[], size.bytes);
        let help = "Memory budget of all rows in bytes.";
        page.family("tidegate_store_budget_bytes", MetricKind::Gauge, help).sample(&[], size.budget_bytes);
        page.family("tidegate_leases", MetricKind::Gauge, "Open leases.").sample(&[], size.leases);
    }
    if let Some(log) = limiter.store().log_size() {
        let help = "Bytes of the store's log that recovery would read in addition to the newest snapshot.";
        page.family("tidegate_store_log_bytes", MetricKind::Gauge, help).sample(&[], log.bytes);
        let help = "Number of segment files of the store's log.";
        page.family("tidegate_store_log_segments", MetricKind::Gauge, help).sample(&[], log.segments);
    }
    if limiter.store().log_end().is_some() {
        let help = "1 if the store's log cannot be written, so that changes are not answered.";
        let failed = u8::from(limiter.store().outage().is_some());
        page.family("tidegate_store_log_failed", MetricKind::Gauge, help).sample(&[], failed);
    }
    if limiter.store().capabilities().reach == Reach::Fleet {
        let help = "1 while the shared store is unreachable and limits follow their on_outage.";
        let out = u8::from(limiter.store().outage().is_some());
        page.family("tidegate_store_unavailable", MetricKind::Gauge, help).sample(&[], out);
    }
    let help = "Requests that wait in the queues of all limits.";
    page.family("tidegate_waiters", MetricKind::Gauge, help).sample(&[], limiter.waiting_in_all());
}

/// The sum of the known values.
fn add_known<N: std::ops::Add<Output = N>>(sum: Option<N>, more: Option<N>) -> Option<N> {
    match (sum, more) {
        (Some(sum), Some(more)) => Some(sum + more),
        (sum, more) => sum.or(more),
    }
}
