//! Token buckets, the one policy that Tidegate and every peer support.

use std::time::Duration;

use tidegate::{Rule, bucket};

/// A token bucket: one unit returns per `refill`, up to `burst` units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketQuota {
    /// The time in which one unit returns.
    pub refill: Duration,
    /// The maximum number of units at once.
    pub burst: u32,
}

impl BucketQuota {
    /// More units than any run requests, with one second per unit: a single key is always granted and its row
    /// never expires.
    pub const FREE: BucketQuota = BucketQuota { refill: Duration::from_secs(1), burst: 1_000_000_000 };
    /// More units than any key requests, with one hour per unit: a row with one charge does not expire during
    /// a run.
    pub const LIVE: BucketQuota = BucketQuota { refill: Duration::from_secs(3_600), burst: 100_000 };
    /// Used up at once: nearly all requests are refused.
    pub const SPENT: BucketQuota = BucketQuota { refill: Duration::from_secs(17_280), burst: 5 };
    /// Expires 0.1 s after one request, so its rows are short-lived.
    pub const BRIEF: BucketQuota = BucketQuota { refill: Duration::from_millis(100), burst: 10 };

    /// Tidegate's rule, which counts all keys together.
    pub fn rule(self) -> Rule {
        bucket(1, self.refill).burst(self.burst.into())
    }
}
