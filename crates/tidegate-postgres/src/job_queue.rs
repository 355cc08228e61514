//! The queue: jobs that wait, and which of them go together.
//!
//! A hot row can be charged by one transaction at a time, and a transaction takes as long as a disk takes to sync. So jobs that touch a row
//! that is being decided on wait until that is done and then go together, as one. Jobs about other rows go beside them.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate::store::Unavailable;
use tidegate_core::LeaseId;
use tokio::sync::Notify;

use crate::job::{Job, Task};

/// The most jobs of one transaction.
const MOST_TOGETHER: usize = 512;

/// The most orders of one transaction, if no job alone has more.
const MOST_ORDERS: usize = 2048;

/// The most jobs that may wait.
const MOST_WAITING: usize = 65_536;

/// The longest that a job waits for its turn.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// The most leases of which it is remembered what they touch.
const MOST_REMEMBERED: usize = 65_536;

/// How long nobody tries after a failure: this at first, then twice as long each time, up to the other.
const SHORTEST_BREAK: Duration = Duration::from_millis(50);
const LONGEST_BREAK: Duration = Duration::from_secs(1);

/// Jobs that wait.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    bell: Notify,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    /// How many transactions under way touch a row.
    busy: HashMap<u64, u32>,
    /// What leases touch that were granted here.
    held: HashMap<LeaseId, Vec<u64>>,
    outage: Option<Outage>,
    /// Why the database, which can be reached, decides for nobody.
    inability: Option<Unavailable>,
    is_closed: bool,
}

/// The database could not be reached.
#[derive(Debug, Clone)]
struct Outage {
    why: Unavailable,
    /// Until then nobody tries.
    until: Instant,
    /// How long the next break is.
    next: Duration,
    /// Whether somebody tries. Nobody else waits to hear how it went.
    is_tried: bool,
}

impl Queue {
    /// Adds a job; it is told at once if it cannot wait.
    pub(crate) fn push(&self, mut job: Job) {
        let mut state = self.state();
        let refusal = if state.is_closed {
            Some(Unavailable { reason: "the store is closed".to_owned() })
        } else if let Some(outage) = &mut state.outage {
            let tries = job.since >= outage.until && !outage.is_tried;
            outage.is_tried |= tries;
            (!tries).then(|| outage.why.clone())
        } else if state.waiting.len() >= MOST_WAITING {
            Some(Unavailable { reason: format!("{MOST_WAITING} wait for PostgreSQL already") })
        } else {
            None
        };
        if let Some(why) = refusal {
            drop(state);
            job.fail(&why);
            return;
        }
        if let Some(id) = job.leases().first()
            && let Some(touches) = state.held.get(id)
        {
            job.touches.clone_from(touches);
        }
        state.waiting.push_back(job);
        drop(state);
        self.bell.notify_one();
    }

