//! What the gateway counts, and the page at `/metrics`.
//!
//! ```text
//!   worker 0 ──▶ block of counts ─┐
//!   worker 1 ──▶ block of counts ─┼─ added up ──┐
//!   every route, a line for each worker ─┘      ├──▶ page of text
//!   endpoints, limits: counted where they are ──┤
//!   /proc/self ─────────────────────────────────┘
//! ```
//!
//! Decided: a worker counts in lines of memory that nobody else writes, with plain relaxed additions; whoever looks pays for adding
//! up. No label says who asked: labels are names that operators write, and words.

mod page;
mod worker;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;

use crate::hottest_clients::{Hot, Hottest, hottest};

pub use page::MOST_NAMES;
pub use worker::{Class, Cut, Failure, RouteNumbers, WorkerNumbers};

/// Everything that is counted.
pub struct Numbers {
    workers: Box<[Arc<WorkerNumbers>]>,
    /// By their ids.
    routes: Mutex<HashMap<Box<str>, Arc<RouteNumbers>>>,
    reloads: Reloads,
}

/// How reloads of the settings went. Reading them at the start is none.
#[derive(Debug, Default)]
struct Reloads {
    succeeded: AtomicU64,
    failed: AtomicU64,
    last_failed: AtomicBool,
    /// In nanoseconds since 1970; 0 is never.
    last_success: AtomicU64,
}

impl Numbers {
    /// Nothing counted yet, and a block for each of so many workers. There is always at least one.
    pub fn new(workers: usize) -> Numbers {
        Numbers {
            workers: (0..workers.max(1)).map(|number| Arc::new(WorkerNumbers::new(number))).collect(),
            routes: Mutex::default(),
            reloads: Reloads::default(),
        }
    }

    /// The block of this worker. If there are more workers than blocks, some share one: nothing is lost, it only costs more.
    pub fn worker(&self, number: usize) -> Arc<WorkerNumbers> {
        Arc::clone(&self.workers[number % self.workers.len()])
    }

    /// Where requests by these routes are counted, in their order. Routes that were there before keep their counts, and those that are
    /// not among these are no longer told.
    pub fn routes<'i>(&self, ids: impl IntoIterator<Item = &'i str>) -> Vec<Arc<RouteNumbers>> {
        let mut known = lock(&self.routes);
        let fresh = || Arc::new(RouteNumbers::new(self.workers.len()));
        let kept = ids.into_iter().map(|id| {
            let numbers = known.get(id).map_or_else(fresh, Arc::clone);
            (Box::<str>::from(id), numbers)
        });
        let kept: Vec<(Box<str>, Arc<RouteNumbers>)> = kept.collect();
        let all = kept.iter().map(|(_, numbers)| Arc::clone(numbers)).collect();
        *known = kept.into_iter().collect();
        all
    }

    /// The settings were read again, at this time since 1970: used, or not.
    pub fn reloaded(&self, succeeded: bool, at: Duration) {
        let count = if succeeded { &self.reloads.succeeded } else { &self.reloads.failed };
        count.fetch_add(1, Ordering::Relaxed);
        self.reloads.last_failed.store(!succeeded, Ordering::Relaxed);
        if succeeded {
            let at = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
            self.reloads.last_success.store(at, Ordering::Relaxed);
        }
    }

    /// The clients that asked most lately, at most so many, the hottest first.
    pub fn hottest(&self, most: usize) -> Vec<Hottest> {
        // Nobody who serves waits for more than a copy.
        let copies: Vec<Hot> = self.workers.iter().map(|worker| worker.hot().clone()).collect();
        hottest(&copies, most)
    }

    /// Halves what is remembered of clients; to be called at a steady pace.
    pub fn fade(&self) {
        self.workers.iter().for_each(|worker| worker.hot().fade());
    }

    /// How many connections of clients there are.
    pub fn open_connections(&self) -> u64 {
        // What closed was opened before; read in this order there are never fewer than none.
        let closed = self.sum(|worker| &worker.closed);
        self.sum(|worker| &worker.accepted).saturating_sub(closed)
    }

    fn sum(&self, count: impl Fn(&WorkerNumbers) -> &AtomicU64) -> u64 {
        self.workers.iter().map(|worker| count(worker).load(Ordering::Relaxed)).sum()
    }
}

impl fmt::Debug for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Numbers").field("workers", &self.workers.len()).finish_non_exhaustive()
    }
}

/// A panic elsewhere spoils no count.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
