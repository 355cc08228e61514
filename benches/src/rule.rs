//! What subjects are asked to hold: rules that every peer can keep, and some that only Tidegate can.

use std::time::Duration;

/// How much, and how it comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Continuously: one unit comes back every `step`, up to `burst` of them. The one that every peer knows.
    Bucket {
        /// The time in which one unit comes back.
        step: Duration,
        /// The most that may be spent at once.
        burst: u32,
    },
    /// So much in a calendar day.
    Day(u32),
    /// So much in an hour that the first hit opens.
    Interval(u32),
    /// So much in any minute, exactly.
    Sliding(u32),
    /// So much in any second, as the gateway counts requests: exactly up to a thousand, above that in 64 parts.
    PerSecond(u32),
}

impl Rule {
    /// More than anybody can ask for, and a second for each unit to come back: one key that is asked for all the time is always
    /// granted, and never fresh.
    pub const FREE: Rule = Rule::Bucket { step: Duration::from_secs(1), burst: 1_000_000_000 };
    /// More than any of many keys is asked for, and an hour for each unit to come back: a row that was charged once is not fresh
    /// for as long as it is measured. Were it sooner, what is measured need not remember it.
    pub const LIVE: Rule = Rule::Bucket { step: Duration::from_secs(3_600), burst: 100_000 };
    /// Spent at once: nearly everything is refused.
    pub const SPENT: Rule = Rule::Bucket { step: Duration::from_secs(17_280), burst: 5 };
    /// Fresh again a tenth of a second after one hit: its rows need not be kept for long.
    pub const BRIEF: Rule = Rule::Bucket { step: Duration::from_millis(100), burst: 10 };

    /// The window of [`Rule::Sliding`].
    pub const MINUTE: Duration = Duration::from_secs(60);
    /// The window of [`Rule::Interval`].
    pub const HOUR: Duration = Duration::from_secs(3_600);

    /// The rule of this name.
    pub fn named(name: &str) -> Option<Rule> {
        Some(match name {
            "bucket" => Rule::LIVE,
            "day" => Rule::Day(1_000),
            "interval" => Rule::Interval(1_000),
            "sliding" => Rule::Sliding(10),
            _ => return None,
        })
    }
}

/// Whose spending a rule counts together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Everybody's.
    Shared,
    /// Each key's alone.
    PerKey,
}
