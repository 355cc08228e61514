//! A batch: consecutive decisions of a pipeline, on their way to the store together.

use tidegate::store::CompactRequest;
use tidegate::{Amount, Ask, Intent, Limiter, Order, Replies, StoreReply};

use super::decision_reply::Due;

/// The most decisions that are put to the store at once.
pub(super) const LARGEST_BATCH: usize = 1024;

/// Decisions that are to be made, in order. They borrow from the read buffer.
#[derive(Debug)]
pub(super) struct Entry<'i> {
    pub(super) due: Due,
    pub(super) intent: Intent,
    /// Empty if it is a described bucket that is asked.
    pub(super) limit_id: &'i str,
    pub(super) key: &'i [u8],
    pub(super) count: Amount,
    pub(super) request_id: Option<&'i [u8]>,
}

impl Entry<'_> {
    fn ask(&self) -> Ask<'_> {
        let limit_id = match &self.due {
            Due::Question => self.limit_id,
            Due::Throttle(_, described) => described.id(),
        };
        Ask { limit_id, key: Some(self.key), count: self.count }
    }
}

/// Room for batches, so that the next one finds the room of the last.
#[derive(Debug, Default)]
pub(super) struct Room {
    entries: Vec<Entry<'static>>,
    bids: Vec<CompactRequest<'static>>,
    asks: Vec<Ask<'static>>,
    orders: Vec<Order<'static>>,
}

impl Room {
    /// Takes the room for decisions that borrow from somewhere else.
    pub(super) fn take<'i>(&mut self) -> (Vec<Entry<'i>>, Vec<CompactRequest<'i>>) {
        (emptied(std::mem::take(&mut self.entries)), emptied(std::mem::take(&mut self.bids)))
    }

    /// Gives it back.
    pub(super) fn give_back(&mut self, (entries, bids): (Vec<Entry<'_>>, Vec<CompactRequest<'_>>)) {
        self.entries = emptied(entries);
        self.bids = emptied(bids);
    }

    /// Puts all of them to the limiter's store, as one batch.
    pub(super) fn submit(
        &mut self,
        entries: &[Entry<'_>],
        limiter: &Limiter,
        answers: Replies,
    ) -> StoreReply<Replies> {
        let mut asks: Vec<Ask<'_>> = emptied(std::mem::take(&mut self.asks));
        asks.extend(entries.iter().map(Entry::ask));
        let mut orders: Vec<Order<'_>> = emptied(std::mem::take(&mut self.orders));
        orders.extend(entries.iter().zip(&asks).map(|(entry, ask)| Order {
            intent: entry.intent,
            request_id: entry.request_id,
            ..Order::acquire(std::slice::from_ref(ask))
        }));
        let spoken = limiter.submit(&orders, answers);
        self.orders = emptied(orders);
        self.asks = emptied(asks);
        spoken
    }
}

/// The room of a vector for things that live for another time. The compiler sees that nothing is moved, and keeps the memory.
fn emptied<A, B>(mut full: Vec<A>) -> Vec<B> {
    full.clear();
    full.into_iter().map(|_| unreachable!("it was cleared")).collect()
}
