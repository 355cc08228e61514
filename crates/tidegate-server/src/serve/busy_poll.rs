//! The vigil: a worker that was just asked much at once looks out for more before it sleeps.
//!
//! Who sleeps has to be woken, and that is the work of whoever asks: in a virtual machine it costs them as much as many questions do. So
//! after a pipeline a worker looks again and again for a moment, if what it was asked had come within a moment too. Whoever asks now and
//! then, or one question at a time, or very many, is waited for asleep, and so is the store's log.
//!
//! ```text
//!   ▓▓▓▓ look look ▓▓▓▓ look ▓▓▓▓▓ look look look look … sleep ────────── ▓▓▓▓ sleep ────── ▓▓▓▓
//!       └── within a moment ─┘    └───── a moment ─────┘    longer than that: no vigil behind it
//! ```
//!
//! Refused: a vigil behind single questions, and one without an end. Both answer more where nothing else needs the processor, and take all of it.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// So many commands at once are a pipeline behind which it is looked out. What waking costs is little beside a longer one.
const PIPELINE: RangeInclusive<u64> = 8..=48;

/// How long it is looked out, in nanoseconds.
const MOMENT: u64 = 50_000;

/// What a worker knows of its turns. A turn is whatever is answered at once.
#[derive(Debug, Default)]
pub(super) struct Vigil {
    turns: AtomicU64,
    /// When the last one ended, as the stopwatch says.
    ended: AtomicU64,
    /// Whether it had come within a moment of the one before.
    was_soon: AtomicBool,
}

/// That it is looked out behind a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lookout {
    turn: u64,
    /// When the turn ended, as the stopwatch says.
    pub(super) since: u64,
}

impl Vigil {
    /// When the last turn ended, as the stopwatch says.
    pub(super) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// A turn begins, so many nanoseconds after the last one ended.
    pub(super) fn begin(&self, after: u64) {
        self.was_soon.store(after < MOMENT, Ordering::Relaxed);
    }

    /// A turn of so many commands has ended, when the stopwatch said `now`. Whether it is looked out for the next.
    pub(super) fn end(&self, commands: u64, now: u64) -> Option<Lookout> {
        // Nobody else counts: a worker is one thread.
        let turn = self.turns.load(Ordering::Relaxed).wrapping_add(1);
        self.turns.store(turn, Ordering::Relaxed);
        self.ended.store(now, Ordering::Relaxed);
        (PIPELINE.contains(&commands) && self.was_soon.load(Ordering::Relaxed))
            .then_some(Lookout { turn, since: now })
    }

    /// Whether it is still looked out, so many nanoseconds later: nothing else has happened, and the moment is not over.
    pub(super) fn lasts(&self, lookout: Lookout, passed: u64) -> bool {
        passed < MOMENT && self.turns.load(Ordering::Relaxed) == lookout.turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_looked_out_behind_pipelines_that_come_soon() {
        let vigil = Vigil::default();
        vigil.begin(MOMENT - 1);
        let lookout = vigil.end(*PIPELINE.start(), 100).expect("a pipeline, and soon");
        assert_eq!((lookout.since, vigil.ended()), (100, 100));
        assert!(vigil.lasts(lookout, 0) && vigil.lasts(lookout, MOMENT - 1));
        assert!(!vigil.lasts(lookout, MOMENT), "the moment is over");
        vigil.begin(1);
        assert_eq!(vigil.end(PIPELINE.start() - 1, 200), None, "no pipeline");
        assert!(!vigil.lasts(lookout, 0), "there was another turn");
        vigil.begin(1);
        assert_eq!(vigil.end(PIPELINE.end() + 1, 250), None, "it is worth a waking");
        vigil.begin(MOMENT);
        assert_eq!(vigil.end(*PIPELINE.start(), 300), None, "it did not come soon");
    }
}
