//! Who must not be limited: the governor and those who started it, the first process, the kernel's threads, and what people log in with.
//!
//! Programs are known by their names: the one that the kernel keeps, which a program may change, and that of the file it was started from, which it
//! cannot. A command that is run under the governor is whoever it is by its user's choice, and only the former are looked for in it.
//!
//! Whoever is in a cgroup and cannot be looked at may be anybody. So such a cgroup is refused too: a limit that nobody can lift is worse than none.

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

/// The first process of the machine.
const FIRST: u32 = 1;
/// What the kernel calls processes that are not in our namespace.
const ELSEWHERE: u32 = 0;
/// No line of ancestors is longer.
const MOST_ANCESTORS: u32 = 1024;

/// Programs without which nobody gets into the machine. The kernel keeps fifteen letters of a name.
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
/// How much of a name the kernel keeps.
const LONGEST_NAME: usize = 15;

/// Who must not be limited, as it was when somebody looked.
#[derive(Debug)]
pub(super) struct ProtectedProcesses<'a> {
    proc: &'a ProcFs,
    ancestors: BTreeSet<u32>,
}

impl<'a> ProtectedProcesses<'a> {
    pub(super) fn of(proc: &'a ProcFs) -> io::Result<ProtectedProcesses<'a>> {
        Ok(ProtectedProcesses { proc, ancestors: ancestors(proc, own_pid())? })
    }

    /// Who this is, in words, if it must not be limited.
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

/// A process, who started it, who started that one, and so on.
fn ancestors(proc: &ProcFs, pid: u32) -> io::Result<BTreeSet<u32>> {
    let mut found = BTreeSet::new();
    let mut next = pid;
    for _ in 0..MOST_ANCESTORS {
        if next == 0 || !found.insert(next) {
            break;
        }
        next = match proc.stat(next) {
            Ok(stat) => stat.map_or(0, |stat| stat.parent),
            // Where others' processes are hidden, nobody whom we could limit is above one of them.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => 0,
            Err(error) => return Err(error),
        };
    }
    Ok(found)
}

/// An error if somebody is in this tree who must not be limited. In a command, names do not count.
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

/// An error if somebody is in this cgroup, or below it, who must not be limited or cannot be looked at.
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
            // Where others' processes are hidden, the list of the cgroup's processes says it.
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
                    // It has ended if it is not there any more; else it is hidden.
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

/// The processes in a cgroup itself. One that was removed has none; one that holds threads has theirs.
fn members(folder: &Path) -> Result<Vec<u32>, CgroupError> {
    match processes_in(folder) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::OPNOTSUPP) => {
            threads_in(folder).map_err(|error| CgroupError::of(folder, error))
        }
        Err(_) if fs::metadata(folder).is_err() => Ok(Vec::new()),
        listed => listed.map_err(|error| CgroupError::of(folder, error)),
    }
}
