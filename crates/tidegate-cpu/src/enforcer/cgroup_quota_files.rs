//! The quota files of one cgroup, in either version.
//!
//! The kernel rejects a burst above the quota, even between two writes. So a burst that shrinks is written before the quota, and one that
//! grows after it. Version 1 rejects a period that would raise the quota above the parent's. The quota is therefore lifted while the period
//! changes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::bandwidth::Bandwidth;
use super::{EnforceError, refused};
use crate::cgroups::{CgroupError, CgroupVersion, SUBTREE, has_cpu, lists_cpu, processes_in};
use crate::watchdog::{Undo, UndoList, write_if_there};

/// The version 1 value for no quota.
const UNLIMITED: &str = "-1";

/// The quota files of a cgroup.
#[derive(Debug)]
pub(super) struct CgroupQuotaFiles {
    version: CgroupVersion,
    folder: PathBuf,
    has_burst: bool,
}

impl CgroupQuotaFiles {
    /// The files in this directory. Fails if they are missing or not writable.
    pub(super) fn of(version: CgroupVersion, folder: &Path) -> Result<CgroupQuotaFiles, CgroupError> {
        let mut quota = CgroupQuotaFiles { version, folder: folder.to_owned(), has_burst: false };
        quota.has_burst = quota.burst().is_file();
        for file in quota.files() {
            check_writable(&file).map_err(|error| match error.kind() {
                // If the whole cgroup was removed meanwhile, the controller is not what is missing.
                io::ErrorKind::NotFound if folder.is_dir() => {
                    CgroupError::NoController { path: folder.to_owned() }
                }
                _ => CgroupError::of(&file, error),
            })?;
        }
        Ok(quota)
    }

    /// Undo steps for the current content. Performed in reverse order, every write is valid.
    pub(super) fn undos(&self) -> Result<Vec<Undo>, CgroupError> {
        let mut undos = Vec::new();
        let mut save = |file: PathBuf| {
            let content = fs::read_to_string(&file).map_err(|error| CgroupError::of(&file, error))?;
            undos.push(Undo::Write { file, content: content.trim().to_owned() });
            Ok::<(), CgroupError>(())
        };
        if self.has_burst {
            save(self.burst())?;
        }
        match self.version {
            CgroupVersion::Two => save(self.max())?,
            CgroupVersion::One => {
                save(self.quota())?;
                save(self.period())?;
                undos.push(Undo::Write { file: self.quota(), content: UNLIMITED.to_owned() });
            }
        }
        if self.has_burst {
            undos.push(Undo::Write { file: self.burst(), content: "0".to_owned() });
        }
        Ok(undos)
    }

    /// Writes a limit. An unchanged limit is not written again, because every write starts a new quota period.
    pub(super) fn write(&self, limit: Bandwidth) -> Result<(), EnforceError> {
        if self.is_set(limit) {
            return Ok(());
        }
        let Bandwidth { quota, period, burst } = limit;
        // The burst must not exceed the quota. Every write starts a new quota period, so the burst is written once, before or after the
        // quota.
        let burst_shrinks = self.has_burst && number(&self.burst()).is_none_or(|before| before > burst);
        if burst_shrinks {
            write_file(&self.burst(), &burst.to_string())?;
        }
        match self.version {
            CgroupVersion::Two => write_file(&self.max(), &format!("{quota} {period}"))?,
            CgroupVersion::One => {
                if !holds(&self.period(), period) {
                    write_file(&self.quota(), UNLIMITED)?;
                    write_file(&self.period(), &period.to_string())?;
                }
                write_file(&self.quota(), &quota.to_string())?;
            }
        }
        if self.has_burst && !burst_shrinks && !holds(&self.burst(), burst) {
            write_file(&self.burst(), &burst.to_string())?;
        }
        Ok(())
    }

    fn is_set(&self, Bandwidth { quota, period, burst }: Bandwidth) -> bool {
        let has_quota = match self.version {
            CgroupVersion::Two => {
                fs::read_to_string(self.max()).is_ok_and(|max| max.trim() == format!("{quota} {period}"))
            }
            CgroupVersion::One => holds(&self.quota(), quota) && holds(&self.period(), period),
        };
        has_quota && (!self.has_burst || holds(&self.burst(), burst))
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files = match self.version {
            CgroupVersion::Two => vec![self.max()],
            CgroupVersion::One => vec![self.quota(), self.period()],
        };
        files.extend(self.has_burst.then(|| self.burst()));
        files
    }

    fn max(&self) -> PathBuf {
        self.folder.join("cpu.max")
    }

    fn quota(&self) -> PathBuf {
        self.folder.join("cpu.cfs_quota_us")
    }

    fn period(&self) -> PathBuf {
        self.folder.join("cpu.cfs_period_us")
    }

    fn burst(&self) -> PathBuf {
        self.folder.join(match self.version {
            CgroupVersion::Two => "cpu.max.burst",
            CgroupVersion::One => "cpu.cfs_burst_us",
        })
    }
}

fn write_file(file: &Path, content: &str) -> Result<(), EnforceError> {
    write_if_there(file, content).map_err(|error| {
        let is_gone =
            error.kind() == io::ErrorKind::NotFound || Errno::from_io_error(&error) == Some(Errno::NODEV);
        if is_gone {
            CgroupError::Missing { path: file.to_owned() }.into()
        } else {
            refused(file, content, error)
        }
    })
}

fn holds(file: &Path, wanted: u64) -> bool {
    number(file) == Some(wanted)
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Checks the write permission of a file without writing.
pub(super) fn check_writable(file: &Path) -> io::Result<()> {
    fs::OpenOptions::new().write(true).open(file).map(drop)
}

/// Whether a version 2 cgroup has the CPU controller or can get it. Apart from the root, a cgroup with processes cannot have children
/// with controllers.
pub(super) fn can_have_cpu(tree: &Path, cgroup: &Path) -> bool {
    let mut ancestors = cgroup.ancestors().skip(1).take_while(|path| path.starts_with(tree));
    let can_delegate = |path: &Path| path == tree || processes_in(path).is_ok_and(|pids| pids.is_empty());
    cgroup.join("cpu.max").is_file()
        || (has_cpu(tree) && ancestors.all(|path| lists_cpu(&path.join(SUBTREE)) || can_delegate(path)))
}

/// Enables the CPU controller for the children of a version 2 cgroup, from the root of the tree downwards.
pub(super) fn enable_below(tree: &Path, parent: &Path, undo_list: &mut UndoList) -> Result<(), EnforceError> {
    let mut path_from_root: Vec<&Path> =
        parent.ancestors().take_while(|path| path.starts_with(tree)).collect();
    path_from_root.reverse();
    for cgroup in path_from_root {
        let file = cgroup.join(SUBTREE);
        if lists_cpu(&file) {
            continue;
        }
        if !has_cpu(cgroup) {
            return Err(CgroupError::NoController { path: cgroup.to_owned() }.into());
        }
        check_writable(&file).map_err(|error| CgroupError::of(&file, error))?;
        undo_list.register(vec![Undo::Write { file: file.clone(), content: "-cpu".to_owned() }])?;
        write_file(&file, "+cpu")?;
    }
    Ok(())
}
