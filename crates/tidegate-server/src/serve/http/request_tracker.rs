//! RequestTracker: what a client of the general way is doing, as far as its timeout is concerned.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

/// What a client is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientPhase {
    /// It is being answered; that has bounds of its own.
    InRequest,
    /// Since then it has been saying something that is not a whole head yet.
    PartialHead(Instant),
    /// Nothing, since then.
    Idle(Instant),
}

/// The tracker of one connection.
#[derive(Debug)]
pub(super) struct RequestTracker {
    state: Mutex<TrackerState>,
}

#[derive(Debug)]
struct TrackerState {
    open: usize,
    /// When the last one began or ended.
    changed: Instant,
    /// When the first byte came after that.
    first_byte_at: Option<Instant>,
}

/// A call that is being answered; over when it is dropped.
#[derive(Debug)]
pub(super) struct OpenRequest {
    tracker: Arc<RequestTracker>,
}

impl RequestTracker {
    /// Those of a connection that was just made.
    pub(super) fn new() -> RequestTracker {
        RequestTracker {
            state: Mutex::new(TrackerState { open: 0, changed: Instant::now(), first_byte_at: None }),
        }
    }

    /// A whole head was read.
    pub(super) fn begin(self: &Arc<RequestTracker>) -> OpenRequest {
        self.changed(1, 0);
        OpenRequest { tracker: Arc::clone(self) }
    }

    /// Something was read.
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
    fn a_client_says_half_a_head_or_is_answered_or_does_nothing() {
        let tracker = Arc::new(RequestTracker::new());
        let ClientPhase::Idle(first) = tracker.phase() else { panic!("it has just come") };
        tracker.record_read();
        let half = tracker.phase();
        assert!(matches!(half, ClientPhase::PartialHead(_)));
        tracker.record_read();
        assert_eq!(tracker.phase(), half, "it counts from the first byte");
        let (one, other) = (tracker.begin(), tracker.begin());
        tracker.record_read();
        drop(one);
        assert_eq!(tracker.phase(), ClientPhase::InRequest);
        drop(other);
        let ClientPhase::Idle(last) = tracker.phase() else { panic!("everything was answered") };
        assert!(last >= first);
    }
}
