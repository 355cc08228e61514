//! A quota for one cgroup.

use std::path::Path;

use tidegate_core::budget::Rate;

use super::bandwidth::{Bandwidth, Burst};
use super::controller::{Controller, enable_below};
use super::needed::refuse_in_cgroup;
use super::{EnforceError, Enforcer};
use crate::cgroups::{Cgroup, CgroupError, Hierarchy, Roots, Version};
use crate::guardian::{Guardian, Trail};
use crate::meter::cores_in;

/// A quota for one cgroup with everything below it: `cpu.max` in version 2, `cpu.cfs_quota_us` in version 1.
#[derive(Debug)]
pub struct Quota {
    roots: Roots,
    controller: Controller,
    burst: Burst,
    trail: Trail,
    is_limited: bool,
}

impl Quota {
    /// For the cgroup at this path. Nothing is limited yet; but in version 2 the CPU controller is enabled for it, if it was not.
    pub fn over(
        roots: &Roots,
        path: &Path,
        burst: Burst,
        guardian: &Guardian,
    ) -> Result<Quota, EnforceError> {
        let hierarchy = Hierarchy::find(roots)?;
        let cgroup = hierarchy.at(path)?;
        refuse_in_cgroup(roots, &hierarchy, &cgroup)?;
        Quota::of(roots, &hierarchy, &cgroup, burst, guardian)
    }

    /// For a cgroup of which it is known that nobody is in it who must not be limited.
    pub(super) fn of(
        roots: &Roots,
        hierarchy: &Hierarchy,
        cgroup: &Cgroup,
        burst: Burst,
        guardian: &Guardian,
    ) -> Result<Quota, EnforceError> {
        let mut trail = Trail::new(guardian, &roots.processes());
        let controller = match (Controller::of(hierarchy.version, &cgroup.limits), cgroup.limits.parent()) {
            (Err(CgroupError::NoController { .. }), Some(parent)) if hierarchy.version == Version::Two => {
                enable_below(&hierarchy.limits, parent, &mut trail)?;
                Controller::of(hierarchy.version, &cgroup.limits)
            }
            (controller, _) => controller,
        };
        Ok(Quota { roots: roots.clone(), controller: controller?, burst, trail, is_limited: false })
    }

    /// Puts a limit in force that was made elsewhere.
    pub(super) fn put(&mut self, limit: Bandwidth) -> Result<(), EnforceError> {
        if !self.is_limited {
            self.trail.note(self.controller.undos()?)?;
            self.is_limited = true;
        }
        self.controller.write(limit)
    }

    pub(super) fn burst(&self) -> Burst {
        self.burst
    }
}

impl Enforcer for Quota {
    fn apply(&mut self, limit: Rate) -> Result<(), EnforceError> {
        self.put(Bandwidth::of(limit, cores_in(&self.roots)?, self.burst))
    }

    fn restore(&mut self) -> Result<(), EnforceError> {
        self.is_limited = false;
        Ok(self.trail.back()?)
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        // What cannot be undone now stays noted.
        let _restored = self.restore();
    }
}
