//! A temporary cgroup for a process tree.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tidegate_core::budget::Rate;

use super::bandwidth::QuotaBurst;
use super::cgroup_quota_files::enable_below;
use super::signals::tree_of;
use super::{EnforceError, Enforcer, QuotaEnforcer, refused};
use crate::cgroups::{
    Cgroup, CgroupError, CgroupVersion, ControllerUse, FilesystemRoots, Hierarchy, PROCS, processes_in,
};
use crate::processes::{Process, ProcessState, ProcessTree, ScanDepth, own_pid};
use crate::watchdog::{CpuWatchdog, Undo, UndoList, write_if_there};

/// Maximum number of scans for children that start while their parents are moved. Children of moved processes start inside.
const MAX_PASSES: u32 = 64;

/// A process tree in its own cgroup directly below the root, named `tidegate-` and the governor's process number.
///
/// At the end, moved processes return to their earlier cgroups. Processes that started inside go to the earlier cgroup of the root process.
#[derive(Debug)]
pub struct CgroupScope {
    roots: FilesystemRoots,
    hierarchy: Hierarchy,
    cgroup: Cgroup,
    burst: QuotaBurst,
    watchdog: CpuWatchdog,
    tree: ProcessTree,
    undo_list: UndoList,
    /// Present while the tree is inside.
    quota: Option<QuotaEnforcer>,
}

impl CgroupScope {
    /// Moves the tree below the process with this number into its own cgroup. No limit is active yet.
    pub fn new(
        roots: &FilesystemRoots,
        pid: u32,
        burst: QuotaBurst,
        watchdog: &CpuWatchdog,
    ) -> Result<CgroupScope, EnforceError> {
        let hierarchy = Hierarchy::find(roots)?;
        let tree = tree_of(roots, pid, watchdog)?;
        let cgroup = hierarchy.named(Path::new(&format!("tidegate-{}", own_pid())));
        let undo_list = UndoList::new(watchdog, &roots.processes());
        let (roots, watchdog) = (roots.clone(), watchdog.clone());
        let mut scope =
            CgroupScope { roots, hierarchy, cgroup, burst, watchdog, tree, undo_list, quota: None };
        // If this fails halfway, the drop undoes it.
        scope.enter()?;
        Ok(scope)
    }

    /// Directory of the cgroup, for a [`CgroupMeter`](crate::meter::CgroupMeter).
    pub fn path(&self) -> &Path {
        &self.cgroup.limits
    }

    fn enter(&mut self) -> Result<&mut QuotaEnforcer, EnforceError> {
        let originals = self.originals()?;
        if self.hierarchy.version == CgroupVersion::Two {
            enable_below(&self.hierarchy.limits, &self.hierarchy.limits, &mut self.undo_list)?;
        }
        for (folder, original) in self.folders().into_iter().zip(&originals) {
            self.undo_list
                .register(vec![Undo::Remove { cgroup: folder.clone(), target: original.clone() }])?;
            create_cgroup(&folder)?;
        }
        let quota =
            QuotaEnforcer::of(&self.roots, &self.hierarchy, &self.cgroup, self.burst, &self.watchdog)?;
        self.move_tree(&originals)?;
        Ok(self.quota.insert(quota))
    }

    /// The cgroup's directories: one, or two in version 1.
    fn folders(&self) -> Vec<PathBuf> {
        let Cgroup { limits, counts, .. } = self.cgroup.clone();
        if limits == counts { vec![limits] } else { vec![limits, counts] }
    }

    /// The cgroups of the root process, one for each directory.
    fn originals(&self) -> Result<Vec<PathBuf>, EnforceError> {
        let pid = self.tree.root().pid;
        // If the root has ended, the others return to the root cgroup.
        Ok(self
            .cgroups_of(pid)?
            .unwrap_or_else(|| vec![self.hierarchy.limits.clone(), self.hierarchy.counts.clone()]))
    }

    /// The cgroup directories of a process, or `None` if it is gone.
    fn cgroups_of(&self, pid: u32) -> Result<Option<Vec<PathBuf>>, EnforceError> {
        let proc = self.roots.processes();
        let find_cgroup = |tree: ControllerUse| {
            let name = self.hierarchy.of_process(&proc, pid, tree);
            name.map_err(|error| EnforceError::Failed { operation: "find the cgroup of a process", error })
        };
        let (Some(limits), Some(counts)) =
            (find_cgroup(ControllerUse::Limits)?, find_cgroup(ControllerUse::Counts)?)
        else {
            return Ok(None);
        };
        Ok(Some(vec![self.hierarchy.named(&limits).limits, self.hierarchy.named(&counts).counts]))
    }

    fn move_tree(&mut self, originals: &[PathBuf]) -> Result<(), EnforceError> {
        for _ in 0..MAX_PASSES {
            let failed = |error| EnforceError::Failed { operation: "scan the process tree", error };
            self.tree.refresh(ScanDepth::Whole).map_err(failed)?;
            let inside = processes_in(&self.cgroup.limits)
                .map_err(|error| CgroupError::of(&self.cgroup.limits, error))?;
            let living =
                self.tree.members().filter(|stat| stat.state != ProcessState::Ended).map(|stat| stat.process);
            let outside: Vec<Process> = living.filter(|process| !inside.contains(&process.pid)).collect();
            if outside.is_empty() {
                break;
            }
            for process in outside {
                self.move_process(process, originals)?;
            }
        }
        Ok(())
    }

    fn move_process(&mut self, process: Process, originals: &[PathBuf]) -> Result<(), EnforceError> {
        let Some(current) = self.cgroups_of(process.pid)? else { return Ok(()) };
        let folders = self.folders();
        let to_return = current
            .into_iter()
            .zip(originals)
            .zip(&folders)
            .filter(|((cgroup, original), _)| cgroup != *original);
        let undos: Vec<Undo> = to_return.map(|((to, _), _)| Undo::Move { process, to }).collect();
        if !undos.is_empty() {
            self.undo_list.register(undos)?;
        }
        for folder in &folders {
            let file = folder.join(PROCS);
            match write_if_there(&file, &process.pid.to_string()) {
                // The process has ended.
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
        // Lift the limit first, so that moved processes do not wait for quota.
        let lifted = self.quota.take().map_or(Ok(()), |mut quota| quota.restore());
        self.undo_list.undo_all()?;
        lifted
    }
}

impl Drop for CgroupScope {
    fn drop(&mut self) {
        // An undo that fails now stays in the undo journal.
        let _restored = self.restore();
    }
}

/// Creates a cgroup. An empty one of an earlier governor with the same process number is reused.
fn create_cgroup(folder: &Path) -> Result<(), EnforceError> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match processes_in(folder) {
            Ok(pids) if pids.is_empty() => Ok(()),
            _ => Err(CgroupError::of(folder, error).into()),
        },
        made => made.map_err(|error| CgroupError::of(folder, error).into()),
    }
}
