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
pub(super) enum Doing {
    Submitting,
    Releasing,
    Renewing,
    Settling,
    Editing,
    Resetting,
    Waiting,
}

const DEEDS: [Doing; 7] = [
    Doing::Submitting,
    Doing::Releasing,
    Doing::Renewing,
    Doing::Settling,
    Doing::Editing,
    Doing::Resetting,
    Doing::Waiting,
];

/// Where one thread is: how many things it has begun, and what the last of them is.
#[derive(Debug, Clone, Default)]
pub(super) struct Place(Arc<AtomicU64>);

impl Place {
    /// Says what comes next.
    pub(super) fn tell(&self, doing: Doing) {
        let begun = self.0.load(Ordering::Relaxed) / 8 + 1;
        self.0.store(begun * 8 + doing as u64, Ordering::Relaxed);
    }

    fn read(&self) -> (u64, Doing) {
        let word = self.0.load(Ordering::Relaxed);
        let deed = usize::try_from(word % 8).expect("below eight");
        (word / 8, DEEDS[deed])
    }
}

/// Starts threads and watches them.
pub(super) struct Watchdog {
    seed: u64,
    patience: Duration,
    places: Vec<(String, Place)>,
    /// Every thread keeps a sender; the last to end closes the channel.
    alive: Option<mpsc::Sender<()>>,
    ended: mpsc::Receiver<()>,
}

impl Watchdog {
    pub(super) fn new(seed: u64, patience: Duration) -> Watchdog {
        let (alive, ended) = mpsc::channel();
        Watchdog { seed, patience, places: Vec::new(), alive: Some(alive), ended }
    }

    /// Starts a thread.
    pub(super) fn spawn<T: Send + 'static>(
        &mut self,
        name: &str,
        work: impl FnOnce(&Place) -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let (place, alive) = (Place::default(), self.alive.clone());
        self.places.push((name.to_owned(), place.clone()));
        let thread = std::thread::Builder::new().name(name.to_owned());
        let run = move || {
            let _alive = alive;
            work(&place)
        };
        thread.spawn(run).expect("the machine has room for a few threads")
    }

    /// Waits until all threads have ended.
    ///
    /// # Panics
    /// If none of them began anything for as long as the plan is patient.
    pub(super) fn watch(mut self) {
        self.alive = None;
        let read = |places: &[(String, Place)]| -> Vec<(u64, Doing)> {
            places.iter().map(|(_, place)| place.read()).collect()
        };
        let mut before = read(&self.places);
        while self.ended.recv_timeout(self.patience) == Err(RecvTimeoutError::Timeout) {
            let now = read(&self.places);
            if now == before {
                let mut story = format!("storm with seed {}: nobody gets anywhere", self.seed);
                for ((name, _), (begun, doing)) in self.places.iter().zip(now) {
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
