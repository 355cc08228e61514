//! Watches tasks for their end. One background task checks all of them.
//!
//! ```text
//!   Watching ─┐                      every 200 ms, while tasks are watched
//!   Watching ─┼─▶ tasks ◀── watch_loop ─────────▶ held_until([id, id, …]) ──▶ store
//!   Watching ─┘     ▲
//!                   └──── ends in this process are reported at once
//! ```
//!
//! All watched tasks share one query, so the store is asked five times a second and not five times a second per task.
//! Without watched tasks it is not asked.
//!
//! The background task runs on the runtime of the first watcher. If that runtime ends, the remaining watchers are
//! woken, and the first of them starts another.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hashbrown::HashMap;
use tidegate_core::{LeaseId, Timestamp};
use tokio::sync::watch;

use super::ID;
use crate::limiter::{AcquireError, Limiter};

/// Interval between two checks. An end is known after this and the reply time of the store.
pub const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Maximum number of watched tasks.
pub const MOST_WATCHED: usize = 100_000;

/// Number of leases per query.
const LEASES_PER_QUERY: usize = 1_024;

/// How a task ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ended {
    /// It was ended by a caller.
    Released,
    /// It was not renewed in time.
    Expired,
}

impl Ended {
    /// The word in replies.
    pub const fn word(self) -> &'static str {
        match self {
            Ended::Released => "released",
            Ended::Expired => "expired",
        }
    }
}

/// State of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskState {
    /// Active, at least until this instant of the store's clock.
    Until(Timestamp),
    /// Over.
    Ended(Ended),
}

/// The watched tasks.
#[derive(Clone)]
pub(super) struct TaskWatcher {
    shared: Arc<WatcherState>,
}

struct WatcherState {
    limiter: Limiter,
    tasks: Mutex<WatchedTasks>,
}

#[derive(Default)]
struct WatchedTasks {
    watched: HashMap<LeaseId, WatchedTask>,
    /// Whether the background task runs.
    is_running: bool,
}

struct WatchedTask {
    user: Box<str>,
    state: watch::Sender<TaskState>,
}

impl TaskWatcher {
    pub(super) fn new(limiter: Limiter) -> TaskWatcher {
        TaskWatcher { shared: Arc::new(WatcherState { limiter, tasks: Mutex::default() }) }
    }

    /// Watches a task with this expiry. `None` if too many are watched.
    pub(super) fn watch(&self, user: &str, id: LeaseId, until: Timestamp) -> Option<TaskWatch> {
        let mut tasks = self.shared.tasks();
        if tasks.watched.len() >= MOST_WATCHED && !tasks.watched.contains_key(&id) {
            tasks.drop_unwatched();
            if tasks.watched.len() >= MOST_WATCHED {
                return None;
            }
        }
        let task = tasks.watched.entry(id).or_insert_with(|| WatchedTask {
            user: user.into(),
            state: watch::Sender::new(TaskState::Until(until)),
        });
        let changes = task.state.subscribe();
        let known = *changes.borrow();
        drop(tasks);
        Some(TaskWatch { shared: Arc::clone(&self.shared), changes, known })
    }

    /// Reports an end in this process.
    pub(super) fn report_end(&self, id: LeaseId, ended: Ended) {
        if let Some(task) = self.shared.tasks().watched.remove(&id) {
            task.state.send_replace(TaskState::Ended(ended));
        }
    }

    /// Reports a renewal in this process.
    pub(super) fn renewed(&self, id: LeaseId, until: Timestamp) {
        if let Some(task) = self.shared.tasks().watched.get(&id) {
            task.state.send_replace(TaskState::Until(until));
        }
    }

    /// Number of watched tasks.
    pub(super) fn len(&self) -> usize {
        let mut tasks = self.shared.tasks();
        tasks.drop_unwatched();
        tasks.watched.len()
    }
}

/// Watches a task for its end. Waiting needs a tokio runtime.
#[must_use = "a watch does nothing until `changed` or `ended` is awaited"]
pub struct TaskWatch {
    shared: Arc<WatcherState>,
    changes: watch::Receiver<TaskState>,
    known: TaskState,
}

impl TaskWatch {
    /// The last known state.
    pub fn state(&self) -> TaskState {
        self.known
    }

