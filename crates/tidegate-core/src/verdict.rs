//! The answer of one law to one ask, and how answers combine.
//!
//! Verdicts are totally ordered, from the kindest to the harshest, and the answer to several questions at
//! once is the harshest of them. That makes [`Verdict::and`] a maximum: associative, commutative and
//! idempotent, with [`Verdict::Granted`] as its neutral element.

use crate::time::Timestamp;

/// When asking again could help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wait {
    /// At this instant the same ask fits, if nobody else asks meanwhile; one tick earlier it does not.
    Until(Timestamp),
    /// When somebody gives back what they hold, or their lease lapses.
    OnRelease,
    /// No time passing will make it fit.
    Never,
}

/// What a law says to an ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// It fits.
    Granted,
    /// It does not fit, and this is when asking again could help.
    Denied(Wait),
}

impl Verdict {
    /// Both: the harsher of the two.
    pub fn and(self, other: Verdict) -> Verdict {
        self.max(other)
    }
}
