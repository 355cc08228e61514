//! A clock with a resolution of half a second.
//!
//! Idle times and the `Date` header do not need a clock reading per request. One task per worker updates both every 500 ms. A request
//! in progress is timed by the exact clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// The largest error of the clock.
pub(super) const RESOLUTION: Duration = Duration::from_millis(500);

/// Length of an HTTP date.
pub(super) const DATE_BYTES: usize = 29;

/// The coarse time of one worker.
#[derive(Debug)]
pub(super) struct CoarseClock {
    started: Instant,
    /// Milliseconds since `started`, at the last update.
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

    /// The current time, rounded up so that no deadline fires early.
    pub(super) fn now(&self) -> Instant {
        self.started + Duration::from_millis(self.elapsed_millis.load(Ordering::Relaxed)) + RESOLUTION
    }

    /// The value of the `Date` header.
    pub(super) fn date(&self) -> [u8; DATE_BYTES] {
        *self.date.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the clock until the task is dropped.
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

/// The current date in HTTP format.
#[expect(
    clippy::disallowed_methods,
    reason = "the Date header shows wall-clock time; no decision depends on it"
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
    fn dates_are_formatted_as_imf_fixdate() {
        let at = |second| format_date(jiff::Timestamp::from_second(second).expect("a time"));
        assert_eq!(&at(0), b"Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(&at(1_794_787_200), b"Mon, 16 Nov 2026 00:00:00 GMT");
    }
}
