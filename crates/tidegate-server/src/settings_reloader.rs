//! The file of the settings: read at the start, read again when it has changed, and when somebody asks for it.
//!
//! ```text
//!   looked at, every half second ──▶ the same twice in a row? ──▶ LiveSettings::apply ──▶ ReloadOutcome: log, /readyz, /metrics
//! ```
//!
//! When a file has changed is known to [`tidegate_net::file_watcher`].
//!
//! Decided: a file that cannot be read or used leaves the settings in force, is told once, and is tried again when it changes.

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

/// A file, the settings it is for, and how reading it went.
pub struct SettingsReloader {
    path: PathBuf,
    settings: Arc<LiveSettings>,
    clock: Box<dyn Clock>,
    /// Whoever reads has it until what was read is in force, so that files are used in the order in which they were read.
    watcher: Mutex<FileWatcher>,
    status: Mutex<ReloadStatus>,
}

/// How reading the file went.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReloadStatus {
    /// The last time; `None` if it was never read.
    pub last: Option<ReloadOutcome>,
    /// When the settings in force were read, since 1970.
    pub loaded_at: Option<Duration>,
    /// How often it went well.
    pub succeeded: u64,
    /// How often it did not.
    pub failed: u64,
}

/// How reading the file went once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReloadOutcome {
    /// When, since 1970.
    pub at: Duration,
    /// What became of the settings; or why they are what they were.
    pub result: Result<ReloadSuccess, ReloadFailure>,
}

/// The file was used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReloadSuccess {
    /// What became of the settings.
    pub applied: SettingsApplied,
    /// What in the file has no effect, in full.
    pub warnings: Option<String>,
}

/// The file was not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReloadFailure {
    /// Why, in a few words that quote nothing of the file: for everybody.
    pub summary: String,
    /// Why, in full: for those who may read the file.
    pub text: String,
}

impl fmt::Display for ReloadFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for ReloadFailure {}

/// What a look brought about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingsPoll {
    /// Nothing is new.
    Unchanged,
    /// Something is, and may not be whole yet.
    Unsettled,
    /// The file was read and used, or found to be of no use.
    Read(ReloadOutcome),
}

impl SettingsReloader {
    /// For these settings, from this file. Nothing is read yet: the first [`SettingsReloader::reload_now`] is the start.
    pub fn new(
        path: impl Into<PathBuf>,
        settings: Arc<LiveSettings>,
        clock: impl Clock + 'static,
    ) -> SettingsReloader {
        let path = path.into();
        let watcher = Mutex::new(FileWatcher::new(&path));
        SettingsReloader { path, settings, clock: Box::new(clock), watcher, status: Mutex::default() }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How reading it went.
    pub fn last_outcome(&self) -> ReloadStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the file and applies it at once, whether it has changed or not: at the start, and when somebody says so.
    pub fn reload_now(&self) -> ReloadOutcome {
        let mut watcher = self.watcher();
        let contents = watcher.read_now();
        self.apply(contents)
    }

    /// Looks at the file, and applies it if it has changed and is whole.
    pub fn poll(&self) -> SettingsPoll {
        let mut watcher = self.watcher();
        match watcher.poll() {
            FilePoll::Unchanged => SettingsPoll::Unchanged,
            FilePoll::Unsettled => SettingsPoll::Unsettled,
            FilePoll::Changed(contents) => SettingsPoll::Read(self.apply(contents)),
        }
    }

    /// Looks every half second, on a thread of its own, until what is returned is dropped.
    pub fn watch_file(self: &Arc<SettingsReloader>) -> io::Result<PollThread> {
        let reloader = Arc::clone(self);
        PollThread::start("reload", move || {
            reloader.poll();
        })
    }

    fn watcher(&self) -> MutexGuard<'_, FileWatcher> {
        self.watcher.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses what was read, or finds that it is of no use.
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
        // More likely somebody is about to write it, or was pending_input from it, than means that there are no limits any more.
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
            // A file that is cut off, or about to be written, must not open the doors.
            return Err(ReloadFailure {
                summary: "the settings file has no `auth` any more".to_owned(),
                text: format!(
                    "{name}: auth: is gone, and everybody would be let in without a token; if that is meant, start the server again"
                ),
            });
        }
        let applied =
            self.settings.apply(reading.settings).map_err(|rejected| rejected_by(&name, &rejected))?;
        let warnings = (!reading.warnings.is_empty()).then(|| reading.warnings.to_string());
        Ok(ReloadSuccess { applied, warnings })
    }

    /// Whether settings are in force by which nobody comes in without a token.
    fn requires_tokens(&self) -> bool {
        self.last_outcome().succeeded > 0 && !self.settings.tokens().allows_anonymous()
    }

    fn unreadable(&self, error: &io::Error) -> ReloadFailure {
        ReloadFailure {
            summary: format!("the settings file cannot be read: {error}"),
            text: format!("cannot read {}: {error}", self.path.display()),
        }
    }

    /// Remembers how it went; whether it was the first time.
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

    /// A start that went well is told by whoever starts.
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
                    tracing::warn!(%path, sections, "these sections have changed and wait for a restart");
                }
                if let Some(warnings) = warnings {
                    tracing::warn!(%path, "some settings have no effect\n{warnings}");
                }
            }
            Err(failed) => {
                tracing::error!(%path, "the settings were not used, and the former ones stay in force\n{failed}");
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
    let summary = format!("{errors} in the settings file, the first on line {first}; the log says all of it");
    ReloadFailure { summary, text: wrong.to_string() }
}

fn rejected_by(name: &str, rejected: &SettingsRejected) -> ReloadFailure {
    let fields: Vec<_> = rejected.flaws.iter().take(1).map(|flaw| flaw.field.as_str()).collect();
    let summary =
        format!("the settings cannot be used because of {}; the log says all of it", fields.concat());
    ReloadFailure { summary, text: format!("{name}: {rejected}") }
}
