//! Enforcers: keep CPU usage within a limit.
//!
//! | enforcer | limits | by |
//! |---|---|---|
//! | [`QuotaEnforcer`] | a cgroup | the kernel's quota for it |
//! | [`SharedQuota`] | several cgroups together | a quota for each, whose sum is the limit |
//! | [`CgroupScope`] | a process tree | a temporary cgroup |
//! | [`SignalEnforcer`] | a process tree | stopping it for a part of the time |
//! | [`MachineEnforcer`] | all cgroups that can be limited of a machine | shares of what the rest leaves |
//! | [`AdvisoryEnforcer`] | nothing | reporting the limit |
//!
//! A limit is a rate in percent of the machine, all cores together. Every change is registered with the
//! [`CpuWatchdog`](crate::watchdog::CpuWatchdog) first. [`Enforcer::restore`] or the drop of the enforcer undoes it.
//!
//! The governor itself, the first process of the machine and programs needed to log in are never limited: otherwise the limit could not be
//! lifted again. [`limitable_cgroups`] finds what may be limited on a machine.

mod bandwidth;
mod cgroup_quota_files;
mod cgroup_scope;
mod duty_cycle;
mod machine;
mod protected_processes;
mod quota;
mod shares;
mod signals;
mod targets;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use tidegate_core::budget::Rate;

pub use bandwidth::QuotaBurst;
pub use cgroup_scope::CgroupScope;
pub use machine::MachineEnforcer;
pub use quota::QuotaEnforcer;
pub use shares::SharedQuota;
pub use signals::SignalEnforcer;
pub use targets::limitable_cgroups;

use crate::cgroups::CgroupError;
use crate::meter::MeterError;
use crate::watchdog::{Undo, WatchdogError};

/// Billionths of a percent in a whole machine.
const WHOLE: u128 = 100 * 1_000_000_000;

/// Minimum limit when other processes use everything: a hundredth of the machine.
const MIN_LIMIT: Rate = Rate::from_units(1);

/// The part of a limit that other usage leaves.
pub(crate) fn remaining_limit(others: Rate, limit: Rate) -> Rate {
    limit.minus(others).max(MIN_LIMIT.min(limit))
}

/// Enforces a limit.
pub trait Enforcer: Send {
    /// Sets the limit.
    fn apply(&mut self, limit: Rate) -> Result<(), EnforceError>;

    /// Restores the state before the first limit. Repeated calls have no further effect.
    fn restore(&mut self) -> Result<(), EnforceError>;
}

/// Enforces nothing. Programs may read the limit and comply.
#[derive(Debug, Clone, Copy, Default)]
pub struct AdvisoryEnforcer;

impl Enforcer for AdvisoryEnforcer {
    fn apply(&mut self, _limit: Rate) -> Result<(), EnforceError> {
        Ok(())
    }

    fn restore(&mut self) -> Result<(), EnforceError> {
        Ok(())
    }
}

/// Why a limit cannot be enforced. Nothing was changed unless the variant says otherwise.
#[derive(Debug)]
#[non_exhaustive]
pub enum EnforceError {
    /// The cgroup cannot be used.
    Cgroup(CgroupError),
    /// The machine or the process tree cannot be measured.
    Meter(MeterError),
    /// The undo step cannot be kept.
    Watchdog(WatchdogError),
    /// The target contains a protected process.
    Protected {
        /// The target.
        what: String,
        /// The protected process.
        process: String,
    },
    /// The user may not signal the process.
    NotOurs {
        /// Process number.
        pid: u32,
    },
    /// The process and all its descendants have ended.
    Gone {
        /// Process number.
        pid: u32,
    },
    /// The kernel rejected the limit. The previous one is still active.
    Refused {
        /// The file.
        path: PathBuf,
        /// The rejected content.
        content: String,
        /// The system's error.
        error: io::Error,
    },
    /// An undo step failed.
    NotRestored {
        /// The step.
        undo: Undo,
        /// The system's error.
        error: io::Error,
    },
    /// Another system error.
    Failed {
        /// The failed operation.
        operation: &'static str,
        /// The system's error.
        error: io::Error,
    },
}

impl EnforceError {
    /// Whether only permissions are missing. Then usage can still be measured and the limit reported.
    pub fn is_permission_error(&self) -> bool {
        match self {
            EnforceError::Cgroup(CgroupError::NotAllowed { .. }) | EnforceError::NotOurs { .. } => true,
            EnforceError::Refused { error, .. } | EnforceError::Failed { error, .. } => is_forbidden(error),
            _ => false,
        }
    }
}

fn is_forbidden(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

#[expect(clippy::disallowed_methods, reason = "measures elapsed real time")]
fn now() -> Instant {
    Instant::now()
}

/// Converts the error of a write into a cgroup file.
fn refused(path: &Path, content: &str, error: io::Error) -> EnforceError {
    if is_forbidden(&error) {
        return CgroupError::of(path, error).into();
    }
    EnforceError::Refused { path: path.to_owned(), content: content.to_owned(), error }
}

impl From<CgroupError> for EnforceError {
    fn from(error: CgroupError) -> EnforceError {
        EnforceError::Cgroup(error)
    }
}

impl From<MeterError> for EnforceError {
    fn from(error: MeterError) -> EnforceError {
        EnforceError::Meter(error)
    }
}

impl From<WatchdogError> for EnforceError {
    fn from(error: WatchdogError) -> EnforceError {
        EnforceError::Watchdog(error)
    }
}

impl From<(Undo, io::Error)> for EnforceError {
    fn from((undo, error): (Undo, io::Error)) -> EnforceError {
        EnforceError::NotRestored { undo, error }
    }
}

impl fmt::Display for EnforceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EnforceError::Cgroup(error) => write!(f, "{error}"),
            EnforceError::Meter(error) => write!(f, "{error}"),
            EnforceError::Watchdog(error) => write!(f, "{error}"),
            EnforceError::Protected { what, process } => {
                write!(f, "{what} is not limited: it contains {process}; choose a target without it")
            }
            EnforceError::NotOurs { pid } => {
                write!(f, "no permission to stop process {pid}; run as its user or as root")
            }
            EnforceError::Gone { pid } => write!(f, "process {pid} and all its descendants have ended"),
            EnforceError::Refused { path, content, error } => write!(
                f,
                "the kernel rejects '{content}' for {}: {error}; a cgroup above or below it may have its own limit",
                path.display()
            ),
            EnforceError::NotRestored { undo, error } => {
                write!(f, "cannot undo a change: {undo:?}: {error}; the next start tries it again")
            }
            EnforceError::Failed { operation, error } => write!(f, "cannot {operation}: {error}"),
        }
    }
}

impl std::error::Error for EnforceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            EnforceError::Cgroup(error) => Some(error),
            EnforceError::Meter(error) => Some(error),
            EnforceError::Watchdog(error) => Some(error),
            EnforceError::Refused { error, .. }
            | EnforceError::NotRestored { error, .. }
            | EnforceError::Failed { error, .. } => Some(error),
            _ => None,
        }
    }
}
