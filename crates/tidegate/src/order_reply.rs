//! The reply of a store to one order.
//!
//! A refusal is a reply. An [`OrderError`] means that there is no decision: the order names an unknown limit or is
//! invalid.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use tidegate_core::limit::{MAX_KEY_BYTES, MAX_LIMIT_ID_BYTES};
use tidegate_core::order::{MAX_ASKS, MAX_REQUEST_ID_BYTES, MAX_WAIT};
use tidegate_core::{LeaseId, Limit, Reading, Timestamp, Wait};

/// A decision with its details.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderReply {
    /// Granted or denied.
    pub outcome: Outcome,
    /// The instant of the decision.
    pub at: Timestamp,
    /// Whether the store could not decide: it replied by `on_outage`, or had no room for the key.
    pub degraded: bool,
    /// Limits in shadow mode that would have refused.
    pub shadowed: Vec<Arc<Limit>>,
    /// The range of its readings; see [`Replies::readings`](crate::reply::Replies::readings).
    pub readings: Range<usize>,
}

/// Granted or denied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// All of it, with a lease if something is held.
    Granted(Option<GrantedLease>),
    /// None of it.
    Denied(OrderRefusal),
}

impl OrderReply {
    /// Whether the order was granted.
    pub fn is_granted(&self) -> bool {
        matches!(self.outcome, Outcome::Granted(_))
    }
}

/// The lease of a grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantedLease {
    /// The id of the lease.
    pub lease: LeaseId,
    /// The instant at which it lapses.
    pub expires_at: Timestamp,
    /// A fencing number for every limit that it holds units of; it rises with every lease of that limit.
    pub fences: Vec<(Arc<Limit>, u64)>,
}

/// A refusal: the item with the longest wait, and when a retry can help.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderRefusal {
    /// The limit.
    pub limit: Arc<Limit>,
    /// The index of the item in the limit.
    pub item: usize,
    /// The wait.
    pub wait: Wait,
    /// The limit and item that refused first in written order, even if its wait is shorter.
    pub first: (Arc<Limit>, usize),
    /// If only a release helps: the earliest instant at which a blocking lease lapses.
    pub lapses_at: Option<Timestamp>,
}

impl OrderRefusal {
    /// The name of the binding item.
    pub fn item_name(&self) -> &str {
        self.limit.items()[self.item].name()
    }
}

/// The reading of one item after the decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemReading {
    /// The limit.
    pub limit: Arc<Limit>,
    /// The index of the item in the limit.
    pub item: usize,
    /// The reading.
    pub reading: Reading,
}

/// Why an order has no decision.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum OrderError {
    /// No limit has this id. It counts neither as a grant nor as a refusal.
    UnknownLimit {
        /// The id.
        limit_id: String,
    },
    /// The limit counts per key and the ask has no key.
    KeyMissing {
        /// The limit's id.
        limit_id: String,
    },
    /// The key is longer than [`MAX_KEY_BYTES`].
    KeyTooLong {
        /// The length of the key.
        bytes: usize,
    },
    /// An order has 1 to [`MAX_ASKS`] asks.
    AsksOutOfRange {
        /// The number of asks.
        asks: usize,
    },
    /// The request id is empty or longer than [`MAX_REQUEST_ID_BYTES`].
    RequestIdOutOfRange {
        /// The length of the request id.
        bytes: usize,
    },
    /// The request id was granted with other asks.
    RequestIdReused,
    /// The time to live is below one millisecond or above a century.
    TtlOutOfRange,
    /// The patience is above [`MAX_WAIT`].
    PatienceOutOfRange,
    /// The grant would come with a lease, but the caller used a method that returns none.
    NeedsLease,
    /// The list of true costs needs one number for each granted ask.
    CostsOutOfRange {
        /// The number of costs.
        costs: usize,
        /// The number of asks.
        asks: usize,
    },
}

impl OrderError {
    /// The stable error code.
    pub fn code(&self) -> &'static str {
        match self {
            OrderError::UnknownLimit { .. } => "unknown_limit",
            OrderError::RequestIdReused => "request_id_reused",
            OrderError::KeyMissing { .. }
            | OrderError::KeyTooLong { .. }
            | OrderError::AsksOutOfRange { .. }
            | OrderError::RequestIdOutOfRange { .. }
            | OrderError::TtlOutOfRange
            | OrderError::PatienceOutOfRange
            | OrderError::NeedsLease
            | OrderError::CostsOutOfRange { .. } => "bad_request",
        }
    }
}

impl fmt::Display for OrderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OrderError::UnknownLimit { limit_id } => write_unknown_limit(limit_id, f),
            OrderError::KeyMissing { limit_id } => {
                write!(f, "limit '{limit_id}' counts per key; the ask needs a limit_key")
            }
            OrderError::KeyTooLong { bytes } => {
                write!(f, "limit_key has {bytes} bytes; at most {MAX_KEY_BYTES} are allowed")
            }
            OrderError::AsksOutOfRange { asks } => {
                write!(f, "an order has 1 to {MAX_ASKS} asks, this one has {asks}")
            }
            OrderError::RequestIdOutOfRange { bytes } => {
                write!(f, "request_id has {bytes} bytes; 1 to {MAX_REQUEST_ID_BYTES} are allowed")
            }
            OrderError::RequestIdReused => write!(f, "request_id was already granted with other asks"),
            OrderError::TtlOutOfRange => write!(f, "ttl must be from 1ms to 36525d (a century)"),
            OrderError::NeedsLease => {
                write!(f, "a grant of this limit comes with a lease; ask the store for it")
            }
            OrderError::CostsOutOfRange { costs, asks } => {
                write!(f, "actual has {costs} numbers for {asks} asks; give one for each, or one for all")
            }
            OrderError::PatienceOutOfRange => {
                write!(f, "patience must be at most {} ms", MAX_WAIT.as_millis())
            }
        }
    }
}

/// Writes an unknown limit id, truncated: the caller may have sent any length.
fn write_unknown_limit(limit_id: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if limit_id.len() <= MAX_LIMIT_ID_BYTES {
        return write!(f, "unknown limit '{}'", limit_id.escape_debug());
    }
    let end = (0..=MAX_LIMIT_ID_BYTES).rev().find(|at| limit_id.is_char_boundary(*at)).unwrap_or_default();
    let (beginning, bytes) = (limit_id[..end].escape_debug(), limit_id.len());
    write!(
        f,
        "unknown limit '{beginning}…': an id has at most {MAX_LIMIT_ID_BYTES} bytes, this one has {bytes}"
    )
}

impl std::error::Error for OrderError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_of_unknown_limit_truncates_long_id() {
        let message = |limit_id: String| OrderError::UnknownLimit { limit_id }.to_string();
        assert_eq!(message("a'b\n".to_owned()), "unknown limit 'a\\'b\\n'");
        assert_eq!(
            message("x".repeat(MAX_LIMIT_ID_BYTES)),
            format!("unknown limit '{}'", "x".repeat(MAX_LIMIT_ID_BYTES))
        );
        let long = message(format!("x{}", "\u{e4}".repeat(500_000)));
        assert!(
            long.starts_with("unknown limit 'x\u{e4}\u{e4}") && long.ends_with("this one has 1000001"),
            "{long}"
        );
        assert!(long.len() < 2 * MAX_LIMIT_ID_BYTES, "{}", long.len());
    }
}
