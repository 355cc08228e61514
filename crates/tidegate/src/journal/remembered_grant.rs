//! A grant with a request id, as it is kept for repeated requests.

use tidegate_core::{Amount, Ask, Order, Timestamp};

use crate::order_reply::{ItemReading, OrderReply};

/// Limit id, key and count of an ask.
pub type RememberedAsk = (Box<str>, Option<Box<[u8]>>, Amount);

/// A grant and its order.
#[derive(Debug, Clone)]
pub struct RememberedGrant {
    /// End of its memory.
    pub until: Timestamp,
    /// The asks.
    pub asks: Vec<RememberedAsk>,
    /// The reply.
    pub answer: OrderReply,
    /// The readings of the reply.
    pub readings: Vec<ItemReading>,
}

impl RememberedGrant {
    /// Remembers the grant of an order.
    pub(crate) fn new(
        order: &Order<'_>,
        until: Timestamp,
        answer: OrderReply,
        readings: Vec<ItemReading>,
    ) -> RememberedGrant {
        let own = |ask: &Ask<'_>| (ask.limit_id.into(), ask.key.map(Into::into), ask.count);
        RememberedGrant { until, asks: order.asks.iter().map(own).collect(), answer, readings }
    }

    /// Whether an order has the same asks.
    pub(crate) fn is_for(&self, order: &Order<'_>) -> bool {
        let same = |(held, ask): (&RememberedAsk, &Ask<'_>)| {
            *held.0 == *ask.limit_id && held.1.as_deref() == ask.key && held.2 == ask.count
        };
        self.asks.len() == order.asks.len() && self.asks.iter().zip(order.asks).all(same)
    }
}
