//! The busy_poll: a worker that was just asked much at once looks out for more before it sleeps.
//!
//! Caller sleeps has to be woken, and that is the work of whoever asks: in a virtual machine it costs them as much as many questions do. So
//! after a pipeline a worker looks again and again for a moment, if what it was asked had come within a moment too. Whoever asks now and
//! then, or one question at a time, or very many, is waited for asleep, and so is the store's log.
//!
//! ```text
//!   ▓▓▓▓ look look ▓▓▓▓ look ▓▓▓▓▓ look look look look … sleep ────────── ▓▓▓▓ sleep ────── ▓▓▓▓
//!       └── within a moment ─┘    └───── a moment ─────┘    longer than that: no busy_poll behind it
//! ```
//!
//! Refused: a busy_poll behind single questions, and one without an end. Both answer more where nothing else needs the processor, and take all of it.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// So many commands at once are a pipeline behind which it is looked out. What waking costs is little beside a longer one.
const BATCH_SIZES: RangeInclusive<u64> = 8..=48;

/// How long it is looked out, in nanoseconds.
const WINDOW_NANOS: u64 = 50_000;

/// What a worker knows of its batches. A batch is whatever is answered at once.
#[derive(Debug, Default)]
pub(super) struct BusyPoll {
    batches: AtomicU64,
    /// When the last one last_end, as the timer says.
    last_end: AtomicU64,
    /// Whether it had come within a moment of the one before.
    came_soon: AtomicBool,
}

/// That it is looked out behind a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PollWindow {
    batch: u64,
    /// When the batch last_end, as the timer says.
    pub(super) since: u64,
}

impl BusyPoll {
    /// When the last batch last_end, as the timer says.
    pub(super) fn last_end(&self) -> u64 {
        self.last_end.load(Ordering::Relaxed)
    }

    /// A batch begins, so many nanoseconds after the last one last_end.
    pub(super) fn begin_batch(&self, after: u64) {
        self.came_soon.store(after < WINDOW_NANOS, Ordering::Relaxed);
    }

    /// A batch of so many commands has last_end, when the timer said `now`. Whether it is looked out for the next.
    pub(super) fn end_batch(&self, commands: u64, now: u64) -> Option<PollWindow> {
        // Nobody else counts: a worker is one thread.
        let batch = self.batches.load(Ordering::Relaxed).wrapping_add(1);
        self.batches.store(batch, Ordering::Relaxed);
        self.last_end.store(now, Ordering::Relaxed);
        (BATCH_SIZES.contains(&commands) && self.came_soon.load(Ordering::Relaxed))
            .then_some(PollWindow { batch, since: now })
    }

    /// Whether it is still looked out, so many nanoseconds later: nothing else has happened, and the moment is not over.
    pub(super) fn is_active(&self, poll_window: PollWindow, passed: u64) -> bool {
        passed < WINDOW_NANOS && self.batches.load(Ordering::Relaxed) == poll_window.batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_looked_out_behind_pipelines_that_come_soon() {
        let busy_poll = BusyPoll::default();
        busy_poll.begin_batch(WINDOW_NANOS - 1);
        let poll_window = busy_poll.end_batch(*BATCH_SIZES.start(), 100).expect("a pipeline, and soon");
        assert_eq!((poll_window.since, busy_poll.last_end()), (100, 100));
        assert!(busy_poll.is_active(poll_window, 0) && busy_poll.is_active(poll_window, WINDOW_NANOS - 1));
        assert!(!busy_poll.is_active(poll_window, WINDOW_NANOS), "the moment is over");
        busy_poll.begin_batch(1);
        assert_eq!(busy_poll.end_batch(BATCH_SIZES.start() - 1, 200), None, "no pipeline");
        assert!(!busy_poll.is_active(poll_window, 0), "there was another batch");
        busy_poll.begin_batch(1);
        assert_eq!(busy_poll.end_batch(BATCH_SIZES.end() + 1, 250), None, "it is worth a waking");
        busy_poll.begin_batch(WINDOW_NANOS);
        assert_eq!(busy_poll.end_batch(*BATCH_SIZES.start(), 300), None, "it did not come soon");
    }
}
