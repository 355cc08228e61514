//! What goes into the reference model and what it answers.

use tidegate_core::{Amount, Capacity, Timestamp, Wait};

/// An ask with owned strings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedAsk {
    /// Id of the limit.
    pub limit_id: String,
    /// The key.
    pub key: Option<Vec<u8>>,
    /// The count.
    pub count: Amount,
}

/// Why an order is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelRefusal {
    /// The limit of the item with the longest wait.
    pub limit_id: String,
    /// The name of that item.
    pub item: String,
    /// Its wait.
    pub wait: Wait,
}

/// State of an item as a client sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelReading {
    /// Id of the limit.
    pub limit_id: String,
    /// Name of the item.
    pub item: String,
    /// Units that may be in use.
    pub capacity: Capacity,
    /// Units in use.
    pub used: Amount,
    /// Units left; `None` if unlimited.
    pub remaining: Option<Amount>,
    /// When `used` becomes zero without further charges.
    pub resets_at: Option<Timestamp>,
}

/// How bucket refunds are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefundView {
    /// As if the charge had cost its true price from the start.
    Refunded,
    /// As if nothing had been refunded.
    NotRefunded,
}
