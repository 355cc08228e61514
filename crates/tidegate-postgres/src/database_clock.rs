//! The database's clock, made monotonic.
//!
//! All servers use the database's clock, so their own clocks may differ. If that clock goes back, for example after a failover,
//! a server continues from the latest instant it has seen, at the pace of its monotonic clock. The latest instant of all servers
//! is stored every second, so a new server does not start before it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate::clock::Clock;
use tidegate_core::{Tick, Timestamp};

/// Reads that overtake each other can make the clock appear to go back by up to this much.
const REORDER_TOLERANCE: Duration = Duration::from_secs(1);

/// The source of time.
#[derive(Clone, Default)]
pub enum TimeSource {
    /// The database's clock, read while the locks are held.
    #[default]
    Database,
    /// A clock of this process, read while the locks are held. For tests and replays.
    Given(Arc<dyn Clock>),
}

impl std::fmt::Debug for TimeSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            TimeSource::Database => "Database",
            TimeSource::Given(_) => "Given",
        })
    }
}

/// The time as this server has seen it.
#[derive(Debug)]
pub(crate) struct DatabaseClock {
    source: TimeSource,
    seen: Mutex<LatestInstant>,
}

#[derive(Debug)]
struct LatestInstant {
    latest: Timestamp,
    /// The monotonic time when the latest instant was seen.
    when: Instant,
}

impl DatabaseClock {
    pub(crate) fn new(source: TimeSource) -> DatabaseClock {
        DatabaseClock {
            source,
            seen: Mutex::new(LatestInstant { latest: Timestamp::EPOCH, when: monotonic_now() }),
        }
    }

    pub(crate) fn tick(&self) -> Tick {
        match &self.source {
            TimeSource::Database => Tick::NANOSECOND,
            TimeSource::Given(clock) => clock.tick(),
        }
    }

    /// The current instant, given the database's clock in microseconds since 1970.
    pub(crate) fn now(&self, database_micros: i64) -> Timestamp {
        let reading = match &self.source {
            TimeSource::Database => {
                Timestamp::from_ticks(u64::try_from(database_micros).unwrap_or(0).saturating_mul(1000))
            }
            TimeSource::Given(clock) => clock.now(),
        };
        let is_database = matches!(self.source, TimeSource::Database);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let when = monotonic_now();
        if reading < seen.latest && is_database {
            let behind = Duration::from_nanos(seen.latest.since(reading).ticks());
            if behind > REORDER_TOLERANCE {
                let passed = Tick::NANOSECOND.span(when.saturating_duration_since(seen.when));
                seen.latest = seen.latest.plus(passed);
                seen.when = when;
            }
            return seen.latest;
        }
        seen.latest = seen.latest.max(reading);
        seen.when = when;
        seen.latest
    }

    /// Raises the latest instant to one that another server has seen.
    pub(crate) fn raise(&self, latest: Timestamp) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if latest > seen.latest {
            *seen = LatestInstant { latest, when: monotonic_now() };
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the monotonic clock measures time while the database's clock is behind"
)]
fn monotonic_now() -> Instant {
    Instant::now()
}
