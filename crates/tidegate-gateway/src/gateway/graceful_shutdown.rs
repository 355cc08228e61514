//! Graceful shutdown: stop accepting, let active requests finish, and cut off the rest when the drain timeout has passed.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_net::Shutdown;

use super::{Gateway, GatewayState};
use crate::worker::ClientConnectionEnd;

impl Gateway {
    /// Stops accepting, closes idle connections, and lets active requests finish. Returns when all
    /// connections are closed or the drain timeout has passed.
    pub fn drain(mut self) {
        self.state.shutdown.trigger();
        for thread in self.threads.drain(..) {
            // A worker that panicked has nothing left to finish.
            let _result = thread.join();
        }
        let aborted = self.state.aborted.load(Ordering::Acquire);
        if aborted > 0 {
            tracing::warn!(
                target: "tidegate_gateway::gateway",
                aborted,
                "active requests and tunnels were cut off at the end of the drain"
            );
        }
    }

    /// A signal that aborts [`Gateway::drain`]: everything that is still active is cut off.
    pub fn abort_signal(&self) -> Shutdown {
        self.state.abort.clone()
    }
}

/// Dropping a gateway stops it without waiting.
impl Drop for Gateway {
    fn drop(&mut self) {
        self.state.shutdown.trigger();
    }
}

impl GatewayState {
    /// Lets the connections of a worker end. Cuts off what is left after the drain timeout, or at an abort.
    pub(crate) async fn finish_connections(&self, drain_timeout: Duration) {
        tokio::select! {
            _in_time = tokio::time::timeout(drain_timeout, self.wait_until_idle()) => {}
            () = self.abort.triggered() => {}
        }
        self.abort.trigger();
    }

    /// Counts a request or tunnel that was cut off.
    pub(crate) fn count_aborted(&self) {
        self.aborted.fetch_add(1, Ordering::AcqRel);
    }

    /// How to record a request that is dropped before it completes.
    pub(crate) fn abandon_reason(&self) -> ClientConnectionEnd {
        if self.abort.is_triggered() {
            ClientConnectionEnd::ShuttingDown
        } else {
            ClientConnectionEnd::ClientClosed
        }
    }

    /// Waits until no connection is open.
    async fn wait_until_idle(&self) {
        loop {
            let released = self.slot_released.notified();
            if self.open.load(Ordering::Acquire) == 0 {
                return;
            }
            released.await;
        }
    }
}
