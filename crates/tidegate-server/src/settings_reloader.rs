//! Loads the settings file at startup, when it changes, and on request.
//!
//! ```text
//!   poll every 500 ms ──▶ stable change? ──▶ LiveSettings::apply ──▶ ReloadOutcome: log, /readyz, /metrics
//! ```
//!
//! [`tidegate_net::file_watcher`] detects the changes.
//!
//! A file that cannot be read or applied leaves the current settings in use. It is reported once and tried again when it changes.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::settings;
use tidegate::clock::Clock;
use tidegate_config::{Diagnostics, Severity};
use tidegate_net::file_watcher::{FilePoll, FileWatcher};

use crate::live_settings::{LiveSettings, SettingsApplied, SettingsRejected};
use crate::metrics::{ReloadCounts, ReloadSource};

pub use tidegate_net::file_watcher::{POLL_INTERVAL, PollThread};

/// Applies a settings file to [`LiveSettings`].
pub struct SettingsReloader {
    path: PathBuf,
    settings: Arc<LiveSettings>,
    clock: Box<dyn Clock>,
    /// Locked until the contents are applied, so that they are applied in the order in which they were read.
    watcher: Mutex<FileWatcher>,
    status: Mutex<ReloadStatus>,
}

/// The history of reloads.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReloadStatus {
    /// The last reload; `None` before the first.
    pub last: Option<ReloadOutcome>,
    /// When the current settings were read, since 1970.
    pub loaded_at: Option<Duration>,
    /// Number of successful reloads.
    pub succeeded: u64,
    /// Number of failed reloads.
    pub failed: u64,
}

/// One reload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReloadOutcome {
    /// When, since 1970.
    pub at: Duration,
    /// What changed, or why nothing did.
    pub result: Result<ReloadSuccess, ReloadFailure>,
}

/// A successful reload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReloadSuccess {
    /// The changes.
    pub applied: SettingsApplied,
    /// Warnings about settings without effect.
    pub warnings: Option<String>,
}

/// A failed reload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReloadFailure {
    /// A short reason that quotes nothing of the file; it is public.
    pub summary: String,
    /// The full reason, for the log.
    pub text: String,
}

impl fmt::Display for ReloadFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for ReloadFailure {}

/// The result of a poll.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingsPoll {
    /// The file has not changed.
    Unchanged,
    /// The file has changed and may not be complete yet.
    Unsettled,
    /// The file was read and applied or rejected.
    Read(ReloadOutcome),
}

