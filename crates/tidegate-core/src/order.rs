//! An order: several asks that are granted or refused together.
//!
//! Orders borrow their strings from the request buffer, so a decision copies nothing.

use std::time::Duration;

use crate::amount::Amount;

/// The most asks in one order.
pub const MAX_ASKS: usize = 32;
/// The longest request id, in bytes.
pub const MAX_REQUEST_ID_BYTES: usize = 256;
/// How long a store remembers a grant with a request id.
pub const REQUEST_ID_RETENTION: Duration = Duration::from_secs(600);
/// The largest [`Order::max_wait`].
pub const MAX_WAIT: Duration = Duration::from_secs(60);

/// Whether an order charges or only checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Intent {
    /// Charge every ask if all of them fit.
    #[default]
    Acquire,
    /// Return the same answer and change nothing.
    Peek,
}

/// Whether a charge is final or an estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Hold {
    /// Final. A grant that charges a `concurrency` item still has a lease, and that lease can be settled.
    #[default]
    No,
    /// An estimate. The grant has a lease, and the caller settles it to the true cost.
    Yes,
}

/// A request for units of one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ask<'a> {
    /// The limit's id.
    pub limit_id: &'a str,
    /// The key. Limits with `per: key` items require it.
    pub key: Option<&'a [u8]>,
    /// The number of units. Zero checks without charging.
    pub count: Amount,
}

impl<'a> Ask<'a> {
    /// One unit of this limit for this key.
    pub const fn one(limit_id: &'a str, key: Option<&'a [u8]>) -> Ask<'a> {
        Ask { limit_id, key, count: 1 }
    }
}

/// Asks that are decided together.
#[derive(Debug, Clone, Copy)]
pub struct Order<'a> {
    /// Charge or only check.
    pub intent: Intent,
    /// The asks, 1 to [`MAX_ASKS`]. All are granted or none.
    pub asks: &'a [Ask<'a>],
    /// Idempotency key. A repeated order with the same id and asks gets the same grant and is charged once.
    pub request_id: Option<&'a [u8]>,
    /// Whether the charge is an estimate to settle later.
    pub hold: Hold,
    /// The lease TTL, if the caller chooses one.
    pub ttl: Option<Duration>,
    /// How long the caller waits for the order to fit.
    pub max_wait: Duration,
}

impl<'a> Order<'a> {
    /// An order that charges these asks now, without waiting.
    pub const fn acquire(asks: &'a [Ask<'a>]) -> Order<'a> {
        Order {
            intent: Intent::Acquire,
            asks,
            request_id: None,
            hold: Hold::No,
            ttl: None,
            max_wait: Duration::ZERO,
        }
    }

    /// An order that checks these asks and changes nothing.
    pub const fn peek(asks: &'a [Ask<'a>]) -> Order<'a> {
        Order { intent: Intent::Peek, ..Order::acquire(asks) }
    }
}

/// What one order asks of one row. Repeated asks add up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AskTotals {
    /// The sum of the counts.
    pub count: Amount,
    /// The number of asks with a count above zero.
    pub asks: Amount,
}

impl AskTotals {
    /// The totals of one ask.
    pub const fn of(count: Amount) -> AskTotals {
        AskTotals { count, asks: if count > 0 { 1 } else { 0 } }
    }

    /// Adds both totals; saturates.
    pub const fn plus(self, other: AskTotals) -> AskTotals {
        AskTotals {
            count: self.count.saturating_add(other.count),
            asks: self.asks.saturating_add(other.asks),
        }
    }
}
