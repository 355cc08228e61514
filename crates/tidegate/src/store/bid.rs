//! CompactBatch: the orders that nearly everybody sends, asked and answered in short.
//!
//! A bid is an order of one ask for a key that is to be taken now or not at all: no lease, no request id, no patience. Of a limit with one
//! item there is one thing to tell about it, its [`CompactReply`]. Many are decided one after the other, in the order in which they were
//! made, exactly as if each were an [`Order`](tidegate_core::Order) of a [batch](super::Store::submit); what is saved is only what such an order would have to say
//! about everything that a bid does not have.
//!
//! Decided: a store decides as many as it can in short and stops at the first that it cannot. Whoever asked puts the rest as orders. So
//! a store need not know any of this, and whatever is not simple is decided where everything is.
//!
//! Refused: a handle on the limit that is kept between batches. Finding a limit by its id costs little once in a batch, and a handle would
//! have to be asked whether it is still the limit of that id.

use std::sync::Arc;

use tidegate_core::{Amount, Limit, Reading, Timestamp, Verdict};

use super::journal::Notes;

/// The most limits that one batch of bids is about.
pub const MOST_LIMITS: usize = 4;

/// One ask of one limit, now or not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompactRequest<'a> {
    /// Which of the [limits](CompactBatch::limit_ids).
    pub limit: usize,
    /// For whom.
    pub key: &'a [u8],
    /// How much.
    pub count: Amount,
}

/// CompactBatch, in the order in which they are to be decided.
#[derive(Debug, Clone, Copy)]
pub struct CompactBatch<'a> {
    /// The ids of the limits they are about, at most [`MOST_LIMITS`].
    pub limit_ids: &'a [&'a str],
    /// The bids.
    pub list: &'a [CompactRequest<'a>],
}

/// What is told about a bid: whether it was granted, and what the only item of its limit says after that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompactReply {
    /// Granted or denied.
    pub verdict: Verdict,
    /// What the item says about itself.
    pub reading: Reading,
    /// The instant it was decided at.
    pub at: Timestamp,
    /// Which text of a limit it was decided by; see [`CompactReplies::text`].
    pub text: usize,
    /// The index of the item in it.
    pub item: usize,
}

/// What is told about the first of some bids, in their order: about all that were decided. The buffer is reused from batch to batch.
#[derive(Debug, Default)]
pub struct CompactReplies {
    list: Vec<CompactReply>,
    texts: Vec<Arc<Limit>>,
    /// What a store with a log is told about what they changed.
    notes: Option<Box<Notes>>,
}

impl CompactReplies {
    /// All of them.
    pub fn list(&self) -> &[CompactReply] {
        &self.list
    }

    /// The limit that a bid was decided by, as it was then.
    pub fn text(&self, gist: &CompactReply) -> &Arc<Limit> {
        &self.texts[gist.text]
    }

    /// Forgets the batch before.
    pub fn clear(&mut self) {
        self.list.clear();
        self.texts.clear();
        if let Some(notes) = &mut self.notes {
            notes.clear();
        }
    }

    /// For stores: one more text by which bids are decided, and where it is.
    pub fn learn(&mut self, text: Arc<Limit>) -> usize {
        self.texts.push(text);
        self.texts.len() - 1
    }

    /// For stores: what is told about the next bid.
    #[inline]
    pub fn push(&mut self, gist: CompactReply) {
        self.list.push(gist);
    }

    /// For stores with a log: from now on it is noted what bids change.
    pub fn keep_notes(&mut self) {
        self.notes.get_or_insert_default();
    }

    /// For stores with a log: what the bids changed, if that is noted.
    pub fn notes(&mut self) -> Option<&mut Notes> {
        self.notes.as_deref_mut()
    }
}
