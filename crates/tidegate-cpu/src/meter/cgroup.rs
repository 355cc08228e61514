//! Meter of a cgroup and its descendants.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;

use super::kernel_file::KernelFile;
use super::{CounterId, Meter, MeterError, MeterReading, TargetId};
use crate::cgroups::{CgroupError, CgroupVersion, FilesystemRoots, Hierarchy};

/// CPU time of a cgroup and its descendants, including ended processes: `cpu.stat` in version 2, `cpuacct.usage` in version 1.
#[derive(Debug)]
pub struct CgroupMeter {
    boot: String,
    version: CgroupVersion,
    folder: PathBuf,
    open: Option<OpenCounter>,
}

#[derive(Debug)]
struct OpenCounter {
    counter: KernelFile,
    counter_id: CounterId,
}

impl CgroupMeter {
    /// A meter of the cgroup at this path.
    pub fn new(roots: &FilesystemRoots, path: &Path) -> Result<CgroupMeter, MeterError> {
        let hierarchy = Hierarchy::find(roots)?;
        let folder = hierarchy.at(path)?.counts;
        let proc = roots.processes();
        let boot = proc.boot().map_err(|error| MeterError::of(proc.root(), error))?;
        let mut meter = CgroupMeter { boot, version: hierarchy.version, folder, open: None };
        meter.read()?;
        Ok(meter)
    }

    fn open(&mut self) -> Result<&mut OpenCounter, MeterError> {
        match &mut self.open {
            Some(open) => Ok(open),
            none => {
                let found =
                    fs::metadata(&self.folder).map_err(|error| CgroupError::of(&self.folder, error))?;
                let path = self.folder.join(match self.version {
                    CgroupVersion::One => "cpuacct.usage",
                    CgroupVersion::Two => "cpu.stat",
                });
                let counter = KernelFile::open(path).map_err(|error| without_counter(&self.folder, error))?;
                // A recreated cgroup has another inode number.
                let place = [found.dev().to_le_bytes(), found.ino().to_le_bytes()].concat();
                let counter_id = CounterId::of(&[b"cgroup", self.boot.as_bytes(), &place]);
                Ok(none.insert(OpenCounter { counter, counter_id }))
            }
        }
    }

    fn try_read(&mut self) -> Result<MeterReading, MeterError> {
        let version = self.version;
        let open = self.open()?;
        let (path, counter_id) = (open.counter.path().to_owned(), open.counter_id);
        let text = open.counter.text().map_err(|error| MeterError::of(&path, error))?;
        let used = match version {
            CgroupVersion::One => text.trim().parse().ok().map(Duration::from_nanos),
            CgroupVersion::Two => usage(text).map(Duration::from_micros),
        };
        let used = used.ok_or(MeterError::Unreadable { path })?;
        let target = TargetId::of(&[b"cgroup", self.folder.as_os_str().as_bytes()]);
        Ok(MeterReading { used, counter_id, target, age: None })
    }
}

impl Meter for CgroupMeter {
    fn read(&mut self) -> Result<MeterReading, MeterError> {
        match self.try_read() {
            // The open cgroup was removed. Another one with the same name may exist.
            Err(MeterError::Failed { error, .. }) if is_removed(&error) => {
                self.open = None;
                self.try_read()
            }
            read => read,
        }
    }
}

fn is_removed(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::NODEV)
}

fn without_counter(folder: &Path, error: io::Error) -> CgroupError {
    match error.kind() {
        io::ErrorKind::NotFound => CgroupError::NoController { path: folder.to_owned() },
        _ => CgroupError::of(folder, error),
    }
}

/// The usage in microseconds, from the lines of `cpu.stat`.
fn usage(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("usage_usec ")?.trim().parse().ok())
}
