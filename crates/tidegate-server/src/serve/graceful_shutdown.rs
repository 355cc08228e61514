//! Graceful shutdown: stop accepting, let requests in progress finish, and stop waiting when the drain time has passed.

use super::{Server, ServerState};

impl Server {
    /// Shuts down gracefully: stops accepting, closes idle connections, and lets requests in progress finish. Returns when all are
    /// done, at the latest after [`ConnectionBounds::drain`](super::ConnectionBounds::drain). Waiting requests are answered immediately with the current decision.
    pub fn drain(mut self) {
        self.state.shutdown.trigger();
        for thread in self.threads.drain(..) {
            // A worker that panicked has nothing left to finish.
            let _joined = thread.join();
        }
    }
}

/// Dropping a server triggers the shutdown without waiting for it.
impl Drop for Server {
    fn drop(&mut self) {
        self.state.shutdown.trigger();
    }
}

impl ServerState {
    /// Lets the connections end, at the latest until the drain time has passed.
    pub(super) async fn finish_connections(&self) {
        let _in_time = tokio::time::timeout(self.bounds.drain, self.wait_until_empty()).await;
    }

    /// Waits until no connection is open. Woken only after the shutdown was triggered.
    async fn wait_until_empty(&self) {
        loop {
            let closed = self.connection_closed.notified();
            if self.connections.len() == 0 {
                return;
            }
            closed.await;
        }
    }

    /// Called after a connection has given its slot back.
    pub(super) fn notify_connection_closed(&self) {
        if self.shutdown.is_triggered() {
            self.connection_closed.notify_waiters();
        }
    }
}