    /// The next jobs that go together. Ends when the queue is closed.
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
                        self.bell.notify_one();
                    }
                    return Some(jobs);
                }
            }
            self.bell.notified().await;
        }
    }

    /// Rows that are decided on no more.
    pub(crate) fn done(&self, touched: &[u64]) {
        let mut state = self.state();
        for touch in touched {
            if let Some(count) = state.busy.get_mut(touch) {
                *count -= 1;
                if *count == 0 {
                    state.busy.remove(touch);
                }
            }
        }
        let more = !state.waiting.is_empty();
        drop(state);
        if more {
            self.bell.notify_one();
        }
    }

    /// A lease was granted that touches these.
    pub(crate) fn remember(&self, id: LeaseId, touches: &[u64]) {
        let mut state = self.state();
        if state.held.len() >= MOST_REMEMBERED {
            state.held.clear();
        }
        state.held.insert(id, touches.to_vec());
    }

    /// A lease is gone.
    pub(crate) fn forget(&self, id: LeaseId) {
        self.state().held.remove(&id);
    }

    /// Tells those who have waited too long.
    pub(crate) fn expire(&self, now: Instant) {
        let mut late = Vec::new();
        let mut state = self.state();
        while state.waiting.front().is_some_and(|job| now.saturating_duration_since(job.since) > PATIENCE) {
            late.extend(state.waiting.pop_front());
        }
        drop(state);
        let seconds = PATIENCE.as_secs();
        let why = Unavailable { reason: format!("PostgreSQL had no time for this within {seconds} s") };
        for job in late {
            job.fail(&why);
        }
    }

    /// The database cannot be reached: those who wait are told, and nobody tries for a while.
    pub(crate) fn went_down(&self, why: &Unavailable, now: Instant) {
        let mut state = self.state();
        let pause = state.outage.as_ref().map_or(SHORTEST_BREAK, |outage| outage.next);
        let next = (pause * 2).min(LONGEST_BREAK);
        state.outage = Some(Outage { why: why.clone(), until: now + pause, next, is_tried: false });
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for job in waiting {
            job.fail(why);
        }
    }

    /// The database answers; whether it did not before.
    pub(crate) fn came_up(&self) -> bool {
        self.state().outage.take().is_some()
    }

    /// The database can be reached, but decides for nobody; whether that was not known. Whoever asks next tries all the same.
    pub(crate) fn cannot(&self, why: &Unavailable) -> bool {
        self.state().inability.replace(why.clone()).is_none()
    }

    /// The database has written something; whether it could not before.
    pub(crate) fn can_again(&self) -> bool {
        self.state().inability.take().is_some()
    }

    /// Whether the database cannot be reached.
    pub(crate) fn is_down(&self) -> bool {
        self.state().outage.is_some()
    }

    /// Why the database cannot decide for anybody, if it cannot.
    pub(crate) fn outage(&self) -> Option<Unavailable> {
        let state = self.state();
        let outage = state.outage.as_ref().map(|outage| &outage.why);
        outage.or(state.inability.as_ref()).cloned()
    }

    /// Nothing more is done.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        let why = Unavailable { reason: "the store is closed".to_owned() };
        for job in waiting {
            job.fail(&why);
        }
        self.bell.notify_waiters();
        self.bell.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes the jobs that can go now, all of them looks or none. Nobody overtakes a job that waits for the same row.
    fn take(&mut self) -> Vec<Job> {
        let mut together: Vec<Job> = Vec::new();
        let mut left = VecDeque::with_capacity(self.waiting.len());
        let mut blocked: HashSet<u64> = HashSet::new();
        let (mut kind, mut orders) = (None, 0);
        for job in std::mem::take(&mut self.waiting) {
            let is_full = together.len() >= MOST_TOGETHER || orders >= MOST_ORDERS;
            let waits = |touch: &u64| self.busy.contains_key(touch) || blocked.contains(touch);
            let must_wait = !job.only_looks && job.touches.iter().any(waits);
            if is_full || must_wait || kind.is_some_and(|kind| kind != job.only_looks) {
                if !job.only_looks {
                    blocked.extend(&job.touches);
                }
                left.push_back(job);
                continue;
            }
            kind = Some(job.only_looks);
            orders += if let Task::Orders { orders, .. } = &job.task { orders.len() } else { 1 };
            together.push(job);
        }
        self.waiting = left;
        for touch in touched(&together) {
            *self.busy.entry(touch).or_default() += 1;
        }
        together
    }
}

/// The rows that these jobs lock, each once.
pub(crate) fn touched(jobs: &[Job]) -> Vec<u64> {
    let mut touched: Vec<u64> =
        jobs.iter().filter(|job| !job.only_looks).flat_map(|job| &job.touches).copied().collect();
    touched.sort_unstable();
    touched.dedup();
    touched
}

/// The lease that a job ends, if it does.
pub(crate) fn ended(job: &Job) -> Option<LeaseId> {
    match &job.task {
        Task::Release { id, .. } | Task::Settle { id, .. } => Some(*id),
        _ => None,
    }
}
