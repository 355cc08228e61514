//! What `/metrics` says: what happened so far and how things are, in the text format of Prometheus, version 0.0.4.
//!
//! ```text
//!   worker 0 ──▶ block of counts ─┐
//!   worker 1 ──▶ block of counts ─┼─ added up ─┐
//!   …                             ┘            ├──▶ page of text
//!   the store's own counts, by limit ──────────┤
//!   /proc/self, how reloads went ──────────────┘
//! ```
//!
//! Decided: whoever serves counts in a block of its own, with plain relaxed additions to cache lines that nobody else writes;
//! the one who looks pays for adding up. What the store counts is not counted once more here.
//!
//! Decided: no label says who asked. Labels are ids of limits, names of items, routes as templates, statuses: things that
//! operators write and that have a bound. Of limits at most [`MOST_LIMITS`] are told one by one, and the described buckets of
//! `CL.THROTTLE`, which clients make, are told as one.
//!
//! Refused: a library of metrics. All there is to know about the format is in `page.rs`, and a registry behind a lock or a map
//! of labels would cost more than the decision that is counted.

mod limit_metrics;
mod reload_counts;
mod status_counts;
mod worker_metrics;
mod worker_totals;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tidegate::Limiter;
use tidegate_net::metrics_page::{MetricKind, MetricsPage};
use tidegate_net::process_metrics;

use crate::tokens::Permissions;
use limit_metrics::DescribedTotals;

pub use limit_metrics::MOST_LIMITS;
pub use reload_counts::{ReloadCounts, ReloadSource};
pub use worker_metrics::{CutReason, Protocol, WorkerMetrics};

/// The media type of what is rendered.
pub use tidegate_net::metrics_page::CONTENT_TYPE;

/// Everything that is counted.
pub struct ServerMetrics {
    workers: Box<[Arc<WorkerMetrics>]>,
    reloads: Option<Box<dyn ReloadSource>>,
    described: Mutex<DescribedTotals>,
}

impl ServerMetrics {
    /// Nothing counted yet, and a block for each of so many workers. There is always at least one block.
    pub fn new(workers: usize) -> ServerMetrics {
        let workers = (0..workers.max(1)).map(|_| Arc::default()).collect();
        ServerMetrics { workers, reloads: None, described: Mutex::default() }
    }

    /// Tells also how reloads of the settings go. Without this nothing is said about them.
    pub fn reloads(mut self, reloads: impl ReloadSource + 'static) -> ServerMetrics {
        self.reloads = Some(Box::new(reloads));
        self
    }

    /// The block of this worker. If there are more workers than blocks, some share one: nothing is lost, it only costs more.
    pub fn worker(&self, index: usize) -> Arc<WorkerMetrics> {
        Arc::clone(&self.workers[index % self.workers.len()])
    }

    /// The page, for somebody who may see all limits.
    pub fn render(&self, limiter: &Limiter) -> String {
        self.render_for(limiter, &Permissions::all())
    }

    /// The page, with the limits that this permissions is for. What is not about a single limit is for everybody who may look.
    pub fn render_for(&self, limiter: &Limiter, permissions: &Permissions) -> String {
        let mut page = MetricsPage::default();
        build(&mut page);
        worker_totals::write(&mut page, &self.workers);
        let mut described = self.described.lock().unwrap_or_else(PoisonError::into_inner);
        limit_metrics::write(&mut page, limiter, permissions, &mut described);
        drop(described);
        if let Some(reloads) = &self.reloads {
            reload_counts::write(&mut page, &reloads.counts());
        }
        process_metrics::write(&mut page);
        page.into_text()
    }
}

impl fmt::Debug for ServerMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerMetrics").field("workers", &self.workers.len()).finish_non_exhaustive()
    }
}

fn build(page: &mut MetricsPage) {
    let labels = [
        ("version", env!("CARGO_PKG_VERSION")),
        ("os", std::env::consts::OS),
        ("architecture", std::env::consts::ARCH),
    ];
    page.family("tidegate_build_info", MetricKind::Gauge, "Which build this is; always 1.")
        .sample(&labels, 1);
}
