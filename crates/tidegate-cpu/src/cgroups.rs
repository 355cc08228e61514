//! Cgroups of version 1 and version 2.
//!
//! ```text
//!   version 2                          version 1, one directory for each controller or for several together
//!   /sys/fs/cgroup                     /sys/fs/cgroup/cpu            limits: cpu.cfs_quota_us
//!     cgroup.controllers               /sys/fs/cgroup/cpuacct        counts: cpuacct.usage
//!     a.slice/cpu.max, cpu.stat        /sys/fs/cgroup/cpu,cpuacct    both
//! ```
//!
//! Machines with both versions mount version 2 at `unified`. It is used if it has the CPU controller. The name of a cgroup is its path below
//! the root of its hierarchy. A path that starts with that root means the same cgroup.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use crate::processes::ProcFs;

/// The list of processes, which every cgroup has.
pub(crate) const PROCS: &str = "cgroup.procs";
/// The controllers of a version 2 cgroup's children.
pub(crate) const SUBTREE: &str = "cgroup.subtree_control";
/// The controllers of a version 2 cgroup.
const CONTROLLERS: &str = "cgroup.controllers";
/// Mount point of version 2 on machines with both versions.
const UNIFIED: &str = "unified";

/// Mount points of the kernel's file systems. Tests use ordinary directories with the same files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilesystemRoots {
    /// The procfs.
    pub proc: PathBuf,
    /// The cgroup file system.
    pub cgroup: PathBuf,
}

impl Default for FilesystemRoots {
    fn default() -> FilesystemRoots {
        FilesystemRoots { proc: "/proc".into(), cgroup: "/sys/fs/cgroup".into() }
    }
}

impl FilesystemRoots {
    pub(crate) fn processes(&self) -> ProcFs {
        ProcFs::at(&self.proc)
    }
}

/// Version of the cgroup file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupVersion {
    /// One tree for each controller.
    One,
    /// One tree for all controllers.
    Two,
}

/// The trees in which CPU time is limited and counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// Version of the trees.
    pub version: CgroupVersion,
    /// Root of the tree with the CPU limits.
    pub limits: PathBuf,
    /// Root of the tree with the CPU counters. Often the same tree.
    pub counts: PathBuf,
    root: PathBuf,
}

/// One cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroup {
    /// Path below the root of the tree. Empty for the root itself.
    pub name: PathBuf,
    /// Directory in the tree with the limits.
    pub limits: PathBuf,
    /// Directory in the tree with the counters.
    pub counts: PathBuf,
}

/// Which tree of version 1 to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ControllerUse {
    Limits,
    Counts,
}

impl Hierarchy {
    /// Finds the cgroup trees of the machine.
    pub fn find(roots: &FilesystemRoots) -> Result<Hierarchy, CgroupError> {
        let root = &roots.cgroup;
        if root.join(CONTROLLERS).is_file() {
            return Ok(Hierarchy::version_two(root, root.clone()));
        }
        let unified = root.join(UNIFIED);
        if has_cpu(&unified) {
            return Ok(Hierarchy::version_two(root, unified));
        }
        let missing = || CgroupError::NoController { path: root.clone() };
        let mut trees: Vec<PathBuf> = fs::read_dir(root)
            .map_err(|error| CgroupError::of(root, error))?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .collect();
        trees.sort();
        let with =
            |file: &str| trees.iter().find(|tree| tree.join(file).is_file()).cloned().ok_or_else(missing);
        let (limits, counts) = (with("cpu.shares")?, with("cpuacct.usage")?);
        Ok(Hierarchy { version: CgroupVersion::One, limits, counts, root: root.clone() })
    }

    fn version_two(root: &Path, tree: PathBuf) -> Hierarchy {
        Hierarchy { version: CgroupVersion::Two, limits: tree.clone(), counts: tree, root: root.to_owned() }
    }

    /// The existing cgroup at this path.
    pub fn at(&self, path: &Path) -> Result<Cgroup, CgroupError> {
        let cgroup = self.named(&self.name_of(path)?);
        for folder in [&cgroup.limits, &cgroup.counts] {
            match fs::metadata(folder) {
                Ok(found) if found.is_dir() && folder.join(PROCS).is_file() => {}
                Ok(_) => return Err(CgroupError::NotACgroup { path: folder.clone() }),
                Err(error) => return Err(CgroupError::of(folder, error)),
            }
        }
        Ok(cgroup)
    }

    /// The cgroup with this name, which need not exist.
    pub(crate) fn named(&self, name: &Path) -> Cgroup {
        let below = |tree: &Path| if name.as_os_str().is_empty() { tree.to_owned() } else { tree.join(name) };
        Cgroup { name: name.to_owned(), limits: below(&self.limits), counts: below(&self.counts) }
    }

