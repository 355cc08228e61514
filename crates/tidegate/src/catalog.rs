//! The catalog: the limits of a store and the version of each.
//!
//! Definitions are separate from counts. A new version keeps the counts of the items whose names survive. Counts are
//! dropped only by [`RemovalMode::Forget`] and by a reset.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashSet;
use tidegate_core::{Limit, LimitSpec, SpecError};

use crate::store_reply::{StoreReply, Unavailable};

/// How long a limit that vanished from a file keeps its counts, so that undoing the edit does not oversell.
pub const RETIREMENT: Duration = Duration::from_secs(7 * 86_400);

/// What a caller expects to exist when it puts a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedVersion {
    /// No limit with this id: add it.
    Absent,
    /// This version: replace it.
    Version(u32),
    /// Any version: replace it.
    Present,
    /// Add the limit or replace it.
    Anything,
}

impl ExpectedVersion {
    /// Checks the expectation against the current version.
    pub fn meets(self, current: Option<u32>) -> Result<(), PutError> {
        match (self, current) {
            (ExpectedVersion::Absent, Some(_)) => Err(PutError::Exists),
            (ExpectedVersion::Version(_) | ExpectedVersion::Present, None) => Err(PutError::Unknown),
            (ExpectedVersion::Version(wanted), Some(version)) if wanted != version => {
                Err(PutError::Stale { version })
            }
            _ => Ok(()),
        }
    }
}

/// Who manages a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Origin {
    /// An operator or a program put it.
    #[default]
    Put,
    /// [`Catalog::apply`] put it with others, as from a file.
    Applied,
}

/// What happens to the counts of a removed limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemovalMode {
    /// They are dropped at once, as for a deleted limit.
    Forget,
    /// They are kept for [`RETIREMENT`], as for a limit that vanished from a file.
    Retire,
}

/// One edit of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit {
    /// Adds or replaces a limit if the expectation is met.
    Put(LimitSpec, ExpectedVersion),
    /// Removes the limit with this id if it exists.
    Remove(String, RemovalMode),
}

impl Edit {
    /// Id of the edited limit.
    pub fn id(&self) -> &str {
        match self {
            Edit::Put(spec, _) => &spec.id,
            Edit::Remove(id, _) => id,
        }
    }
}

/// Result of an edit.
#[derive(Debug, Clone)]
pub enum EditOutcome {
    /// The limit was added.
    Added(Arc<Limit>),
    /// This version replaced the former one.
    Replaced(Arc<Limit>),
    /// The definition is equal to the current one; nothing changed.
    Unchanged(Arc<Limit>),
    /// The limit was removed.
    Removed(Arc<Limit>),
    /// There was no limit to remove.
    Absent,
}

impl EditOutcome {
    /// The limit as it is now, or as it was when it was removed.
    pub fn limit(&self) -> Option<&Arc<Limit>> {
        match self {
            EditOutcome::Added(limit)
            | EditOutcome::Replaced(limit)
            | EditOutcome::Unchanged(limit)
            | EditOutcome::Removed(limit) => Some(limit),
            EditOutcome::Absent => None,
        }
    }

    /// The change that watchers receive; `None` if nothing changed.
    pub fn change(&self) -> Option<Change> {
        match self {
            EditOutcome::Added(limit) | EditOutcome::Replaced(limit) => Some(Change::Put(Arc::clone(limit))),
            EditOutcome::Removed(limit) => Some(Change::Removed(Arc::clone(limit))),
            EditOutcome::Unchanged(_) | EditOutcome::Absent => None,
        }
    }
}

/// Why a batch of edits was rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApplyError {
    /// Each rejected limit id with its error, in the order of the edits.
    pub refused: Vec<(String, PutError)>,
}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nothing was changed")?;
        self.refused.iter().try_for_each(|(id, why)| write!(f, "; '{id}': {why}"))
    }
}

impl std::error::Error for ApplyError {}

