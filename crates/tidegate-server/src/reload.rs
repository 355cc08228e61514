//! The file of the rules: read at the start, read again when it has changed, and when somebody asks for it.
//!
//! ```text
//!   looked at, every half second ──▶ the same twice in a row? ──▶ Rules::apply ──▶ Outcome: log, /readyz, /metrics
//! ```
//!
//! When a file has changed is known to [`tidegate_net::looking`].
//!
//! Decided: a file that cannot be read or used leaves the rules in force, is told once, and is tried again when it changes.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate::clock::Clock;
use tidegate_config::{Diagnostics, Severity};
use tidegate_net::looking::{Look, Looker};

use crate::metrics::{Reloads, ReloadsSoFar};
use crate::rules::{Applied, Rules, Unfit};
use crate::settings;

pub use tidegate_net::looking::{LOOK_EVERY, Watching};

/// A file, the rules it is for, and how reading it went.
pub struct Reloader {
    path: PathBuf,
    rules: Arc<Rules>,
    clock: Box<dyn Clock>,
    /// Whoever reads has it until what was read is in force, so that files are used in the order in which they were read.
    looker: Mutex<Looker>,
    standing: Mutex<Standing>,
}

/// How reading the file went.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Standing {
    /// The last time; `None` if it was never read.
    pub last: Option<Outcome>,
    /// When the rules in force were read, since 1970.
    pub loaded_at: Option<Duration>,
    /// How often it went well.
    pub succeeded: u64,
    /// How often it did not.
    pub failed: u64,
}

/// How reading the file went once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// When, since 1970.
    pub at: Duration,
    /// What became of the rules; or why they are what they were.
    pub result: Result<Loaded, Failed>,
}

/// The file was used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// What became of the rules.
    pub applied: Applied,
    /// What in the file has no effect, in full.
    pub warnings: Option<String>,
}

/// The file was not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// Why, in a few words that quote nothing of the file: for everybody.
    pub summary: String,
    /// Why, in full: for those who may read the file.
    pub text: String,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failed {}

/// What a look brought about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Looked {
    /// Nothing is new.
    Same,
    /// Something is, and may not be whole yet.
    Changing,
    /// The file was read and used, or found to be of no use.
    Read(Outcome),
}

