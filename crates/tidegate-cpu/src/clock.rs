//! Clocks: the wall clock, and a monotonic clock that continues during suspend.

use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};
use tidegate_core::Timestamp;

use crate::meter::CounterId;

/// One reading of both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockReading {
    /// Wall clock time, in nanoseconds.
    pub wall: Timestamp,
    /// Time since boot, including suspended time.
    pub uptime: Duration,
    /// Identity of the boot.
    pub boot: u64,
}

/// Reads the machine's clocks.
#[derive(Debug, Clone, Copy)]
pub struct MachineClock {
    boot: u64,
}

impl MachineClock {
    /// The clocks of this machine. The boot identity comes from this procfs.
    pub fn new(proc: &Path) -> io::Result<MachineClock> {
        let id = std::fs::read(proc.join("sys/kernel/random/boot_id"))?;
        let bytes = CounterId::of(&[id.trim_ascii()]).to_bytes();
        let boot = bytes.first_chunk().copied().map_or(0, u64::from_le_bytes);
        Ok(MachineClock { boot })
    }

    /// Reads both clocks.
    pub fn now(&self) -> ClockReading {
        let wall = time(clock_gettime(ClockId::Realtime));
        ClockReading {
            wall: Timestamp::from_ticks(u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX)),
            uptime: time(clock_gettime(ClockId::Boottime)),
            boot: self.boot,
        }
    }
}

fn time(read: Timespec) -> Duration {
    let nanos = u32::try_from(read.tv_nsec).unwrap_or(0);
    Duration::new(u64::try_from(read.tv_sec).unwrap_or(0), nanos)
}