    /// Waits for the next state: renewed or over. A task that is over stays so and is reported at once.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn changed(&mut self) -> TaskState {
        while matches!(self.known, TaskState::Until(_)) {
            let now = *self.changes.borrow_and_update();
            if now != self.known {
                self.known = now;
                break;
            }
            WatcherState::ensure_running(&self.shared);
            if self.changes.changed().await.is_err() {
                // The sender is gone: the end was reported, or all watchers of the runtime are gone.
                self.known = match *self.changes.borrow() {
                    TaskState::Until(_) => TaskState::Ended(Ended::Released),
                    ended @ TaskState::Ended(_) => ended,
                };
            }
        }
        self.known
    }

    /// Waits until the task is over.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn ended(mut self) -> Ended {
        loop {
            if let TaskState::Ended(ended) = self.changed().await {
                return ended;
            }
        }
    }
}

impl std::fmt::Debug for TaskWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TaskWatch").field("known", &self.known).finish_non_exhaustive()
    }
}

impl WatchedTasks {
    /// Drops tasks without watchers.
    fn drop_unwatched(&mut self) {
        self.watched.retain(|_, task| task.state.receiver_count() > 0);
    }
}

impl WatcherState {
    fn tasks(&self) -> MutexGuard<'_, WatchedTasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the background task if it does not run.
    fn ensure_running(this: &Arc<WatcherState>) {
        let mut tasks = this.tasks();
        if tasks.is_running {
            return;
        }
        let here = tokio::runtime::Handle::current();
        tasks.is_running = true;
        drop(tasks);
        here.spawn(WatchLoop { shared: Arc::clone(this), has_stopped: false }.run());
    }

    /// Ids of the watched tasks. If there are none, the background task may stop.
    fn watched(&self) -> Vec<LeaseId> {
        let mut tasks = self.tasks();
        tasks.drop_unwatched();
        tasks.is_running = !tasks.watched.is_empty();
        tasks.watched.keys().copied().collect()
    }

    /// Reports the expiry of these leases. Returns the leases that the store does not know.
    fn report_held(&self, ids: &[LeaseId], until: &[Option<Timestamp>]) -> Vec<LeaseId> {
        let tasks = self.tasks();
        let mut gone = Vec::new();
        for (id, until) in ids.iter().zip(until) {
            let Some(task) = tasks.watched.get(id) else { continue };
            match until {
                None => gone.push(*id),
                Some(until) => {
                    let state = TaskState::Until(*until);
                    task.state.send_if_modified(|known| std::mem::replace(known, state) != state);
                }
            }
        }
        gone
    }

    /// Reports the end of these leases. They expired if their time is over by the store's clock, which a reply of the
    /// store tells.
    async fn report_ended(&self, gone: &[LeaseId]) {
        let whose = gone.first().and_then(|id| self.tasks().watched.get(id).map(|task| task.user.clone()));
        let Some(user) = whose else { return };
        let now = match self.limiter.limit(ID) {
            Ok(limit) => match limit.of(&*user).peek_async().await {
                Ok(permit) if !permit.is_degraded() => permit.at(),
                Err(AcquireError::Refused(refused)) if !refused.is_degraded() => Some(refused.at()),
                Err(AcquireError::Invalid(_)) => None,
                // The store's time is unknown: try again at the next check.
                Ok(_) | Err(_) => return,
            },
            Err(_unknown) => None,
        };
        let mut tasks = self.tasks();
        for task in gone.iter().filter_map(|id| tasks.watched.remove(id)) {
            let lapsed = |until: Timestamp| now.is_some_and(|now| until <= now);
            task.state.send_modify(|state| {
                if let TaskState::Until(until) = *state {
                    let ended = if lapsed(until) { Ended::Expired } else { Ended::Released };
                    *state = TaskState::Ended(ended);
                }
            });
        }
    }
}

/// The background task.
struct WatchLoop {
    shared: Arc<WatcherState>,
    /// It stopped because nothing was watched.
    has_stopped: bool,
}

impl WatchLoop {
    /// Checks until nothing is watched. A store that cannot answer is asked again.
    async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let holder_clock = shared.limiter.holder_clock();
        loop {
            holder_clock.sleep_until(holder_clock.now().plus(LOOK_EVERY)).await;
            let ids = shared.watched();
            if ids.is_empty() {
                self.has_stopped = true;
                return;
            }
            let store = shared.limiter.store();
            for some in ids.chunks(LEASES_PER_QUERY) {
                if let Ok(until) = store.held_until(some).wait_async(store).await {
                    let gone = shared.report_held(some, &until);
                    shared.report_ended(&gone).await;
                }
            }
        }
    }
}

impl Drop for WatchLoop {
    fn drop(&mut self) {
        if self.has_stopped {
            return;
        }
        let mut tasks = self.shared.tasks();
        // Its runtime ended while tasks are watched: one of the watchers starts another.
        tasks.is_running = false;
        for task in tasks.watched.values() {
            task.state.send_modify(|_| {});
        }
    }
}
