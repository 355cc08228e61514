//! The watchdog: starts the threads of a run and reports a deadlock.
//!
//! Threads are not scoped, because a thread that hangs must not block the report.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

/// What a thread is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ThreadAction {
    Submitting,
    Releasing,
    Renewing,
    Settling,
    Editing,
    Resetting,
    Waiting,
}

const ACTIONS: [ThreadAction; 7] = [
    ThreadAction::Submitting,
    ThreadAction::Releasing,
    ThreadAction::Renewing,
    ThreadAction::Settling,
    ThreadAction::Editing,
    ThreadAction::Resetting,
    ThreadAction::Waiting,
];

/// Progress of one thread: number of actions started, and the current one.
#[derive(Debug, Clone, Default)]
pub(super) struct ThreadProgress(Arc<AtomicU64>);

impl ThreadProgress {
    /// Records the start of an action.
    pub(super) fn set(&self, action: ThreadAction) {
        let started = self.0.load(Ordering::Relaxed) / 8 + 1;
        self.0.store(started * 8 + action as u64, Ordering::Relaxed);
    }

    fn read(&self) -> (u64, ThreadAction) {
        let word = self.0.load(Ordering::Relaxed);
        let action = usize::try_from(word % 8).expect("below eight");
        (word / 8, ACTIONS[action])
    }
}

/// Starts threads and watches them.
pub(super) struct StressWatchdog {
    seed: u64,
    stall_timeout: Duration,
    threads: Vec<(String, ThreadProgress)>,
    /// Each thread keeps a sender. When the last thread ends, the channel closes.
    alive: Option<mpsc::Sender<()>>,
    ended: mpsc::Receiver<()>,
}

impl StressWatchdog {
    pub(super) fn new(seed: u64, stall_timeout: Duration) -> StressWatchdog {
        let (alive, ended) = mpsc::channel();
        StressWatchdog { seed, stall_timeout, threads: Vec::new(), alive: Some(alive), ended }
    }

    /// Starts a thread.
    pub(super) fn spawn<T: Send + 'static>(
        &mut self,
        name: &str,
        work: impl FnOnce(&ThreadProgress) -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let (progress, alive) = (ThreadProgress::default(), self.alive.clone());
        self.threads.push((name.to_owned(), progress.clone()));
        let thread = std::thread::Builder::new().name(name.to_owned());
        let run = move || {
            let _alive = alive;
            work(&progress)
        };
        thread.spawn(run).expect("the machine has room for a few threads")
    }

    /// Waits until all threads have ended.
    ///
    /// # Panics
    /// If no thread starts an action for the stall timeout.
    pub(super) fn watch(mut self) {
        self.alive = None;
        let read = |threads: &[(String, ThreadProgress)]| -> Vec<(u64, ThreadAction)> {
            threads.iter().map(|(_, progress)| progress.read()).collect()
        };
        let mut before = read(&self.threads);
        while self.ended.recv_timeout(self.stall_timeout) == Err(RecvTimeoutError::Timeout) {
            let now = read(&self.threads);
            if now == before {
                let mut message = format!("stress run with seed {}: no thread makes progress", self.seed);
                for ((name, _), (started, action)) in self.threads.iter().zip(now) {
                    let _infallible = write!(message, "\n  {name}: {action:?}, action number {started}");
                }
                panic!("{message}");
            }
            before = now;
        }
    }
}

/// The result of a thread. A panic of the thread is passed on.
pub(super) fn join<T>(thread: JoinHandle<T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
