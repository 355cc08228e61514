//! The catalog: which limits there are, and which version of each.
//!
//! Limits are data apart from what they count. Putting a new version keeps the counts of the items that survive by
//! name; only [`RemovalMode::Forget`] and a reset forget.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashSet;
use tidegate_core::{Limit, LimitSpec, SpecError};

use crate::store::{StoreReply, Unavailable};

/// How long a limit that was taken out of a file keeps its state, so that undoing the edit does not oversell.
pub const RETIREMENT: Duration = Duration::from_secs(7 * 86_400);

/// What the one who puts a limit believes to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedVersion {
    /// Nothing: add it.
    Absent,
    /// This version: replace it.
    Version(u32),
    /// Some version: replace it.
    Present,
    /// Whatever: add or replace it.
    Anything,
}

impl ExpectedVersion {
    /// Whether this is what is there: a version, or nothing.
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

/// Whose a limit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Origin {
    /// Somebody put it: an operator, or a program.
    #[default]
    Put,
    /// It was put with others by [`Catalog::apply`], as files are.
    Applied,
}

/// What happens to a removed limit's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemovalMode {
    /// It goes at once: somebody deleted the limit.
    Forget,
    /// It is kept for [`RETIREMENT`]: the limit vanished from a file.
    Retire,
}

/// One of the edits that are applied together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit {
    /// Adds or replaces a limit, if what is expected is there.
    Put(LimitSpec, ExpectedVersion),
    /// Removes the limit of this id, if it is there.
    Remove(String, RemovalMode),
}

impl Edit {
    /// The id of the limit it is about.
    pub fn id(&self) -> &str {
        match self {
            Edit::Put(spec, _) => &spec.id,
            Edit::Remove(id, _) => id,
        }
    }
}

/// What became of an edit.
#[derive(Debug, Clone)]
pub enum EditOutcome {
    /// The limit was not there, and is now.
    Added(Arc<Limit>),
    /// This version took the place of the former one.
    Replaced(Arc<Limit>),
    /// The limit says this already; nothing was touched.
    Unchanged(Arc<Limit>),
    /// The limit was there, and is gone.
    Removed(Arc<Limit>),
    /// There was nothing to remove.
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

    /// What watchers are told of it.
    pub fn change(&self) -> Option<Change> {
        match self {
            EditOutcome::Added(limit) | EditOutcome::Replaced(limit) => Some(Change::Put(Arc::clone(limit))),
            EditOutcome::Removed(limit) => Some(Change::Removed(Arc::clone(limit))),
            EditOutcome::Unchanged(_) | EditOutcome::Absent => None,
        }
    }
}

/// Why edits were not applied: all that is wrong with any of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApplyError {
    /// The ids of the limits that cannot be put, in the order of the edits, and why.
    pub refused: Vec<(String, PutError)>,
}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nothing was changed")?;
        self.refused.iter().try_for_each(|(id, why)| write!(f, "; '{id}': {why}"))
    }
}

impl std::error::Error for ApplyError {}

/// Checks every edit, and says all that is wrong with any of them; each limit may be edited once.
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

/// Something changed.
#[derive(Debug, Clone)]
pub enum Change {
    /// A limit was added or replaced.
    Put(Arc<Limit>),
    /// A limit was removed.
    Removed(Arc<Limit>),
}

/// Why a limit was not put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PutError {
    /// It was to be added, and is there.
    Exists,
    /// It was to be replaced, and is not there.
    Unknown,
    /// Another version is there.
    Stale {
        /// The one that is.
        version: u32,
    },
    /// It makes no sense.
    Invalid(Vec<SpecError>),
    /// The store cannot write it down.
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

/// Is told of every change, in order.
pub type Watcher = Box<dyn Fn(&Change) + Send + Sync>;

/// Knows the limits.
pub trait Catalog: Send + Sync {
    /// The current version of a limit.
    fn get(&self, id: &str) -> Option<Arc<Limit>>;

    /// All limits, in the order of their ids.
    fn list(&self) -> Vec<Arc<Limit>>;

    /// Adds or replaces a limit, if what is expected is there.
    fn put(&self, spec: LimitSpec, expect: ExpectedVersion) -> Result<Arc<Limit>, PutError>;

    /// Removes a limit; whether it was there.
    fn remove(&self, id: &str, parting: RemovalMode) -> bool;

    /// Makes all of these edits, or none of them: everything is checked before anything is changed, and what is said about each
    /// is in their order. Nobody who asks by id meets some of them and not others: an order over two limits is decided by both
    /// as they were, or by both as they are then. Handles on limits ([`Gate`](crate::store::memory::MemoryHandle)) follow each edit as it is made. A limit that
    /// says already what it is to say is not touched. Watchers are told when all of it is done.
    fn apply(&self, edits: Vec<Edit>) -> Result<Vec<EditOutcome>, ApplyError>;

    /// The same for those who must not block, and who say whose the limits are then: with [`Origin::Applied`] it is what [`Catalog::apply`]
    /// does, with [`Origin::Put`] what [`Catalog::put`] and [`Catalog::remove`] do. Where somebody else keeps the limits, all the other calls
    /// wait for them. Whoever is told that a version is [`PutError::Stale`] finds the one that is there by [`Catalog::get`]. What was edited
    /// is durable when [`Store::tip`](crate::store::Store::tip) is.
    fn edit(&self, edits: Vec<Edit>, origin: Origin) -> StoreReply<Result<Vec<EditOutcome>, ApplyError>>;

    /// Calls this for every change from now on.
    fn watch(&self, watcher: Watcher);

    /// The ids of the limits that were put by [`Catalog::apply`] and by nobody else since: those of a file, if a store that outlives
    /// its process was opened again.
    fn applied(&self) -> Vec<String> {
        Vec::new()
    }
}
