//! A CPU quota for one cgroup.

use std::path::Path;

use tidegate_core::budget::Rate;

use super::bandwidth::{Bandwidth, QuotaBurst};
use super::cgroup_quota_files::{CgroupQuotaFiles, enable_below};
use super::protected_processes::check_cgroup;
use super::{EnforceError, Enforcer};
use crate::cgroups::{Cgroup, CgroupError, CgroupVersion, FilesystemRoots, Hierarchy};
use crate::meter::cores_in;
use crate::watchdog::{CpuWatchdog, UndoList};

/// A CPU quota for a cgroup and its descendants: `cpu.max` in version 2, `cpu.cfs_quota_us` in version 1.
#[derive(Debug)]
pub struct QuotaEnforcer {
    roots: FilesystemRoots,
    files: CgroupQuotaFiles,
    burst: QuotaBurst,
    undo_list: UndoList,
    is_limited: bool,
}

impl QuotaEnforcer {
    /// Prepares the quota for the cgroup at this path. No limit is active yet. In version 2, this enables the CPU controller if
    /// necessary.
    pub fn new(
        roots: &FilesystemRoots,
        path: &Path,
        burst: QuotaBurst,
        watchdog: &CpuWatchdog,
    ) -> Result<QuotaEnforcer, EnforceError> {
        let hierarchy = Hierarchy::find(roots)?;
        let cgroup = hierarchy.at(path)?;
        check_cgroup(roots, &hierarchy, &cgroup)?;
        QuotaEnforcer::of(roots, &hierarchy, &cgroup, burst, watchdog)
    }

    /// Prepares the quota for a cgroup that is known to contain no protected process.
    pub(super) fn of(
        roots: &FilesystemRoots,
        hierarchy: &Hierarchy,
        cgroup: &Cgroup,
        burst: QuotaBurst,
        watchdog: &CpuWatchdog,
    ) -> Result<QuotaEnforcer, EnforceError> {
        let mut undo_list = UndoList::new(watchdog, &roots.processes());
        let files = match (CgroupQuotaFiles::of(hierarchy.version, &cgroup.limits), cgroup.limits.parent()) {
            (Err(CgroupError::NoController { .. }), Some(parent))
                if hierarchy.version == CgroupVersion::Two =>
            {
                enable_below(&hierarchy.limits, parent, &mut undo_list)?;
                CgroupQuotaFiles::of(hierarchy.version, &cgroup.limits)
            }
            (files, _) => files,
        };
        Ok(QuotaEnforcer { roots: roots.clone(), files: files?, burst, undo_list, is_limited: false })
    }

    /// Writes a limit in kernel parameters.
    pub(super) fn write_limit(&mut self, limit: Bandwidth) -> Result<(), EnforceError> {
        if !self.is_limited {
            self.undo_list.register(self.files.undos()?)?;
            self.is_limited = true;
        }
        self.files.write(limit)
    }

    pub(super) fn burst(&self) -> QuotaBurst {
        self.burst
    }
}

impl Enforcer for QuotaEnforcer {
    fn apply(&mut self, limit: Rate) -> Result<(), EnforceError> {
        self.write_limit(Bandwidth::of(limit, cores_in(&self.roots)?, self.burst))
    }

    fn restore(&mut self) -> Result<(), EnforceError> {
        self.is_limited = false;
        Ok(self.undo_list.undo_all()?)
    }
}

impl Drop for QuotaEnforcer {
    fn drop(&mut self) {
        // An undo that fails now stays in the undo journal.
        let _restored = self.restore();
    }
}
