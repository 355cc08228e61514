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
use crate::cgroups::{Cgroup, CgroupError, Hierarchy, Roots, Use, Version};
use crate::processes::{Proc, Stat, own_pid};

/// The first process of the machine.
const FIRST: u32 = 1;
/// No line of ancestors is longer.
const MOST_ANCESTORS: u32 = 1024;

/// Programs without which nobody gets into the machine. The kernel keeps fifteen letters of a name.
const NEEDED: &[&str] = &[
    "agetty",
    "dbus-broker",
    "dbus-broker-lau",
    "dbus-daemon",
    "dropbear",
    "getty",
    "init",
    "login",
    "mingetty",
    "openrc-init",
    "runit",
    "sshd",
    "sshd-auth",
    "sshd-session",
    "systemd",
    "systemd-journal",
    "systemd-logind",
    "systemd-network",
    "systemd-resolve",
    "systemd-udevd",
    "NetworkManager",
    "dhclient",
    "dhcpcd",
    "elogind",
    "polkitd",
];

/// The largest cgroups that hold nobody who must not be limited, by their directories in the tree that limits.
///
/// Those that cannot be given the CPU controller are left out. Never those of the governor and its ancestors, of the first process, of the kernel's threads, and of what people log in with.
pub fn limitable(roots: &Roots) -> Result<Vec<PathBuf>, EnforceError> {
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
        } else if hierarchy.version == Version::One || can_have_cpu(&hierarchy.limits, &cgroup) {
            found.push(cgroup);
        }
    }
    found.sort();
    Ok(found)
}

/// The cgroups of everybody who must not be limited, and those around them.
fn kept(hierarchy: &Hierarchy, proc: &Proc) -> io::Result<BTreeSet<PathBuf>> {
    // The root is not a cgroup that can be limited.
    let mut kept = BTreeSet::from([PathBuf::new()]);
    let ancestors = ancestors(proc, own_pid())?;
    for pid in proc.all()? {
        let Some(stat) = proc.stat(pid)? else { continue };
        if !ancestors.contains(&pid) && !is_needed(&stat) {
            continue;
        }
        if let Some(name) = hierarchy.of_process(proc, pid, Use::Limits)? {
            kept.extend(name.ancestors().map(PathBuf::from));
        }
    }
    Ok(kept)
}

fn is_needed(stat: &Stat) -> bool {
    stat.process.pid == FIRST || stat.is_kernel || NEEDED.contains(&stat.name.as_str())
}

/// A process, who started it, who started that one, and so on.
fn ancestors(proc: &Proc, pid: u32) -> io::Result<BTreeSet<u32>> {
    let mut found = BTreeSet::new();
    let mut next = pid;
    for _ in 0..MOST_ANCESTORS {
        if next == 0 || !found.insert(next) {
            break;
        }
        next = proc.stat(next)?.map_or(0, |stat| stat.parent);
    }
    Ok(found)
}

/// An error if the governor or the first process is in this cgroup.
pub(super) fn refuse_protected(
    roots: &Roots,
    hierarchy: &Hierarchy,
    cgroup: &Cgroup,
) -> Result<(), EnforceError> {
    let proc = roots.processes();
    for (pid, who) in [(own_pid(), "the governor itself"), (FIRST, "the first process of the machine")] {
        let name = match hierarchy.of_process(&proc, pid, Use::Limits) {
            Ok(name) => name,
            // Where others' processes are hidden, the first one is not ours to limit.
            Err(error) if pid == FIRST && error.kind() == io::ErrorKind::PermissionDenied => None,
            Err(error) => {
                return Err(EnforceError::Failed { doing: "find the governor's own cgroup", error });
            }
        };
        if name.is_some_and(|name| name.starts_with(&cgroup.name)) {
            let what = format!("the cgroup {}", cgroup.limits.display());
            return Err(EnforceError::Protected { what, who });
        }
    }
    Ok(())
}
