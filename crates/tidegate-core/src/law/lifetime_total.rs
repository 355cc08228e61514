//! `total`: what is spent stays spent.
//!
//! ```text
//!   limit 3   ──1──2──3──x──x──x──────────▶   no instant will help: Wait::Never
//! ```

use crate::amount::{Amount, Capacity};
use crate::law::Receipt;
use crate::time::Timestamp;
use crate::verdict::{Verdict, Wait};

/// How much was ever spent, and when last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TotalCount {
    /// Units spent and not refunded.
    pub used: Amount,
    /// When the tally last rose.
    pub last_time: Timestamp,
}

/// Whether `cost` more fits; if not, it never will.
pub fn check(capacity: Capacity, tally: &TotalCount, cost: Amount) -> Verdict {
    if capacity.admits(tally.used, cost) { Verdict::Granted } else { Verdict::Denied(Wait::Never) }
}

/// Spends `cost`.
pub fn charge(tally: &mut TotalCount, cost: Amount, now: Timestamp) -> Receipt {
    tally.used = tally.used.saturating_add(cost);
    tally.last_time = tally.last_time.max(now);
    Receipt::Plain
}

/// Gives `amount` back.
pub fn refund(tally: &mut TotalCount, amount: Amount) {
    tally.used = tally.used.saturating_sub(amount);
}
