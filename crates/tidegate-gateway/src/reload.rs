//! Reloads the settings file when it changes, on SIGHUP, and through the management API.
//!
//! A file that cannot be read or applied changes nothing. All of its errors are reported, and it is read again when it changes.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::settings::{GatewaySpec, read_gateway};
use tidegate_net::{FilePoll, FileWatcher, PollThread};

use crate::endpoints::UpstreamBackend;
use crate::gateway::{GatewayError, GatewayState};
use crate::limits::{RateLimitManager, ReloadSummary};
use crate::management_api::{GatewayStatus, ManagedGateway};
use crate::metrics::GatewayMetrics;

/// Looks up the values of `${env:…}`.
pub type Environment = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Reloads one file into one gateway.
pub struct Reloader {
    state: Arc<GatewayState>,
    env: Environment,
    watcher: Mutex<FileWatcher>,
    name: String,
}

/// Why settings were rejected: all errors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedConfig {
    /// All errors as one text for the log.
    pub text: String,
    /// One line per error, with its position.
    pub errors: Vec<String>,
}

impl fmt::Display for RejectedConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for RejectedConfig {}

impl RejectedConfig {
    fn single(text: String) -> RejectedConfig {
        RejectedConfig { errors: vec![text.clone()], text }
    }
}

/// Parses a settings file.
pub fn read(
    name: &str,
    bytes: &[u8],
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<GatewaySpec, RejectedConfig> {
    read_gateway(name, bytes, env).map_err(|wrong| {
        let describe = |each: &tidegate_config::Diagnostic| {
            let field = if each.field.is_empty() { String::new() } else { format!(" {}:", each.field) };
            format!("{name}:{}:{}:{field} {}", each.line, each.column, each.message)
        };
        RejectedConfig { errors: wrong.iter().map(describe).collect(), text: wrong.to_string() }
    })
}

impl Reloader {
    /// Creates a reloader for the file that the gateway was started with.
    pub(crate) fn new(state: Arc<GatewayState>, path: PathBuf, env: Environment) -> Reloader {
        let name = path.display().to_string();
        let mut watcher = FileWatcher::new(path);
        // Sets the baseline. If the file has changed since the start, the next poll finds out.
        let _as_started = watcher.read_now();
        Reloader { state, env, watcher: Mutex::new(watcher), name }
    }

    /// Reads and applies the file, changed or not.
    pub fn reload_now(&self) -> Result<ReloadSummary, RejectedConfig> {
        let mut watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner);
        let read = watcher.read_now();
        self.apply(read)
    }

    /// Applies the file if it has changed and is stable.
    pub fn poll_file(&self) -> Option<Result<ReloadSummary, RejectedConfig>> {
        let mut watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner);
        match watcher.poll() {
            FilePoll::Unchanged | FilePoll::Unsettled => None,
            FilePoll::Changed(read) => Some(self.apply(read)),
        }
    }

    /// Polls the file every half second on a thread of its own until the result is dropped.
    pub fn watch_file(self: &Arc<Reloader>) -> io::Result<PollThread> {
        let reloader = Arc::clone(self);
        PollThread::start("reload", move || {
            // The result is in the log.
            let _logged = reloader.poll_file();
        })
    }

    fn apply(&self, read: io::Result<Vec<u8>>) -> Result<ReloadSummary, RejectedConfig> {
        let name = &self.name;
        let reloaded = read
            .map_err(|error| RejectedConfig::single(format!("cannot read {name}: {error}")))
            .and_then(|bytes| self::read(name, &bytes, &*self.env))
            .and_then(|spec| {
                self.state
                    .reload(spec)
                    .map_err(|error: GatewayError| RejectedConfig::single(format!("{name}: {error}")))
            });
        self.state.metrics.record_reload(reloaded.is_ok(), self.state.wall_clock());
        match &reloaded {
            Ok(ReloadSummary { changed, overfull, .. }) => {
                tracing::info!(path = %name, changed_limits = changed, overfull = overfull.len(), "the settings were reloaded");
            }
            Err(rejected) => {
                tracing::error!(path = %name, "the settings were rejected; the previous settings stay in effect\n{rejected}");
            }
        }
        reloaded
    }
}

/// The management API reads the gateway through its reloader.
impl ManagedGateway for Reloader {
    fn status(&self) -> GatewayStatus {
        if self.state.shutdown.is_triggered() { GatewayStatus::Draining } else { GatewayStatus::Up }
    }

    fn now(&self) -> Duration {
        self.state.wall_clock()
    }

    fn uptime(&self) -> Duration {
        self.state.started.elapsed()
    }

    fn limits(&self) -> &RateLimitManager {
        &self.state.limits
    }

    fn metrics(&self) -> &GatewayMetrics {
        &self.state.metrics
    }

    fn backends(&self) -> Vec<Arc<UpstreamBackend>> {
        let (_, config) = self.state.config();
        config
            .spec
            .backends
            .iter()
            .filter_map(|backend| config.backends.get(backend.name.as_str()).cloned())
            .collect()
    }

    fn reload(&self) -> Result<ReloadSummary, RejectedConfig> {
        self.reload_now()
    }
}

impl fmt::Debug for Reloader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloader").field("name", &self.name).finish_non_exhaustive()
    }
}
