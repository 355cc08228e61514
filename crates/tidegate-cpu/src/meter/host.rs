//! Meter of the whole machine.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::kernel_file::KernelFile;
use super::{CounterId, Meter, MeterError, MeterReading, TargetId};
use crate::cgroups::FilesystemRoots;
use crate::processes::{ProcFs, ticks};

/// CPU time of all processors since boot.
///
/// `user`, `nice`, `system`, `irq` and `softirq` count. `idle` and `iowait` are not work, `steal` belongs to other machines, and `guest` is
/// already part of `user`.
#[derive(Debug)]
pub struct HostMeter {
    proc: ProcFs,
    stat: KernelFile,
    counter_id: CounterId,
    highest: Duration,
}

impl HostMeter {
    /// A meter of the machine with this procfs.
    pub fn new(roots: &FilesystemRoots) -> Result<HostMeter, MeterError> {
        let proc = roots.processes();
        let boot = proc.boot().map_err(|error| MeterError::of(proc.root(), error))?;
        let path = roots.proc.join("stat");
        let stat = KernelFile::open(path.clone()).map_err(|error| MeterError::of(&path, error))?;
        let counter_id = CounterId::of(&[b"host", boot.as_bytes()]);
        Ok(HostMeter { proc, stat, counter_id, highest: Duration::ZERO })
    }
}

impl Meter for HostMeter {
    fn read(&mut self) -> Result<MeterReading, MeterError> {
        let path = self.stat.path().to_owned();
        let text = self.stat.text().map_err(|error| MeterError::of(&path, error))?;
        let used = busy(text).map(ticks).ok_or(MeterError::Unreadable { path })?;
        // Some kernels correct the counters down by a tick or two.
        self.highest = self.highest.max(used);
        let age =
            self.proc.uptime().map_err(|error| MeterError::of(&self.proc.root().join("uptime"), error))?;
        Ok(MeterReading {
            used: self.highest,
            counter_id: self.counter_id,
            target: TargetId::of(&[b"host"]),
            age: Some(age),
        })
    }
}

/// Busy ticks, from the first line of `stat`.
fn busy(text: &str) -> Option<u64> {
    let mut words = text.lines().next()?.split_ascii_whitespace();
    if words.next()? != "cpu" {
        return None;
    }
    let fields: Vec<u64> = words.map(str::parse).collect::<Result<_, _>>().ok()?;
    let [user, nice, system, _idle, _iowait, irq, softirq, ..] = fields[..] else { return None };
    [user, nice, system, irq, softirq].into_iter().try_fold(0_u64, u64::checked_add)
}

/// Number of online processors.
pub fn cores() -> u32 {
    // Without `/proc` there is nothing to govern, but callers still need a number.
    cores_in(&FilesystemRoots::default()).unwrap_or_else(|_| {
        std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX))
    })
}

/// Number of online processors according to this procfs.
pub(crate) fn cores_in(roots: &FilesystemRoots) -> Result<u32, MeterError> {
    let path: PathBuf = roots.proc.join("stat");
    let text = fs::read_to_string(&path).map_err(|error| MeterError::of(&path, error))?;
    let is_core = |line: &&str| {
        line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_digit()))
    };
    let count = text.lines().filter(is_core).count();
    u32::try_from(count).ok().filter(|count| *count > 0).ok_or(MeterError::Unreadable { path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_ticks_exclude_idle_iowait_steal_and_guest() {
        assert_eq!(busy("cpu  1 10 100 7 7 1000 10000 7 7 7\ncpu0 1"), Some(11111));
        // Kernels without steal and guest fields.
        assert_eq!(busy("cpu 1 2 3 4 5 6 7"), Some(19));
        for wrong in ["", "cpu0 1 2 3 4 5 6 7", "cpu 1 2 3 4 5 6", "cpu 1 2 3 4 5 6 x"] {
            assert_eq!(busy(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn core_count_is_at_least_one() {
        assert!(cores() >= 1);
    }
}
