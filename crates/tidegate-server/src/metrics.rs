//! The metrics of `/metrics`, in the text format of Prometheus, version 0.0.4.
//!
//! ```text
//!   worker 0 ──▶ block of counters ─┐
//!   worker 1 ──▶ block of counters ─┼─ summed ─┐
//!   …                               ┘          ├──▶ metrics page
//!   counts of the store, by limit ─────────────┤
//!   /proc/self, reload counts ─────────────────┘
//! ```
//!
//! Each worker counts in its own block with relaxed additions to cache lines that no other thread writes. The scrape pays for summing
//! up. What the store counts is not counted again here.
//!
//! No label identifies a client. Labels are limit ids, item names, route templates and statuses: written by operators and bounded in
//! number. At most [`MOST_LIMITS`] limits have their own samples. The described buckets of `CL.THROTTLE`, which clients create, are
//! summed into one.
//!
//! No metrics library: the format is small (see `metrics_page.rs` in `tidegate-net`), and a registry behind a lock or a map of labels
//! would cost more than the decision that is counted.

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

/// The media type of the page.
pub use tidegate_net::metrics_page::CONTENT_TYPE;

/// All metrics of the server.
pub struct ServerMetrics {
    workers: Box<[Arc<WorkerMetrics>]>,
    reloads: Option<Box<dyn ReloadSource>>,
    described: Mutex<DescribedTotals>,
}

impl ServerMetrics {
    /// One empty block per worker; at least one.
    pub fn new(workers: usize) -> ServerMetrics {
        let workers = (0..workers.max(1)).map(|_| Arc::default()).collect();
        ServerMetrics { workers, reloads: None, described: Mutex::default() }
    }

    /// Also renders the counts of reloads.
    pub fn reloads(mut self, reloads: impl ReloadSource + 'static) -> ServerMetrics {
        self.reloads = Some(Box::new(reloads));
        self
    }

    /// The block of this worker. Workers beyond the number of blocks share one; counts stay exact.
    pub fn worker(&self, index: usize) -> Arc<WorkerMetrics> {
        Arc::clone(&self.workers[index % self.workers.len()])
    }

    /// The page with all limits.
    pub fn render(&self, limiter: &Limiter) -> String {
        self.render_for(limiter, &Permissions::all())
    }

    /// The page with the limits that the permissions cover. Metrics that are not about a single limit are always included.
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
    page.family("tidegate_build_info", MetricKind::Gauge, "Build information; always 1.").sample(&labels, 1);
}
