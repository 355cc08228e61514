//! What the store counted, by limit, and what it takes.
//!
//! Described buckets (`cl.throttle/…`) come and go with what clients say, and what is forgotten takes its counts with it. A sum that
//! falls would look to Prometheus like a server that was started again, so what was seen of each is remembered here and only
//! the growth is added up.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate::store::Reach;
use tidegate::{Limit, LimitOverview, Limiter};
use tidegate_net::metrics_page::{Kind, Label, Page};

use crate::resp::described_buckets::{self, RESERVED};
use crate::tokens::Pass;

/// The most limits that are told one by one, the first by id. How many are left out is told too.
pub const MOST_LIMITS: usize = 10_000;

/// The item of described buckets; their own names have the period in them.
const DESCRIBED_ITEM: &str = "key/bucket";

/// All described buckets, as one.
#[derive(Debug, Default)]
pub(super) struct Described {
    seen: HashMap<Box<str>, Counts>,
    total: Counts,
    rows: Option<u64>,
    bytes: Option<usize>,
}

/// Granted and refused.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Counts {
    granted: u64,
    refused: u64,
}

impl Described {
    /// Adds what happened since the last time. Nobody waits for described buckets, and none is a shadow.
    fn look<'a>(&mut self, limits: impl Iterator<Item = (&'a str, LimitOverview)>) {
        let mut seen = HashMap::new();
        (self.rows, self.bytes) = (None, None);
        for (id, overview) in limits {
            let now = Counts { granted: overview.granted, refused: overview.refused };
            let before = self.seen.get(id).copied().unwrap_or_default();
            // One that was forgotten meanwhile and described again begins anew.
            let is_same = before.granted <= now.granted && before.refused <= now.refused;
            let before = if is_same { before } else { Counts::default() };
            self.total.granted += now.granted - before.granted;
            self.total.refused += now.refused - before.refused;
            self.rows = sum(self.rows, overview.rows);
            self.bytes = sum(self.bytes, overview.bytes);
            seen.insert(id.into(), now);
        }
        self.seen = seen;
    }
}

/// What is told of one limit.
struct Told {
    id: String,
    overview: LimitOverview,
}

pub(super) fn write(page: &mut Page, limiter: &Limiter, pass: &Pass, described: &mut Described) {
    let (reserved, named): (Vec<_>, Vec<_>) =
        limiter.store().list().into_iter().partition(|limit| described_buckets::is_reserved(limit.id()));
    let named: Vec<Arc<Limit>> = named.into_iter().filter(|limit| pass.covers(limit.id())).collect();
    let observed = |limit: &'_ Arc<Limit>| limiter.observe(limit.id());
    described.look(reserved.iter().filter_map(|limit| Some((limit.id(), observed(limit)?))));
    let told = named.iter().take(MOST_LIMITS);
    let told = told.filter_map(|limit| Some(Told { id: limit.id().to_owned(), overview: observed(limit)? }));
    let mut told: Vec<Told> = told.collect();
    if pass.covers(RESERVED) && (!reserved.is_empty() || described.total != Counts::default()) {
        told.push(described.told());
    }
    decisions(page, &told);
    sizes(page, &told);
    let help = "Limits, described buckets not included.";
    page.family("tidegate_limits", Kind::Gauge, help).sample(&[], named.len());
    let help = "Limits beyond the 10000th, about which nothing is told one by one.";
    let left_out = named.len().saturating_sub(MOST_LIMITS);
    page.family("tidegate_limits_left_out", Kind::Gauge, help).sample(&[], left_out);
    let help = "Rates that were described by CL.THROTTLE and THROTTLE and are not forgotten.";
    page.family("tidegate_described_buckets", Kind::Gauge, help).sample(&[], reserved.len());
    store(page, limiter);
}

impl Described {
    /// As if they were one limit.
    fn told(&self) -> Told {
        let Counts { granted, refused } = self.total;
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
        Told { id: RESERVED.trim_end_matches('/').to_owned(), overview }
    }
}

fn decisions(page: &mut Page, told: &[Told]) {
    let help = "Orders at each limit: granted, refused by the item that binds, \
                or granted although a shadow would have refused; those are among the granted too.";
    let mut family = page.family("tidegate_decisions_total", Kind::Counter, help);
    for Told { id, overview } in told {
        let mut count = |item: &str, outcome: &'static str, count: u64| {
            let labels: [Label<'_>; 3] = [("limit", id), ("item", item), ("outcome", outcome)];
            family.sample(&labels, count);
        };
        count("", "granted", overview.granted);
        for item in &overview.items {
            count(&item.item, "refused", item.refused);
        }
        count("", "shadowed", overview.shadowed);
    }
}

fn sizes(page: &mut Page, told: &[Told]) {
    let mut gauge = |name: &'static str, help: &'static str, value: fn(&LimitOverview) -> Option<u64>| {
        let mut family = page.family(name, Kind::Gauge, help);
        for Told { id, overview } in told {
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

/// What is told of the store as a whole.
fn store(page: &mut Page, limiter: &Limiter) {
    if let Some(extent) = limiter.store().extent() {
        let help = "About how many bytes all rows take.";
        page.family("tidegate_store_bytes", Kind::Gauge, help).sample(&[], extent.bytes);
        let help = "The most bytes that all rows may take.";
        page.family("tidegate_store_budget_bytes", Kind::Gauge, help).sample(&[], extent.budget_bytes);
        page.family("tidegate_leases", Kind::Gauge, "Leases that are open.").sample(&[], extent.leases);
    }
    if let Some(log) = limiter.store().log_extent() {
        let help = "How many bytes of the store's log a start would read, beside the newest snapshot.";
        page.family("tidegate_store_log_bytes", Kind::Gauge, help).sample(&[], log.bytes);
        let help = "In how many files they are.";
        page.family("tidegate_store_log_segments", Kind::Gauge, help).sample(&[], log.segments);
    }
    if limiter.store().tip().is_some() {
        let help = "1 if the store's log can no longer be written, so that nothing that changes something is answered.";
        let failed = u8::from(limiter.store().trouble().is_some());
        page.family("tidegate_store_log_failed", Kind::Gauge, help).sample(&[], failed);
    }
    if limiter.store().capabilities().reach == Reach::Fleet {
        let help =
            "1 while the store that servers share cannot be asked, so that limits answer by their on_outage.";
        let out = u8::from(limiter.store().trouble().is_some());
        page.family("tidegate_store_unavailable", Kind::Gauge, help).sample(&[], out);
    }
    let help = "How many wait in line, at all limits.";
    page.family("tidegate_waiters", Kind::Gauge, help).sample(&[], limiter.waiting_in_all());
}

/// The sum of what is known.
fn sum<N: std::ops::Add<Output = N>>(sum: Option<N>, more: Option<N>) -> Option<N> {
    match (sum, more) {
        (Some(sum), Some(more)) => Some(sum + more),
        (sum, more) => sum.or(more),
    }
}
