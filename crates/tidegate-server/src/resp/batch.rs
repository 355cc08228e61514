//! Batches: consecutive decisions of a pipeline, submitted to the store together.

use tidegate::Limiter;
use tidegate::model::{Amount, Ask, Intent, Order};
use tidegate::reply::Replies;
use tidegate::store::CompactRequest;
use tidegate::store::StoreReply;

use super::decision_reply::ReplyFormat;

/// The most decisions that are submitted to the store at once.
pub(super) const MAX_BATCH: usize = 1024;

/// One decision of a batch, borrowed from the read buffer.
#[derive(Debug)]
pub(super) struct BatchEntry<'i> {
    pub(super) format: ReplyFormat,
    pub(super) intent: Intent,
    /// Empty for a described bucket.
    pub(super) limit_id: &'i str,
    pub(super) key: &'i [u8],
    pub(super) count: Amount,
    pub(super) request_id: Option<&'i [u8]>,
}

impl BatchEntry<'_> {
    fn ask(&self) -> Ask<'_> {
        let limit_id = match &self.format {
            ReplyFormat::Decision => self.limit_id,
            ReplyFormat::Throttle(_, bucket) => bucket.id(),
        };
        Ask { limit_id, key: Some(self.key), count: self.count }
    }
}

/// Vectors that keep their memory between batches.
#[derive(Debug, Default)]
pub(super) struct BatchBuffers {
    entries: Vec<BatchEntry<'static>>,
    requests: Vec<CompactRequest<'static>>,
    asks: Vec<Ask<'static>>,
    orders: Vec<Order<'static>>,
}

impl BatchBuffers {
    /// Takes the vectors for the next batch.
    pub(super) fn take<'i>(&mut self) -> (Vec<BatchEntry<'i>>, Vec<CompactRequest<'i>>) {
        (reuse(std::mem::take(&mut self.entries)), reuse(std::mem::take(&mut self.requests)))
    }

    /// Returns the vectors.
    pub(super) fn give_back(&mut self, (entries, requests): (Vec<BatchEntry<'_>>, Vec<CompactRequest<'_>>)) {
        self.entries = reuse(entries);
        self.requests = reuse(requests);
    }

    /// Submits all entries to the limiter's store as one batch.
    pub(super) fn submit(
        &mut self,
        entries: &[BatchEntry<'_>],
        limiter: &Limiter,
        replies: Replies,
    ) -> StoreReply<Replies> {
        let mut asks: Vec<Ask<'_>> = reuse(std::mem::take(&mut self.asks));
        asks.extend(entries.iter().map(BatchEntry::ask));
        let mut orders: Vec<Order<'_>> = reuse(std::mem::take(&mut self.orders));
        orders.extend(entries.iter().zip(&asks).map(|(entry, ask)| Order {
            intent: entry.intent,
            request_id: entry.request_id,
            ..Order::acquire(std::slice::from_ref(ask))
        }));
        let reply = limiter.submit(&orders, replies);
        self.orders = reuse(orders);
        self.asks = reuse(asks);
        reply
    }
}

/// Reuses a vector's memory for another lifetime. The compiler keeps the allocation and copies nothing.
fn reuse<A, B>(mut full: Vec<A>) -> Vec<B> {
    full.clear();
    full.into_iter().map(|_| unreachable!("it was cleared")).collect()
}
