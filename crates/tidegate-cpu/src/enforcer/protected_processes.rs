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
const FIRST: u32 = 1;
/// Number of processes outside our PID namespace.
const ELSEWHERE: u32 = 0;
/// Longer than any chain of ancestors.
const MOST_ANCESTORS: u32 = 1024;

/// Programs that are needed to log in. The kernel truncates names to fifteen bytes.
const NEEDED: &[&str] = &[
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
const LONGEST_NAME: usize = 15;

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
    pub(super) fn who(&self, stat: &ProcStat) -> Option<String> {
        self.who_by_nature(stat).or_else(|| self.who_by_name(stat))
    }

    fn who_by_nature(&self, stat: &ProcStat) -> Option<String> {
        let by_number = self.who_by_number(stat.process.pid);
        by_number.or_else(|| stat.is_kernel.then(|| "a thread of the kernel".to_owned()))
    }

    fn who_by_number(&self, pid: u32) -> Option<String> {
        match pid {
            ELSEWHERE => Some("a process outside of this container".to_owned()),
            FIRST => Some("the first process of the machine".to_owned()),
            _ if pid == own_pid() => Some("the governor itself".to_owned()),
            _ if self.ancestors.contains(&pid) => {
                Some(format!("process {pid}, from which the governor was started,"))
            }
            _ => None,
        }
    }

    fn who_by_name(&self, stat: &ProcStat) -> Option<String> {
        let pid = stat.process.pid;
        let is_needed = |name: &str| NEEDED.contains(&name.get(..LONGEST_NAME).unwrap_or(name));
        let name = Some(stat.name.clone()).filter(|name| is_needed(name));
        let name = name.or_else(|| self.proc.program(pid).filter(|program| is_needed(program)))?;
        Some(format!("process {pid} ({name}), which people may need to get into the machine,"))
    }
}

/// The process and all its ancestors.
fn ancestors(proc: &ProcFs, pid: u32) -> io::Result<BTreeSet<u32>> {
    let mut found = BTreeSet::new();
    let mut next = pid;
    for _ in 0..MOST_ANCESTORS {
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
pub(super) fn refuse_in_tree(
    proc: &ProcFs,
    tree: &ProcessTree,
    is_command: bool,
) -> Result<(), EnforceError> {
    let failed = |error| EnforceError::Failed { doing: "look at who started the governor", error };
    let needed = ProtectedProcesses::of(proc).map_err(failed)?;
    let living = tree.members().filter(|stat| stat.doing != ProcessState::Ended);
    for stat in living {
        let who = if is_command { needed.who_by_nature(stat) } else { needed.who(stat) };
        if let Some(who) = who {
            let what = format!("the process tree below {}", tree.root().pid);
            return Err(EnforceError::Protected { what, who });
        }
    }
    Ok(())
}

/// Fails if the cgroup or a descendant contains a process that is protected or unreadable.
pub(super) fn refuse_in_cgroup(
    roots: &FilesystemRoots,
    hierarchy: &Hierarchy,
    cgroup: &Cgroup,
) -> Result<(), EnforceError> {
    let proc = roots.processes();
    let failed = |error| EnforceError::Failed { doing: "look at who is in the cgroup", error };
    let needed = ProtectedProcesses::of(&proc).map_err(failed)?;
    let refused = |who| {
        let what = format!("the cgroup {}", cgroup.limits.display());
        Err(EnforceError::Protected { what, who })
    };
    for pid in [own_pid(), FIRST].into_iter().chain(needed.ancestors.iter().copied()) {
        let name = match hierarchy.of_process(&proc, pid, ControllerUse::Limits) {
            Ok(name) => name,
            // With hidden processes, the cgroup's own list contains the answer.
            Err(error) if pid != own_pid() && error.kind() == io::ErrorKind::PermissionDenied => None,
            Err(error) => return Err(failed(error)),
        };
        if name.is_some_and(|name| name.starts_with(&cgroup.name)) {
            return refused(needed.who_by_number(pid).unwrap_or_default());
        }
    }
    let mut look = vec![cgroup.limits.clone()];
    while let Some(folder) = look.pop() {
        for pid in members(&folder)? {
            let who = match proc.stat(pid) {
                Ok(Some(stat)) if stat.doing == ProcessState::Ended => None,
                Ok(Some(stat)) => needed.who(&stat),
                _ => match needed.who_by_number(pid) {
                    Some(who) => Some(who),
                    // A process missing from the list has ended. One that is still listed is hidden.
                    None => members(&folder)?
                        .contains(&pid)
                        .then(|| format!("process {pid}, which cannot be looked at from here,")),
                },
            };
            if let Some(who) = who {
                return refused(who);
            }
        }
        match Hierarchy::below(&folder) {
            Ok(below) => look.extend(below),
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
