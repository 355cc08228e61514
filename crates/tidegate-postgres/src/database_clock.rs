//! Time: the database's, and never back.
//!
//! One clock decides for all servers, so that theirs may differ. If it is set back, or another machine takes over whose clock is behind, a
//! server goes on from the latest instant it has seen at its own steady pace. What all servers have seen is written down every second, so
//! that a new one does not begin before that.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate::clock::Clock;
use tidegate_core::{Tick, Timestamp};

/// How far the database's clock may seem to go back because two looks at it overtook each other.
const REORDER_TOLERANCE: Duration = Duration::from_secs(1);

/// Where the time comes from.
#[derive(Clone, Default)]
pub enum TimeSource {
    /// The database's clock, looked at when the locks are held.
    #[default]
    Database,
    /// A clock of this process, looked at when the locks are held: for tests, and for replays.
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
    /// When the latest was seen, by this machine's steady clock.
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

    /// The instant it is, when the database says it is so many microseconds after 1970.
    pub(crate) fn now(&self, database_micros: i64) -> Timestamp {
        let told = match &self.source {
            TimeSource::Database => {
                Timestamp::from_ticks(u64::try_from(database_micros).unwrap_or(0).saturating_mul(1000))
            }
            TimeSource::Given(clock) => clock.now(),
        };
        let is_database = matches!(self.source, TimeSource::Database);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let when = monotonic_now();
        if told < seen.latest && is_database {
            let behind = Duration::from_nanos(seen.latest.since(told).ticks());
            if behind > REORDER_TOLERANCE {
                let passed = Tick::NANOSECOND.span(when.saturating_duration_since(seen.when));
                seen.latest = seen.latest.plus(passed);
                seen.when = when;
            }
            return seen.latest;
        }
        seen.latest = seen.latest.max(told);
        seen.when = when;
        seen.latest
    }

    /// Somebody has seen this instant.
    pub(crate) fn raise(&self, latest: Timestamp) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if latest > seen.latest {
            *seen = LatestInstant { latest, when: monotonic_now() };
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "how much time passes while the database's clock is behind")]
fn monotonic_now() -> Instant {
    Instant::now()
}
