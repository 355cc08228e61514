//! Limits a machine: the limitable cgroups get what the rest leaves.
//!
//! The average counts all CPU time, but some processes must not be limited. So their usage is subtracted from the limit before the limit is
//! divided. The set of limitable cgroups changes and is refreshed regularly.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tidegate_core::budget::Rate;

use super::{EnforceError, Enforcer, QuotaBurst, SharedQuota, left_by, limitable_cgroups, now};
use crate::cgroups::FilesystemRoots;
use crate::meter::{CgroupMeter, HostMeter, Meter, MeterReading, cores_in, of_machine};
use crate::watchdog::CpuWatchdog;

/// Refresh the limitable cgroups after this many limits.
const FOLLOW_EVERY: u32 = 12;

/// Shortest time for a rate: counters tick in hundredths of a second.
const SHORTEST_LOOK: Duration = Duration::from_millis(100);

/// Limits a part of the machine.
pub struct MachineEnforcer {
    roots: FilesystemRoots,
    /// Whether the user named the cgroups.
    is_given: bool,
    shares: SharedQuota,
    host: (HostMeter, MeterReading),
    parts: BTreeMap<PathBuf, (CgroupMeter, MeterReading)>,
    looked_at: Instant,
    limits: u32,
}

impl MachineEnforcer {
    /// Limits these cgroups, or all limitable ones.
    pub fn new(
        roots: &FilesystemRoots,
        paths: Option<&[PathBuf]>,
        burst: QuotaBurst,
        guardian: &CpuWatchdog,
    ) -> Result<MachineEnforcer, EnforceError> {
        let found = paths.map_or_else(|| limitable_cgroups(roots), |paths| Ok(paths.to_vec()))?;
        for path in paths.unwrap_or_default() {
            // Named cgroups must exist.
            CgroupMeter::new(roots, path)?;
        }
        let shares = SharedQuota::over(roots, &found, burst, guardian)?;
        let mut host = HostMeter::new(roots)?;
        let reading = host.read()?;
        let mut machine = MachineEnforcer {
            roots: roots.clone(),
            is_given: paths.is_some(),
            shares,
            host: (host, reading),
            parts: BTreeMap::new(),
            looked_at: now(),
            limits: 0,
        };
        machine.follow();
        Ok(machine)
    }

    /// Whether there is currently no cgroup to limit.
    pub fn is_powerless(&self) -> bool {
        self.parts.is_empty()
    }

    /// Updates the meters of the limited cgroups.
    fn follow(&mut self) {
        let paths: Vec<PathBuf> = self.shares.paths().map(PathBuf::from).collect();
        self.parts.retain(|path, _| paths.contains(path));
        for path in paths {
            if self.parts.contains_key(&path) {
                continue;
            }
            let meter = CgroupMeter::new(&self.roots, &path);
            // A cgroup that was removed meanwhile has no meter.
            if let Ok((meter, reading)) =
                meter.and_then(|mut meter| meter.read().map(|reading| (meter, reading)))
            {
                self.parts.insert(path, (meter, reading));
            }
        }
    }

    /// Usage of everything that is not limited since the last call, as a rate of the whole machine.
    fn others(&mut self) -> Result<Rate, EnforceError> {
        let at = now();
        let passed = at.saturating_duration_since(self.looked_at);
        self.looked_at = at;
        let (host, last) = &mut self.host;
        let reading = host.read()?;
        let mut others = reading.since(last).unwrap_or_default();
        *last = reading;
        for (meter, last) in self.parts.values_mut() {
            let Ok(reading) = meter.read() else { continue };
            others = others.saturating_sub(reading.since(last).unwrap_or_default());
            *last = reading;
        }
        if passed < SHORTEST_LOOK {
            return Ok(Rate::ZERO);
        }
        Ok(of_machine(others, cores_in(&self.roots)?).rate_over(passed))
    }
}

impl Enforcer for MachineEnforcer {
    fn apply(&mut self, limit: Rate) -> Result<(), EnforceError> {
        self.limits = self.limits.wrapping_add(1);
        if !self.is_given && self.limits.is_multiple_of(FOLLOW_EVERY) {
            let found = limitable_cgroups(&self.roots)?;
            self.shares.follow(&found)?;
            self.follow();
        }
        let others = self.others()?;
        self.shares.apply(left_by(others, limit))
    }

    fn restore(&mut self) -> Result<(), EnforceError> {
        self.shares.restore()
    }
}
