//! The keeper: a thread that looks after a store once in a while. It does not keep the store.

use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use super::StoreCore;

/// How often the keeper looks.
const INTERVAL: Duration = Duration::from_secs(1);

/// What a store has of its keeper, if it has one. The keeper ends with it.
#[derive(Default)]
pub(super) struct BackgroundThread {
    thread: Mutex<Option<JoinHandle<()>>>,
    signal: Arc<StopSignal>,
}

/// Tells the keeper to end.
#[derive(Default)]
struct StopSignal {
    is_stopped: Mutex<bool>,
    changed: Condvar,
}

impl BackgroundThread {
    pub(super) fn start(&self, store: Weak<StoreCore>) {
        let signal = Arc::clone(&self.signal);
        let thread = std::thread::spawn(move || run(&store, &signal));
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
    }

    /// Ends it, and waits until it has.
    pub(super) fn stop(&self) {
        *self.signal.is_stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.signal.changed.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The last one to hold the store may be the keeper.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _it_has_ended = thread.join();
        }
    }
}

impl Drop for BackgroundThread {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(store: &Weak<StoreCore>, signal: &StopSignal) {
    loop {
        let is_stopped = signal.is_stopped.lock().unwrap_or_else(PoisonError::into_inner);
        let (is_stopped, _) = signal
            .changed
            .wait_timeout_while(is_stopped, INTERVAL, |is_stopped| !*is_stopped)
            .unwrap_or_else(PoisonError::into_inner);
        if *is_stopped {
            return;
        }
        drop(is_stopped);
        let Some(core) = store.upgrade() else { return };
        core.run_maintenance();
    }
}
