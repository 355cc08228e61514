//! A cgroup made for a process tree.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tidegate_core::budget::Rate;

use super::bandwidth::QuotaBurst;
use super::controller::enable_below;
use super::signals::tree_of;
use super::{EnforceError, Enforcer, QuotaEnforcer, refused};
use crate::cgroups::{
    Cgroup, CgroupError, CgroupVersion, ControllerUse, FilesystemRoots, Hierarchy, PROCS, processes_in,
};
use crate::processes::{Process, ProcessState, ProcessTree, ScanDepth, own_pid};
use crate::watchdog::{CpuWatchdog, Undo, UndoList, write_if_there};

/// How often to look for children that were started while their parents were moved. Those of whoever is inside are born inside.
const MOST_PASSES: u32 = 64;

/// A process tree in a cgroup made for it, directly below the root: `tidegate-` and the number of the governor.
///
/// Whoever is in it when it ends goes back to where it came from, and those who were born in it to where the first one came from.
#[derive(Debug)]
pub struct CgroupScope {
    roots: FilesystemRoots,
    hierarchy: Hierarchy,
    cgroup: Cgroup,
    burst: QuotaBurst,
    guardian: CpuWatchdog,
    tree: ProcessTree,
    trail: UndoList,
    /// While the tree is inside.
    quota: Option<QuotaEnforcer>,
}

impl CgroupScope {
    /// Puts the tree below the process of this number into a cgroup of its own. Nothing is limited yet.
    pub fn around(
        roots: &FilesystemRoots,
        pid: u32,
        burst: QuotaBurst,
        guardian: &CpuWatchdog,
    ) -> Result<CgroupScope, EnforceError> {
        let hierarchy = Hierarchy::find(roots)?;
        let tree = tree_of(roots, pid, guardian)?;
        let cgroup = hierarchy.named(Path::new(&format!("tidegate-{}", own_pid())));
        let trail = UndoList::new(guardian, &roots.processes());
        let (roots, guardian) = (roots.clone(), guardian.clone());
        let mut enclosure =
            CgroupScope { roots, hierarchy, cgroup, burst, guardian, tree, trail, quota: None };
        // If that fails halfway, dropping it leads back.
        enclosure.enter()?;
        Ok(enclosure)
    }

    /// The cgroup, for a [`CgroupMeter`](crate::meter::CgroupMeter).
    pub fn path(&self) -> &Path {
        &self.cgroup.limits
    }

    fn enter(&mut self) -> Result<&mut QuotaEnforcer, EnforceError> {
        let homes = self.homes()?;
        if self.hierarchy.version == CgroupVersion::Two {
            enable_below(&self.hierarchy.limits, &self.hierarchy.limits, &mut self.trail)?;
        }
        for (folder, home) in self.folders().into_iter().zip(&homes) {
            self.trail.note(vec![Undo::Remove { cgroup: folder.clone(), home: home.clone() }])?;
            make(&folder)?;
        }
        let quota =
            QuotaEnforcer::of(&self.roots, &self.hierarchy, &self.cgroup, self.burst, &self.guardian)?;
        self.move_in(&homes)?;
        Ok(self.quota.insert(quota))
    }

    /// Its directories, one or two.
    fn folders(&self) -> Vec<PathBuf> {
        let Cgroup { limits, counts, .. } = self.cgroup.clone();
        if limits == counts { vec![limits] } else { vec![limits, counts] }
    }

    /// Where the root of the tree is, in each tree of cgroups.
    fn homes(&self) -> Result<Vec<PathBuf>, EnforceError> {
        let pid = self.tree.root().pid;
        // The root has ended and others are left: they go to the root of the cgroups.
        Ok(self
            .places(pid)?
            .unwrap_or_else(|| vec![self.hierarchy.limits.clone(), self.hierarchy.counts.clone()]))
    }

    /// The directories of the cgroups that a process is in; `None` if it is gone.
    fn places(&self, pid: u32) -> Result<Option<Vec<PathBuf>>, EnforceError> {
        let proc = self.roots.processes();
        let place = |tree: ControllerUse| {
            let name = self.hierarchy.of_process(&proc, pid, tree);
            name.map_err(|error| EnforceError::Failed { doing: "find the cgroup of a process", error })
        };
        let (Some(limits), Some(counts)) = (place(ControllerUse::Limits)?, place(ControllerUse::Counts)?)
        else {
            return Ok(None);
        };
        Ok(Some(vec![self.hierarchy.named(&limits).limits, self.hierarchy.named(&counts).counts]))
    }

    fn move_in(&mut self, homes: &[PathBuf]) -> Result<(), EnforceError> {
        for _ in 0..MOST_PASSES {
            let failed = |error| EnforceError::Failed { doing: "look at the process tree", error };
            self.tree.refresh(ScanDepth::Whole).map_err(failed)?;
            let inside = processes_in(&self.cgroup.limits)
                .map_err(|error| CgroupError::of(&self.cgroup.limits, error))?;
            let living =
                self.tree.members().filter(|stat| stat.doing != ProcessState::Ended).map(|stat| stat.process);
            let outside: Vec<Process> = living.filter(|process| !inside.contains(&process.pid)).collect();
            if outside.is_empty() {
                break;
            }
            for process in outside {
                self.move_one(process, homes)?;
            }
        }
        Ok(())
    }

    fn move_one(&mut self, process: Process, homes: &[PathBuf]) -> Result<(), EnforceError> {
        let Some(places) = self.places(process.pid)? else { return Ok(()) };
        let folders = self.folders();
        let from_elsewhere =
            places.into_iter().zip(homes).zip(&folders).filter(|((place, home), _)| place != *home);
        let undos: Vec<Undo> = from_elsewhere.map(|((to, _), _)| Undo::Move { process, to }).collect();
        if !undos.is_empty() {
            self.trail.note(undos)?;
        }
        for folder in &folders {
            let file = folder.join(PROCS);
            match write_if_there(&file, &process.pid.to_string()) {
                // It has ended.
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {}
                Err(error) => return Err(refused(&file, &process.pid.to_string(), error)),
                Ok(()) => {}
            }
        }
        Ok(())
    }
}

impl Enforcer for CgroupScope {
    fn apply(&mut self, limit: Rate) -> Result<(), EnforceError> {
        match &mut self.quota {
            Some(quota) => quota.apply(limit),
            None => self.enter()?.apply(limit),
        }
    }

    fn restore(&mut self) -> Result<(), EnforceError> {
        // First the limit, so that nobody who is moved out waits for it.
        let lifted = self.quota.take().map_or(Ok(()), |mut quota| quota.restore());
        self.trail.back()?;
        lifted
    }
}

impl Drop for CgroupScope {
    fn drop(&mut self) {
        // What cannot be undone now stays noted.
        let _restored = self.restore();
    }
}

/// Makes a cgroup. One that a governor of the same number left behind is as good, if nobody is in it.
fn make(folder: &Path) -> Result<(), EnforceError> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match processes_in(folder) {
            Ok(pids) if pids.is_empty() => Ok(()),
            _ => Err(CgroupError::of(folder, error).into()),
        },
        made => made.map_err(|error| CgroupError::of(folder, error).into()),
    }
}