    /// The name of a process's cgroup. `None` if the process is gone or its cgroup is not visible from here.
    pub(crate) fn of_process(
        &self,
        proc: &ProcFs,
        pid: u32,
        tree: ControllerUse,
    ) -> io::Result<Option<PathBuf>> {
        let Some(lines) = proc.cgroups(pid)? else { return Ok(None) };
        let is_meant = |controllers: &str| match (self.version, tree) {
            (CgroupVersion::Two, _) => controllers.is_empty(),
            (CgroupVersion::One, ControllerUse::Limits) => controllers.split(',').any(|word| word == "cpu"),
            (CgroupVersion::One, ControllerUse::Counts) => {
                controllers.split(',').any(|word| word == "cpuacct")
            }
        };
        let mut paths = lines.lines().filter_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            is_meant(controllers).then_some(path)
        });
        Ok(paths.next().and_then(|path| relative_path(Path::new(path))))
    }

    /// The direct children of a cgroup, sorted by name.
    pub(crate) fn below(cgroup: &Path) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(cgroup)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                found.push(entry.path());
            }
        }
        found.sort();
        Ok(found)
    }

    fn name_of(&self, path: &Path) -> Result<PathBuf, CgroupError> {
        let outside = || CgroupError::Outside { path: path.to_owned(), root: self.root.clone() };
        let below_tree =
            [&self.limits, &self.counts].into_iter().find_map(|tree| path.strip_prefix(tree).ok());
        match below_tree {
            Some(name) => relative_path(name).ok_or_else(outside),
            // A path in another tree, for example the memory tree, is not a name in this one.
            None if path.starts_with(&self.root) => Err(outside()),
            None => relative_path(path).ok_or_else(outside),
        }
    }
}

/// The path without a leading `/`. `None` if it contains `..`.
fn relative_path(path: &Path) -> Option<PathBuf> {
    let mut name = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(part) => name.push(part),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    Some(name)
}

/// Whether a version 2 cgroup has the CPU controller.
pub(crate) fn has_cpu(cgroup: &Path) -> bool {
    lists_cpu(&cgroup.join(CONTROLLERS))
}

/// Whether a list of controllers contains the CPU controller.
pub(crate) fn lists_cpu(file: &Path) -> bool {
    fs::read_to_string(file).is_ok_and(|list| list.split_ascii_whitespace().any(|word| word == "cpu"))
}

/// Processes of a cgroup, without its descendants.
pub(crate) fn processes_in(cgroup: &Path) -> io::Result<Vec<u32>> {
    let text = fs::read_to_string(cgroup.join(PROCS))?;
    Ok(text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}

/// Threads of a version 2 cgroup, without its descendants.
pub(crate) fn threads_in(cgroup: &Path) -> io::Result<Vec<u32>> {
    let text = fs::read_to_string(cgroup.join("cgroup.threads"))?;
    Ok(text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}

/// Why a cgroup cannot be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum CgroupError {
    /// There is no such cgroup.
    Missing {
        /// Its directory.
        path: PathBuf,
    },
    /// The path is not a cgroup.
    NotACgroup {
        /// The path.
        path: PathBuf,
    },
    /// The path is outside the trees with CPU limits and counters.
    Outside {
        /// The requested path.
        path: PathBuf,
        /// Root of all trees.
        root: PathBuf,
    },
    /// The CPU controller is not available.
    NoController {
        /// Directory of the cgroup.
        path: PathBuf,
    },
    /// The user lacks permission.
    NotAllowed {
        /// The file or directory.
        path: PathBuf,
    },
    /// Another system error.
    Failed {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
}

impl CgroupError {
    /// Converts a system error at this path.
    pub(crate) fn of(path: &Path, error: io::Error) -> CgroupError {
        let path = path.to_owned();
        match error.kind() {
            io::ErrorKind::NotFound => CgroupError::Missing { path },
            io::ErrorKind::NotADirectory => CgroupError::NotACgroup { path },
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                CgroupError::NotAllowed { path }
            }
            _ => CgroupError::Failed { path, error },
        }
    }
}

impl fmt::Display for CgroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CgroupError::Missing { path } => {
                write!(f, "there is no {}; `find /sys/fs/cgroup -type d` lists all cgroups", path.display())
            }
            CgroupError::NotACgroup { path } => {
                write!(
                    f,
                    "{} is not a cgroup: it has no {PROCS}; name a directory that has one",
                    path.display()
                )
            }
            CgroupError::Outside { path, root } => write!(
                f,
                "{} is not a cgroup with CPU accounting; name one by its path below {}",
                path.display(),
                root.display()
            ),
            CgroupError::NoController { path } => write!(
                f,
                "{} has no CPU controller; mount it there, or enforce by signals or not at all",
                path.display()
            ),
            CgroupError::NotAllowed { path } => write!(
                f,
                "no permission for {}; run as root, or have the cgroup delegated to this user",
                path.display()
            ),
            CgroupError::Failed { path, error } => write!(f, "{} cannot be used: {error}", path.display()),
        }
    }
}

impl std::error::Error for CgroupError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CgroupError::Failed { error, .. } => Some(error),
            _ => None,
        }
    }
}
