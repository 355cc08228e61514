//! The clock: time that is good to half a second, for what need not be known better.
//!
//! How long a connection has been silent, and what the `Date` field says, are not worth a clock reading per request. A task per
//! worker writes both down twice a second. Whoever has begun a request and not ended it is timed by a real clock; there are few of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// How far from the truth it may be.
pub(super) const RESOLUTION: Duration = Duration::from_millis(500);

/// How many bytes a date of HTTP has.
pub(super) const DATE_BYTES: usize = 29;

/// Coarse time of one worker.
#[derive(Debug)]
pub(super) struct CoarseClock {
    started: Instant,
    /// Milliseconds since.
    elapsed_millis: AtomicU64,
    date: RwLock<[u8; DATE_BYTES]>,
}

impl CoarseClock {
    pub(super) fn new() -> Arc<CoarseClock> {
        Arc::new(CoarseClock {
            started: Instant::now(),
            elapsed_millis: AtomicU64::new(0),
            date: RwLock::new(date()),
        })
    }

    /// About now, and rather too late than too early: nobody's time is up before it is.
    pub(super) fn now(&self) -> Instant {
        self.started + Duration::from_millis(self.elapsed_millis.load(Ordering::Relaxed)) + RESOLUTION
    }

    /// The `Date` field of an answer.
    pub(super) fn date(&self) -> [u8; DATE_BYTES] {
        *self.date.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on writing down what time it is.
    pub(super) async fn run(self: Arc<CoarseClock>) {
        let mut interval = tokio::time::interval(RESOLUTION);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        loop {
            interval.tick().await;
            let elapsed_millis = self.started.elapsed().as_millis();
            self.elapsed_millis.store(u64::try_from(elapsed_millis).unwrap_or(u64::MAX), Ordering::Relaxed);
            *self.date.write().unwrap_or_else(PoisonError::into_inner) = date();
        }
    }
}

/// The date as HTTP writes it.
#[expect(
    clippy::disallowed_methods,
    reason = "a date on the wire is the wall clock's; nothing is decided by it"
)]
fn date() -> [u8; DATE_BYTES] {
    let now = jiff::Timestamp::try_from(SystemTime::now()).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    format_date(now)
}

fn format_date(at: jiff::Timestamp) -> [u8; DATE_BYTES] {
    let text = at.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    text.as_bytes().try_into().unwrap_or(*b"Thu, 01 Jan 1970 00:00:00 GMT")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_as_http_wants_them() {
        let at = |second| format_date(jiff::Timestamp::from_second(second).expect("a time"));
        assert_eq!(&at(0), b"Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(&at(1_794_787_200), b"Mon, 16 Nov 2026 00:00:00 GMT");
    }
}
