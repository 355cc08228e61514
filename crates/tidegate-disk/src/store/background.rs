//! The background thread that runs the periodic maintenance of a store. It does not keep the store alive.

use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use super::StoreCore;

/// The interval between two runs.
const INTERVAL: Duration = Duration::from_secs(1);

/// The handle of the background thread, if one was started. Dropping it stops the thread.
#[derive(Default)]
pub(super) struct BackgroundThread {
    thread: Mutex<Option<JoinHandle<()>>>,
    signal: Arc<StopSignal>,
}

/// Signals the background thread to stop.
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

    /// Stops the thread and waits until it has ended.
    pub(super) fn stop(&self) {
        *self.signal.is_stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.signal.changed.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The background thread may drop the last reference to the store. It must not join itself.
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
