//! The queue of waiting jobs, and which jobs share a transaction.
//!
//! Only one transaction at a time can charge a row, and a commit takes a disk sync. So jobs for a row in use wait and then run
//! together in one transaction. Jobs for other rows run in parallel.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate::store::Unavailable;
use tidegate_core::LeaseId;
use tokio::sync::Notify;

use crate::job::{Job, JobTask};

/// The most jobs in one transaction.
const MAX_JOBS_PER_TRANSACTION: usize = 512;

/// The most orders in one transaction, unless a single job has more.
const MAX_ORDERS_PER_TRANSACTION: usize = 2048;

/// The most waiting jobs.
const MAX_WAITING_JOBS: usize = 65_536;

/// The longest wait in the queue.
pub(crate) const MAX_QUEUE_TIME: Duration = Duration::from_secs(2);

/// The most leases whose rows are remembered.
const MAX_REMEMBERED_LEASES: usize = 65_536;

/// The pause after a failed connection. It doubles from the minimum to the maximum.
const MIN_BACKOFF: Duration = Duration::from_millis(50);
const MAX_BACKOFF: Duration = Duration::from_secs(1);

/// The queue of waiting jobs.
#[derive(Default)]
pub(crate) struct JobQueue {
    state: Mutex<JobQueueState>,
    wake_up: Notify,
}

#[derive(Default)]
struct JobQueueState {
    waiting: VecDeque<Job>,
    /// The number of running transactions that lock a row.
    busy: HashMap<u64, u32>,
    /// The rows of leases that were granted here.
    held: HashMap<LeaseId, Vec<u64>>,
    outage: Option<ConnectionOutage>,
    /// Why the database, although reachable, cannot decide.
    cannot_decide: Option<Unavailable>,
    is_closed: bool,
}

/// An outage of the database.
#[derive(Debug, Clone)]
struct ConnectionOutage {
    why: Unavailable,
    /// No connection is tried before this time.
    until: Instant,
    /// The length of the next pause.
    next: Duration,
    /// Whether a job probes the connection. Other jobs fail at once meanwhile.
    is_probed: bool,
}

impl JobQueue {
    /// Adds a job, or fails it at once if it cannot wait.
    pub(crate) fn push(&self, mut job: Job) {
        let mut state = self.state();
        let refusal = if state.is_closed {
            Some(Unavailable { reason: "the store is closed".to_owned() })
        } else if let Some(outage) = &mut state.outage {
            let tries = job.since >= outage.until && !outage.is_probed;
            outage.is_probed |= tries;
            (!tries).then(|| outage.why.clone())
        } else if state.waiting.len() >= MAX_WAITING_JOBS {
            Some(Unavailable {
                reason: format!("the queue for PostgreSQL is full: {MAX_WAITING_JOBS} requests are waiting"),
            })
        } else {
            None
        };
        if let Some(why) = refusal {
            drop(state);
            job.fail(&why);
            return;
        }
        if let Some(id) = job.leases().first()
            && let Some(row_hashes) = state.held.get(id)
        {
            job.row_hashes.clone_from(row_hashes);
        }
        state.waiting.push_back(job);
        drop(state);
        self.wake_up.notify_one();
    }

    /// Takes the next jobs that share a transaction. Returns `None` when the queue is closed.
    pub(crate) async fn next(&self) -> Option<Vec<Job>> {
        loop {
            {
                let mut state = self.state();
                if state.is_closed {
                    return None;
                }
                let jobs = state.take();
                if !jobs.is_empty() {
                    let more = !state.waiting.is_empty();
                    drop(state);
                    if more {
                        self.wake_up.notify_one();
                    }
                    return Some(jobs);
                }
            }
            self.wake_up.notified().await;
        }
    }

    /// Marks rows as no longer in use.
    pub(crate) fn done(&self, locked_row_hashes: &[u64]) {
        let mut state = self.state();
        for row_hash in locked_row_hashes {
            if let Some(count) = state.busy.get_mut(row_hash) {
                *count -= 1;
                if *count == 0 {
                    state.busy.remove(row_hash);
                }
            }
        }
        let more = !state.waiting.is_empty();
        drop(state);
        if more {
            self.wake_up.notify_one();
        }
    }

    /// Remembers the rows of a granted lease.
    pub(crate) fn remember(&self, id: LeaseId, row_hashes: &[u64]) {
        let mut state = self.state();
        if state.held.len() >= MAX_REMEMBERED_LEASES {
            state.held.clear();
        }
        state.held.insert(id, row_hashes.to_vec());
    }

