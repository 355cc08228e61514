//! The tool's own clock. It measures; nothing is decided by it.

use std::time::Instant;

/// Now.
#[expect(clippy::disallowed_methods, reason = "a stopwatch beside the engine, which knows nothing of it")]
pub(super) fn now() -> Instant {
    Instant::now()
}
