//! Processes that must not be limited: the governor and its ancestors, the first process, kernel threads, and programs needed to log in.
//!
//! Programs are recognized by two names: the kernel's name of the process, which a program may change, and the name of its executable file,
//! which it cannot. In a command that runs under the governor, names are not checked: the user chose the command.
//!
//! A cgroup with a process that cannot be read is refused too. A limit that locks out the administrator is worse than no limit.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use rustix::io::Errno;

use super::EnforceError;
use crate::cgroups::{
    Cgroup, CgroupError, ControllerUse, FilesystemRoots, Hierarchy, processes_in, threads_in,
};
use crate::processes::{ProcFs, ProcStat, ProcessState, ProcessTree, own_pid};

/// Process number of init.
const INIT_PID: u32 = 1;
/// Number of processes outside our PID namespace.
const OUTSIDE_NAMESPACE: u32 = 0;
/// Longer than any chain of ancestors.
const MAX_ANCESTORS: u32 = 1024;

/// Programs that are needed to log in. The kernel truncates names to fifteen bytes.
const LOGIN_PROGRAMS: &[&str] = &[
    "agetty",
    "dbus-broker",
    "dbus-broker-lau",
    "dbus-daemon",
    "dropbear",
    "fgetty",
    "getty",
    "init",
    "login",
    "mgetty",
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
/// Length of a process name in the kernel.
const MAX_NAME: usize = 15;

/// Snapshot of the processes that must not be limited.
#[derive(Debug)]
pub(super) struct ProtectedProcesses<'a> {
    proc: &'a ProcFs,
    ancestors: BTreeSet<u32>,
}

impl<'a> ProtectedProcesses<'a> {
    pub(super) fn of(proc: &'a ProcFs) -> io::Result<ProtectedProcesses<'a>> {
        Ok(ProtectedProcesses { proc, ancestors: ancestors(proc, own_pid())? })
    }

    /// Describes the process if it must not be limited.
    pub(super) fn describe(&self, stat: &ProcStat) -> Option<String> {
        self.describe_essential(stat).or_else(|| self.describe_login_program(stat))
    }

    fn describe_essential(&self, stat: &ProcStat) -> Option<String> {
        let by_number = self.describe_pid(stat.process.pid);
        by_number.or_else(|| stat.is_kernel.then(|| "a kernel thread".to_owned()))
    }

    fn describe_pid(&self, pid: u32) -> Option<String> {
        match pid {
            OUTSIDE_NAMESPACE => Some("a process outside this container".to_owned()),
            INIT_PID => Some("the first process of the machine".to_owned()),
            _ if pid == own_pid() => Some("the governor itself".to_owned()),
            _ if self.ancestors.contains(&pid) => Some(format!("process {pid}, an ancestor of the governor")),
            _ => None,
        }
    }

    fn describe_login_program(&self, stat: &ProcStat) -> Option<String> {
        let pid = stat.process.pid;
        let is_needed = |name: &str| LOGIN_PROGRAMS.contains(&name.get(..MAX_NAME).unwrap_or(name));
        let name = Some(stat.name.clone()).filter(|name| is_needed(name));
        let name = name.or_else(|| self.proc.program(pid).filter(|program| is_needed(program)))?;
        Some(format!("process {pid} ({name}), which is needed to log in"))
    }
}

/// The process and all its ancestors.
fn ancestors(proc: &ProcFs, pid: u32) -> io::Result<BTreeSet<u32>> {
    let mut found = BTreeSet::new();
    let mut next = pid;
    for _ in 0..MAX_ANCESTORS {
        if next == 0 || !found.insert(next) {
            break;
        }
        next = match proc.stat(next) {
            Ok(stat) => stat.map_or(0, |stat| stat.parent),
            // With hidden processes (`hidepid`), no process that we may limit is above a hidden one.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => 0,
            Err(error) => return Err(error),
        };
    }
    Ok(found)
}

/// Fails if the tree contains a protected process. In a command, names are not checked.
pub(super) fn check_tree(proc: &ProcFs, tree: &ProcessTree, is_command: bool) -> Result<(), EnforceError> {
    let failed = |error| EnforceError::Failed { operation: "find the ancestors of the governor", error };
    let protected = ProtectedProcesses::of(proc).map_err(failed)?;
    let living = tree.members().filter(|stat| stat.state != ProcessState::Ended);
    for stat in living {
        let process = if is_command { protected.describe_essential(stat) } else { protected.describe(stat) };
        if let Some(process) = process {
            let what = format!("the process tree below {}", tree.root().pid);
            return Err(EnforceError::Protected { what, process });
        }
    }
    Ok(())
}

/// Fails if the cgroup or a descendant contains a process that is protected or unreadable.
pub(super) fn check_cgroup(
    roots: &FilesystemRoots,
    hierarchy: &Hierarchy,
    cgroup: &Cgroup,
) -> Result<(), EnforceError> {
    let proc = roots.processes();
    let failed = |error| EnforceError::Failed { operation: "list the processes of the cgroup", error };
    let protected = ProtectedProcesses::of(&proc).map_err(failed)?;
    let refuse = |process| {
        let what = format!("the cgroup {}", cgroup.limits.display());
        Err(EnforceError::Protected { what, process })
    };
    for pid in [own_pid(), INIT_PID].into_iter().chain(protected.ancestors.iter().copied()) {
        let name = match hierarchy.of_process(&proc, pid, ControllerUse::Limits) {
            Ok(name) => name,
            // With hidden processes, the cgroup's own list contains the answer.
            Err(error) if pid != own_pid() && error.kind() == io::ErrorKind::PermissionDenied => None,
            Err(error) => return Err(failed(error)),
        };
        if name.is_some_and(|name| name.starts_with(&cgroup.name)) {
            return refuse(protected.describe_pid(pid).unwrap_or_default());
        }
    }
    let mut queue = vec![cgroup.limits.clone()];
    while let Some(folder) = queue.pop() {
        for pid in members(&folder)? {
            let process = match proc.stat(pid) {
                Ok(Some(stat)) if stat.state == ProcessState::Ended => None,
                Ok(Some(stat)) => protected.describe(&stat),
                _ => match protected.describe_pid(pid) {
                    Some(process) => Some(process),
                    // A process missing from the list has ended. One that is still listed is hidden.
                    None => members(&folder)?
                        .contains(&pid)
                        .then(|| format!("process {pid}, which cannot be read")),
                },
            };
            if let Some(process) = process {
                return refuse(process);
            }
        }
        match Hierarchy::below(&folder) {
            Ok(below) => queue.extend(below),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(CgroupError::of(&folder, error).into()),
        }
    }
    Ok(())
}

/// Processes of a cgroup, without descendants. Empty for a removed cgroup. A threaded cgroup returns its threads.
fn members(folder: &Path) -> Result<Vec<u32>, CgroupError> {
    match processes_in(folder) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::OPNOTSUPP) => {
            threads_in(folder).map_err(|error| CgroupError::of(folder, error))
        }
        Err(_) if fs::metadata(folder).is_err() => Ok(Vec::new()),
        listed => listed.map_err(|error| CgroupError::of(folder, error)),
    }
}
