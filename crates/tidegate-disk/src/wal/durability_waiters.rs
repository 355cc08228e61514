//! Who waits for the log: tasks and threads, each for a place in it.
//!
//! A commit takes everybody out who waited for it, and wakes them outside of the lock. Somebody who stopped waiting is not known to have;
//! what they left goes with the next commit that passes their place.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tidegate::store::{Lsn, Unavailable};

/// How many tasks may wait at once, each for one place.
pub const MOST_WAITING: usize = 1 << 20;

/// How far the log is durable, and who waits for more.
#[derive(Debug)]
pub(super) struct Hall {
    durable: AtomicU64,
    waiters: Mutex<Waiters>,
    /// For threads.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiters {
    /// By place and task: a task that asks again for the same place is there once.
    tasks: BTreeMap<(u64, Task), Waker>,
    /// Why nothing becomes durable at present.
    trouble: Option<Unavailable>,
}

/// What tells wakers apart: where they keep their data, and how they wake.
type Task = (usize, usize);

impl Hall {
    pub(super) fn new() -> Hall {
        Hall { durable: AtomicU64::new(0), waiters: Mutex::new(Waiters::default()), changed: Condvar::new() }
    }

    pub(super) fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    pub(super) fn poll(&self, lsn: Lsn, context: &mut Context<'_>) -> Poll<Result<(), Unavailable>> {
        if self.durable() >= lsn.0 {
            return Poll::Ready(Ok(()));
        }
        let mut waiters = self.lock();
        // Once more: what became durable before the lock was taken wakes nobody who comes after.
        if self.durable() >= lsn.0 {
            return Poll::Ready(Ok(()));
        }
        if let Some(trouble) = &waiters.trouble {
            return Poll::Ready(Err(trouble.clone()));
        }
        if waiters.tasks.len() >= MOST_WAITING {
            let reason = format!("{MOST_WAITING} replies wait for the log already; ask again later");
            return Poll::Ready(Err(Unavailable { reason }));
        }
        let waker = context.waker();
        let task = (waker.data().addr(), std::ptr::from_ref(waker.vtable()).addr());
        waiters.tasks.insert((lsn.0, task), waker.clone());
        Poll::Pending
    }

    pub(super) fn wait(&self, lsn: Lsn) -> Result<(), Unavailable> {
        let mut waiters = self.lock();
        while self.durable() < lsn.0 {
            if let Some(trouble) = &waiters.trouble {
                return Err(trouble.clone());
            }
            waiters = self.changed.wait(waiters).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    /// Everything up to here is durable.
    pub(super) fn publish(&self, durable: u64) {
        self.durable.store(durable, Ordering::Release);
        let mut waiters = self.lock();
        waiters.trouble = None;
        let later = waiters.tasks.split_off(&(durable.saturating_add(1), (0, 0)));
        let ready = std::mem::replace(&mut waiters.tasks, later);
        drop(waiters);
        self.wake(ready);
    }

    /// Nothing more becomes durable, for now or for good.
    pub(super) fn fail(&self, trouble: Unavailable) {
        let mut waiters = self.lock();
        waiters.trouble = Some(trouble);
        let all = std::mem::take(&mut waiters.tasks);
        drop(waiters);
        self.wake(all);
    }

    fn wake(&self, tasks: BTreeMap<(u64, Task), Waker>) {
        self.changed.notify_all();
        tasks.into_values().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
