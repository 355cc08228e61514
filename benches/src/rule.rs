//! The rules that subjects enforce. Every peer supports buckets, and only Tidegate supports the others.

use std::time::Duration;

/// A capacity and how it refills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BenchRule {
    /// Continuous refill: one unit per `step`, up to `burst` units. Every peer supports it.
    Bucket {
        /// The time in which one unit returns.
        step: Duration,
        /// The maximum number of units at once.
        burst: u32,
    },
    /// Units per calendar day.
    Day(u32),
    /// Units per hour, starting with the first request.
    Interval(u32),
    /// Units in any minute, exactly.
    Sliding(u32),
    /// Units in any second, as the gateway counts requests: exactly up to a thousand, above that in 64 parts.
    PerSecond(u32),
}

impl BenchRule {
    /// More units than any run requests, with one second per unit: a single key is always granted and its row
    /// never expires.
    pub const FREE: BenchRule = BenchRule::Bucket { step: Duration::from_secs(1), burst: 1_000_000_000 };
    /// More units than any key requests, with one hour per unit: a row with one charge does not expire during
    /// a run.
    pub const LIVE: BenchRule = BenchRule::Bucket { step: Duration::from_secs(3_600), burst: 100_000 };
    /// Used up at once: nearly all requests are refused.
    pub const SPENT: BenchRule = BenchRule::Bucket { step: Duration::from_secs(17_280), burst: 5 };
    /// Expires 0.1 s after one request, so its rows are short-lived.
    pub const BRIEF: BenchRule = BenchRule::Bucket { step: Duration::from_millis(100), burst: 10 };

    /// The window of [`BenchRule::Sliding`].
    pub const MINUTE: Duration = Duration::from_secs(60);
    /// The window of [`BenchRule::Interval`].
    pub const HOUR: Duration = Duration::from_secs(3_600);

    /// The rule with this name.
    pub fn named(name: &str) -> Option<BenchRule> {
        Some(match name {
            "bucket" => BenchRule::LIVE,
            "day" => BenchRule::Day(1_000),
            "interval" => BenchRule::Interval(1_000),
            "sliding" => BenchRule::Sliding(10),
            _ => return None,
        })
    }
}

/// Which keys share a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitScope {
    /// All keys.
    Shared,
    /// Each key has its own.
    PerKey,
}
