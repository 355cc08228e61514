//! The end, as far as those have to know of it who work for others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

/// The end. It is told once, to everybody who has a copy of this, and stays told.
#[derive(Debug, Clone, Default)]
pub struct Ending {
    inner: Arc<EndingInner>,
}

#[derive(Debug, Default)]
struct EndingInner {
    told: AtomicBool,
    bell: Arc<Notify>,
}

impl Ending {
    /// Everybody is told.
    pub fn tell(&self) {
        self.inner.told.store(true, Ordering::Release);
        self.inner.bell.notify_waiters();
    }

    /// Whether everybody was told.
    pub fn is_told(&self) -> bool {
        self.inner.told.load(Ordering::Acquire)
    }

    /// Waits until everybody is told.
    pub async fn told(&self) {
        // Who is listening before they look cannot miss it.
        let bell = self.bell();
        if !self.is_told() {
            bell.await;
        }
    }

    /// Rings when everybody is told, if that is after this was asked for. Who keeps it over many polls looks at
    /// [`Ending::is_told`] as well.
    pub fn bell(&self) -> OwnedNotified {
        Arc::clone(&self.inner.bell).notified_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_misses_it() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let ending = Ending::default();
            let copy = ending.clone();
            let early = tokio::spawn(async move { copy.told().await });
            tokio::task::yield_now().await;
            assert!(!ending.is_told() && !early.is_finished());
            ending.tell();
            early.await.expect("it was told");
            assert!(ending.is_told());
            // Who comes afterwards does not wait for a second time.
            ending.told().await;
        });
    }
}
