//! Replies: what a store says to a batch of orders.
//!
//! A denial is an answer. What could not be asked at all is a [`OrderError`]: the order named a limit nobody knows, or
//! made no sense. The buffer is reused from batch to batch, so that answering costs no allocation once it has grown.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use tidegate_core::limit::{MAX_KEY_BYTES, MAX_LIMIT_ID_BYTES};
use tidegate_core::order::{MAX_ASKS, MAX_REQUEST_ID_BYTES, MAX_WAIT};
use tidegate_core::{LeaseId, Limit, Reading, Timestamp, Wait};

use crate::store::journal::Notes;

/// How much an asker wants to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Detail {
    /// Only whether, and if not, which item and until when.
    #[default]
    Verdicts,
    /// Also what every item says about itself.
    Readings,
}

/// The answers to one batch, in the order of its orders.
#[derive(Debug, Default)]
pub struct Replies {
    detail: Detail,
    list: Vec<Result<OrderReply, OrderError>>,
    readings: Vec<ItemReading>,
    /// What a store with a log is told about what they changed.
    notes: Option<Box<Notes>>,
}

impl Replies {
    /// A buffer for answers in this detail.
    pub fn new(detail: Detail) -> Replies {
        Replies { detail, ..Replies::default() }
    }

    /// How much is wanted.
    pub fn detail(&self) -> Detail {
        self.detail
    }

    /// Forgets the batch before.
    pub fn clear(&mut self) {
        self.list.clear();
        self.readings.clear();
        if let Some(notes) = &mut self.notes {
            notes.clear();
        }
    }

    /// For stores with a log: from now on it is noted what answers change.
    pub fn record_changes(&mut self) {
        self.notes.get_or_insert_default();
    }

    /// For stores with a log: what the answers changed, if that is noted.
    pub fn notes(&mut self) -> Option<&mut Notes> {
        self.notes.as_deref_mut()
    }

    /// How many answers there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The answers, in the order of the orders.
    pub fn iter(&self) -> impl Iterator<Item = &Result<OrderReply, OrderError>> {
        self.list.iter()
    }

    /// The answer to the order at `index`.
    pub fn get(&self, index: usize) -> Option<&Result<OrderReply, OrderError>> {
        self.list.get(index)
    }

    /// What the items of one answer said about themselves, in written order; none unless they were wanted.
    pub fn readings(&self, answer: &OrderReply) -> &[ItemReading] {
        &self.readings[answer.readings.clone()]
    }

    /// For stores: where the readings of the next answer begin.
    pub fn mark(&self) -> usize {
        self.readings.len()
    }

    /// For stores: one more reading of the next answer.
    pub fn read(&mut self, reading: ItemReading) {
        self.readings.push(reading);
    }

    /// Takes back a grant that changed nothing: somebody else's turn is first.
    pub(crate) fn deny(&mut self, index: usize, denied: OrderRefusal) {
        if let Some(Ok(answer)) = self.list.get_mut(index)
            && answer.is_granted()
        {
            answer.outcome = Outcome::Denied(denied);
        }
    }

    /// For stores: the next answer.
    pub fn push(&mut self, answer: Result<OrderReply, OrderError>) {
        self.list.push(answer);
    }
}

/// A decision, and everything there is to say about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderReply {
    /// Granted or denied.
    pub outcome: Outcome,
    /// The instant it was decided at.
    pub at: Timestamp,
    /// Whether the store could not really tell and answered by rule.
    pub degraded: bool,
    /// Limits in shadow mode that would have refused.
    pub shadowed: Vec<Arc<Limit>>,
    /// Where its readings are; see [`Replies::readings`].
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
    /// Whether it was granted.
    pub fn is_granted(&self) -> bool {
        matches!(self.outcome, Outcome::Granted(_))
    }
}

/// The lease a grant comes with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantedLease {
    /// Its identity.
    pub lease: LeaseId,
    /// When it lapses.
    pub expires_at: Timestamp,
    /// For every limit it holds something of, a number that rises with every lease of that limit.
    pub fences: Vec<(Arc<Limit>, u64)>,
}

/// Which item refused for the longest, and when asking again could help.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderRefusal {
    /// The limit.
    pub limit: Arc<Limit>,
    /// The index of the item in it.
    pub item: usize,
    /// The wait.
    pub wait: Wait,
    /// The limit and the item of it that refused first in written order, however short its wait.
    pub first: (Arc<Limit>, usize),
    /// Where only a release helps: the earliest instant at which a lease lapses that is in the way.
    pub lapses_at: Option<Timestamp>,
}

impl OrderRefusal {
    /// The name of the item that binds.
    pub fn item_name(&self) -> &str {
        self.limit.items()[self.item].name()
    }
}

/// What one item said about itself, after the decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ItemReading {
    /// The limit.
    pub limit: Arc<Limit>,
    /// The index of the item in it.
    pub item: usize,
    /// What it said.
    pub reading: Reading,
}

/// Why an order could not be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OrderError {
    /// No limit has this id. Never taken for an allow or a deny.
    UnknownLimit {
        /// The id.
        limit_id: String,
    },
    /// The limit counts per key and the ask names none.
    KeyMissing {
        /// The limit's id.
        limit_id: String,
    },
    /// The key is above [`LONGEST_KEY`].
    KeyTooLong {
        /// How long it is.
        bytes: usize,
    },
    /// An order has 1 to [`MOST_ASKS`] asks.
    AsksOutOfRange {
        /// How many it has.
        asks: usize,
    },
    /// The request id is empty or above [`MAX_REQUEST_ID_BYTES`].
    RequestIdOutOfRange {
        /// How long it is.
        bytes: usize,
    },
    /// The request id was granted with other asks.
    RequestIdReused,
    /// A time to live below a millisecond, or above a century.
    TtlOutOfRange,
    /// Patience above [`MAX_WAIT`].
    PatienceOutOfRange,
    /// A grant would come with a lease, and whoever asked has nowhere to put one.
    NeedsLease,
    /// A list of true costs has one for each ask that was granted.
    CostsOutOfRange {
        /// How many it has.
        costs: usize,
        /// How many asks there are.
        asks: usize,
    },
}

impl OrderError {
    /// The stable code that programs look at.
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
            OrderError::UnknownLimit { limit_id } => unknown(limit_id, f),
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

/// What is no id is not repeated whole: it may be as long as whoever asked liked.
fn unknown(limit_id: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
    fn an_unknown_id_is_repeated_as_far_as_it_could_be_one() {
        let told = |limit_id: String| OrderError::UnknownLimit { limit_id }.to_string();
        assert_eq!(told("a'b\n".to_owned()), "unknown limit 'a\\'b\\n'");
        assert_eq!(
            told("x".repeat(MAX_LIMIT_ID_BYTES)),
            format!("unknown limit '{}'", "x".repeat(MAX_LIMIT_ID_BYTES))
        );
        let long = told(format!("x{}", "\u{e4}".repeat(500_000)));
        assert!(
            long.starts_with("unknown limit 'x\u{e4}\u{e4}") && long.ends_with("this one has 1000001"),
            "{long}"
        );
        assert!(long.len() < 2 * MAX_LIMIT_ID_BYTES, "{}", long.len());
    }
}
