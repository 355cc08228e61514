//! CPU limits as quota and period of the kernel's bandwidth control.
//!
//! ```text
//!   limit 26.7 % of one core  ──▶  26700 in 100000
//!   limit 30 % of two cores   ──▶  60000 in 100000
//!   limit 0.4 % of one core   ──▶   4000 in 1000000      the kernel rejects a quota below 1000
//! ```

use tidegate_core::budget::Rate;

use super::WHOLE;

/// Usual period in microseconds. Used unless the quota would be too small.
const PERIOD: u64 = 100_000;
/// The longest period that the kernel accepts.
const MAX_PERIOD: u64 = 1_000_000;
/// The smallest quota that the kernel accepts: a thousandth of a core with the longest period.
const MIN_QUOTA: u64 = 1_000;
/// Microseconds per second.
const SECOND: u64 = 1_000_000;

/// How much unused quota may be used later, in percent of one quota. It allows short bursts and does not change the average.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct QuotaBurst(u8);

impl QuotaBurst {
    /// Unused quota is lost at the end of a period.
    pub const NONE: QuotaBurst = QuotaBurst(0);
    /// One whole quota, the maximum.
    pub const ONE_QUOTA: QuotaBurst = QuotaBurst(100);

    /// This many percent of a quota, at most 100.
    pub const fn of_percent(percent: u8) -> QuotaBurst {
        QuotaBurst(if percent > 100 { 100 } else { percent })
    }
}

impl Default for QuotaBurst {
    fn default() -> QuotaBurst {
        QuotaBurst::ONE_QUOTA
    }
}

/// Kernel parameters of a limit, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bandwidth {
    pub(super) quota: u64,
    pub(super) period: u64,
    pub(super) burst: u64,
}

impl Bandwidth {
    /// The largest quota within the limit, but at least the kernel's minimum.
    pub(super) fn of(limit: Rate, cores: u32, burst: QuotaBurst) -> Bandwidth {
        Bandwidth::of_share(share(limit, cores), burst)
    }

    /// Like [`Bandwidth::of`], from microseconds per second.
    pub(super) fn of_share(share: u64, burst: QuotaBurst) -> Bandwidth {
        let in_period = |period: u64| share / (SECOND / period);
        let (quota, period) = match in_period(PERIOD) {
            quota if quota >= MIN_QUOTA => (quota, PERIOD),
            _ => (in_period(MAX_PERIOD).max(MIN_QUOTA), MAX_PERIOD),
        };
        Bandwidth {
            quota,
            period,
            burst: quota / 100 * u64::from(burst.0) + quota % 100 * u64::from(burst.0) / 100,
        }
    }
}

/// The limit in microseconds per second, capped at all cores.
pub(super) fn share(limit: Rate, cores: u32) -> u64 {
    let whole = u64::from(cores) * SECOND;
    let part = u128::from(limit.billionths()) * u128::from(whole) / WHOLE;
    u64::try_from(part).map_or(whole, |part| part.min(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(millionths: u64, cores: u32) -> (u64, u64) {
        let bandwidth = Bandwidth::of(Rate::from_billionths(millionths * 1000), cores, QuotaBurst::NONE);
        (bandwidth.quota, bandwidth.period)
    }

    #[test]
    fn bandwidth_of_limit_rounds_down_to_microseconds() {
        assert_eq!(written(26_700_000, 1), (26_700, 100_000));
        assert_eq!(written(27_750_000, 1), (27_750, 100_000));
        assert_eq!(written(27_750_000, 4), (111_000, 100_000));
        // Rounded down: 27.745652 % of one core.
        assert_eq!(written(27_745_652, 1), (27_745, 100_000));
    }

    #[test]
    fn bandwidth_of_small_limit_has_longest_period() {
        assert_eq!(written(1_000_000, 1), (1_000, 100_000));
        assert_eq!(written(999_999, 1), (9_999, 1_000_000));
        assert_eq!(written(100_000, 1), (1_000, 1_000_000));
        assert_eq!(written(0, 64), (1_000, 1_000_000));
    }

    #[test]
    fn bandwidth_of_excessive_limit_is_all_cores() {
        assert_eq!(written(100_000_000, 2), (200_000, 100_000));
        assert_eq!(written(u64::MAX / 1000, u32::MAX), (100_000 * u64::from(u32::MAX), 100_000));
    }

    #[test]
    fn burst_above_one_quota_is_capped() {
        let burst = |burst| Bandwidth::of(Rate::from_units(30), 2, burst).burst;
        assert_eq!(burst(QuotaBurst::default()), 60_000);
        assert_eq!(burst(QuotaBurst::of_percent(250)), 60_000);
        assert_eq!(burst(QuotaBurst::of_percent(25)), 15_000);
        assert_eq!(burst(QuotaBurst::NONE), 0);
    }
}