    /// Forgets a lease.
    pub(crate) fn forget(&self, id: LeaseId) {
        self.state().held.remove(&id);
    }

    /// Fails jobs that have waited too long.
    pub(crate) fn expire(&self, now: Instant) {
        let mut late = Vec::new();
        let mut state = self.state();
        while state
            .waiting
            .front()
            .is_some_and(|job| now.saturating_duration_since(job.since) > MAX_QUEUE_TIME)
        {
            late.extend(state.waiting.pop_front());
        }
        drop(state);
        let seconds = MAX_QUEUE_TIME.as_secs();
        let why =
            Unavailable { reason: format!("PostgreSQL did not process the request within {seconds} s") };
        for job in late {
            job.fail(&why);
        }
    }

    /// Starts or extends an outage. Waiting jobs fail, and no connection is tried during the pause.
    pub(crate) fn start_outage(&self, why: &Unavailable, now: Instant) {
        let mut state = self.state();
        let pause = state.outage.as_ref().map_or(MIN_BACKOFF, |outage| outage.next);
        let next = (pause * 2).min(MAX_BACKOFF);
        state.outage =
            Some(ConnectionOutage { why: why.clone(), until: now + pause, next, is_probed: false });
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for job in waiting {
            job.fail(why);
        }
    }

    /// Ends an outage. Returns whether there was one.
    pub(crate) fn clear_outage(&self) -> bool {
        self.state().outage.take().is_some()
    }

    /// Records that the database is reachable but cannot decide. Returns whether that is new. The next job still tries.
    pub(crate) fn set_cannot_decide(&self, why: &Unavailable) -> bool {
        self.state().cannot_decide.replace(why.clone()).is_none()
    }

    /// Records that the database has written something. Returns whether it could not before.
    pub(crate) fn clear_cannot_decide(&self) -> bool {
        self.state().cannot_decide.take().is_some()
    }

    /// Whether the database cannot be reached.
    pub(crate) fn has_outage(&self) -> bool {
        self.state().outage.is_some()
    }

    /// Why the database cannot decide, if it cannot.
    pub(crate) fn outage(&self) -> Option<Unavailable> {
        let state = self.state();
        let outage = state.outage.as_ref().map(|outage| &outage.why);
        outage.or(state.cannot_decide.as_ref()).cloned()
    }

    /// Closes the queue and fails the waiting jobs.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        let why = Unavailable { reason: "the store is closed".to_owned() };
        for job in waiting {
            job.fail(&why);
        }
        self.wake_up.notify_waiters();
        self.wake_up.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, JobQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl JobQueueState {
    /// Takes the jobs that can run now, either read-only ones or others. A job never overtakes one that waits for the same row.
    fn take(&mut self) -> Vec<Job> {
        let mut batch: Vec<Job> = Vec::new();
        let mut left = VecDeque::with_capacity(self.waiting.len());
        let mut blocked: HashSet<u64> = HashSet::new();
        let (mut kind, mut orders) = (None, 0);
        for job in std::mem::take(&mut self.waiting) {
            let is_full = batch.len() >= MAX_JOBS_PER_TRANSACTION || orders >= MAX_ORDERS_PER_TRANSACTION;
            let waits = |row_hash: &u64| self.busy.contains_key(row_hash) || blocked.contains(row_hash);
            let must_wait = !job.is_read_only && job.row_hashes.iter().any(waits);
            if is_full || must_wait || kind.is_some_and(|kind| kind != job.is_read_only) {
                if !job.is_read_only {
                    blocked.extend(&job.row_hashes);
                }
                left.push_back(job);
                continue;
            }
            kind = Some(job.is_read_only);
            orders += if let JobTask::Orders { orders, .. } = &job.task { orders.len() } else { 1 };
            batch.push(job);
        }
        self.waiting = left;
        for row_hash in locked_row_hashes(&batch) {
            *self.busy.entry(row_hash).or_default() += 1;
        }
        batch
    }
}

/// The rows that jobs lock, without duplicates.
pub(crate) fn locked_row_hashes(jobs: &[Job]) -> Vec<u64> {
    let mut locked_row_hashes: Vec<u64> =
        jobs.iter().filter(|job| !job.is_read_only).flat_map(|job| &job.row_hashes).copied().collect();
    locked_row_hashes.sort_unstable();
    locked_row_hashes.dedup();
    locked_row_hashes
}

/// The lease that a job ends, if it ends one.
pub(crate) fn ended(job: &Job) -> Option<LeaseId> {
    match &job.task {
        JobTask::Release { id, .. } | JobTask::Settle { id, .. } => Some(*id),
        _ => None,
    }
}
