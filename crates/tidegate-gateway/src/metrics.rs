//! The metrics of the gateway, and the page at `/metrics`.
//!
//! ```text
//!   worker 0 ──▶ WorkerCounters ─┐
//!   worker 1 ──▶ WorkerCounters ─┼─ summed ─────┐
//!   every route, one cache line per worker ─────┼──▶ text page
//!   endpoints, limits: counted by themselves ───┤
//!   /proc/self ─────────────────────────────────┘
//! ```
//!
//! Each worker counts in cache lines of its own with relaxed additions. The reader pays for the sum. No label identifies a
//! client: labels are configured names or fixed words.

mod page;
mod worker;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;

use crate::hottest_clients::{HottestClient, TopClients, merge_top_clients};

pub use page::MAX_NAMES;
pub use worker::{DisconnectReason, RouteMetrics, StatusClass, UpstreamFailure, WorkerCounters};

/// All metrics.
pub struct GatewayMetrics {
    workers: Box<[Arc<WorkerCounters>]>,
    /// By route id.
    routes: Mutex<HashMap<Box<str>, Arc<RouteMetrics>>>,
    reloads: ReloadCounters,
}

/// Results of reloads. The initial load does not count.
#[derive(Debug, Default)]
struct ReloadCounters {
    succeeded: AtomicU64,
    failed: AtomicU64,
    last_failed: AtomicBool,
    /// In nanoseconds since 1970; 0 is never.
    last_success: AtomicU64,
}

impl GatewayMetrics {
    /// Creates zeroed counters for this many workers, at least one.
    pub fn new(workers: usize) -> GatewayMetrics {
        GatewayMetrics {
            workers: (0..workers.max(1)).map(|number| Arc::new(WorkerCounters::new(number))).collect(),
            routes: Mutex::default(),
            reloads: ReloadCounters::default(),
        }
    }

    /// The counters of a worker. With more workers than counters, several share one.
    pub fn worker(&self, number: usize) -> Arc<WorkerCounters> {
        Arc::clone(&self.workers[number % self.workers.len()])
    }

    /// Sets the current routes and returns their counters in the same order. Existing routes keep their
    /// counts; removed routes are no longer reported.
    pub fn set_routes<'i>(&self, ids: impl IntoIterator<Item = &'i str>) -> Vec<Arc<RouteMetrics>> {
        let mut known = lock(&self.routes);
        let fresh = || Arc::new(RouteMetrics::new(self.workers.len()));
        let kept = ids.into_iter().map(|id| {
            let metrics = known.get(id).map_or_else(fresh, Arc::clone);
            (Box::<str>::from(id), metrics)
        });
        let kept: Vec<(Box<str>, Arc<RouteMetrics>)> = kept.collect();
        let all = kept.iter().map(|(_, metrics)| Arc::clone(metrics)).collect();
        *known = kept.into_iter().collect();
        all
    }

    /// Records a reload at a time since 1970.
    pub fn record_reload(&self, succeeded: bool, at: Duration) {
        let count = if succeeded { &self.reloads.succeeded } else { &self.reloads.failed };
        count.fetch_add(1, Ordering::Relaxed);
        self.reloads.last_failed.store(!succeeded, Ordering::Relaxed);
        if succeeded {
            let at = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
            self.reloads.last_success.store(at, Ordering::Relaxed);
        }
    }

    /// The hottest clients of all workers, hottest first.
    pub fn hottest(&self, max: usize) -> Vec<HottestClient> {
        // Workers only wait while their sketch is copied.
        let copies: Vec<TopClients> =
            self.workers.iter().map(|worker| worker.top_clients().clone()).collect();
        merge_top_clients(&copies, max)
    }

    /// Halves all client counts. Call this periodically.
    pub fn halve_client_counts(&self) {
        self.workers.iter().for_each(|worker| worker.top_clients().halve());
    }

    /// The number of open client connections.
    pub fn open_connections(&self) -> u64 {
        // Read `closed` first, so that the difference is never negative.
        let closed = self.sum(|worker| &worker.closed);
        self.sum(|worker| &worker.accepted).saturating_sub(closed)
    }

    fn sum(&self, count: impl Fn(&WorkerCounters) -> &AtomicU64) -> u64 {
        self.workers.iter().map(|worker| count(worker).load(Ordering::Relaxed)).sum()
    }
}

impl fmt::Debug for GatewayMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayMetrics").field("workers", &self.workers.len()).finish_non_exhaustive()
    }
}

/// A panic elsewhere does not invalidate the counts.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
