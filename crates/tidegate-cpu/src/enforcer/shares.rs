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
const FLOOR: u64 = 10;
/// A cgroup that used this many eighths of its quota would have used more.
const HUNGRY_EIGHTHS: u64 = 7;

/// One limit shared by several cgroups.
#[derive(Debug)]
pub struct SharedQuota {
    roots: FilesystemRoots,
    burst: QuotaBurst,
    guardian: CpuWatchdog,
    parts: Vec<Part>,
    divided_at: Option<Instant>,
}

#[derive(Debug)]
struct Part {
    path: PathBuf,
    quota: QuotaEnforcer,
    meter: CgroupMeter,
    last: MeterReading,
    /// Last share, in microseconds per second.
    share: Option<u64>,
}

impl SharedQuota {
    /// Prepares quotas for the cgroups at these paths. Missing cgroups are skipped.
    pub fn over(
        roots: &FilesystemRoots,
        paths: &[PathBuf],
        burst: QuotaBurst,
        guardian: &CpuWatchdog,
    ) -> Result<SharedQuota, EnforceError> {
        let mut shares = SharedQuota {
            roots: roots.clone(),
            burst,
            guardian: guardian.clone(),
            parts: Vec::new(),
            divided_at: None,
        };
        shares.follow(paths)?;
        Ok(shares)
    }

    /// Replaces the set of cgroups. Removed ones get their earlier quotas back.
    pub fn follow(&mut self, paths: &[PathBuf]) -> Result<(), EnforceError> {
        let (stay, mut leave): (Vec<Part>, Vec<Part>) =
            self.parts.drain(..).partition(|part| paths.contains(&part.path));
        self.parts = stay;
        let restored = leave.iter_mut().try_for_each(|part| part.quota.restore());
        for path in paths {
            if self.parts.iter().all(|part| part.path != *path) {
                match self.part(path) {
                    Ok(part) => self.parts.push(part),
                    Err(error) if is_gone(&error) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        restored
    }

    /// Paths of the limited cgroups.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.parts.iter().map(|part| part.path.as_path())
    }

    fn part(&self, path: &Path) -> Result<Part, EnforceError> {
        let quota = QuotaEnforcer::over(&self.roots, path, self.burst, &self.guardian)?;
        let mut meter = CgroupMeter::new(&self.roots, path)?;
        let last = meter.read()?;
        Ok(Part { path: path.to_owned(), quota, meter, last, share: None })
    }

    /// Estimates the demand of each cgroup since the last call. Drops cgroups that are gone.
    fn look(&mut self, passed: Duration) -> Result<Vec<Wish>, EnforceError> {
        let mut wishes = Vec::new();
        let mut left = Vec::new();
        for mut part in self.parts.drain(..) {
            let reading = match part.meter.read() {
                Ok(reading) => reading,
                Err(MeterError::Cgroup(CgroupError::Missing { .. })) => continue,
                Err(error) => return Err(error.into()),
            };
            let used = reading.since(&part.last).unwrap_or(reading.used);
            part.last = reading;
            wishes.push(Wish::of(used, passed, part.share));
            left.push(part);
        }
        self.parts = left;
        Ok(wishes)
    }
}

impl Enforcer for SharedQuota {
    fn apply(&mut self, limit: Rate) -> Result<(), EnforceError> {
        let now = now();
        let passed = self.divided_at.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        let wishes = self.look(passed)?;
        self.divided_at = Some(now);
        let cores = cores_in(&self.roots)?;
        let shares = divide(share(limit, cores), &wishes);
        let mut first_error = Ok(());
        for (part, share) in self.parts.iter_mut().zip(shares) {
            part.share = Some(share);
            let put = part.quota.put(Bandwidth::of_share(share, part.quota.burst()));
            match put {
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
        for part in &mut self.parts {
            part.share = None;
            first_error = first_error.and(part.quota.restore());
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
enum Wish {
    /// As much as possible.
    All,
    /// This rate.
    Some(u64),
}

impl Wish {
    fn of(used: Duration, passed: Duration, share: Option<u64>) -> Wish {
        if passed.is_zero() {
            // No measurement yet.
            return Wish::All;
        }
        let rate = used.as_micros().saturating_mul(1_000_000) / passed.as_micros().max(1);
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        match share {
            Some(share) if rate.saturating_mul(8) < share.saturating_mul(HUNGRY_EIGHTHS) => {
                Wish::Some(rate.saturating_add(rate / 4))
            }
            _ => Wish::All,
        }
    }
}

/// Divides a total by demand. The sum of the shares never exceeds the total.
fn divide(whole: u64, wishes: &[Wish]) -> Vec<u64> {
    let count = wishes.len() as u64;
    if count == 0 {
        return Vec::new();
    }
    let floor = whole / count / FLOOR;
    let mut shares = vec![0; wishes.len()];
    // Smallest demand first: the remainder goes to the others.
    let mut order: Vec<usize> = (0..wishes.len()).collect();
    order.sort_by_key(|index| match wishes[*index] {
        Wish::Some(wish) => (0, wish),
        Wish::All => (1, 0),
    });
    let mut left = whole;
    for (done, index) in order.iter().enumerate() {
        let even = left / (count - done as u64);
        let share = match wishes[*index] {
            Wish::Some(wish) => wish.max(floor).min(even),
            Wish::All => even,
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
    fn the_hungry_share_what_the_others_leave() {
        let shares = divide(1000, &[Wish::Some(0), Wish::All, Wish::Some(100), Wish::All]);
        assert_eq!(shares, [25, 437, 100, 438]);
    }

    #[test]
    fn who_was_small_and_is_hungry_is_not_kept_small() {
        // The second cgroup used up its minimum share, the first almost all of its share.
        let wish = |used, share| Wish::of(Duration::from_micros(used), Duration::from_secs(1), Some(share));
        assert_eq!(divide(1000, &[wish(940, 950), wish(50, 50)]), [500, 500]);
    }

    #[test]
    fn without_anybody_hungry_there_is_room_for_all() {
        assert_eq!(divide(1000, &[Wish::Some(100), Wish::Some(300)]), [400, 600]);
        assert_eq!(divide(1000, &[Wish::Some(0), Wish::Some(0)]), [500, 500]);
    }

    #[test]
    fn the_sum_is_never_more_than_the_whole() {
        let wishes = [Wish::All, Wish::Some(0), Wish::Some(7), Wish::Some(u64::MAX), Wish::Some(500)];
        for whole in [0, 1, 2, 7, 99, 1000, 1_000_003, u64::MAX] {
            for count in 0..=wishes.len() {
                let sum: u128 = divide(whole, &wishes[..count]).into_iter().map(u128::from).sum();
                assert!(sum <= u128::from(whole), "{whole} for {count}");
            }
        }
    }

    #[test]
    fn what_is_not_known_is_everything() {
        assert_eq!(Wish::of(Duration::ZERO, Duration::ZERO, None), Wish::All);
        assert_eq!(Wish::of(Duration::ZERO, Duration::from_secs(1), None), Wish::All);
        assert_eq!(Wish::of(Duration::from_micros(8), Duration::from_secs(1), Some(100)), Wish::Some(10));
    }
}
