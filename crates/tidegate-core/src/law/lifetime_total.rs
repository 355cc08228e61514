//! Lifetime totals: spent capacity never comes back (`total`).
//!
//! ```text
//!   limit 3   ──1──2──3──x──x──x──────────▶   refused with Wait::Never
//! ```

use crate::amount::{Amount, Capacity};
use crate::law::Receipt;
use crate::time::Timestamp;
use crate::verdict::{Verdict, Wait};

/// The units spent so far, and the time of the last charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TotalCount {
    /// Units spent and not refunded.
    pub used: Amount,
    /// The time of the last charge.
    pub last_time: Timestamp,
}

/// Whether `cost` more units fit. If they do not, they never will.
pub fn check(capacity: Capacity, total: &TotalCount, cost: Amount) -> Verdict {
    if capacity.admits(total.used, cost) { Verdict::Granted } else { Verdict::Denied(Wait::Never) }
}

/// Spends `cost`.
pub fn charge(total: &mut TotalCount, cost: Amount, now: Timestamp) -> Receipt {
    total.used = total.used.saturating_add(cost);
    total.last_time = total.last_time.max(now);
    Receipt::Plain
}

/// Gives back `amount`.
pub fn refund(total: &mut TotalCount, amount: Amount) {
    total.used = total.used.saturating_sub(amount);
}
