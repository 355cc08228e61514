//! The clock of the load generator. It measures latencies and decides nothing.

use std::time::Instant;

/// The current instant.
#[expect(clippy::disallowed_methods, reason = "a stopwatch outside of the engine")]
pub(super) fn now() -> Instant {
    Instant::now()
}
