//! Limits a machine: the cgroups that can be limited get what the rest leaves.
//!
//! The average counts all CPU time, but some processes must not be limited. So their usage is subtracted from the limit before the limit is
//! divided. The set of cgroups that can be limited changes and is refreshed regularly.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tidegate_core::budget::Rate;

use super::{EnforceError, Enforcer, QuotaBurst, SharedQuota, limitable_cgroups, now, remaining_limit};
use crate::cgroups::FilesystemRoots;
use crate::meter::{CgroupMeter, HostMeter, Meter, MeterReading, cores_in, of_machine};
use crate::watchdog::CpuWatchdog;

/// Refresh the cgroups that can be limited after this many limits.
const REFRESH_EVERY: u32 = 12;

/// Shortest time for a rate: counters tick in hundredths of a second.
const MIN_RATE_INTERVAL: Duration = Duration::from_millis(100);

/// Limits a part of the machine.
pub struct MachineEnforcer {
    roots: FilesystemRoots,
    /// Whether the user named the cgroups.
    has_named_cgroups: bool,
    shares: SharedQuota,
    host: (HostMeter, MeterReading),
    meters: BTreeMap<PathBuf, (CgroupMeter, MeterReading)>,
    measured_at: Instant,
    limits_applied: u32,
}

impl MachineEnforcer {
    /// Limits these cgroups, or all that can be limited.
    pub fn new(
        roots: &FilesystemRoots,
        paths: Option<&[PathBuf]>,
        burst: QuotaBurst,
        watchdog: &CpuWatchdog,
    ) -> Result<MachineEnforcer, EnforceError> {
        let found = paths.map_or_else(|| limitable_cgroups(roots), |paths| Ok(paths.to_vec()))?;
        for path in paths.unwrap_or_default() {
            // Named cgroups must exist.
            CgroupMeter::new(roots, path)?;
        }
        let shares = SharedQuota::new(roots, &found, burst, watchdog)?;
        let mut host = HostMeter::new(roots)?;
        let reading = host.read()?;
        let mut machine = MachineEnforcer {
            roots: roots.clone(),
            has_named_cgroups: paths.is_some(),
            shares,
            host: (host, reading),
            meters: BTreeMap::new(),
            measured_at: now(),
            limits_applied: 0,
        };
        machine.update_meters();
        Ok(machine)
    }

    /// Whether there is currently no cgroup to limit.
    pub fn has_no_targets(&self) -> bool {
        self.meters.is_empty()
    }

    /// Updates the meters of the limited cgroups.
    fn update_meters(&mut self) {
        let paths: Vec<PathBuf> = self.shares.paths().map(PathBuf::from).collect();
        self.meters.retain(|path, _| paths.contains(path));
        for path in paths {
            if self.meters.contains_key(&path) {
                continue;
            }
            let meter = CgroupMeter::new(&self.roots, &path);
            // A cgroup that was removed meanwhile has no meter.
            if let Ok((meter, reading)) =
                meter.and_then(|mut meter| meter.read().map(|reading| (meter, reading)))
            {
                self.meters.insert(path, (meter, reading));
            }
        }
    }

    /// Usage of everything that is not limited since the last call, as a rate of the whole machine.
    fn others(&mut self) -> Result<Rate, EnforceError> {
        let at = now();
        let passed = at.saturating_duration_since(self.measured_at);
        self.measured_at = at;
        let (host, last) = &mut self.host;
        let reading = host.read()?;
        let mut others = reading.since(last).unwrap_or_default();
        *last = reading;
        for (meter, last) in self.meters.values_mut() {
            let Ok(reading) = meter.read() else { continue };
            others = others.saturating_sub(reading.since(last).unwrap_or_default());
            *last = reading;
        }
        if passed < MIN_RATE_INTERVAL {
            return Ok(Rate::ZERO);
        }
        Ok(of_machine(others, cores_in(&self.roots)?).rate_over(passed))
    }
}

impl Enforcer for MachineEnforcer {
    fn apply(&mut self, limit: Rate) -> Result<(), EnforceError> {
        self.limits_applied = self.limits_applied.wrapping_add(1);
        if !self.has_named_cgroups && self.limits_applied.is_multiple_of(REFRESH_EVERY) {
            let found = limitable_cgroups(&self.roots)?;
            self.shares.set_cgroups(&found)?;
            self.update_meters();
        }
        let others = self.others()?;
        self.shares.apply(remaining_limit(others, limit))
    }

    fn restore(&mut self) -> Result<(), EnforceError> {
        self.shares.restore()
    }
}
