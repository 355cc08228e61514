//! Cgroups: where they are, in either of the two versions that kernels have.
//!
//! ```text
//!   version 2                          version 1, one directory for each controller or for several together
//!   /sys/fs/cgroup                     /sys/fs/cgroup/cpu            limits: cpu.cfs_quota_us
//!     cgroup.controllers               /sys/fs/cgroup/cpuacct        counts: cpuacct.usage
//!     a.slice/cpu.max, cpu.stat        /sys/fs/cgroup/cpu,cpuacct    both
//! ```
//!
//! Machines with both have version 2 in `unified`; it is used if the CPU controller is there. A cgroup is named by its path below the
//! directory of its hierarchy; a path that begins with that directory means the same.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use crate::processes::ProcFs;

/// The file that makes a directory a cgroup: the processes in it.
pub(crate) const PROCS: &str = "cgroup.procs";
/// Which controllers the children of a cgroup of version 2 have.
pub(crate) const SUBTREE: &str = "cgroup.subtree_control";
/// Which controllers a cgroup of version 2 has.
const CONTROLLERS: &str = "cgroup.controllers";
/// Where version 2 is, on machines that have both.
const BESIDE_VERSION_ONE: &str = "unified";

/// Where the kernel's directories are. Tests have directories with the same files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilesystemRoots {
    /// Processes and counters of the machine.
    pub proc: PathBuf,
    /// Cgroups.
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

/// Which kind of cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupVersion {
    /// A tree for each controller.
    One,
    /// One tree.
    Two,
}

/// The trees in which CPU time is limited and counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// Which kind.
    pub version: CgroupVersion,
    /// The root of the tree that limits.
    pub limits: PathBuf,
    /// The root of the tree that counts; often the same.
    pub counts: PathBuf,
    root: PathBuf,
}

/// One cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroup {
    /// Its path below the root of its tree; empty for the root itself.
    pub name: PathBuf,
    /// Its directory in the tree that limits.
    pub limits: PathBuf,
    /// Its directory in the tree that counts.
    pub counts: PathBuf,
}

/// Which of the trees of version 1 is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ControllerUse {
    Limits,
    Counts,
}

impl Hierarchy {
    /// Looks for it.
    pub fn find(roots: &FilesystemRoots) -> Result<Hierarchy, CgroupError> {
        let root = &roots.cgroup;
        if root.join(CONTROLLERS).is_file() {
            return Ok(Hierarchy::two(root, root.clone()));
        }
        let unified = root.join(BESIDE_VERSION_ONE);
        if has_cpu(&unified) {
            return Ok(Hierarchy::two(root, unified));
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

    fn two(root: &Path, tree: PathBuf) -> Hierarchy {
        Hierarchy { version: CgroupVersion::Two, limits: tree.clone(), counts: tree, root: root.to_owned() }
    }

    /// The cgroup at this path, which must be there.
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

    /// The cgroup of this name, whether it is there or not.
    pub(crate) fn named(&self, name: &Path) -> Cgroup {
        let below = |tree: &Path| if name.as_os_str().is_empty() { tree.to_owned() } else { tree.join(name) };
        Cgroup { name: name.to_owned(), limits: below(&self.limits), counts: below(&self.counts) }
    }

    /// The name of the cgroup that a process is in; `None` if it is gone, or is in one that cannot be seen from here.
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
        Ok(paths.next().and_then(|path| plain(Path::new(path))))
    }

    /// Every cgroup below this one that has it as its parent, in the order of their names.
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
            Some(name) => plain(name).ok_or_else(outside),
            // Another tree, such as the one for memory, is not a name below this one.
            None if path.starts_with(&self.root) => Err(outside()),
            None => plain(path).ok_or_else(outside),
        }
    }
}

/// The path without a leading `/`, if it does not lead upwards.
fn plain(path: &Path) -> Option<PathBuf> {
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

/// Whether a cgroup of version 2 may limit CPU time.
pub(crate) fn has_cpu(cgroup: &Path) -> bool {
    lists_cpu(&cgroup.join(CONTROLLERS))
}

/// Whether a file with a list of controllers has this one.
pub(crate) fn lists_cpu(file: &Path) -> bool {
    fs::read_to_string(file).is_ok_and(|list| list.split_ascii_whitespace().any(|word| word == "cpu"))
}

/// The processes that are in a cgroup itself.
pub(crate) fn processes_in(cgroup: &Path) -> io::Result<Vec<u32>> {
    let text = fs::read_to_string(cgroup.join(PROCS))?;
    Ok(text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}

/// The threads that are in a cgroup of version 2 itself.
pub(crate) fn threads_in(cgroup: &Path) -> io::Result<Vec<u32>> {
    let text = fs::read_to_string(cgroup.join("cgroup.threads"))?;
    Ok(text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}

/// Why a cgroup cannot be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum CgroupError {
    /// It is not there.
    Missing {
        /// Its directory.
        path: PathBuf,
    },
    /// Something else is there.
    NotACgroup {
        /// What.
        path: PathBuf,
    },
    /// It is not in the tree of CPU time.
    Outside {
        /// What was asked for.
        path: PathBuf,
        /// Where cgroups are.
        root: PathBuf,
    },
    /// CPU time is neither limited nor counted there.
    NoController {
        /// Where.
        path: PathBuf,
    },
    /// This user may not.
    NotAllowed {
        /// Which file or directory.
        path: PathBuf,
    },
    /// The system says something else.
    Failed {
        /// At which file or directory.
        path: PathBuf,
        /// What it says.
        error: io::Error,
    },
}

impl CgroupError {
    /// What an error at this path means.
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
                write!(
                    f,
                    "there is no {}; `find /sys/fs/cgroup -type d` lists the cgroups there are",
                    path.display()
                )
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
                "{} is not a cgroup that counts CPU time; name one by its path below the tree of cgroups in {}",
                path.display(),
                root.display()
            ),
            CgroupError::NoController { path } => write!(
                f,
                "{} has no CPU controller; mount cgroups there, or enforce by signals or not at all",
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