impl SettingsReloader {
    /// A reloader for this file. Nothing is read before the first [`SettingsReloader::reload_now`].
    pub fn new(
        path: impl Into<PathBuf>,
        settings: Arc<LiveSettings>,
        clock: impl Clock + 'static,
    ) -> SettingsReloader {
        let path = path.into();
        let watcher = Mutex::new(FileWatcher::new(&path));
        SettingsReloader { path, settings, clock: Box::new(clock), watcher, status: Mutex::default() }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The history of reloads.
    pub fn last_outcome(&self) -> ReloadStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads and applies the file whether it has changed or not.
    pub fn reload_now(&self) -> ReloadOutcome {
        let mut watcher = self.watcher();
        let contents = watcher.read_now();
        self.apply(contents)
    }

    /// Checks the file, and applies it if it has changed and is stable.
    pub fn poll(&self) -> SettingsPoll {
        let mut watcher = self.watcher();
        match watcher.poll() {
            FilePoll::Unchanged => SettingsPoll::Unchanged,
            FilePoll::Unsettled => SettingsPoll::Unsettled,
            FilePoll::Changed(contents) => SettingsPoll::Read(self.apply(contents)),
        }
    }

    /// Polls every 500 ms on a thread of its own until the returned value is dropped.
    pub fn watch_file(self: &Arc<SettingsReloader>) -> io::Result<PollThread> {
        let reloader = Arc::clone(self);
        PollThread::start("reload", move || {
            reloader.poll();
        })
    }

    fn watcher(&self) -> MutexGuard<'_, FileWatcher> {
        self.watcher.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies what was read, or records why not.
    fn apply(&self, contents: io::Result<Vec<u8>>) -> ReloadOutcome {
        let outcome = ReloadOutcome {
            at: self.clock.tick().since_epoch(self.clock.now()),
            result: contents.map_err(|error| self.unreadable(&error)).and_then(|bytes| self.load(&bytes)),
        };
        let is_first = self.note(&outcome);
        self.log(&outcome, is_first);
        outcome
    }

    fn load(&self, bytes: &[u8]) -> Result<ReloadSuccess, ReloadFailure> {
        let name = self.path.display().to_string();
        let has_limits = !self.settings.in_force().limits.is_empty();
        // A half-written or unreadable file is more likely than an operator who deleted all limits.
        let refuse = |what: &str| {
            let summary = format!("the settings file {what}");
            Err(ReloadFailure {
                summary,
                text: format!("{name} {what}; to have no limits write `limits: []`"),
            })
        };
        if bytes.trim_ascii().is_empty() && has_limits {
            return refuse("is empty");
        }
        let reading = settings::read(&name, bytes).map_err(|wrong| invalid(&wrong))?;
        if !reading.lists_limits && has_limits {
            return refuse("lists no `limits` any more");
        }
        if reading.settings.tokens.is_none() && self.requires_tokens() {
            // A truncated file must not disable authentication.
            return Err(ReloadFailure {
                summary: "the settings file has no `auth` any more".to_owned(),
                text: format!(
                    "{name}: auth: is missing, and callers would no longer need a token; if that is intended, restart the server"
                ),
            });
        }
        let applied =
            self.settings.apply(reading.settings).map_err(|rejected| rejected_by(&name, &rejected))?;
        let warnings = (!reading.warnings.is_empty()).then(|| reading.warnings.to_string());
        Ok(ReloadSuccess { applied, warnings })
    }

    /// Whether the current settings require tokens.
    fn requires_tokens(&self) -> bool {
        self.last_outcome().succeeded > 0 && !self.settings.tokens().allows_anonymous()
    }

    fn unreadable(&self, error: &io::Error) -> ReloadFailure {
        ReloadFailure {
            summary: format!("the settings file cannot be read: {error}"),
            text: format!("cannot read {}: {error}", self.path.display()),
        }
    }

    /// Records a reload. Returns whether it was the first.
    fn note(&self, outcome: &ReloadOutcome) -> bool {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome.result {
            Ok(_) => {
                status.succeeded += 1;
                status.loaded_at = Some(outcome.at);
            }
            Err(_) => status.failed += 1,
        }
        status.last.replace(outcome.clone()).is_none()
    }

    /// Logs a reload. A successful first one is reported by the process that starts the server.
    fn log(&self, outcome: &ReloadOutcome, is_first: bool) {
        let path = self.path.display();
        match &outcome.result {
            Ok(ReloadSuccess { applied, warnings }) => {
                let SettingsApplied { added, changed, removed, unchanged, needs_restart, .. } = applied;
                if is_first {
                    tracing::debug!(%path, added, changed, removed, unchanged, "the settings were read");
                } else {
                    tracing::info!(%path, added, changed, removed, unchanged, "the settings were read");
                }
                if !needs_restart.is_empty() {
                    let sections = needs_restart.join(" and ");
                    tracing::warn!(%path, sections, "these sections changed and need a restart");
                }
                if let Some(warnings) = warnings {
                    tracing::warn!(%path, "some settings have no effect\n{warnings}");
                }
            }
            Err(failed) => {
                tracing::error!(%path, "the settings were rejected; the previous ones stay in use\n{failed}");
            }
        }
    }
}

impl ReloadSource for Arc<SettingsReloader> {
    fn counts(&self) -> ReloadCounts {
        let status = self.last_outcome();
        ReloadCounts {
            succeeded: status.succeeded,
            failed: status.failed,
            last_failed: status.last.is_some_and(|last| last.result.is_err()),
            last_success: status.loaded_at,
        }
    }
}

impl fmt::Debug for SettingsReloader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SettingsReloader").field("path", &self.path).finish_non_exhaustive()
    }
}

fn invalid(wrong: &Diagnostics) -> ReloadFailure {
    let errors = match wrong.errors() {
        1 => "1 error".to_owned(),
        many => format!("{many} errors"),
    };
    let first = wrong.iter().find(|each| each.severity == Severity::Error).map_or(1, |each| each.line);
    let summary = format!("{errors} in the settings file, the first on line {first}; see the log");
    ReloadFailure { summary, text: wrong.to_string() }
}

fn rejected_by(name: &str, rejected: &SettingsRejected) -> ReloadFailure {
    let fields: Vec<_> = rejected.flaws.iter().take(1).map(|flaw| flaw.field.as_str()).collect();
    let summary = format!("the settings cannot be used because of {}; see the log", fields.concat());
    ReloadFailure { summary, text: format!("{name}: {rejected}") }
}
