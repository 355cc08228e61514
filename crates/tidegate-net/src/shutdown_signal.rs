//! Shutdown signal shared by the workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

/// A one-way signal. All clones share it; once triggered it stays triggered.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    inner: Arc<ShutdownSignal>,
}

#[derive(Debug, Default)]
struct ShutdownSignal {
    is_triggered: AtomicBool,
    notify: Arc<Notify>,
}

impl Shutdown {
    /// Triggers the signal.
    pub fn trigger(&self) {
        self.inner.is_triggered.store(true, Ordering::Release);
        self.inner.notify.notify_waiters();
    }

    /// Whether the signal was triggered.
    pub fn is_triggered(&self) -> bool {
        self.inner.is_triggered.load(Ordering::Acquire)
    }

    /// Waits until the signal is triggered.
    pub async fn triggered(&self) {
        // Registering before the check closes the race with `trigger`.
        let notified = self.notified();
        if !self.is_triggered() {
            notified.await;
        }
    }

    /// A future that completes when the signal is triggered after this call. For polling many times; check
    /// [`Shutdown::is_triggered`] as well.
    pub fn notified(&self) -> OwnedNotified {
        Arc::clone(&self.inner.notify).notified_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiters_before_and_after_the_trigger_complete() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let shutdown = Shutdown::default();
            let copy = shutdown.clone();
            let early = tokio::spawn(async move { copy.triggered().await });
            tokio::task::yield_now().await;
            assert!(!shutdown.is_triggered() && !early.is_finished());
            shutdown.trigger();
            early.await.expect("it was triggered");
            assert!(shutdown.is_triggered());
            // A wait after the trigger completes at once.
            shutdown.triggered().await;
        });
    }
}
