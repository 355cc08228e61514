//! What may be limited on a machine, and what must not be.
//!
//! ```text
//!   /                       kernel threads, the first process
//!   ├── system.slice        holds sshd: looked into
//!   │   ├── sshd.service    left alone
//!   │   └── web.service     limited
//!   ├── user.slice          holds the governor: looked into
//!   │   ├── session-1       the shell it was started from: left alone
//!   │   └── session-2       limited
//!   └── machine.slice       limited, as a whole
//! ```
//!
//! The largest cgroups that hold nobody who is needed to get into the machine and to lift a limit.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use super::EnforceError;
use super::controller::can_have_cpu;
use super::protected_processes::{ProtectedProcesses, refuse_in_cgroup};
use crate::cgroups::{CgroupError, CgroupVersion, ControllerUse, FilesystemRoots, Hierarchy};
use crate::processes::ProcFs;

/// The largest cgroups that hold nobody who must not be limited, by their directories in the tree that limits.
///
/// Those that cannot be given the CPU controller are left out. Never those of the governor and its ancestors, of the first process, of the kernel's threads, and of what people log in with.
pub fn limitable_cgroups(roots: &FilesystemRoots) -> Result<Vec<PathBuf>, EnforceError> {
    let hierarchy = Hierarchy::find(roots)?;
    let proc = roots.processes();
    let kept = kept(&hierarchy, &proc)
        .map_err(|error| EnforceError::Failed { doing: "look at all processes", error })?;
    let mut found = Vec::new();
    let mut look = vec![hierarchy.limits.clone()];
    while let Some(cgroup) = look.pop() {
        let name = cgroup.strip_prefix(&hierarchy.limits).unwrap_or(&cgroup);
        if kept.contains(name) {
            match Hierarchy::below(&cgroup) {
                Ok(below) => look.extend(below),
                // It was removed while we looked.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(CgroupError::of(&cgroup, error).into()),
            }
        } else if hierarchy.version == CgroupVersion::One || can_have_cpu(&hierarchy.limits, &cgroup) {
            found.push(cgroup);
        }
    }
    // Whoever came meanwhile, and whoever is in a list of processes and nowhere else.
    let holds_nobody = |cgroup: &PathBuf| {
        let looked = hierarchy.at(cgroup).map_err(EnforceError::from);
        let looked = looked.and_then(|cgroup| refuse_in_cgroup(roots, &hierarchy, &cgroup));
        !matches!(looked, Err(EnforceError::Protected { .. }))
    };
    found.retain(holds_nobody);
    found.sort();
    Ok(found)
}

/// The cgroups of everybody who must not be limited, and those around them.
fn kept(hierarchy: &Hierarchy, proc: &ProcFs) -> io::Result<BTreeSet<PathBuf>> {
    // The root is not a cgroup that can be limited.
    let mut kept = BTreeSet::from([PathBuf::new()]);
    let needed = ProtectedProcesses::of(proc)?;
    for pid in proc.all()? {
        let Some(stat) = proc.stat(pid)? else { continue };
        if needed.who(&stat).is_none() {
            continue;
        }
        if let Some(name) = hierarchy.of_process(proc, pid, ControllerUse::Limits)? {
            kept.extend(name.ancestors().map(PathBuf::from));
        }
    }
    Ok(kept)
}
