//! One limit for several cgroups.
//!
//! The kernel has a quota for each cgroup and none for a group of them. So every limit is divided by the usage since the last one. A cgroup
//! that used less than its quota gets its usage plus a quarter. The rest is divided evenly among cgroups that used up their quotas, so a
//! small share does not stay small because it was small before. The sum never exceeds the limit.
//!
//! ```text
//!   limit  ├────────────────────────────────────────────────┤
//!          │idle│ used a little │ busy         │ busy         │
//!           floor   + a quarter    the rest, evenly
//! ```

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tidegate_core::budget::Rate;

use super::bandwidth::{Bandwidth, QuotaBurst, share};
use super::{EnforceError, Enforcer, QuotaEnforcer, now};
use crate::cgroups::{CgroupError, FilesystemRoots};
use crate::meter::{CgroupMeter, Meter, MeterError, MeterReading, cores_in};
use crate::watchdog::CpuWatchdog;

/// Divisor of an even share for the minimum of an idle cgroup. It must be able to start work.
const IDLE_SHARE_DIVISOR: u64 = 10;
/// A cgroup that used this many eighths of its quota would have used more.
const BUSY_EIGHTHS: u64 = 7;

/// One limit shared by several cgroups.
#[derive(Debug)]
pub struct SharedQuota {
    roots: FilesystemRoots,
    burst: QuotaBurst,
    watchdog: CpuWatchdog,
    cgroups: Vec<SharedCgroup>,
    divided_at: Option<Instant>,
}

#[derive(Debug)]
struct SharedCgroup {
    path: PathBuf,
    quota: QuotaEnforcer,
    meter: CgroupMeter,
    last: MeterReading,
    /// Last share, in microseconds per second.
    share: Option<u64>,
}

impl SharedQuota {
    /// Prepares quotas for the cgroups at these paths. Missing cgroups are skipped.
    pub fn new(
        roots: &FilesystemRoots,
        paths: &[PathBuf],
        burst: QuotaBurst,
        watchdog: &CpuWatchdog,
    ) -> Result<SharedQuota, EnforceError> {
        let mut shares = SharedQuota {
            roots: roots.clone(),
            burst,
            watchdog: watchdog.clone(),
            cgroups: Vec::new(),
            divided_at: None,
        };
        shares.set_cgroups(paths)?;
        Ok(shares)
    }

