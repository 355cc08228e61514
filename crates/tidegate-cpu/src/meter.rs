//! Meters: how much CPU time something has used.
//!
//! A meter reads a counter that only rises, and the kernel is who counts. So a sample that comes late or not at all loses nothing: the next
//! one has it. What a governor needs is the difference of two [`MeterReading`]s, and that exists only within one [`CounterId`] of the counter.
//!
//! ```text
//!   used │            ╭──            life A ends: the machine was started again, the cgroup made anew,
//!        │        ╭───╯              the number of the process given to another
//!        │  ╭─────╯         ╭───
//!        └──┴─────────┬─────┴─────▶
//!            life A     life B
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

/// What a counter said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeterReading {
    /// The CPU time of all cores together since the counter began.
    pub used: Duration,
    /// Which life of the counter it is.
    pub life: CounterId,
    /// What is counted, in this life and in others.
    pub target: TargetId,
    /// How long it has been counting, if that is known.
    pub age: Option<Duration>,
}

impl MeterReading {
    /// What was used since an earlier reading; `None` if the counter began anew in between.
    ///
    /// A process tree whose meter was made anew may have lost some that ended unseen; then it is nothing rather than less.
    pub fn since(&self, earlier: &MeterReading) -> Option<Duration> {
        (self.life == earlier.life).then(|| self.used.saturating_sub(earlier.used))
    }
}

/// Something whose CPU time can be read.
pub trait Meter: Send {
    /// Reads it. Within a life it never says less than before.
    fn read(&mut self) -> Result<MeterReading, MeterError>;
}

/// Billionths of a percent in all of a machine.
const WHOLE: i128 = 100 * 1_000_000_000;

/// CPU time of so many cores together as a quota: percents of the machine, rounded up.
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
    /// There is no such process, and none that it left.
    Gone {
        /// Its number.
        pid: u32,
    },
    /// A file of the kernel says something that makes no sense.
    Unreadable {
        /// Which.
        path: PathBuf,
    },
    /// A file of the kernel cannot be read.
    Failed {
        /// Which.
        path: PathBuf,
        /// What the system says.
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
                write!(f, "{} makes no sense; is it a file of the kernel?", path.display())
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
