//! What time it is: by the wall clock, and by one that nobody sets and that does not stop while the machine sleeps.

use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};
use tidegate_core::Timestamp;

use crate::meter::CounterId;

/// An instant, by both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockReading {
    /// What the wall clock says, in nanoseconds.
    pub wall: Timestamp,
    /// How long ago the machine was started.
    pub uptime: Duration,
    /// Which start of the machine that was.
    pub boot: u64,
}

/// Reads the clocks of a machine.
#[derive(Debug, Clone, Copy)]
pub struct MachineClock {
    boot: u64,
}

impl MachineClock {
    /// The clocks of this machine; where `/proc` is says which start of it this is.
    pub fn new(proc: &Path) -> io::Result<MachineClock> {
        let id = std::fs::read(proc.join("sys/kernel/random/boot_id"))?;
        let bytes = CounterId::of(&[id.trim_ascii()]).to_bytes();
        let boot = bytes.first_chunk().copied().map_or(0, u64::from_le_bytes);
        Ok(MachineClock { boot })
    }

    /// Now.
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
