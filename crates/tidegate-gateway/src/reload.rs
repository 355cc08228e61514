//! The file of the gateway: read at the start, when it has changed, and when somebody asks for it.
//!
//! A file that cannot be read or used leaves everything as it is, is told with all that is wrong with it, and is tried again when it
//! changes.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::settings::{GatewaySpec, read_gateway};
use tidegate_net::{Look, Looker, Watching};

use crate::endpoints::Backend;
use crate::gateway::{GatewayError, House};
use crate::limits::{RateLimitManager, Reloaded};
use crate::manage::{Behind, Status};
use crate::numbers::Numbers;

/// Where the values of `${env:…}` come from.
pub type Environment = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// A file, and the gateway it is for.
pub struct Reloader {
    house: Arc<House>,
    env: Environment,
    looker: Mutex<Looker>,
    name: String,
}

/// Why a file was not used: everything that is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unused {
    /// All of it, for those who may read the file.
    pub text: String,
    /// Each error in a line: where, and what.
    pub errors: Vec<String>,
}

impl fmt::Display for Unused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Unused {}

impl Unused {
    fn of_one(text: String) -> Unused {
        Unused { errors: vec![text.clone()], text }
    }
}

/// Reads a file of the gateway.
pub fn read(name: &str, bytes: &[u8], env: &dyn Fn(&str) -> Option<String>) -> Result<GatewaySpec, Unused> {
    read_gateway(name, bytes, env).map_err(|wrong| {
        let told = |each: &tidegate_config::Diagnostic| {
            let field = if each.field.is_empty() { String::new() } else { format!(" {}:", each.field) };
            format!("{name}:{}:{}:{field} {}", each.line, each.column, each.message)
        };
        Unused { errors: wrong.iter().map(told).collect(), text: wrong.to_string() }
    })
}

impl Reloader {
    /// For this gateway, from this file, which it was started with.
    pub(crate) fn new(house: Arc<House>, path: PathBuf, env: Environment) -> Reloader {
        let name = path.display().to_string();
        let mut looker = Looker::new(path);
        // What is there now is what the gateway was started with, or will be found to be something else.
        let _as_started = looker.read_now();
        Reloader { house, env, looker: Mutex::new(looker), name }
    }

    /// Reads the file and puts it in force, whether it has changed or not.
    pub fn reload_now(&self) -> Result<Reloaded, Unused> {
        let mut looker = self.looker.lock().unwrap_or_else(PoisonError::into_inner);
        let read = looker.read_now();
        self.take(read)
    }

    /// Looks at the file, and puts it in force if it has changed and is whole.
    pub fn look(&self) -> Option<Result<Reloaded, Unused>> {
        let mut looker = self.looker.lock().unwrap_or_else(PoisonError::into_inner);
        match looker.look() {
            Look::Same | Look::Changing => None,
            Look::Changed(read) => Some(self.take(read)),
        }
    }

    /// Looks every half second, on a thread of its own, until what is returned is dropped.
    pub fn watch_file(self: &Arc<Reloader>) -> io::Result<Watching> {
        let reloader = Arc::clone(self);
        Watching::start("reload", move || {
            // How it went is in the log.
            let _told = reloader.look();
        })
    }

    fn take(&self, read: io::Result<Vec<u8>>) -> Result<Reloaded, Unused> {
        let name = &self.name;
        let reloaded = read
            .map_err(|error| Unused::of_one(format!("cannot read {name}: {error}")))
            .and_then(|bytes| self::read(name, &bytes, &*self.env))
            .and_then(|spec| {
                self.house
                    .reload(spec)
                    .map_err(|error: GatewayError| Unused::of_one(format!("{name}: {error}")))
            });
        self.house.numbers.reloaded(reloaded.is_ok(), self.house.wall_clock());
        match &reloaded {
            Ok(Reloaded { changed, overfull, .. }) => {
                tracing::info!(path = %name, changed_limits = changed, overfull = overfull.len(), "the settings were read");
            }
            Err(unused) => {
                tracing::error!(path = %name, "the settings were not used, and the former ones stay in force\n{unused}");
            }
        }
        reloaded
    }
}

/// What the management port looks at.
impl Behind for Reloader {
    fn status(&self) -> Status {
        if self.house.ending.is_told() { Status::Draining } else { Status::Up }
    }

    fn now(&self) -> Duration {
        self.house.wall_clock()
    }

    fn uptime(&self) -> Duration {
        self.house.began.elapsed()
    }

    fn limits(&self) -> &RateLimitManager {
        &self.house.limits
    }

    fn numbers(&self) -> &Numbers {
        &self.house.numbers
    }

    fn backends(&self) -> Vec<Arc<Backend>> {
        let (_, site) = self.house.site();
        site.spec
            .backends
            .iter()
            .filter_map(|backend| site.backends.get(backend.name.as_str()).cloned())
            .collect()
    }

    fn reload(&self) -> Result<Reloaded, Unused> {
        self.reload_now()
    }
}

impl fmt::Debug for Reloader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloader").field("name", &self.name).finish_non_exhaustive()
    }
}
