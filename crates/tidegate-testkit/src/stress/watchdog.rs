//! The watchdog: threads that it starts, and a look at them when nothing has been heard for long.
//!
//! Threads are not scoped: one that hangs must not keep whoever noticed from saying so.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

/// What a thread is about to do.
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

/// Where one thread is: how many things it has begun, and what the last of them is.
#[derive(Debug, Clone, Default)]
pub(super) struct ThreadProgress(Arc<AtomicU64>);

impl ThreadProgress {
    /// Says what comes next.
    pub(super) fn set(&self, doing: ThreadAction) {
        let begun = self.0.load(Ordering::Relaxed) / 8 + 1;
        self.0.store(begun * 8 + doing as u64, Ordering::Relaxed);
    }

    fn read(&self) -> (u64, ThreadAction) {
        let word = self.0.load(Ordering::Relaxed);
        let deed = usize::try_from(word % 8).expect("below eight");
        (word / 8, ACTIONS[deed])
    }
}

/// Starts threads and watches them.
pub(super) struct Watchdog {
    seed: u64,
    stall_timeout: Duration,
    threads: Vec<(String, ThreadProgress)>,
    /// Every thread keeps a sender; the last to end closes the channel.
    alive: Option<mpsc::Sender<()>>,
    ended: mpsc::Receiver<()>,
}

impl Watchdog {
    pub(super) fn new(seed: u64, stall_timeout: Duration) -> Watchdog {
        let (alive, ended) = mpsc::channel();
        Watchdog { seed, stall_timeout, threads: Vec::new(), alive: Some(alive), ended }
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
    /// If none of them began anything for as long as the plan is patient.
    pub(super) fn watch(mut self) {
        self.alive = None;
        let read = |threads: &[(String, ThreadProgress)]| -> Vec<(u64, ThreadAction)> {
            threads.iter().map(|(_, progress)| progress.read()).collect()
        };
        let mut before = read(&self.threads);
        while self.ended.recv_timeout(self.stall_timeout) == Err(RecvTimeoutError::Timeout) {
            let now = read(&self.threads);
            if now == before {
                let mut story = format!("storm with seed {}: nobody gets anywhere", self.seed);
                for ((name, _), (begun, doing)) in self.threads.iter().zip(now) {
                    let _infallible = write!(story, "\n  {name}: {doing:?}, the {begun}th thing it began");
                }
                panic!("{story}");
            }
            before = now;
        }
    }
}

/// What a thread came to; a panic of it is passed on.
pub(super) fn join<T>(thread: JoinHandle<T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
