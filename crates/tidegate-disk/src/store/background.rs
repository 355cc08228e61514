//! The keeper: a thread that looks after a store once in a while. It does not keep the store.

use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Inner;

/// How often the keeper looks.
const ROUND: Duration = Duration::from_secs(1);

/// What a store has of its keeper, if it has one. The keeper ends with it.
#[derive(Default)]
pub(super) struct Handle {
    thread: Mutex<Option<JoinHandle<()>>>,
    bell: Arc<Bell>,
}

/// Tells the keeper to end.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl Handle {
    pub(super) fn start(&self, store: Weak<Inner>) {
        let bell = Arc::clone(&self.bell);
        let thread = std::thread::spawn(move || keep(&store, &bell));
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
    }

    /// Ends it, and waits until it has.
    pub(super) fn end(&self) {
        *self.bell.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.bell.heard.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The last one to hold the store may be the keeper.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _it_has_ended = thread.join();
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.end();
    }
}

fn keep(store: &Weak<Inner>, bell: &Bell) {
    loop {
        let rung = bell.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let (rung, _) =
            bell.heard.wait_timeout_while(rung, ROUND, |rung| !*rung).unwrap_or_else(PoisonError::into_inner);
        if *rung {
            return;
        }
        drop(rung);
        let Some(inner) = store.upgrade() else { return };
        inner.look_after();
    }
}
