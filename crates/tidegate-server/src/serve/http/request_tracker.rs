//! Tracks what a client of hyper is doing, for its timeouts.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

/// What a client is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientPhase {
    /// At least one request is being answered; it has its own bounds.
    InRequest,
    /// Sending a head since this instant.
    PartialHead(Instant),
    /// Idle since this instant.
    Idle(Instant),
}

/// The requests of one connection.
#[derive(Debug)]
pub(super) struct RequestTracker {
    state: Mutex<TrackerState>,
}

#[derive(Debug)]
struct TrackerState {
    open: usize,
    /// When the last request began or ended.
    changed: Instant,
    /// When the first byte after that arrived.
    first_byte_at: Option<Instant>,
}

/// A request that is being answered; it ends on drop.
#[derive(Debug)]
pub(super) struct OpenRequest {
    tracker: Arc<RequestTracker>,
}

impl RequestTracker {
    /// The tracker of a new connection.
    pub(super) fn new() -> RequestTracker {
        RequestTracker {
            state: Mutex::new(TrackerState { open: 0, changed: Instant::now(), first_byte_at: None }),
        }
    }

    /// A head was read: a request begins.
    pub(super) fn begin(self: &Arc<RequestTracker>) -> OpenRequest {
        self.changed(1, 0);
        OpenRequest { tracker: Arc::clone(self) }
    }

    /// Bytes were read.
    pub(super) fn record_read(&self) {
        let mut state = self.state();
        if state.open == 0 && state.first_byte_at.is_none() {
            state.first_byte_at = Some(Instant::now());
        }
    }

    /// What the client is doing now.
    pub(super) fn phase(&self) -> ClientPhase {
        let state = self.state();
        match (state.open, state.first_byte_at) {
            (0, None) => ClientPhase::Idle(state.changed),
            (0, Some(since)) => ClientPhase::PartialHead(since),
            _ => ClientPhase::InRequest,
        }
    }

    fn changed(&self, more: usize, less: usize) {
        let mut state = self.state();
        let open = (state.open + more).saturating_sub(less);
        *state = TrackerState { open, changed: Instant::now(), first_byte_at: None };
    }

    fn state(&self) -> MutexGuard<'_, TrackerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.tracker.changed(0, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phase_follows_bytes_and_requests() {
        let tracker = Arc::new(RequestTracker::new());
        let ClientPhase::Idle(first) = tracker.phase() else { panic!("a new connection is idle") };
        tracker.record_read();
        let half = tracker.phase();
        assert!(matches!(half, ClientPhase::PartialHead(_)));
        tracker.record_read();
        assert_eq!(tracker.phase(), half, "the time of the first byte counts");
        let (one, other) = (tracker.begin(), tracker.begin());
        tracker.record_read();
        drop(one);
        assert_eq!(tracker.phase(), ClientPhase::InRequest);
        drop(other);
        let ClientPhase::Idle(last) = tracker.phase() else { panic!("everything was answered") };
        assert!(last >= first);
    }
}
