//! Finds the cgroups of a machine that may be limited.
//!
//! ```text
//!   /                       kernel threads, the first process
//!   ├── system.slice        contains sshd: descend
//!   │   ├── sshd.service    protected
//!   │   └── web.service     limited
//!   ├── user.slice          contains the governor: descend
//!   │   ├── session-1       the governor's own shell: protected
//!   │   └── session-2       limited
//!   └── machine.slice       limited as a whole
//! ```
//!
//! The result is the largest cgroups without any process that is needed to log in and to lift a limit.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use super::EnforceError;
use super::cgroup_quota_files::can_have_cpu;
use super::protected_processes::{ProtectedProcesses, check_cgroup};
use crate::cgroups::{CgroupError, CgroupVersion, ControllerUse, FilesystemRoots, Hierarchy};
use crate::processes::ProcFs;

/// The largest cgroups without protected processes, as directories of the tree with the limits.
///
/// Cgroups that cannot have the CPU controller are left out. Protected are the governor and its ancestors, the first process, kernel
/// threads, and programs needed to log in.
pub fn limitable_cgroups(roots: &FilesystemRoots) -> Result<Vec<PathBuf>, EnforceError> {
    let hierarchy = Hierarchy::find(roots)?;
    let proc = roots.processes();
    let protected_cgroups = protected_cgroups(&hierarchy, &proc)
        .map_err(|error| EnforceError::Failed { operation: "list all processes", error })?;
    let mut found = Vec::new();
    let mut queue = vec![hierarchy.limits.clone()];
    while let Some(cgroup) = queue.pop() {
        let name = cgroup.strip_prefix(&hierarchy.limits).unwrap_or(&cgroup);
        if protected_cgroups.contains(name) {
            match Hierarchy::below(&cgroup) {
                Ok(below) => queue.extend(below),
                // The cgroup was removed during the search.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(CgroupError::of(&cgroup, error).into()),
            }
        } else if hierarchy.version == CgroupVersion::One || can_have_cpu(&hierarchy.limits, &cgroup) {
            found.push(cgroup);
        }
    }
    // Check again: processes may have moved, and some appear only in the cgroup's own list.
    let is_unprotected = |cgroup: &PathBuf| {
        let checked = hierarchy.at(cgroup).map_err(EnforceError::from);
        let checked = checked.and_then(|cgroup| check_cgroup(roots, &hierarchy, &cgroup));
        !matches!(checked, Err(EnforceError::Protected { .. }))
    };
    found.retain(is_unprotected);
    found.sort();
    Ok(found)
}

/// The cgroups of all protected processes and their ancestors.
fn protected_cgroups(hierarchy: &Hierarchy, proc: &ProcFs) -> io::Result<BTreeSet<PathBuf>> {
    // The root cgroup cannot be limited.
    let mut protected_cgroups = BTreeSet::from([PathBuf::new()]);
    let protected = ProtectedProcesses::of(proc)?;
    for pid in proc.all()? {
        let Some(stat) = proc.stat(pid)? else { continue };
        if protected.describe(&stat).is_none() {
            continue;
        }
        if let Some(name) = hierarchy.of_process(proc, pid, ControllerUse::Limits)? {
            protected_cgroups.extend(name.ancestors().map(PathBuf::from));
        }
    }
    Ok(protected_cgroups)
}
