//! Readiness of the server.

use std::sync::atomic::{AtomicU8, Ordering};

use std::sync::Arc;

use ::http::StatusCode;
use serde::Serialize;
use tidegate::store::Unavailable;

use super::problem::{Problem, ProblemCode};
use super::wire::instant;
use super::{Reply, json};
use crate::settings_reloader::{ReloadStatus, SettingsReloader};

/// The state of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadinessState {
    /// Not serving yet.
    Starting,
    /// Serving.
    Ready,
    /// Serving and about to stop.
    Draining,
}

/// The server's state, shared between the process and `/readyz`.
#[derive(Debug)]
pub struct Readiness {
    state: AtomicU8,
    settings: Option<Arc<SettingsReloader>>,
}

impl Readiness {
    /// Readiness in this state.
    pub fn new(state: ReadinessState) -> Readiness {
        Readiness { state: AtomicU8::new(state as u8), settings: None }
    }

    /// Also reports how reloads go. A server with an invalid new file stays ready.
    pub fn with_settings(mut self, settings: Arc<SettingsReloader>) -> Readiness {
        self.settings = Some(settings);
        self
    }

    /// Sets the state.
    pub fn set(&self, state: ReadinessState) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// The state.
    pub fn get(&self) -> ReadinessState {
        let state = self.state.load(Ordering::Acquire);
        [ReadinessState::Starting, ReadinessState::Ready]
            .into_iter()
            .find(|each| *each as u8 == state)
            .unwrap_or(ReadinessState::Draining)
    }

    /// The response of `/readyz`. A server whose store has an outage is not ready.
    pub(super) fn answer(&self, outage: Option<Unavailable>) -> Reply {
        match (self.get(), outage) {
            (ReadinessState::Starting, _) => {
                Err(Problem::new(ProblemCode::NotReady, "the server is starting"))
            }
            (ReadinessState::Ready, Some(outage)) => Err(Problem::new(ProblemCode::NotReady, outage)),
            (ReadinessState::Ready, None) => {
                let reloads = self.settings.as_ref().map(|settings| settings.last_outcome());
                json(
                    StatusCode::OK,
                    &ReadyBody { status: "ready", config: ConfigStatus::of(reloads.as_ref()) },
                )
            }
            (ReadinessState::Draining, _) => {
                Err(Problem::new(ProblemCode::NotReady, "the server is shutting down"))
            }
        }
    }
}

#[derive(Serialize)]
struct ReadyBody<'a> {
    status: &'static str,
    config: ConfigStatus<'a>,
}

/// How the last reload went. It is public, so it quotes nothing of the file.
#[derive(Serialize)]
struct ConfigStatus<'a> {
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    loaded_at: Option<String>,
}

impl ConfigStatus<'_> {
    fn of(reloads: Option<&ReloadStatus>) -> ConfigStatus<'_> {
        let last = reloads.and_then(|reloads| reloads.last.as_ref());
        let (status, error) = match last.map(|last| &last.result) {
            None => ("none", None),
            Some(Ok(_)) => ("ok", None),
            Some(Err(failed)) => ("failed", Some(failed.summary.as_str())),
        };
        let loaded_at = reloads.and_then(|reloads| reloads.loaded_at).map(instant::since_epoch);
        ConfigStatus { status, error, loaded_at }
    }
}
