//! What is sold: a limit for each law, and how much of it may be sold at most.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use serde_json::{Value, json};

/// How much the limits that are counted by their windows have.
const WINDOW_CAPACITY: u64 = 100_000;
/// How much an exact sliding window has, which remembers every single one.
const SLIDING_CAPACITY: u64 = 20_000;
/// How much each key has of the limit that counts them alone, and how many keys there are.
const PER_KEY: u64 = 100;
const KEYS: u32 = 200;
/// The same of the limit that has so much for each key that not all of it is written down.
const KEY_DAY_CAPACITY: u64 = 1000;
const KEY_DAY_KEYS: u32 = 20;
/// How much a bucket has at first, and what flows into it in a minute.
const BURST: u64 = 20_000;
const PER_MINUTE: u64 = 60;
/// How many leases there are at once.
const LEASES: u64 = 100;
/// How long windows are, and for how long a calendar day is certain to go on around noon.
const HOUR: Duration = Duration::from_secs(3600);
const NOON_TO_MIDNIGHT: Duration = Duration::from_secs(11 * 3600);
/// A server may lose this part of a limit with each crash.
const SLICES_PER_LIMIT: u64 = 256;

/// A law whose limit is sold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum TestedLimit {
    /// So many, ever
    Total,
    /// So many for each key
    Key,
    /// Many in a day for each key
    KeyDay,
    /// So many in a day
    Day,
    /// So many in an hour that begins with the first
    Interval,
    /// So many in any hour
    Sliding,
    /// A bucket that fills slowly
    Bucket,
    /// So many at once
    Concurrency,
}

impl TestedLimit {
    /// All of them.
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

    /// The id of its limit.
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

    /// What is made on the server; days are those of this zone.
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

    /// How much there is, when nothing has been sold; of all keys together.
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

    /// How many keys ask.
    pub(super) const fn keys(self) -> u32 {
        match self {
            TestedLimit::Key => KEYS,
            TestedLimit::KeyDay => KEY_DAY_KEYS,
            _ => 1,
        }
    }

    /// The most that may be sold in this time; for leases, at once.
    pub(super) fn max_grants(self, elapsed: Duration) -> u64 {
        let windows = |window: Duration| 1 + elapsed.as_secs() / window.as_secs();
        match self {
            TestedLimit::Total | TestedLimit::Key | TestedLimit::Concurrency => self.capacity(),
            TestedLimit::Day | TestedLimit::KeyDay => self.capacity() * windows(NOON_TO_MIDNIGHT),
            TestedLimit::Interval | TestedLimit::Sliding => self.capacity() * windows(HOUR),
            // What is about to be whole may be, by the server's clock.
            TestedLimit::Bucket => BURST + inflow(elapsed) + 1,
        }
    }

    /// The least that there was to sell in this time, if all of it was asked for.
    pub(super) fn min_grants(self, elapsed: Duration) -> u64 {
        match self {
            TestedLimit::Bucket => BURST + inflow(elapsed),
            _ => self.capacity(),
        }
    }

    /// What a crash may cost: a slice where counts are reserved ahead, nothing where every grant is written down by itself.
    pub(super) const fn loss_per_crash(self) -> u64 {
        match self {
            TestedLimit::Total | TestedLimit::Day | TestedLimit::Interval | TestedLimit::Bucket => {
                self.capacity() / SLICES_PER_LIMIT
            }
            TestedLimit::KeyDay => KEY_DAY_CAPACITY / SLICES_PER_LIMIT * KEY_DAY_KEYS as u64,
            TestedLimit::Key | TestedLimit::Sliding | TestedLimit::Concurrency => 0,
        }
    }

    /// Whether the server's count is how often it was charged.
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

/// A zone in which it is about noon, so that its day does not end while it is being sold.
pub(super) fn zone_at_noon_now() -> String {
    zone_at_noon(jiff::Timestamp::now().as_second().div_euclid(3600).rem_euclid(24))
}

/// The zone in which it is between twelve and one when it is this hour in UTC. Its name says the offset with the other sign.
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
    fn a_day_does_not_end_soon() {
        for hour in 0..24 {
            let zone = TimeZone::get(&zone_at_noon(hour)).expect("it is in the database");
            let at = Timestamp::from_second(hour * 3600 + 59).expect("a time");
            assert_eq!(at.to_zoned(zone).hour(), 12, "{hour}");
        }
    }

    #[test]
    fn limits_are_what_the_server_reads() {
        for limit in TestedLimit::ALL {
            let text = json!({"limits": [limit.definition("UTC")]}).to_string();
            let settings = tidegate::file::read("limits", text.as_bytes()).expect("it makes sense").settings;
            assert_eq!(settings.limits.len(), 1, "{limit}");
        }
    }

    #[test]
    fn time_sells_more_only_where_it_flows() {
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
    fn small_limits_lose_nothing() {
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
