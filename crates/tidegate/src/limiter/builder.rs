//! Building a limiter: its limits, its store, and everything that is wrong with them at once.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use tidegate_core::{Limit, LimitSpec, SpecError, Tick};

use super::holder_clock::{HolderClock, SystemHolderClock};
use super::wait_queues::WaitBounds;
use super::{DEFAULT_MAX_WAITING, DEFAULT_MAX_WAITING_PER_ROW, Limiter};
use crate::catalog::{ExpectedVersion, PutError};
use crate::clock::{Clock, SystemClock};
use crate::rule::IntoRules;
use crate::store::{LimitStore, Memory, MemoryStore};

/// Opens a store when the limiter is built, or returns the reason why it cannot.
type OpenStore = Box<dyn FnOnce() -> Result<Arc<dyn LimitStore>, String>>;

/// Collects the limits of a [`Limiter`] and the parts that it is made of. Made by [`Limiter::builder`].
#[must_use = "a builder does nothing until it is built"]
pub struct LimiterBuilder {
    limits: Vec<(String, LimitSpec)>,
    /// Each with the number of its limit, by which they are sorted.
    mistakes: Vec<(usize, BuildMistake)>,
    #[cfg(feature = "config")]
    files: Vec<std::path::PathBuf>,
    store: Option<OpenStore>,
    memory: Option<Memory>,
    clock: Option<Arc<dyn Clock>>,
    holder_clock: Arc<dyn HolderClock>,
    bounds: WaitBounds,
}

impl LimiterBuilder {
    pub(super) fn new() -> LimiterBuilder {
        LimiterBuilder {
            limits: Vec::new(),
            mistakes: Vec::new(),
            #[cfg(feature = "config")]
            files: Vec::new(),
            store: None,
            memory: None,
            clock: None,
            holder_clock: Arc::new(SystemHolderClock),
            bounds: WaitBounds { in_all: DEFAULT_MAX_WAITING, per_row: DEFAULT_MAX_WAITING_PER_ROW },
        }
    }

    /// Adds a limit: one rule, several, or [`rules`](crate::rule::rules) with settings.
    ///
    /// On a store that already has the limit, an equal definition changes nothing. A different one is an edit: items
    /// that keep their name keep their counts.
    pub fn limit(mut self, id: impl Into<String>, rules: impl IntoRules) -> LimiterBuilder {
        let id = id.into();
        let (spec, mistakes) = rules.into_rules().into_spec(&id);
        self.note(self.limits.len(), &id, &spec, mistakes);
        self.limits.push((id, spec));
        self
    }

    /// Adds the limits of a limits file. Needs the feature `config`. The file is read by [`LimiterBuilder::build`].
    #[cfg(feature = "config")]
    pub fn file(mut self, path: impl Into<std::path::PathBuf>) -> LimiterBuilder {
        self.files.push(path.into());
        self
    }

    /// Decides in this store instead of a new memory store.
    pub fn store(self, store: Arc<dyn LimitStore>) -> LimiterBuilder {
        self.open_store(|| Ok(store))
    }

    /// Decides in a store that [`LimiterBuilder::build`] opens. If it cannot be opened, the message becomes a
    /// [`BuildMistake`] beside all others.
    pub fn open_store(
        mut self,
        open: impl FnOnce() -> Result<Arc<dyn LimitStore>, String> + 'static,
    ) -> LimiterBuilder {
        if self.store.is_some() {
            self.note_general("store", "is given twice; a limiter has one store");
        }
        self.store = Some(Box::new(open));
        self
    }

    /// The size and the secret of the memory store. The default is a gibibyte at most, and a random secret.
    pub fn memory(mut self, memory: Memory) -> LimiterBuilder {
        self.memory = Some(memory);
        self
    }

