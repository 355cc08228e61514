//! Statistics of one limit for operators.

use crate::store::{ItemCount, LimitStats};

/// The statistics of one limit since it was added.
///
/// Each order is counted once, as the store decided it:
///
/// - an order over several limits counts as granted at each of them, and as refused only at the limit of the binding
///   item;
/// - a peek is not counted, and neither is a request that is answered again by its request id;
/// - a waiting request asks the store when it arrives, when it has joined the queue, and each time it is called. Each
///   of these orders that is refused counts. A request that is refused because others wait has not asked;
/// - a key without a free row counts as refused by the item that would have counted it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitOverview {
    /// Orders that were granted whole.
    pub granted: u64,
    /// Orders for which an item of this limit was the binding refusal.
    pub refused: u64,
    /// Orders that this limit would have refused outside of shadow mode.
    pub shadowed: u64,
    /// The number of requests that wait for it at this limiter.
    pub waiting: usize,
    /// The number of rows of keys, including fresh rows that are not collected yet. `None` where another process keeps
    /// the rows.
    pub rows: Option<u64>,
    /// The approximate memory of the limit in bytes. `None` where another process keeps the rows.
    pub bytes: Option<usize>,
    /// The refusals by item.
    pub items: Vec<ItemCount>,
}

impl LimitOverview {
    /// Combines the statistics of a store with the number of waiting requests.
    pub fn new(observed: LimitStats, waiting: usize) -> LimitOverview {
        let LimitStats { granted, refused, shadowed, items, rows, bytes } = observed;
        LimitOverview { granted, refused, shadowed, waiting, rows, bytes, items }
    }

    /// The number of refusals by the item of this name.
    pub fn refused_by(&self, item: &str) -> u64 {
        self.items.iter().find(|count| count.item == item).map_or(0, |count| count.refused)
    }
}
