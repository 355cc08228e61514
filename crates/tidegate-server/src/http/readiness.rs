//! Whether the server may be sent requests.

use std::sync::atomic::{AtomicU8, Ordering};

use std::sync::Arc;

use ::http::StatusCode;
use serde::Serialize;
use tidegate::store::Unavailable;

use super::problem::{Code, Problem};
use super::wire::instant;
use super::{Reply, json};
use crate::settings_reloader::{Reloader, Standing};

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
    settings: Option<Arc<Reloader>>,
}

impl Readiness {
    /// A server in this state.
    pub fn new(state: State) -> Readiness {
        Readiness { state: AtomicU8::new(state as u8), settings: None }
    }

    /// Says also how reading the settings goes. A server whose file was spoiled is as ready as before.
    pub fn with_settings(mut self, settings: Arc<Reloader>) -> Readiness {
        self.settings = Some(settings);
        self
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

    /// What is said about it. A store whose log has failed answers little that is of use, and is to be looked after by somebody.
    pub(super) fn answer(&self, trouble: Option<Unavailable>) -> Reply {
        match (self.get(), trouble) {
            (State::Starting, _) => Err(Problem::new(Code::NotReady, "the server is starting")),
            (State::Ready, Some(trouble)) => Err(Problem::new(Code::NotReady, trouble)),
            (State::Ready, None) => {
                let standing = self.settings.as_ref().map(|settings| settings.last_outcome());
                json(StatusCode::OK, &Ready { status: "ready", config: Config::of(standing.as_ref()) })
            }
            (State::Draining, _) => Err(Problem::new(Code::NotReady, "the server is about to end")),
        }
    }
}

#[derive(Serialize)]
struct Ready<'a> {
    status: &'static str,
    config: Config<'a>,
}

/// How reading the settings went. Everybody may see this, so nothing of the file is in it.
#[derive(Serialize)]
struct Config<'a> {
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    loaded_at: Option<String>,
}

impl Config<'_> {
    fn of(standing: Option<&Standing>) -> Config<'_> {
        let last = standing.and_then(|standing| standing.last.as_ref());
        let (status, error) = match last.map(|last| &last.result) {
            None => ("none", None),
            Some(Ok(_)) => ("ok", None),
            Some(Err(failed)) => ("failed", Some(failed.summary.as_str())),
        };
        let loaded_at = standing.and_then(|standing| standing.loaded_at).map(instant::since_epoch);
        Config { status, error, loaded_at }
    }
}
