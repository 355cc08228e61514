//! The limits of a crash test: one per algorithm, and the most that may be sold of each.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use serde_json::{Value, json};

/// Capacity of the limits with calendar or interval windows.
const WINDOW_CAPACITY: u64 = 100_000;
/// Capacity of the exact sliding window, which stores every grant.
const SLIDING_CAPACITY: u64 = 20_000;
/// Capacity per key and number of keys of the per-key total.
const PER_KEY: u64 = 100;
const KEYS: u32 = 200;
/// The same for the per-key day, whose capacity is large enough for reserved slices.
const KEY_DAY_CAPACITY: u64 = 1000;
const KEY_DAY_KEYS: u32 = 20;
/// Burst of the bucket and its refill per minute.
const BURST: u64 = 20_000;
const PER_MINUTE: u64 = 60;
/// Number of concurrent leases.
const LEASES: u64 = 100;
/// Window length, and the time that a calendar day lasts at least from noon on.
const HOUR: Duration = Duration::from_secs(3600);
const NOON_TO_MIDNIGHT: Duration = Duration::from_secs(11 * 3600);
/// A crash may lose this fraction of a limit.
const SLICES_PER_LIMIT: u64 = 256;

/// A limit of the crash test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum TestedLimit {
    /// Total for all keys
    Total,
    /// Total per key
    Key,
    /// Calendar day per key
    KeyDay,
    /// Calendar day for all keys
    Day,
    /// Interval of an hour, anchored at the first hit
    Interval,
    /// Exact sliding window of an hour
    Sliding,
    /// Bucket with a slow refill
    Bucket,
    /// Concurrent leases
    Concurrency,
}

impl TestedLimit {
    /// All tested limits.
    pub(crate) const ALL: [TestedLimit; 8] = [
        TestedLimit::Total,
        TestedLimit::Key,
        TestedLimit::KeyDay,
        TestedLimit::Day,
        TestedLimit::Interval,
        TestedLimit::Sliding,
        TestedLimit::Bucket,
        TestedLimit::Concurrency,
    ];

    /// The id of the limit.
    pub(super) const fn id(self) -> &'static str {
        match self {
            TestedLimit::Total => "crash/total",
            TestedLimit::Key => "crash/key",
            TestedLimit::KeyDay => "crash/key-day",
            TestedLimit::Day => "crash/day",
            TestedLimit::Interval => "crash/interval",
            TestedLimit::Sliding => "crash/sliding",
            TestedLimit::Bucket => "crash/bucket",
            TestedLimit::Concurrency => "crash/concurrency",
        }
    }

    /// The limit's definition. Calendar days are those of this time zone.
    pub(super) fn definition(self, zone: &str) -> Value {
        let item = match self {
            TestedLimit::Total => json!({"policy": "total", "limit": WINDOW_CAPACITY}),
            TestedLimit::Key => json!({"policy": "total", "limit": PER_KEY, "per": "key"}),
            TestedLimit::KeyDay => json!({"policy": "day", "limit": KEY_DAY_CAPACITY, "per": "key"}),
            TestedLimit::Day => json!({"policy": "day", "limit": WINDOW_CAPACITY}),
            TestedLimit::Interval => json!({"policy": "interval", "limit": WINDOW_CAPACITY, "window": "1h"}),
            TestedLimit::Sliding => json!({"policy": "sliding", "limit": SLIDING_CAPACITY, "window": "1h"}),
            TestedLimit::Bucket => {
                json!({"policy": "bucket", "limit": PER_MINUTE, "window": "60s", "burst": BURST})
            }
            TestedLimit::Concurrency => json!({"policy": "concurrency", "limit": LEASES, "ttl": "24h"}),
        };
        json!({"id": self.id(), "time_zone": zone, "items": [item]})
    }

    /// Total capacity, all keys together.
    pub(super) const fn capacity(self) -> u64 {
        match self {
            TestedLimit::Total | TestedLimit::Day | TestedLimit::Interval => WINDOW_CAPACITY,
            TestedLimit::Key => PER_KEY * KEYS as u64,
            TestedLimit::KeyDay => KEY_DAY_CAPACITY * KEY_DAY_KEYS as u64,
            TestedLimit::Sliding => SLIDING_CAPACITY,
            TestedLimit::Bucket => BURST,
            TestedLimit::Concurrency => LEASES,
        }
    }

    /// Number of keys.
    pub(super) const fn keys(self) -> u32 {
        match self {
            TestedLimit::Key => KEYS,
            TestedLimit::KeyDay => KEY_DAY_KEYS,
            _ => 1,
        }
    }

    /// The most units that may be sold in this time; for leases, held at once.
    pub(super) fn max_grants(self, elapsed: Duration) -> u64 {
        let windows = |window: Duration| 1 + elapsed.as_secs() / window.as_secs();
        match self {
            TestedLimit::Total | TestedLimit::Key | TestedLimit::Concurrency => self.capacity(),
            TestedLimit::Day | TestedLimit::KeyDay => self.capacity() * windows(NOON_TO_MIDNIGHT),
            TestedLimit::Interval | TestedLimit::Sliding => self.capacity() * windows(HOUR),
            // One unit more, because the server's clock may be slightly ahead.
            TestedLimit::Bucket => BURST + inflow(elapsed) + 1,
        }
    }

    /// The units that can be sold in this time, if all are requested.
    pub(super) fn min_grants(self, elapsed: Duration) -> u64 {
        match self {
            TestedLimit::Bucket => BURST + inflow(elapsed),
            _ => self.capacity(),
        }
    }

    /// The loss allowed per crash: one slice where counts are reserved ahead, nothing where every grant is logged.
    pub(super) const fn loss_per_crash(self) -> u64 {
        match self {
            TestedLimit::Total | TestedLimit::Day | TestedLimit::Interval | TestedLimit::Bucket => {
                self.capacity() / SLICES_PER_LIMIT
            }
            TestedLimit::KeyDay => KEY_DAY_CAPACITY / SLICES_PER_LIMIT * KEY_DAY_KEYS as u64,
            TestedLimit::Key | TestedLimit::Sliding | TestedLimit::Concurrency => 0,
        }
    }

    /// Whether the server's count equals the number of charges.
    pub(super) const fn is_counted(self) -> bool {
        matches!(self, TestedLimit::Total | TestedLimit::Day | TestedLimit::Interval | TestedLimit::Sliding)
    }
}

