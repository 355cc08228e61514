//! What subjects are asked to hold: rules that every peer can keep, and some that only Tidegate can.

use std::time::Duration;

/// How much, and how it comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Continuously: `capacity` in a `window`, all of it at once if need be. The one that every peer knows.
    Bucket {
        /// How much.
        capacity: u32,
        /// In which time.
        window: Duration,
    },
    /// So much in a calendar day.
    Day(u32),
    /// So much in a minute that the first hit opens.
    Interval(u32),
    /// So much in any minute, exactly.
    Sliding(u32),
}

impl Rule {
    /// More than anybody can ask for: everything is granted.
    pub const FREE: Rule = Rule::Bucket { capacity: 1_000_000_000, window: Duration::from_secs(1) };
    /// More than a key is asked for here, and an hour for each unit to come back: rows last for as long as they are
    /// measured.
    pub const PLENTY: Rule = Rule::Bucket { capacity: 1_000, window: Duration::from_secs(3_600_000) };
    /// Spent at once: nearly everything is refused.
    pub const SPENT: Rule = Rule::Bucket { capacity: 5, window: Duration::from_secs(86_400) };
    /// Fresh again a tenth of a second after one hit: its rows need not be kept for long.
    pub const BRIEF: Rule = Rule::Bucket { capacity: 10, window: Duration::from_secs(1) };

    /// The rule of this name.
    pub fn named(name: &str) -> Option<Rule> {
        Some(match name {
            "bucket" => Rule::PLENTY,
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
