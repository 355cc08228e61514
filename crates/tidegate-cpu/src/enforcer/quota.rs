//! A quota for one cgroup.

use std::path::Path;

use tidegate_core::budget::Rate;

use super::bandwidth::{Bandwidth, QuotaBurst};
use super::controller::{Controller, enable_below};
use super::protected_processes::refuse_in_cgroup;
use super::{EnforceError, Enforcer};
use crate::cgroups::{Cgroup, CgroupError, CgroupVersion, FilesystemRoots, Hierarchy};
use crate::meter::cores_in;
use crate::watchdog::{CpuWatchdog, UndoList};

/// A quota for one cgroup with everything below it: `cpu.max` in version 2, `cpu.cfs_quota_us` in version 1.
#[derive(Debug)]
pub struct QuotaEnforcer {
    roots: FilesystemRoots,
    controller: Controller,
    burst: QuotaBurst,
    trail: UndoList,
    is_limited: bool,
}

impl QuotaEnforcer {
    /// For the cgroup at this path. Nothing is limited yet; but in version 2 the CPU controller is enabled for it, if it was not.
    pub fn over(
        roots: &FilesystemRoots,
        path: &Path,
        burst: QuotaBurst,
        guardian: &CpuWatchdog,
    ) -> Result<QuotaEnforcer, EnforceError> {
        let hierarchy = Hierarchy::find(roots)?;
        let cgroup = hierarchy.at(path)?;
        refuse_in_cgroup(roots, &hierarchy, &cgroup)?;
        QuotaEnforcer::of(roots, &hierarchy, &cgroup, burst, guardian)
    }

    /// For a cgroup of which it is known that nobody is in it who must not be limited.
    pub(super) fn of(
        roots: &FilesystemRoots,
        hierarchy: &Hierarchy,
        cgroup: &Cgroup,
        burst: QuotaBurst,
        guardian: &CpuWatchdog,
    ) -> Result<QuotaEnforcer, EnforceError> {
        let mut trail = UndoList::new(guardian, &roots.processes());
        let controller = match (Controller::of(hierarchy.version, &cgroup.limits), cgroup.limits.parent()) {
            (Err(CgroupError::NoController { .. }), Some(parent))
                if hierarchy.version == CgroupVersion::Two =>
            {
                enable_below(&hierarchy.limits, parent, &mut trail)?;
                Controller::of(hierarchy.version, &cgroup.limits)
            }
            (controller, _) => controller,
        };
        Ok(QuotaEnforcer { roots: roots.clone(), controller: controller?, burst, trail, is_limited: false })
    }

    /// Puts a limit in force that was made elsewhere.
    pub(super) fn put(&mut self, limit: Bandwidth) -> Result<(), EnforceError> {
        if !self.is_limited {
            self.trail.note(self.controller.undos()?)?;
            self.is_limited = true;
        }
        self.controller.write(limit)
    }

    pub(super) fn burst(&self) -> QuotaBurst {
        self.burst
    }
}

impl Enforcer for QuotaEnforcer {
    fn apply(&mut self, limit: Rate) -> Result<(), EnforceError> {
        self.put(Bandwidth::of(limit, cores_in(&self.roots)?, self.burst))
    }

    fn restore(&mut self) -> Result<(), EnforceError> {
        self.is_limited = false;
        Ok(self.trail.back()?)
    }
}

impl Drop for QuotaEnforcer {
    fn drop(&mut self) {
        // What cannot be undone now stays noted.
        let _restored = self.restore();
    }
}
