//! Compact requests and replies: a fast path for the most common order.
//!
//! A compact request is an order of one ask for a key that must be taken now or not at all: no lease, no request id, no
//! wait. Its limit must have one item, so one [`CompactReply`] says everything. A batch is decided in order, exactly as
//! if each were an [`Order`](tidegate_core::Order) of a [batch](super::Store::submit). It only saves the fields that
//! such an order does not use.
//!
//! A store decides as many as it can and stops at the first that it cannot. The caller submits the rest as orders. So a
//! store may ignore this path, and unusual cases stay in one place.
//!
//! A limit handle that is kept between batches was rejected. Finding a limit by id costs little once per batch, and a
//! handle would have to be checked for removal.

use std::sync::Arc;

use tidegate_core::{Amount, Limit, Reading, Timestamp, Verdict};

use super::journal::Notes;

/// Maximum number of limits in one batch.
pub const MOST_LIMITS: usize = 4;

/// One ask of one limit, now or not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompactRequest<'a> {
    /// Index into [`CompactBatch::limit_ids`].
    pub limit: usize,
    /// The key.
    pub key: &'a [u8],
    /// The count.
    pub count: Amount,
}

/// Compact requests in the order of decision.
#[derive(Debug, Clone, Copy)]
pub struct CompactBatch<'a> {
    /// Ids of the limits, at most [`MOST_LIMITS`].
    pub limit_ids: &'a [&'a str],
    /// The requests.
    pub list: &'a [CompactRequest<'a>],
}

/// Reply to a compact request: the verdict, and the reading of the only item after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompactReply {
    /// Granted or denied.
    pub verdict: Verdict,
    /// Reading of the item.
    pub reading: Reading,
    /// Decision time.
    pub at: Timestamp,
    /// Index of the limit version that decided; see [`CompactReplies::text`].
    pub text: usize,
    /// Index of the item in that limit.
    pub item: usize,
}

/// Replies to the first requests of a batch, in order. The buffer is reused.
#[derive(Debug, Default)]
pub struct CompactReplies {
    list: Vec<CompactReply>,
    texts: Vec<Arc<Limit>>,
    /// What the requests changed, for a store with a log.
    notes: Option<Box<Notes>>,
}

impl CompactReplies {
    /// All replies.
    pub fn list(&self) -> &[CompactReply] {
        &self.list
    }

    /// The limit version that decided a request.
    pub fn text(&self, gist: &CompactReply) -> &Arc<Limit> {
        &self.texts[gist.text]
    }

    /// Clears the buffer.
    pub fn clear(&mut self) {
        self.list.clear();
        self.texts.clear();
        if let Some(notes) = &mut self.notes {
            notes.clear();
        }
    }

    /// For stores: adds a limit version and returns its index.
    pub fn add_limit(&mut self, text: Arc<Limit>) -> usize {
        self.texts.push(text);
        self.texts.len() - 1
    }

    /// For stores: adds the next reply.
    #[inline]
    pub fn push(&mut self, gist: CompactReply) {
        self.list.push(gist);
    }

    /// For stores with a log: records changes from now on.
    pub fn record_changes(&mut self) {
        self.notes.get_or_insert_default();
    }

    /// For stores with a log: the recorded changes.
    pub fn notes(&mut self) -> Option<&mut Notes> {
        self.notes.as_deref_mut()
    }
}
