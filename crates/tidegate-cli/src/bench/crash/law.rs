//! What is sold: a limit for each law, and how much of it may be sold at most.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use serde_json::{Value, json};

/// How much the limits that are counted by their windows have.
const MUCH: u64 = 100_000;
/// How much an exact sliding window has, which remembers every single one.
const REMEMBERED: u64 = 20_000;
/// How much each key has of the limit that counts them alone, and how many keys there are.
const PER_KEY: u64 = 100;
const KEYS: u32 = 200;
/// The same of the limit that has so much for each key that not all of it is written down.
const MUCH_PER_KEY: u64 = 1000;
const FEW_KEYS: u32 = 20;
/// How much a bucket has at first, and what flows into it in a minute.
const BURST: u64 = 20_000;
const PER_MINUTE: u64 = 60;
/// How many leases there are at once.
const LEASES: u64 = 100;
/// How long windows are, and for how long a calendar day is certain to go on around noon.
const HOUR: Duration = Duration::from_secs(3600);
const HALF_A_DAY: Duration = Duration::from_secs(11 * 3600);
/// A server may lose this part of a limit with each crash.
const SLICES: u64 = 256;

/// A law whose limit is sold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Law {
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

impl Law {
    /// All of them.
    pub(crate) const ALL: [Law; 8] = [
        Law::Total,
        Law::Key,
        Law::KeyDay,
        Law::Day,
        Law::Interval,
        Law::Sliding,
        Law::Bucket,
        Law::Concurrency,
    ];

    /// The id of its limit.
    pub(super) const fn id(self) -> &'static str {
        match self {
            Law::Total => "crash/total",
            Law::Key => "crash/key",
            Law::KeyDay => "crash/key-day",
            Law::Day => "crash/day",
            Law::Interval => "crash/interval",
            Law::Sliding => "crash/sliding",
            Law::Bucket => "crash/bucket",
            Law::Concurrency => "crash/concurrency",
        }
    }

    /// What is made on the server; days are those of this zone.
    pub(super) fn limit(self, zone: &str) -> Value {
        let item = match self {
            Law::Total => json!({"policy": "total", "limit": MUCH}),
            Law::Key => json!({"policy": "total", "limit": PER_KEY, "per": "key"}),
            Law::KeyDay => json!({"policy": "day", "limit": MUCH_PER_KEY, "per": "key"}),
            Law::Day => json!({"policy": "day", "limit": MUCH}),
            Law::Interval => json!({"policy": "interval", "limit": MUCH, "window": "1h"}),
            Law::Sliding => json!({"policy": "sliding", "limit": REMEMBERED, "window": "1h"}),
            Law::Bucket => json!({"policy": "bucket", "limit": PER_MINUTE, "window": "60s", "burst": BURST}),
            Law::Concurrency => json!({"policy": "concurrency", "limit": LEASES, "ttl": "24h"}),
        };
        json!({"id": self.id(), "time_zone": zone, "items": [item]})
    }

    /// How much there is, when nothing has been sold; of all keys together.
    pub(super) const fn capacity(self) -> u64 {
        match self {
            Law::Total | Law::Day | Law::Interval => MUCH,
            Law::Key => PER_KEY * KEYS as u64,
            Law::KeyDay => MUCH_PER_KEY * FEW_KEYS as u64,
            Law::Sliding => REMEMBERED,
            Law::Bucket => BURST,
            Law::Concurrency => LEASES,
        }
    }

    /// How many keys ask.
    pub(super) const fn keys(self) -> u32 {
        match self {
            Law::Key => KEYS,
            Law::KeyDay => FEW_KEYS,
            _ => 1,
        }
    }

    /// The most that may be sold in this time; for leases, at once.
    pub(super) fn most(self, elapsed: Duration) -> u64 {
        let windows = |window: Duration| 1 + elapsed.as_secs() / window.as_secs();
        match self {
            Law::Total | Law::Key | Law::Concurrency => self.capacity(),
            Law::Day | Law::KeyDay => self.capacity() * windows(HALF_A_DAY),
            Law::Interval | Law::Sliding => self.capacity() * windows(HOUR),
            // What is about to be whole may be, by the server's clock.
            Law::Bucket => BURST + inflow(elapsed) + 1,
        }
    }

    /// The least that there was to sell in this time, if all of it was asked for.
    pub(super) fn least(self, elapsed: Duration) -> u64 {
        match self {
            Law::Bucket => BURST + inflow(elapsed),
            _ => self.capacity(),
        }
    }

    /// What a crash may cost: a slice where counts are reserved ahead, nothing where every grant is written down by itself.
    pub(super) const fn slice(self) -> u64 {
        match self {
            Law::Total | Law::Day | Law::Interval | Law::Bucket => self.capacity() / SLICES,
            Law::KeyDay => MUCH_PER_KEY / SLICES * FEW_KEYS as u64,
            Law::Key | Law::Sliding | Law::Concurrency => 0,
        }
    }

    /// Whether the server's count is how often it was charged.
    pub(super) const fn is_counted(self) -> bool {
        matches!(self, Law::Total | Law::Day | Law::Interval | Law::Sliding)
    }
}

impl fmt::Display for Law {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id().trim_start_matches("crash/"))
    }
}

/// Whole units that flow into the bucket in this time.
fn inflow(elapsed: Duration) -> u64 {
    u64::try_from(elapsed.as_millis() * u128::from(PER_MINUTE) / 60_000).unwrap_or(u64::MAX)
}

/// A zone in which it is about noon, so that its day does not end while it is being sold.
pub(super) fn middle_of_the_day() -> String {
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
        for law in Law::ALL {
            let text = json!({"limits": [law.limit("UTC")]}).to_string();
            let settings =
                tidegate_server::settings::read("limits", text.as_bytes()).expect("it makes sense").settings;
            assert_eq!(settings.limits.len(), 1, "{law}");
        }
    }

    #[test]
    fn time_sells_more_only_where_it_flows() {
        let minute = Duration::from_secs(60);
        assert_eq!((Law::Bucket.least(minute), Law::Bucket.most(minute)), (BURST + 60, BURST + 61));
        for law in Law::ALL.into_iter().filter(|law| *law != Law::Bucket) {
            assert_eq!((law.least(minute), law.most(minute)), (law.capacity(), law.capacity()), "{law}");
        }
        assert_eq!(Law::Interval.most(HOUR), 2 * MUCH);
        assert_eq!(Law::Day.most(3 * HALF_A_DAY), 4 * MUCH);
        assert_eq!(Law::KeyDay.most(HALF_A_DAY), 2 * Law::KeyDay.capacity());
    }

    #[test]
    fn small_limits_lose_nothing() {
        assert_eq!((Law::Total.slice(), Law::KeyDay.slice()), (390, 20 * 3));
        assert_eq!((Law::Key.slice(), Law::Sliding.slice(), Law::Concurrency.slice()), (0, 0, 0));
    }
}