    /// The clock of the memory store. The default is the system's clock.
    pub fn clock(mut self, clock: impl Clock + 'static) -> LimiterBuilder {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// The clock of lease holders and waiters. The default is the system's.
    pub fn holder_clock(mut self, holder_clock: impl HolderClock + 'static) -> LimiterBuilder {
        self.holder_clock = Arc::new(holder_clock);
        self
    }

    /// The most requests that wait at once. The default is [`DEFAULT_MAX_WAITING`].
    pub fn max_waiting(mut self, most: usize) -> LimiterBuilder {
        self.bounds.in_all = most;
        self
    }

    /// The most requests that wait for one row at once. The default is [`DEFAULT_MAX_WAITING_PER_ROW`].
    pub fn max_waiting_per_row(mut self, most: usize) -> LimiterBuilder {
        self.bounds.per_row = most;
        self
    }

    /// Builds the limiter and puts its limits into the store.
    ///
    /// # Errors
    /// [`BuildError`] with every mistake. Nothing was put into the store, unless the store itself refused a limit.
    pub fn build(mut self) -> Result<Limiter, BuildError> {
        #[cfg(feature = "config")]
        self.read_files();
        self.check_limits();
        let store = match (self.store.take(), self.memory, self.clock.take()) {
            (None, memory, clock) => {
                let clock = clock.unwrap_or_else(|| Arc::new(SystemClock::new()));
                Some(Arc::new(MemoryStore::new(clock, memory.unwrap_or_default())) as Arc<dyn LimitStore>)
            }
            (Some(open), memory, clock) => {
                if memory.is_some() || clock.is_some() {
                    let message =
                        "memory and clock configure the default store; configure the given store instead";
                    self.note_general("store", message);
                }
                // A store is not opened for limits that are wrong: opening may create files.
                if self.mistakes.is_empty() { self.opened(open) } else { None }
            }
        };
        let limits = std::mem::take(&mut self.limits);
        match store {
            Some(store) if self.mistakes.is_empty() => {
                for (number, (id, spec)) in limits.into_iter().enumerate() {
                    self.put(&*store, number, &id, spec);
                }
                if self.mistakes.is_empty() {
                    return Ok(Limiter::over(store, self.holder_clock, self.bounds));
                }
            }
            _ => {}
        }
        // The sort is stable: mistakes of one limit stay together, in the order in which they were found.
        self.mistakes.sort_by_key(|(number, _)| *number);
        Err(BuildError { mistakes: self.mistakes.into_iter().map(|(_, mistake)| mistake).collect() })
    }

    fn opened(&mut self, open: OpenStore) -> Option<Arc<dyn LimitStore>> {
        open().map_err(|message| self.note_general("store", message)).ok()
    }

    /// Reads the limits of every file.
    #[cfg(feature = "config")]
    fn read_files(&mut self) {
        for path in std::mem::take(&mut self.files) {
            let name = path.display().to_string();
            let read =
                std::fs::read(&path).map_err(|error| format!("cannot be read: {error}")).and_then(|text| {
                    tidegate_config::limits::read_text(&name, &text).map_err(|errors| errors.summary())
                });
            match read {
                Ok(limits) => self.limits.extend(limits.into_iter().map(|spec| (spec.id.clone(), spec))),
                Err(message) => self.note_general(name, message),
            }
        }
    }

    /// Notes duplicate ids and everything that the core finds wrong.
    fn check_limits(&mut self) {
        let limits = std::mem::take(&mut self.limits);
        let mut ids = BTreeSet::new();
        for (number, (id, spec)) in limits.iter().enumerate() {
            if !ids.insert(id) {
                let message = "is the id of another limit as well; rename one of them";
                self.note(number, id, spec, vec![SpecError::new("id", message)]);
            }
            if let Err(errors) = Limit::new(spec.clone(), Tick::NANOSECOND) {
                self.note(number, id, spec, errors);
            }
        }
        self.limits = limits;
    }

    /// Puts one limit, unless the store has an equal one.
    fn put(&mut self, store: &dyn LimitStore, number: usize, id: &str, spec: LimitSpec) {
        let expected = match store.get(id) {
            Some(present) if *present.spec() == spec => return,
            Some(_) => ExpectedVersion::Anything,
            None => ExpectedVersion::Absent,
        };
        match store.put(spec.clone(), expected) {
            // Another process has put it in the meantime: this definition is an edit of that one.
            Err(PutError::Exists) => self.put(store, number, id, spec),
            Err(PutError::Invalid(errors)) => self.note(number, id, &spec, errors),
            Err(error) => self.note(number, id, &spec, vec![SpecError::new("limit", error.to_string())]),
            Ok(_) => {}
        }
    }

    /// Notes mistakes of the limit with this number.
    fn note(&mut self, number: usize, id: &str, spec: &LimitSpec, errors: Vec<SpecError>) {
        let mistakes = errors.into_iter().map(|error| (number, BuildMistake::of_limit(id, spec, error)));
        self.mistakes.extend(mistakes);
    }

    /// Notes a mistake of the store or of a file. They come after those of all limits.
    fn note_general(&mut self, field: impl Into<String>, message: impl Into<String>) {
        let mistake =
            BuildMistake { limit_id: None, item: None, field: field.into(), message: message.into() };
        self.mistakes.push((usize::MAX, mistake));
    }
}

impl fmt::Debug for LimiterBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<&str> = self.limits.iter().map(|(id, _)| id.as_str()).collect();
        f.debug_struct("LimiterBuilder").field("limits", &ids).finish_non_exhaustive()
    }
}

/// Everything that is wrong with what a builder was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildError {
    mistakes: Vec<BuildMistake>,
}

impl BuildError {
    /// Every mistake, in the order of the limits; then those of files and of the store.
    pub fn mistakes(&self) -> &[BuildMistake] {
        &self.mistakes
    }
}

/// One mistake: where it is, what is wrong, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BuildMistake {
    /// The limit, if it is in one.
    pub limit_id: Option<String>,
    /// The name of the item, if it is in one.
    pub item: Option<String>,
    /// The field, such as `items[0].burst`; the store or a file's path if it is in no limit.
    pub field: String,
    /// What is wrong and what to do.
    pub message: String,
}

impl BuildMistake {
    fn of_limit(id: &str, spec: &LimitSpec, error: SpecError) -> BuildMistake {
        let SpecError { field, message } = error;
        let index =
            field.strip_prefix("items[").and_then(|rest| rest.split(']').next()?.parse::<usize>().ok());
        let item = index.and_then(|index| spec.items.get(index)).map(tidegate_core::ItemSpec::effective_name);
        BuildMistake { limit_id: Some(id.to_owned()), item, field, message }
    }
}

impl fmt::Display for BuildMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BuildMistake { limit_id, item, field, message } = self;
        if let Some(limit_id) = limit_id {
            write!(f, "limit '{limit_id}', ")?;
        }
        match item {
            Some(item) => write!(f, "{field} ({item}): {message}"),
            None => write!(f, "{field}: {message}"),
        }
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.mistakes.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{mistake}")?;
        }
        Ok(())
    }
}

impl std::error::Error for BuildError {}
