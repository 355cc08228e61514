//! Whether the server may be sent requests.

use std::sync::atomic::{AtomicU8, Ordering};

use std::sync::Arc;

use ::http::StatusCode;
use serde::Serialize;
use tidegate::store::Unavailable;

use super::problem::{Problem, ProblemCode};
use super::wire::instant;
use super::{Reply, json};
use crate::settings_reloader::{ReloadStatus, SettingsReloader};

/// How far a server is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadinessState {
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
    settings: Option<Arc<SettingsReloader>>,
}

impl Readiness {
    /// A server in this state.
    pub fn new(state: ReadinessState) -> Readiness {
        Readiness { state: AtomicU8::new(state as u8), settings: None }
    }

    /// Says also how reading the settings goes. A server whose file was spoiled is as ready as before.
    pub fn with_settings(mut self, settings: Arc<SettingsReloader>) -> Readiness {
        self.settings = Some(settings);
        self
    }

    /// From now on it is in this one.
    pub fn set(&self, state: ReadinessState) {
        self.state.store(state as u8, Ordering::Release);
    }

    /// How far it is.
    pub fn get(&self) -> ReadinessState {
        let state = self.state.load(Ordering::Acquire);
        [ReadinessState::Starting, ReadinessState::Ready]
            .into_iter()
            .find(|each| *each as u8 == state)
            .unwrap_or(ReadinessState::Draining)
    }

    /// What is said about it. A store whose log has failed answers little that is of use, and is to be looked after by somebody.
    pub(super) fn answer(&self, trouble: Option<Unavailable>) -> Reply {
        match (self.get(), trouble) {
            (ReadinessState::Starting, _) => {
                Err(Problem::new(ProblemCode::NotReady, "the server is starting"))
            }
            (ReadinessState::Ready, Some(trouble)) => Err(Problem::new(ProblemCode::NotReady, trouble)),
            (ReadinessState::Ready, None) => {
                let reloads = self.settings.as_ref().map(|settings| settings.last_outcome());
                json(
                    StatusCode::OK,
                    &ReadyBody { status: "ready", config: ConfigStatus::of(reloads.as_ref()) },
                )
            }
            (ReadinessState::Draining, _) => {
                Err(Problem::new(ProblemCode::NotReady, "the server is about to end"))
            }
        }
    }
}

#[derive(Serialize)]
struct ReadyBody<'a> {
    status: &'static str,
    config: ConfigStatus<'a>,
}

/// How reading the settings went. Everybody may see this, so nothing of the file is in it.
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
