//! Busy polling: a worker polls its sockets for a short time after a pipeline before it sleeps.
//!
//! Waking a sleeping worker is work of the client's system call. In a virtual machine one wake-up costs the client as much as many
//! commands. So after a batch of 8 to 48 commands a worker polls for up to 50 µs, if the batch itself came within 50 µs of the one
//! before. Single commands, rare batches, very large batches and the store's log are waited for asleep.
//!
//! ```text
//!   ▓▓▓▓ poll poll ▓▓▓▓ poll ▓▓▓▓▓ poll poll poll poll … sleep ────────── ▓▓▓▓ sleep ────── ▓▓▓▓
//!       └─── < 50 µs ───┘    └────── 50 µs ───────┘    more than 50 µs: no busy poll after this batch
//! ```
//!
//! Polling after single commands or without a time bound was measured and rejected: both answer more only where nothing else needs
//! the processor, and take all of it.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Sizes of batches after which the worker polls. For larger ones the cost of a wake-up is small in comparison.
const BATCH_SIZES: RangeInclusive<u64> = 8..=48;

/// How long the worker polls, in nanoseconds.
const WINDOW_NANOS: u64 = 50_000;

/// Timing of a worker's batches. A batch is what is answered in one poll.
#[derive(Debug, Default)]
pub(super) struct BusyPoll {
    batches: AtomicU64,
    /// When the last batch ended, by the worker's timer.
    last_end: AtomicU64,
    /// Whether the current batch began within the window after the last one.
    came_soon: AtomicBool,
}

/// A window of busy polling after one batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PollWindow {
    batch: u64,
    /// When the batch ended, by the worker's timer.
    pub(super) since: u64,
}

impl BusyPoll {
    /// When the last batch ended, by the worker's timer.
    pub(super) fn last_end(&self) -> u64 {
        self.last_end.load(Ordering::Relaxed)
    }

    /// Records that a batch begins `after` nanoseconds after the end of the last one.
    pub(super) fn begin_batch(&self, after: u64) {
        self.came_soon.store(after < WINDOW_NANOS, Ordering::Relaxed);
    }

    /// Records that a batch of `commands` ended at `now`. Returns a window if the worker should poll.
    pub(super) fn end_batch(&self, commands: u64, now: u64) -> Option<PollWindow> {
        // Load and store suffice: only this worker's thread writes.
        let batch = self.batches.load(Ordering::Relaxed).wrapping_add(1);
        self.batches.store(batch, Ordering::Relaxed);
        self.last_end.store(now, Ordering::Relaxed);
        (BATCH_SIZES.contains(&commands) && self.came_soon.load(Ordering::Relaxed))
            .then_some(PollWindow { batch, since: now })
    }

    /// Whether to poll on: no other batch came, and the window has not passed.
    pub(super) fn is_active(&self, poll_window: PollWindow, passed: u64) -> bool {
        passed < WINDOW_NANOS && self.batches.load(Ordering::Relaxed) == poll_window.batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_opens_only_after_pipelines_in_quick_succession() {
        let busy_poll = BusyPoll::default();
        busy_poll.begin_batch(WINDOW_NANOS - 1);
        let poll_window = busy_poll.end_batch(*BATCH_SIZES.start(), 100).expect("a pipeline, and soon");
        assert_eq!((poll_window.since, busy_poll.last_end()), (100, 100));
        assert!(busy_poll.is_active(poll_window, 0) && busy_poll.is_active(poll_window, WINDOW_NANOS - 1));
        assert!(!busy_poll.is_active(poll_window, WINDOW_NANOS), "the window has passed");
        busy_poll.begin_batch(1);
        assert_eq!(busy_poll.end_batch(BATCH_SIZES.start() - 1, 200), None, "no pipeline");
        assert!(!busy_poll.is_active(poll_window, 0), "there was another batch");
        busy_poll.begin_batch(1);
        assert_eq!(busy_poll.end_batch(BATCH_SIZES.end() + 1, 250), None, "too large a batch");
        busy_poll.begin_batch(WINDOW_NANOS);
        assert_eq!(busy_poll.end_batch(*BATCH_SIZES.start(), 300), None, "it came too late");
    }
}
