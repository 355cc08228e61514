//! The result of one law for one ask, and how results combine.
//!
//! Verdicts are totally ordered from the most permissive to the strictest. The result of several checks is the strictest
//! one. So [`Verdict::and`] is a maximum: associative, commutative and idempotent, with [`Verdict::Granted`] as its
//! identity.

use crate::time::Timestamp;

/// When a retry can succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wait {
    /// The same ask fits at this instant, and not one tick earlier, unless other charges come in between.
    Until(Timestamp),
    /// When a holder releases its units or a lease expires.
    OnRelease,
    /// Never by the passing of time.
    Never,
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// The ask fits.
    Granted,
    /// The ask does not fit; the wait says when to retry.
    Denied(Wait),
}

impl Verdict {
    /// The stricter of both verdicts.
    pub fn and(self, other: Verdict) -> Verdict {
        self.max(other)
    }
}
