//! The end, as far as those have to know of it who work for others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

/// The end. It is told once, to everybody who has a copy of this, and stays told.
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
    /// Everybody is told.
    pub fn trigger(&self) {
        self.inner.is_triggered.store(true, Ordering::Release);
        self.inner.notify.notify_waiters();
    }

    /// Whether everybody was told.
    pub fn is_triggered(&self) -> bool {
        self.inner.is_triggered.load(Ordering::Acquire)
    }

    /// Waits until everybody is told.
    pub async fn triggered(&self) {
        // Who is listening before they look cannot miss it.
        let notified = self.notified();
        if !self.is_triggered() {
            notified.await;
        }
    }

    /// Rings when everybody is told, if that is after this was asked for. Who keeps it over many polls looks at
    /// [`Shutdown::is_triggered`] as well.
    pub fn notified(&self) -> OwnedNotified {
        Arc::clone(&self.inner.notify).notified_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_misses_it() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let shutdown = Shutdown::default();
            let copy = shutdown.clone();
            let early = tokio::spawn(async move { copy.triggered().await });
            tokio::task::yield_now().await;
            assert!(!shutdown.is_triggered() && !early.is_finished());
            shutdown.trigger();
            early.await.expect("it was told");
            assert!(shutdown.is_triggered());
            // Who comes afterwards does not wait for a second time.
            shutdown.triggered().await;
        });
    }
}
