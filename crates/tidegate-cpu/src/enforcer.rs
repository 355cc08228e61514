//! Enforcers: how something is kept from using more CPU time than it may.
//!
//! | enforcer | limits | by |
//! |---|---|---|
//! | [`QuotaEnforcer`] | a cgroup | the kernel's quota for it |
//! | [`SharedQuota`] | several cgroups together | a quota for each, whose sum is the limit |
//! | [`CgroupScope`] | a process tree | a cgroup made for it |
//! | [`SignalEnforcer`] | a process tree | stopping it for a part of the time |
//! | [`MachineEnforcer`] | all that may be limited on a machine | shares of what the rest leaves |
//! | [`AdvisoryEnforcer`] | nothing | saying what the limit is |
//!
//! A limit is a rate whose unit is one percent of the machine, all of its cores together. Everything that an enforcer changes is noted by
//! the [`CpuWatchdog`](crate::watchdog::CpuWatchdog) before, and undone by [`Enforcer::restore`] or when the enforcer is dropped.
//!
//! Nobody limits the governor itself, the first process of the machine, or what people log in with: then nobody could lift the limit again.
//! [`limitable_cgroups`] finds what may be limited on a whole machine.

mod bandwidth;
mod cgroup_scope;
mod controller;
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

/// Billionths of a percent in all of a machine.
const WHOLE: u128 = 100 * 1_000_000_000;

/// What somebody gets at least whom the others leave nothing: a hundredth of the machine.
const LEAST: Rate = Rate::from_units(1);

/// What is left of a limit for some, if others use so much of it.
pub(crate) fn left_by(others: Rate, limit: Rate) -> Rate {
    limit.minus(others).max(LEAST.min(limit))
}

/// Something that keeps to a limit.
pub trait Enforcer: Send {
    /// From now on, no more than this.
    fn apply(&mut self, limit: Rate) -> Result<(), EnforceError>;

    /// Makes everything as it was before the first limit. Once is as good as twice.
    fn restore(&mut self) -> Result<(), EnforceError>;
}

/// Limits nothing: whoever reads the limit may keep to it.
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

/// Why something cannot be limited. Nothing was changed, unless it says so.
#[derive(Debug)]
#[non_exhaustive]
pub enum EnforceError {
    /// The cgroup cannot be used.
    Cgroup(CgroupError),
    /// The machine or the process tree cannot be measured.
    Meter(MeterError),
    /// What is to be undone cannot be noted.
    Watchdog(WatchdogError),
    /// Limiting it would limit somebody who must not be.
    Protected {
        /// What was to be limited.
        what: String,
        /// Who is in it.
        who: String,
    },
    /// This user may not send signals to the process.
    NotOurs {
        /// Its number.
        pid: u32,
    },
    /// The process has ended, with all that it started.
    Gone {
        /// Its number.
        pid: u32,
    },
    /// The kernel did not take the limit; the one before is in force.
    Refused {
        /// Which file was written.
        path: PathBuf,
        /// What.
        content: String,
        /// What the system says.
        error: io::Error,
    },
    /// Something could not be made as it was before.
    NotRestored {
        /// What.
        undo: Undo,
        /// What the system says.
        error: io::Error,
    },
    /// The system failed.
    Failed {
        /// What was to be done.
        doing: &'static str,
        /// What it says.
        error: io::Error,
    },
}

impl EnforceError {
    /// Whether it is only this user who may not. Then what is used can still be told, and the limit given as advice.
    pub fn is_for_want_of_rights(&self) -> bool {
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

#[expect(clippy::disallowed_methods, reason = "how much time passed while somebody ran")]
fn now() -> Instant {
    Instant::now()
}

/// What an error of a file of a cgroup means for whoever wrote into it.
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
            EnforceError::Protected { what, who } => {
                write!(f, "{what} is not limited: {who} is in it; choose something that is not around it")
            }
            EnforceError::NotOurs { pid } => {
                write!(f, "no permission to stop process {pid}; run as its user or as root")
            }
            EnforceError::Gone { pid } => write!(f, "process {pid} has ended, with all that it started"),
            EnforceError::Refused { path, content, error } => write!(
                f,
                "the kernel does not take '{content}' for {}: {error}; a cgroup below or above it may have a limit of its own",
                path.display()
            ),
            EnforceError::NotRestored { undo, error } => {
                write!(
                    f,
                    "this is not as it was before: {undo:?}: {error}; it is tried again at the next start"
                )
            }
            EnforceError::Failed { doing, error } => write!(f, "cannot {doing}: {error}"),
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