/// Checks every edit and collects all errors. A limit may be edited once per batch.
pub fn check_each<T>(
    edits: Vec<Edit>,
    mut check: impl FnMut(Edit) -> Result<T, PutError>,
) -> Result<Vec<T>, ApplyError> {
    let mut seen = HashSet::with_capacity(edits.len());
    let mut checked = Vec::with_capacity(edits.len());
    let mut refused = Vec::new();
    for edit in edits {
        let id = edit.id().to_owned();
        let once = if seen.insert(id.clone()) {
            check(edit)
        } else {
            Err(PutError::Invalid(vec![SpecError::new(
                "id",
                "is edited more than once; edit every limit once",
            )]))
        };
        match once {
            Ok(good) => checked.push(good),
            Err(why) => refused.push((id, why)),
        }
    }
    if refused.is_empty() { Ok(checked) } else { Err(ApplyError { refused }) }
}

/// A change of the catalog.
#[derive(Debug, Clone)]
pub enum Change {
    /// A limit was added or replaced.
    Put(Arc<Limit>),
    /// A limit was removed.
    Removed(Arc<Limit>),
}

/// Why a limit was not put.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PutError {
    /// It should be added but exists.
    Exists,
    /// It should be replaced but does not exist.
    Unknown,
    /// Another version exists.
    Stale {
        /// The current version.
        version: u32,
    },
    /// The definition is invalid.
    Invalid(Vec<SpecError>),
    /// The store cannot record it.
    Unavailable(Unavailable),
}

impl fmt::Display for PutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PutError::Exists => write!(f, "a limit of this id exists"),
            PutError::Unknown => write!(f, "no limit has this id"),
            PutError::Stale { version } => write!(f, "the limit is at version {version} by now"),
            PutError::Invalid(flaws) => {
                write!(f, "the limit is not valid")?;
                flaws.iter().try_for_each(|flaw| write!(f, "; {flaw}"))
            }
            PutError::Unavailable(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for PutError {}

/// A callback for every change, in order.
pub type Watcher = Box<dyn Fn(&Change) + Send + Sync>;

/// Keeps limit definitions.
pub trait Catalog: Send + Sync {
    /// The current version of a limit.
    fn get(&self, id: &str) -> Option<Arc<Limit>>;

    /// All limits, sorted by id.
    fn list(&self) -> Vec<Arc<Limit>>;

    /// Adds or replaces a limit if the expectation is met.
    fn put(&self, spec: LimitSpec, expect: ExpectedVersion) -> Result<Arc<Limit>, PutError>;

    /// Removes a limit. Returns whether it existed.
    fn remove(&self, id: &str, parting: RemovalMode) -> bool;

    /// Makes all edits or none. Everything is checked before anything changes, and results are in the order of the
    /// edits.
    ///
    /// An order that names limits by id sees all edits or none: two limits are both decided as before, or both as
    /// after. Handles on limits follow each edit as it is made. An equal definition changes nothing. Watchers are
    /// called after all edits.
    fn apply(&self, edits: Vec<Edit>) -> Result<Vec<EditOutcome>, ApplyError>;

    /// The same without blocking, and with the origin of the limits. [`Origin::Applied`] acts like [`Catalog::apply`],
    /// [`Origin::Put`] like [`Catalog::put`] and [`Catalog::remove`].
    ///
    /// All other calls block where another machine keeps the limits. After [`PutError::Stale`], [`Catalog::get`]
    /// returns the current version. The edits are durable when [`Store::log_end`](crate::store::Store::log_end) is.
    fn edit(&self, edits: Vec<Edit>, origin: Origin) -> StoreReply<Result<Vec<EditOutcome>, ApplyError>>;

    /// Calls this function for every change from now on.
    fn watch(&self, watcher: Watcher);

    /// Ids of the limits that [`Catalog::apply`] put last: those of a file, if a durable store was opened again.
    fn applied(&self) -> Vec<String> {
        Vec::new()
    }
}
