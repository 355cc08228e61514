//! Tasks and threads that wait for a log position to become durable.
//!
//! A commit removes all waiters up to its position and wakes them outside the lock. The log does not learn
//! when a task stops waiting: its entry is removed by the next commit past its position.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tidegate::store::{Lsn, Unavailable};

/// The maximum number of waiting tasks, counted per position.
pub const MAX_WAITERS: usize = 1 << 20;

/// The durable position, and the waiters for later positions.
#[derive(Debug)]
pub(super) struct DurabilityWaiters {
    durable: AtomicU64,
    waiters: Mutex<WaiterTable>,
    /// Notifies waiting threads.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct WaiterTable {
    /// Keyed by position and waker: a task that polls the same position again has one entry.
    tasks: BTreeMap<(u64, WakerId), Waker>,
    /// Why nothing becomes durable at present.
    failure: Option<Unavailable>,
}

/// Identifies a waker by its data pointer and its vtable.
type WakerId = (usize, usize);

impl DurabilityWaiters {
    pub(super) fn new() -> DurabilityWaiters {
        DurabilityWaiters {
            durable: AtomicU64::new(0),
            waiters: Mutex::new(WaiterTable::default()),
            changed: Condvar::new(),
        }
    }

    pub(super) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    pub(super) fn poll(&self, lsn: Lsn, context: &mut Context<'_>) -> Poll<Result<(), Unavailable>> {
        if self.durable() >= lsn.0 {
            return Poll::Ready(Ok(()));
        }
        let mut waiters = self.lock();
        // Checks again under the lock: a commit before the lock was taken does not wake this task.
        if self.durable() >= lsn.0 {
            return Poll::Ready(Ok(()));
        }
        if let Some(failure) = &waiters.failure {
            return Poll::Ready(Err(failure.clone()));
        }
        if waiters.tasks.len() >= MAX_WAITERS {
            let reason = format!("{MAX_WAITERS} replies wait for the log already; ask again later");
            return Poll::Ready(Err(Unavailable { reason }));
        }
        let waker = context.waker();
        let id = (waker.data().addr(), std::ptr::from_ref(waker.vtable()).addr());
        waiters.tasks.insert((lsn.0, id), waker.clone());
        Poll::Pending
    }

    pub(super) fn wait(&self, lsn: Lsn) -> Result<(), Unavailable> {
        let mut waiters = self.lock();
        while self.durable() < lsn.0 {
            if let Some(failure) = &waiters.failure {
                return Err(failure.clone());
            }
            waiters = self.changed.wait(waiters).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    /// Everything up to `durable` is durable.
    pub(super) fn advance(&self, durable: u64) {
        self.durable.store(durable, Ordering::Release);
        let mut waiters = self.lock();
        waiters.failure = None;
        let later = waiters.tasks.split_off(&(durable.saturating_add(1), (0, 0)));
        let ready = std::mem::replace(&mut waiters.tasks, later);
        drop(waiters);
        self.wake_all(ready);
    }

    /// Nothing more becomes durable, temporarily or permanently.
    pub(super) fn fail(&self, failure: Unavailable) {
        let mut waiters = self.lock();
        waiters.failure = Some(failure);
        let all = std::mem::take(&mut waiters.tasks);
        drop(waiters);
        self.wake_all(all);
    }

    fn wake_all(&self, tasks: BTreeMap<(u64, WakerId), Waker>) {
        self.changed.notify_all();
        tasks.into_values().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, WaiterTable> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
