//! Calls: what a client of the general way is doing, as far as its patience is concerned.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

/// What a client is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doing {
    /// It is being answered; that has bounds of its own.
    Call,
    /// Since then it has been saying something that is not a whole head yet.
    Half(Instant),
    /// Nothing, since then.
    Nothing(Instant),
}

/// The calls of one connection.
#[derive(Debug)]
pub(super) struct Calls {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    open: usize,
    /// When the last one began or ended.
    changed: Instant,
    /// When the first byte came after that.
    heard: Option<Instant>,
}

/// A call that is being answered; over when it is dropped.
#[derive(Debug)]
pub(super) struct Open {
    calls: Arc<Calls>,
}

impl Calls {
    /// Those of a connection that was just made.
    pub(super) fn new() -> Calls {
        Calls { state: Mutex::new(State { open: 0, changed: Instant::now(), heard: None }) }
    }

    /// A whole head was read.
    pub(super) fn begin(self: &Arc<Calls>) -> Open {
        self.changed(1, 0);
        Open { calls: Arc::clone(self) }
    }

    /// Something was read.
    pub(super) fn heard(&self) {
        let mut state = self.state();
        if state.open == 0 && state.heard.is_none() {
            state.heard = Some(Instant::now());
        }
    }

    /// What the client is doing now.
    pub(super) fn doing(&self) -> Doing {
        let state = self.state();
        match (state.open, state.heard) {
            (0, None) => Doing::Nothing(state.changed),
            (0, Some(since)) => Doing::Half(since),
            _ => Doing::Call,
        }
    }

    fn changed(&self, more: usize, less: usize) {
        let mut state = self.state();
        let open = (state.open + more).saturating_sub(less);
        *state = State { open, changed: Instant::now(), heard: None };
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.calls.changed(0, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_says_half_a_head_or_is_answered_or_does_nothing() {
        let calls = Arc::new(Calls::new());
        let Doing::Nothing(first) = calls.doing() else { panic!("it has just come") };
        calls.heard();
        let half = calls.doing();
        assert!(matches!(half, Doing::Half(_)));
        calls.heard();
        assert_eq!(calls.doing(), half, "it counts from the first byte");
        let (one, other) = (calls.begin(), calls.begin());
        calls.heard();
        drop(one);
        assert_eq!(calls.doing(), Doing::Call);
        drop(other);
        let Doing::Nothing(last) = calls.doing() else { panic!("everything was answered") };
        assert!(last >= first);
    }
}