    /// Replaces the set of cgroups. Removed ones get their earlier quotas back.
    pub fn set_cgroups(&mut self, paths: &[PathBuf]) -> Result<(), EnforceError> {
        let (kept, mut removed): (Vec<SharedCgroup>, Vec<SharedCgroup>) =
            self.cgroups.drain(..).partition(|cgroup| paths.contains(&cgroup.path));
        self.cgroups = kept;
        let restored = removed.iter_mut().try_for_each(|cgroup| cgroup.quota.restore());
        for path in paths {
            if self.cgroups.iter().all(|cgroup| cgroup.path != *path) {
                match self.cgroup(path) {
                    Ok(cgroup) => self.cgroups.push(cgroup),
                    Err(error) if is_gone(&error) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        restored
    }

    /// Paths of the limited cgroups.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.cgroups.iter().map(|cgroup| cgroup.path.as_path())
    }

    fn cgroup(&self, path: &Path) -> Result<SharedCgroup, EnforceError> {
        let quota = QuotaEnforcer::new(&self.roots, path, self.burst, &self.watchdog)?;
        let mut meter = CgroupMeter::new(&self.roots, path)?;
        let last = meter.read()?;
        Ok(SharedCgroup { path: path.to_owned(), quota, meter, last, share: None })
    }

    /// Estimates the demand of each cgroup since the last call. Drops cgroups that are gone.
    fn measure_demands(&mut self, passed: Duration) -> Result<Vec<CpuDemand>, EnforceError> {
        let mut demands = Vec::new();
        let mut remaining = Vec::new();
        for mut cgroup in self.cgroups.drain(..) {
            let reading = match cgroup.meter.read() {
                Ok(reading) => reading,
                Err(MeterError::Cgroup(CgroupError::Missing { .. })) => continue,
                Err(error) => return Err(error.into()),
            };
            let used = reading.since(&cgroup.last).unwrap_or(reading.used);
            cgroup.last = reading;
            demands.push(CpuDemand::of(used, passed, cgroup.share));
            remaining.push(cgroup);
        }
        self.cgroups = remaining;
        Ok(demands)
    }
}

impl Enforcer for SharedQuota {
    fn apply(&mut self, limit: Rate) -> Result<(), EnforceError> {
        let now = now();
        let passed = self.divided_at.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        let demands = self.measure_demands(passed)?;
        self.divided_at = Some(now);
        let cores = cores_in(&self.roots)?;
        let shares = divide_by_demand(share(limit, cores), &demands);
        let mut first_error = Ok(());
        for (cgroup, share) in self.cgroups.iter_mut().zip(shares) {
            cgroup.share = Some(share);
            let written = cgroup.quota.write_limit(Bandwidth::of_share(share, cgroup.quota.burst()));
            match written {
                Err(error) if is_gone(&error) => {}
                // If one cgroup fails, the others are still limited.
                Err(error) if first_error.is_ok() => first_error = Err(error),
                _ => {}
            }
        }
        first_error
    }

    fn restore(&mut self) -> Result<(), EnforceError> {
        let mut first_error = Ok(());
        for cgroup in &mut self.cgroups {
            cgroup.share = None;
            first_error = first_error.and(cgroup.quota.restore());
        }
        first_error
    }
}

fn is_gone(error: &EnforceError) -> bool {
    let missing = |error: &CgroupError| matches!(error, CgroupError::Missing { .. });
    match error {
        EnforceError::Cgroup(error) | EnforceError::Meter(MeterError::Cgroup(error)) => missing(error),
        _ => false,
    }
}

/// Estimated demand, in microseconds of CPU time per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CpuDemand {
    /// As much as possible.
    All,
    /// This rate.
    Some(u64),
}

impl CpuDemand {
    fn of(used: Duration, passed: Duration, share: Option<u64>) -> CpuDemand {
        if passed.is_zero() {
            // No measurement yet.
            return CpuDemand::All;
        }
        let rate = used.as_micros().saturating_mul(1_000_000) / passed.as_micros().max(1);
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        match share {
            Some(share) if rate.saturating_mul(8) < share.saturating_mul(BUSY_EIGHTHS) => {
                CpuDemand::Some(rate.saturating_add(rate / 4))
            }
            _ => CpuDemand::All,
        }
    }
}

/// Divides a total by demand. The sum of the shares never exceeds the total.
fn divide_by_demand(whole: u64, demands: &[CpuDemand]) -> Vec<u64> {
    let count = demands.len() as u64;
    if count == 0 {
        return Vec::new();
    }
    let floor = whole / count / IDLE_SHARE_DIVISOR;
    let mut shares = vec![0; demands.len()];
    // Smallest demand first: the remainder goes to the others.
    let mut order: Vec<usize> = (0..demands.len()).collect();
    order.sort_by_key(|index| match demands[*index] {
        CpuDemand::Some(demand) => (0, demand),
        CpuDemand::All => (1, 0),
    });
    let mut left = whole;
    for (done, index) in order.iter().enumerate() {
        let even = left / (count - done as u64);
        let share = match demands[*index] {
            CpuDemand::Some(demand) => demand.max(floor).min(even),
            CpuDemand::All => even,
        };
        shares[*index] = share;
        left -= share;
    }
    // Divide unused capacity evenly.
    let more = left / count;
    for share in &mut shares {
        *share += more;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_cgroups_share_the_remainder_evenly() {
        let shares = divide_by_demand(
            1000,
            &[CpuDemand::Some(0), CpuDemand::All, CpuDemand::Some(100), CpuDemand::All],
        );
        assert_eq!(shares, [25, 437, 100, 438]);
    }

    #[test]
    fn busy_cgroup_with_small_share_gets_an_even_share() {
        // The second cgroup used up its minimum share, the first almost all of its share.
        let demand =
            |used, share| CpuDemand::of(Duration::from_micros(used), Duration::from_secs(1), Some(share));
        assert_eq!(divide_by_demand(1000, &[demand(940, 950), demand(50, 50)]), [500, 500]);
    }

    #[test]
    fn unused_capacity_is_divided_evenly() {
        assert_eq!(divide_by_demand(1000, &[CpuDemand::Some(100), CpuDemand::Some(300)]), [400, 600]);
        assert_eq!(divide_by_demand(1000, &[CpuDemand::Some(0), CpuDemand::Some(0)]), [500, 500]);
    }

    #[test]
    fn sum_of_shares_never_exceeds_the_total() {
        let demands = [
            CpuDemand::All,
            CpuDemand::Some(0),
            CpuDemand::Some(7),
            CpuDemand::Some(u64::MAX),
            CpuDemand::Some(500),
        ];
        for whole in [0, 1, 2, 7, 99, 1000, 1_000_003, u64::MAX] {
            for count in 0..=demands.len() {
                let sum: u128 = divide_by_demand(whole, &demands[..count]).into_iter().map(u128::from).sum();
                assert!(sum <= u128::from(whole), "{whole} for {count}");
            }
        }
    }

    #[test]
    fn unknown_demand_is_all() {
        assert_eq!(CpuDemand::of(Duration::ZERO, Duration::ZERO, None), CpuDemand::All);
        assert_eq!(CpuDemand::of(Duration::ZERO, Duration::from_secs(1), None), CpuDemand::All);
        assert_eq!(
            CpuDemand::of(Duration::from_micros(8), Duration::from_secs(1), Some(100)),
            CpuDemand::Some(10)
        );
    }
}
