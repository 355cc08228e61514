//! Meters read how much CPU time a target has used.
//!
//! A meter reads a kernel counter that only increases, so a late or missing sample loses nothing: the next one includes it. The governor
//! needs the difference of two [`MeterReading`]s. It exists only if both have the same [`CounterId`].
//!
//! ```text
//!   used │            ╭──            counter A ends: the machine restarted, the cgroup was recreated,
//!        │        ╭───╯              or the process number was reused
//!        │  ╭─────╯         ╭───
//!        └──┴─────────┬─────┴─────▶
//!            counter A    counter B
//! ```

mod cgroup;
mod counter_id;
mod host;
mod kernel_file;
mod tree;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tidegate_core::budget::Quota;

pub use cgroup::CgroupMeter;
pub use counter_id::{BadCounterId, CounterId, TargetId};
pub(crate) use host::cores_in;
pub use host::{HostMeter, cores};
pub use tree::TreeMeter;

use crate::cgroups::CgroupError;

/// One reading of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeterReading {
    /// CPU time of all cores since the counter began.
    pub used: Duration,
    /// Identity of the counter.
    pub counter_id: CounterId,
    /// Identity of the counted target, which survives a counter restart.
    pub target: TargetId,
    /// Age of the counter, if known.
    pub age: Option<Duration>,
}

impl MeterReading {
    /// Usage since an earlier reading. `None` if the counter restarted in between.
    ///
    /// A recreated meter of a process tree may have missed ended processes. Then the result is zero and not negative.
    pub fn since(&self, earlier: &MeterReading) -> Option<Duration> {
        (self.counter_id == earlier.counter_id).then(|| self.used.saturating_sub(earlier.used))
    }
}

/// A source of CPU time readings.
pub trait Meter: Send {
    /// Reads the counter. It never decreases while its identity is the same.
    fn read(&mut self) -> Result<MeterReading, MeterError>;
}

/// Billionths of a percent in a whole machine.
const WHOLE: i128 = 100 * 1_000_000_000;

/// Converts CPU time of all cores to a quota in percent of the machine, rounded up.
pub(crate) fn of_machine(used: Duration, cores: u32) -> Quota {
    let nanos = i128::try_from(used.as_nanos()).unwrap_or(i128::MAX);
    let cores = i128::from(cores.max(1));
    Quota::from_raw(nanos.saturating_mul(WHOLE).saturating_add(cores - 1) / cores)
}

/// Why CPU time cannot be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum MeterError {
    /// The cgroup cannot be used.
    Cgroup(CgroupError),
    /// There is no such process, and none of its descendants is left.
    Gone {
        /// Process number.
        pid: u32,
    },
    /// A kernel file has unexpected content.
    Unreadable {
        /// Path of the file.
        path: PathBuf,
    },
    /// A file of the kernel cannot be read.
    Failed {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

impl MeterError {
    fn of(path: &Path, error: io::Error) -> MeterError {
        MeterError::Failed { path: path.to_owned(), error }
    }
}

impl From<CgroupError> for MeterError {
    fn from(error: CgroupError) -> MeterError {
        MeterError::Cgroup(error)
    }
}

impl fmt::Display for MeterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MeterError::Cgroup(error) => write!(f, "{error}"),
            MeterError::Gone { pid } => {
                write!(f, "there is no process {pid}; it has ended, or the number is wrong")
            }
            MeterError::Unreadable { path } => {
                write!(f, "{} has an unexpected format; is it a kernel file?", path.display())
            }
            MeterError::Failed { path, error } => write!(f, "{} cannot be read: {error}", path.display()),
        }
    }
}

impl std::error::Error for MeterError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            MeterError::Cgroup(error) => Some(error),
            MeterError::Failed { error, .. } => Some(error),
            _ => None,
        }
    }
}
