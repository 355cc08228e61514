//! The catalog: which limits there are, and which version of each.
//!
//! Limits are data apart from what they count. Putting a new version keeps the counts of the items that survive by
//! name; only [`Parting::Forget`] and a reset forget.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Flaw, Limit, LimitSpec};

/// How long a limit that was taken out of a file keeps its state, so that undoing the edit does not oversell.
pub const RETIREMENT: Duration = Duration::from_secs(7 * 86_400);

/// What the one who puts a limit believes to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Nothing: add it.
    Absent,
    /// This version: replace it.
    Version(u32),
    /// Some version: replace it.
    Present,
    /// Whatever: add or replace it.
    Anything,
}

/// What happens to a removed limit's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parting {
    /// It goes at once: somebody deleted the limit.
    Forget,
    /// It is kept for [`RETIREMENT`]: the limit vanished from a file.
    Retire,
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
    Invalid(Vec<Flaw>),
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
    fn put(&self, spec: LimitSpec, expect: Expect) -> Result<Arc<Limit>, PutError>;

    /// Removes a limit; whether it was there.
    fn remove(&self, id: &str, parting: Parting) -> bool;

    /// Calls this for every change from now on.
    fn watch(&self, watcher: Watcher);
}
