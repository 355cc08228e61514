//! Whether the server may be sent requests.

use std::sync::atomic::{AtomicU8, Ordering};

use ::http::StatusCode;

use super::problem::{Code, Problem};
use super::{Reply, json};

/// How far a server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It is not there yet.
    Starting,
    /// It answers.
    Ready,
    /// It answers, and will soon be gone.
    Draining,
}

/// How far a server is, shared between whoever knows and whoever is asked.
#[derive(Debug)]
pub struct Readiness {
    state: AtomicU8,
}

impl Readiness {
    /// A server in this state.
    pub fn new(state: State) -> Readiness {
        Readiness { state: AtomicU8::new(state as u8) }
    }

    /// From now on it is in this one.
    pub fn set(&self, state: State) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// How far it is.
    pub fn get(&self) -> State {
        let state = self.state.load(Ordering::Acquire);
        [State::Starting, State::Ready]
            .into_iter()
            .find(|each| *each as u8 == state)
            .unwrap_or(State::Draining)
    }

    pub(super) fn answer(&self) -> Reply {
        match self.get() {
            State::Starting => Err(Problem::new(Code::NotReady, "the server is starting")),
            State::Ready => json(StatusCode::OK, &serde_json::json!({"status": "ready"})),
            State::Draining => Err(Problem::new(Code::NotReady, "the server is about to end")),
        }
    }
}
