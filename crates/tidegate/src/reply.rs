//! The replies of a store to a batch of orders.
//!
//! The buffer is reused from batch to batch, so that replies allocate nothing once it has grown.

use crate::journal::Notes;
pub use crate::order_reply::{GrantedLease, ItemReading, OrderError, OrderRefusal, OrderReply, Outcome};

/// The detail of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Detail {
    /// The verdict; for a refusal also the binding item and the wait.
    #[default]
    Verdicts,
    /// The verdict and the readings of all items.
    Readings,
}

/// The replies to one batch, in the order of its orders.
#[derive(Debug, Default)]
pub struct Replies {
    detail: Detail,
    list: Vec<Result<OrderReply, OrderError>>,
    readings: Vec<ItemReading>,
    /// The changes that a store with a log has to write.
    notes: Option<Box<Notes>>,
}

impl Replies {
    /// Creates a buffer for replies in this detail.
    pub fn new(detail: Detail) -> Replies {
        Replies { detail, ..Replies::default() }
    }

    /// The requested detail.
    pub fn detail(&self) -> Detail {
        self.detail
    }

    /// Removes the replies of the previous batch.
    pub fn clear(&mut self) {
        self.list.clear();
        self.readings.clear();
        if let Some(notes) = &mut self.notes {
            notes.clear();
        }
    }

    /// Records from now on what each order changes; for stores with a log.
    pub fn record_changes(&mut self) {
        self.notes.get_or_insert_default();
    }

    /// The recorded changes; for stores with a log. `None` unless they are recorded.
    pub fn notes(&mut self) -> Option<&mut Notes> {
        self.notes.as_deref_mut()
    }

    /// The number of replies.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are no replies.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The replies, in the order of the orders.
    pub fn iter(&self) -> impl Iterator<Item = &Result<OrderReply, OrderError>> {
        self.list.iter()
    }

    /// The reply to the order at `index`.
    pub fn get(&self, index: usize) -> Option<&Result<OrderReply, OrderError>> {
        self.list.get(index)
    }

    /// The readings of one reply's items, in written order; empty unless readings were requested.
    pub fn readings(&self, answer: &OrderReply) -> &[ItemReading] {
        &self.readings[answer.readings.clone()]
    }

    /// The index at which the readings of the next reply begin; for stores.
    pub fn mark(&self) -> usize {
        self.readings.len()
    }

    /// Adds a reading to the next reply; for stores.
    pub fn read(&mut self, reading: ItemReading) {
        self.readings.push(reading);
    }

    /// Turns the grant of a peek into a refusal, because a waiter comes first.
    pub(crate) fn deny(&mut self, index: usize, denied: OrderRefusal) {
        if let Some(Ok(answer)) = self.list.get_mut(index)
            && answer.is_granted()
        {
            answer.outcome = Outcome::Denied(denied);
        }
    }

    /// Adds the next reply; for stores.
    pub fn push(&mut self, answer: Result<OrderReply, OrderError>) {
        self.list.push(answer);
    }
}
