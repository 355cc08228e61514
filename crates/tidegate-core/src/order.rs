//! An order: one question with one answer, all or nothing.
//!
//! Orders borrow from whoever reads them off a wire; nothing is copied on the way to a decision.

use std::time::Duration;

use crate::amount::Amount;

/// The most asks one order may hold.
pub const MAX_ASKS: usize = 32;
/// The longest request id, in bytes.
pub const MAX_REQUEST_ID_BYTES: usize = 256;
/// How long a grant with a request id is remembered.
pub const REQUEST_ID_RETENTION: Duration = Duration::from_secs(600);
/// The longest patience.
pub const MAX_WAIT: Duration = Duration::from_secs(60);

/// Whether an order takes or only looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Intent {
    /// Take, if it all fits.
    #[default]
    Acquire,
    /// Answer the same question; change nothing.
    Peek,
}

/// Whether a charge is final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Hold {
    /// It is, unless a `concurrency` item makes the grant carry a lease, which can be settled.
    #[default]
    No,
    /// It is an estimate, to be settled to its true cost under a lease.
    Yes,
}

/// How much of one limit, for whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ask<'a> {
    /// The limit's id.
    pub limit_id: &'a str,
    /// The key; limits with `per: key` items need one.
    pub key: Option<&'a [u8]>,
    /// How much; 0 only looks.
    pub count: Amount,
}

impl<'a> Ask<'a> {
    /// One unit of this limit for this key.
    pub const fn one(limit_id: &'a str, key: Option<&'a [u8]>) -> Ask<'a> {
        Ask { limit_id, key, count: 1 }
    }
}

/// One question with one answer.
#[derive(Debug, Clone, Copy)]
pub struct Order<'a> {
    /// Take or look.
    pub intent: Intent,
    /// What is asked for: all of it or nothing. 1 to [`MOST_ASKS`].
    pub asks: &'a [Ask<'a>],
    /// A grant with the same id and the same asks is answered again and charged once.
    pub request_id: Option<&'a [u8]>,
    /// Whether the charge will be settled.
    pub hold: Hold,
    /// How long a lease lasts, if the asker says.
    pub ttl: Option<Duration>,
    /// How long the asker would wait for it to fit.
    pub max_wait: Duration,
}

impl<'a> Order<'a> {
    /// Take these, now or not at all.
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

    /// Look whether these would fit.
    pub const fn peek(asks: &'a [Ask<'a>]) -> Order<'a> {
        Order { intent: Intent::Peek, ..Order::acquire(asks) }
    }
}

/// What one row is asked for by a whole order: repeated asks add up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AskTotals {
    /// The sum of the counts.
    pub count: Amount,
    /// How many asks with a count above zero.
    pub asks: Amount,
}

impl AskTotals {
    /// The load of one ask of this count.
    pub const fn of(count: Amount) -> AskTotals {
        AskTotals { count, asks: if count > 0 { 1 } else { 0 } }
    }

    /// This and another ask together.
    pub const fn plus(self, other: AskTotals) -> AskTotals {
        AskTotals {
            count: self.count.saturating_add(other.count),
            asks: self.asks.saturating_add(other.asks),
        }
    }
}
