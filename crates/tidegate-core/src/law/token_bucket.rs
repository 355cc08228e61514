//! Token buckets: capacity comes back continuously, one unit every `step` ticks.
//!
//! The state is one instant, the *theoretical arrival time* (TAT) of the generic cell rate algorithm: when the bucket will
//! be full again without further charges.
//!
//! ```text
//!   burst 4, step 10       now            tat
//!   ───────────────────────┼───────────────┼───────────────▶
//!                          └── 25 ticks ───┘                 3 units in use (rounded up), 1 left
//!                          └──────── burst × step ────────┘  a charge may move tat up to here
//! ```
//!
//! Credit never exceeds one burst, because a charge starts from the later of `tat` and `now`.
//!
//! **Refunds.** Moving `tat` back by the whole cost would create capacity, because part of the charge has already come back
//! since. A charge occupies the interval that ends at the `tat` it produced, and only the part after `now` is refundable.
//! Other refunds shift that interval earlier. So the state sums all credits ever given, and a [`BucketReceipt`] stores the
//! sum at the time of the charge.
//!
//! **Edits.** A new rate keeps the number of units in use and rescales the backlog at the time of the edit. Keeping the time
//! instead would make a faster rate refuse what the slower one allowed, and a slower rate would forgive usage.

use crate::amount::{Amount, Capacity};
use crate::law::Receipt;
use crate::time::{Span, Timestamp};
use crate::verdict::{Verdict, Wait};

/// The token bucket law: one unit every `step` ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucket {
    step: Span,
}

/// The state of a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketState {
    /// The theoretical arrival time: when the bucket is full again.
    pub tat: Timestamp,
    /// The step that `tat` was computed with.
    pub step: Span,
    /// All credits ever given, in ticks.
    pub credits: Span,
}

/// What a refund of a charge needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketReceipt {
    /// The arrival time after the charge.
    pub tat: Timestamp,
    /// The step of the charge.
    pub step: Span,
    /// The credits given before the charge.
    pub credits: Span,
}

impl TokenBucket {
    /// A bucket that refills one unit every `step` ticks.
    pub const fn every(step: Span) -> TokenBucket {
        TokenBucket { step }
    }

    /// The ticks between two units.
    pub const fn step(&self) -> Span {
        self.step
    }

    /// The state of a full bucket.
    pub const fn blank(&self) -> BucketState {
        BucketState { tat: Timestamp::EPOCH, step: self.step, credits: Span::ZERO }
    }

    /// The units in use at `now`, rounded up.
    pub fn used(&self, capacity: Capacity, bucket: &BucketState, now: Timestamp) -> Amount {
        match capacity {
            Capacity::Unlimited => 0,
            Capacity::AtMost(_) => bucket.tat.since(now).ticks().div_ceil(self.step.ticks().max(1)),
        }
    }

    /// Whether `cost` more units fit. If they do not, the wait is until enough units come back.
    #[inline]
    pub fn check(&self, capacity: Capacity, bucket: &BucketState, cost: Amount, now: Timestamp) -> Verdict {
        let burst = match capacity {
            Capacity::Unlimited => return Verdict::Granted,
            Capacity::AtMost(burst) => burst,
        };
        match self.max_backlog(burst, cost) {
            Some(max_backlog) => check_backlog(max_backlog, bucket.tat, now),
            None => Verdict::Denied(Wait::Never),
        }
    }

    /// The largest backlog at which `cost` fits: `(burst - cost) * step`. `None` if it never fits.
    #[inline]
    pub const fn max_backlog(&self, burst: Amount, cost: Amount) -> Option<Span> {
        match burst.checked_sub(cost) {
            Some(remaining) => Some(self.step.times(remaining)),
            None => None,
        }
    }

    /// The arrival time after a charge of `cost`.
    #[inline]
    pub fn advance(&self, tat: Timestamp, cost: Amount, now: Timestamp) -> Timestamp {
        tat.max(now).plus(self.step.times(cost))
    }

    /// Spends `cost`. An unlimited bucket stores nothing.
    #[inline]
    pub fn charge(
        &self,
        capacity: Capacity,
        bucket: &mut BucketState,
        cost: Amount,
        now: Timestamp,
    ) -> Receipt {
        if capacity == Capacity::Unlimited {
            return Receipt::Plain;
        }
        bucket.tat = self.advance(bucket.tat, cost, now);
        // A blank state has the item's own step; an override may charge with another.
        bucket.step = self.step;
        Receipt::Bucket(BucketReceipt { tat: bucket.tat, step: self.step, credits: bucket.credits })
    }

    /// Gives back at most `amount` units of a charge, as far as its interval lies after `now`.
    pub fn refund(&self, bucket: &mut BucketState, receipt: BucketReceipt, amount: Amount, now: Timestamp) {
        if receipt.step != bucket.step {
            return;
        }
        let end = receipt.tat.minus(bucket.credits.minus(receipt.credits));
        let credit = end.since(now).min(self.step.times(amount));
        bucket.tat = bucket.tat.minus(credit);
        bucket.credits = bucket.credits.plus(credit);
    }

    /// When the bucket is full again.
    pub fn empty_at(&self, bucket: &BucketState, now: Timestamp) -> Option<Timestamp> {
        (bucket.tat > now).then_some(bucket.tat)
    }

    /// Keeps the units in use at `at` and refills them at this rate. Earlier charges can no longer be refunded, because their
    /// interval in the new backlog is unknown.
    pub fn migrate(&self, bucket: BucketState, at: Timestamp) -> BucketState {
        if bucket.step == self.step {
            return bucket;
        }
        let backlog = bucket.tat.since(at);
        let scaled = (u128::from(backlog.ticks()) * u128::from(self.step.ticks()))
            .div_ceil(u128::from(bucket.step.ticks().max(1)));
        BucketState {
            tat: at.plus(Span::from_ticks(u64::try_from(scaled).unwrap_or(u64::MAX))),
            step: self.step,
            credits: bucket.credits.plus(backlog),
        }
    }
}

/// The arrival time after a charge of one unit; `None` if the backlog exceeds `max_backlog`.
///
/// The times may count from any origin. The function does not check for overflow; the caller ensures that no sum wraps.
#[inline]
pub const fn charge_one_within(max_backlog: u64, step: u64, tat: u64, now: u64) -> Option<u64> {
    if tat > now.wrapping_add(max_backlog) {
        return None;
    }
    let from = if tat > now { tat } else { now };
    Some(from.wrapping_add(step))
}

/// Whether the backlog at `now` is at most `max_backlog`. If it is not, the wait is until it is. The times may count from any
/// origin.
#[inline]
pub fn check_backlog(max_backlog: Span, tat: Timestamp, now: Timestamp) -> Verdict {
    if tat.since(now) <= max_backlog {
        Verdict::Granted
    } else {
        Verdict::Denied(Wait::Until(tat.minus(max_backlog)))
    }
}