impl Reloader {
    /// For these rules, from this file. Nothing is read yet: the first [`Reloader::reload_now`] is the start.
    pub fn new(path: impl Into<PathBuf>, rules: Arc<Rules>, clock: impl Clock + 'static) -> Reloader {
        let path = path.into();
        let looker = Mutex::new(Looker::new(&path));
        Reloader { path, rules, clock: Box::new(clock), looker, standing: Mutex::default() }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How reading it went.
    pub fn last_outcome(&self) -> Standing {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the file and applies it at once, whether it has changed or not: at the start, and when somebody says so.
    pub fn reload_now(&self) -> Outcome {
        let mut looker = self.looker();
        let contents = looker.read_now();
        self.take(contents)
    }

    /// Looks at the file, and applies it if it has changed and is whole.
    pub fn look(&self) -> Looked {
        let mut looker = self.looker();
        match looker.look() {
            Look::Same => Looked::Same,
            Look::Changing => Looked::Changing,
            Look::Changed(contents) => Looked::Read(self.take(contents)),
        }
    }

    /// Looks every half second, on a thread of its own, until what is returned is dropped.
    pub fn watch_file(self: &Arc<Reloader>) -> io::Result<Watching> {
        let reloader = Arc::clone(self);
        Watching::start("reload", move || {
            reloader.look();
        })
    }

    fn looker(&self) -> MutexGuard<'_, Looker> {
        self.looker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses what was read, or finds that it is of no use.
    fn take(&self, contents: io::Result<Vec<u8>>) -> Outcome {
        let outcome = Outcome {
            at: self.clock.tick().since_epoch(self.clock.now()),
            result: contents.map_err(|error| self.unreadable(&error)).and_then(|bytes| self.load(&bytes)),
        };
        let is_first = self.note(&outcome);
        self.log(&outcome, is_first);
        outcome
    }

    fn load(&self, bytes: &[u8]) -> Result<Loaded, Failed> {
        let name = self.path.display().to_string();
        let has_limits = !self.rules.in_force().limits.is_empty();
        // More likely somebody is about to write it, or was kept from it, than means that there are no limits any more.
        let refuse = |what: &str| {
            let summary = format!("the settings file {what}");
            Err(Failed { summary, text: format!("{name} {what}; to have no limits write `limits: []`") })
        };
        if bytes.trim_ascii().is_empty() && has_limits {
            return refuse("is empty");
        }
        let reading = settings::read(&name, bytes).map_err(|wrong| flawed(&wrong))?;
        if !reading.lists_limits && has_limits {
            return refuse("lists no `limits` any more");
        }
        if reading.settings.tokens.is_none() && self.asks_for_tokens() {
            // A file that is cut off, or about to be written, must not open the doors.
            return Err(Failed {
                summary: "the settings file has no `auth` any more".to_owned(),
                text: format!(
                    "{name}: auth: is gone, and everybody would be let in without a token; if that is meant, start the server again"
                ),
            });
        }
        let applied = self.rules.apply(reading.settings).map_err(|unfit| unfit_in(&name, &unfit))?;
        let warnings = (!reading.warnings.is_empty()).then(|| reading.warnings.to_string());
        Ok(Loaded { applied, warnings })
    }

    /// Whether settings are in force by which nobody comes in without a token.
    fn asks_for_tokens(&self) -> bool {
        self.last_outcome().succeeded > 0 && !self.rules.tokens().is_open()
    }

    fn unreadable(&self, error: &io::Error) -> Failed {
        Failed {
            summary: format!("the settings file cannot be read: {error}"),
            text: format!("cannot read {}: {error}", self.path.display()),
        }
    }

    /// Remembers how it went; whether it was the first time.
    fn note(&self, outcome: &Outcome) -> bool {
        let mut standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome.result {
            Ok(_) => {
                standing.succeeded += 1;
                standing.loaded_at = Some(outcome.at);
            }
            Err(_) => standing.failed += 1,
        }
        standing.last.replace(outcome.clone()).is_none()
    }

    /// A start that went well is told by whoever starts.
    fn log(&self, outcome: &Outcome, is_first: bool) {
        let path = self.path.display();
        match &outcome.result {
            Ok(Loaded { applied, warnings }) => {
                let Applied { added, changed, removed, unchanged, needs_restart, .. } = applied;
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

impl Reloads for Arc<Reloader> {
    fn so_far(&self) -> ReloadsSoFar {
        let standing = self.last_outcome();
        ReloadsSoFar {
            succeeded: standing.succeeded,
            failed: standing.failed,
            last_failed: standing.last.is_some_and(|last| last.result.is_err()),
            last_success: standing.loaded_at,
        }
    }
}

impl fmt::Debug for Reloader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloader").field("path", &self.path).finish_non_exhaustive()
    }
}

fn flawed(wrong: &Diagnostics) -> Failed {
    let errors = match wrong.errors() {
        1 => "1 error".to_owned(),
        many => format!("{many} errors"),
    };
    let first = wrong.iter().find(|each| each.severity == Severity::Error).map_or(1, |each| each.line);
    let summary = format!("{errors} in the settings file, the first on line {first}; the log says all of it");
    Failed { summary, text: wrong.to_string() }
}

fn unfit_in(name: &str, unfit: &Unfit) -> Failed {
    let fields: Vec<_> = unfit.flaws.iter().take(1).map(|flaw| flaw.field.as_str()).collect();
    let summary =
        format!("the settings cannot be used because of {}; the log says all of it", fields.concat());
    Failed { summary, text: format!("{name}: {unfit}") }
}
