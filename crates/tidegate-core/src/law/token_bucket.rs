//! Buckets: capacity comes back continuously, one unit every `step` ticks.
//!
//! The state is one instant, the *theoretical arrival time*: when the bucket would be full again if nobody
//! asked (the generic cell rate algorithm).
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
//! **Refunds.** Moving `tat` back by the whole cost would mint capacity: time has passed since the charge and
//! part of it has come back by itself. A charge occupies the stretch that ends at the `tat` it made; what lies
//! before `now` is gone. Refunds of other charges shift that stretch earlier, so the state counts all credits
//! ever given and a [`BucketReceipt`] remembers how many had been given when it was written.
//!
//! **Edits.** A new rate keeps the number of units in use, not the time: the backlog is rescaled at the moment
//! of the edit. Otherwise a faster rate would refuse what the slower one allowed, and a slower one would forgive.

use crate::amount::{Amount, Capacity};
use crate::law::Receipt;
use crate::time::{Span, Timestamp};
use crate::verdict::{Verdict, Wait};

/// One unit every `step` ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucket {
    step: Span,
}

/// When the bucket is full again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketState {
    /// The theoretical arrival time.
    pub tat: Timestamp,
    /// The step that `tat` was reckoned with.
    pub step: Span,
    /// All credits ever given, in ticks.
    pub credits: Span,
}

/// What a charge remembers for its refund.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketReceipt {
    /// The arrival time the charge made.
    pub tat: Timestamp,
    /// The step it was charged with.
    pub step: Span,
    /// The credits given by then.
    pub credits: Span,
}

impl TokenBucket {
    /// One unit every `step` ticks.
    pub const fn every(step: Span) -> TokenBucket {
        TokenBucket { step }
    }

    /// The ticks between two units.
    pub const fn step(&self) -> Span {
        self.step
    }

    /// A full bucket.
    pub const fn blank(&self) -> BucketState {
        BucketState { tat: Timestamp::EPOCH, step: self.step, credits: Span::ZERO }
    }

    /// How many units are in use at `now`, part units rounded up.
    pub fn used(&self, capacity: Capacity, arrival: &BucketState, now: Timestamp) -> Amount {
        match capacity {
            Capacity::Unlimited => 0,
            Capacity::AtMost(_) => arrival.tat.since(now).ticks().div_ceil(self.step.ticks().max(1)),
        }
    }

    /// Whether `cost` more fits; if not, when enough will have come back.
    #[inline]
    pub fn check(&self, capacity: Capacity, arrival: &BucketState, cost: Amount, now: Timestamp) -> Verdict {
        let burst = match capacity {
            Capacity::Unlimited => return Verdict::Granted,
            Capacity::AtMost(burst) => burst,
        };
        match self.max_backlog(burst, cost) {
            Some(room) => check_backlog(room, arrival.tat, now),
            None => Verdict::Denied(Wait::Never),
        }
    }

    /// What the backlog may be at most for `cost` to fit: what the burst has beside it. `None` if it never fits.
    #[inline]
    pub const fn max_backlog(&self, burst: Amount, cost: Amount) -> Option<Span> {
        match burst.checked_sub(cost) {
            Some(beside) => Some(self.step.times(beside)),
            None => None,
        }
    }

    /// When a bucket is full again that would have been at `tat`, after `cost` more.
    #[inline]
    pub fn advance(&self, tat: Timestamp, cost: Amount, now: Timestamp) -> Timestamp {
        tat.max(now).plus(self.step.times(cost))
    }

    /// Spends `cost`. An unlimited bucket keeps nothing.
    #[inline]
    pub fn charge(
        &self,
        capacity: Capacity,
        arrival: &mut BucketState,
        cost: Amount,
        now: Timestamp,
    ) -> Receipt {
        if capacity == Capacity::Unlimited {
            return Receipt::Plain;
        }
        arrival.tat = self.advance(arrival.tat, cost, now);
        // A blank state knows the item's own step; an override may charge it with another.
        arrival.step = self.step;
        Receipt::Bucket(BucketReceipt { tat: arrival.tat, step: self.step, credits: arrival.credits })
    }

    /// Gives back what still lies ahead of `now` of the stretch a charge occupies, at most `amount` units.
    pub fn refund(&self, arrival: &mut BucketState, ticket: BucketReceipt, amount: Amount, now: Timestamp) {
        if ticket.step != arrival.step {
            return;
        }
        let end = ticket.tat.minus(arrival.credits.minus(ticket.credits));
        let credit = end.since(now).min(self.step.times(amount));
        arrival.tat = arrival.tat.minus(credit);
        arrival.credits = arrival.credits.plus(credit);
    }

    /// When the bucket is full again.
    pub fn empty_at(&self, arrival: &BucketState, now: Timestamp) -> Option<Timestamp> {
        (arrival.tat > now).then_some(arrival.tat)
    }

    /// The same units in use at `at`, coming back at this rate from then on. Charges made before can no longer
    /// be refunded: where they lie in the new backlog is not known.
    pub fn migrate(&self, arrival: BucketState, at: Timestamp) -> BucketState {
        if arrival.step == self.step {
            return arrival;
        }
        let backlog = arrival.tat.since(at);
        let scaled = (u128::from(backlog.ticks()) * u128::from(self.step.ticks()))
            .div_ceil(u128::from(arrival.step.ticks().max(1)));
        BucketState {
            tat: at.plus(Span::from_ticks(u64::try_from(scaled).unwrap_or(u64::MAX))),
            step: self.step,
            credits: arrival.credits.plus(backlog),
        }
    }
}

/// When a bucket with this step is full again that would have been at `tat`, after one unit more; `None` if that is not within the room.
///
/// It does not matter what instants are counted from, but nothing is held back that goes beyond the end of time: whoever asks sees to it that
/// none of these sums does.
#[inline]
pub const fn charge_one_within(room: u64, step: u64, tat: u64, now: u64) -> Option<u64> {
    if tat > now.wrapping_add(room) {
        return None;
    }
    let from = if tat > now { tat } else { now };
    Some(from.wrapping_add(step))
}

/// Whether a backlog until `tat` is within the room that a cost leaves it; if not, when it will be. It does not matter what instants are
/// counted from.
#[inline]
pub fn check_backlog(room: Span, tat: Timestamp, now: Timestamp) -> Verdict {
    if tat.since(now) <= room { Verdict::Granted } else { Verdict::Denied(Wait::Until(tat.minus(room))) }
}
