//! What the store counted, by limit, and what it takes.
//!
//! DescribedTotals buckets (`cl.throttle/…`) come and go with what clients say, and what is forgotten takes its counts with it. A add_known that
//! falls would look to Prometheus like a server that was started again, so what was last_counts of each is remembered here and only
//! the growth is added up.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate::store::Reach;
use tidegate::{Limit, LimitOverview, Limiter};
use tidegate_net::metrics_page::{MetricKind, MetricLabel, MetricsPage};

use crate::resp::described_buckets::{self, RESERVED_PREFIX};
use crate::tokens::Permissions;

/// The most limits that are samples one by one, the first by id. How many are left out is samples too.
pub const MOST_LIMITS: usize = 10_000;

/// The item of described buckets; their own names have the period in them.
const DESCRIBED_ITEM: &str = "key/bucket";

/// All described buckets, as one.
#[derive(Debug, Default)]
pub(super) struct DescribedTotals {
    last_counts: HashMap<Box<str>, DecisionCounts>,
    total: DecisionCounts,
    rows: Option<u64>,
    bytes: Option<usize>,
}

/// Granted and refused.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct DecisionCounts {
    granted: u64,
    refused: u64,
}

impl DescribedTotals {
    /// Adds what happened since the last time. Nobody waits for described buckets, and none is a shadow.
    fn update<'a>(&mut self, limits: impl Iterator<Item = (&'a str, LimitOverview)>) {
        let mut last_counts = HashMap::new();
        (self.rows, self.bytes) = (None, None);
        for (id, overview) in limits {
            let now = DecisionCounts { granted: overview.granted, refused: overview.refused };
            let before = self.last_counts.get(id).copied().unwrap_or_default();
            // One that was forgotten meanwhile and described again begins anew.
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

/// What is samples of one limit.
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
    let help = "Limits, described buckets not included.";
    page.family("tidegate_limits", MetricKind::Gauge, help).sample(&[], named.len());
    let help = "Limits beyond the 10000th, about which nothing is told one by one.";
    let left_out = named.len().saturating_sub(MOST_LIMITS);
    page.family("tidegate_limits_left_out", MetricKind::Gauge, help).sample(&[], left_out);
    let help = "Rates that were described by CL.THROTTLE and THROTTLE and are not forgotten.";
    page.family("tidegate_described_buckets", MetricKind::Gauge, help).sample(&[], reserved.len());
    store(page, limiter);
}

impl DescribedTotals {
    /// As if they were one limit.
    fn sample(&self) -> LimitSample {
        let DecisionCounts { granted, refused } = self.total;
        let items = vec![tidegate::ItemCount { item: DESCRIBED_ITEM.to_owned(), refused }];
        let overview = LimitOverview {
            granted,
            refused,
            shadowed: 0,
            waiting: 0,
            rows: self.rows,
            bytes: self.bytes,
            items,
        };
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
    let help = "Rows of keys, fresh ones that were not noticed yet included.";
    gauge("tidegate_limit_rows", help, |overview| overview.rows);
    gauge("tidegate_limit_bytes", "About how many bytes a limit takes.", |overview| {
        overview.bytes.map(|bytes| bytes as u64)
    });
    gauge("tidegate_limit_waiters", "How many wait for a limit.", |overview| Some(overview.waiting as u64));
}

/// What is samples of the store as a whole.
fn store(page: &mut MetricsPage, limiter: &Limiter) {
    if let Some(extent) = limiter.store().extent() {
        let help = "About how many bytes all rows take.";
        page.family("tidegate_store_bytes", MetricKind::Gauge, help).sample(&[], extent.bytes);
        let help = "The most bytes that all rows may take.";
        page.family("tidegate_store_budget_bytes", MetricKind::Gauge, help).sample(&[], extent.budget_bytes);
        page.family("tidegate_leases", MetricKind::Gauge, "Leases that are open.").sample(&[], extent.leases);
    }
    if let Some(log) = limiter.store().log_extent() {
        let help = "How many bytes of the store's log a start would read, beside the newest snapshot.";
        page.family("tidegate_store_log_bytes", MetricKind::Gauge, help).sample(&[], log.bytes);
        let help = "In how many files they are.";
        page.family("tidegate_store_log_segments", MetricKind::Gauge, help).sample(&[], log.segments);
    }
    if limiter.store().tip().is_some() {
        let help = "1 if the store's log can no longer be written, so that nothing that changes something is answered.";
        let failed = u8::from(limiter.store().trouble().is_some());
        page.family("tidegate_store_log_failed", MetricKind::Gauge, help).sample(&[], failed);
    }
    if limiter.store().capabilities().reach == Reach::Fleet {
        let help =
            "1 while the store that servers share cannot be asked, so that limits answer by their on_outage.";
        let out = u8::from(limiter.store().trouble().is_some());
        page.family("tidegate_store_unavailable", MetricKind::Gauge, help).sample(&[], out);
    }
    let help = "How many wait in line, at all limits.";
    page.family("tidegate_waiters", MetricKind::Gauge, help).sample(&[], limiter.waiting_in_all());
}

/// The add_known of what is known.
fn add_known<N: std::ops::Add<Output = N>>(add_known: Option<N>, more: Option<N>) -> Option<N> {
    match (add_known, more) {
        (Some(add_known), Some(more)) => Some(add_known + more),
        (add_known, more) => add_known.or(more),
    }
}