impl fmt::Display for TestedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id().trim_start_matches("crash/"))
    }
}

/// Whole units that flow into the bucket in this time.
fn inflow(elapsed: Duration) -> u64 {
    u64::try_from(elapsed.as_millis() * u128::from(PER_MINUTE) / 60_000).unwrap_or(u64::MAX)
}

/// A time zone where it is about noon, so that the calendar day does not end during the test.
pub(super) fn zone_at_noon_now() -> String {
    zone_at_noon(jiff::Timestamp::now().as_second().div_euclid(3600).rem_euclid(24))
}

/// The time zone where it is 12 to 13 o'clock at this UTC hour. POSIX-style names have the opposite sign.
fn zone_at_noon(hour: i64) -> String {
    match 12 - hour {
        0 => "Etc/GMT".to_owned(),
        ahead @ 1.. => format!("Etc/GMT-{ahead}"),
        behind => format!("Etc/GMT+{}", -behind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::{Timestamp, tz::TimeZone};

    #[test]
    fn chosen_zone_has_noon() {
        for hour in 0..24 {
            let zone = TimeZone::get(&zone_at_noon(hour)).expect("a zone of the database");
            let at = Timestamp::from_second(hour * 3600 + 59).expect("a time");
            assert_eq!(at.to_zoned(zone).hour(), 12, "{hour}");
        }
    }

    #[test]
    fn definitions_are_valid_limits() {
        for limit in TestedLimit::ALL {
            let text = json!({"limits": [limit.definition("UTC")]}).to_string();
            let settings =
                tidegate_server::settings::read("limits", text.as_bytes()).expect("valid limits").settings;
            assert_eq!(settings.limits.len(), 1, "{limit}");
        }
    }

    #[test]
    fn grants_grow_with_time_only_for_buckets_and_windows() {
        let minute = Duration::from_secs(60);
        assert_eq!(
            (TestedLimit::Bucket.min_grants(minute), TestedLimit::Bucket.max_grants(minute)),
            (BURST + 60, BURST + 61)
        );
        for limit in TestedLimit::ALL.into_iter().filter(|limit| *limit != TestedLimit::Bucket) {
            assert_eq!(
                (limit.min_grants(minute), limit.max_grants(minute)),
                (limit.capacity(), limit.capacity()),
                "{limit}"
            );
        }
        assert_eq!(TestedLimit::Interval.max_grants(HOUR), 2 * WINDOW_CAPACITY);
        assert_eq!(TestedLimit::Day.max_grants(3 * NOON_TO_MIDNIGHT), 4 * WINDOW_CAPACITY);
        assert_eq!(TestedLimit::KeyDay.max_grants(NOON_TO_MIDNIGHT), 2 * TestedLimit::KeyDay.capacity());
    }

    #[test]
    fn small_limits_allow_no_loss() {
        assert_eq!(
            (TestedLimit::Total.loss_per_crash(), TestedLimit::KeyDay.loss_per_crash()),
            (390, 20 * 3)
        );
        assert_eq!(
            (
                TestedLimit::Key.loss_per_crash(),
                TestedLimit::Sliding.loss_per_crash(),
                TestedLimit::Concurrency.loss_per_crash()
            ),
            (0, 0, 0)
        );
    }
}
