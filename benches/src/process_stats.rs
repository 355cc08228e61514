//! Statistics of the process and its threads: memory in use, CPU time and wall time.

use std::time::Duration;

#[cfg(target_os = "linux")]
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// The resident memory of this process in bytes, or 0 where the system does not provide it.
pub fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

/// The peak resident memory of this process in bytes, or 0 where the system does not provide it.
pub fn peak_resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = peak.and_then(|peak| peak.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kibibytes.unwrap_or(0) << 10
}

/// The CPU time of this thread. It excludes the time of other programs.
pub fn thread_time() -> Duration {
    time_of(ClockId::ThreadCPUTime)
}

/// The monotonic time.
pub fn wall_time() -> Duration {
    time_of(ClockId::Monotonic)
}

/// Pins this thread to one of the allowed processors by turns, so that threads that are measured together are
/// spread over all of them. Returns `false` if that is not possible. The system then schedules the
/// thread freely.
#[cfg(target_os = "linux")]
pub fn stay_on_processor(number: usize) -> bool {
    let Ok(allowed) = sched_getaffinity(None) else { return false };
    let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let mut own = CpuSet::new();
    own.set(allowed[number % allowed.len()]);
    sched_setaffinity(None, &own).is_ok()
}

/// Not supported on this system.
#[cfg(not(target_os = "linux"))]
pub fn stay_on_processor(_: usize) -> bool {
    false
}

fn time_of(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_was_touched_is_counted() {
        let before = resident_bytes();
        let block = vec![1_u8; 32 << 20];
        let grown = resident_bytes().saturating_sub(before);
        assert!(grown >= 30 << 20, "{grown} bytes for {}", block.len());
        drop(block);
        assert!(peak_resident_bytes() >= before + (30 << 20), "what was there is not forgotten");
    }

    #[test]
    fn time_is_spent() {
        let before = thread_time();
        assert!((0..1_000_000_u64).map(std::hint::black_box).sum::<u64>() > 0);
        assert!(thread_time() > before);
    }
}
