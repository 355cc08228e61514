//! A lease as a log keeps it: its expiry, and what it was charged.

use tidegate_core::{Amount, AskTotals, ChargeRecord, Span, Timestamp};

/// A lease that was not released.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRecord {
    /// When it lapses.
    pub expires_at: Timestamp,
    /// Time to live after a renewal.
    pub ttl: Span,
    /// The rows that it holds.
    pub holdings: Vec<LeaseHolding>,
    /// The asks of its order.
    pub asks: Vec<HeldAsk>,
}

/// One ask of a held order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldAsk {
    /// Indices of the holdings of its limit's `all` row and of its key's row.
    pub holdings: [Option<usize>; 2],
}

/// What a lease holds of one row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseHolding {
    /// Id of the limit.
    pub limit_id: Box<str>,
    /// Generation of the limit. A deleted generation takes its holdings along.
    pub generation: u64,
    /// Version of the limit at the charge.
    pub version: u32,
    /// The key; `None` for the `all` row.
    pub key: Option<Box<[u8]>>,
    /// The charge of each item, by name.
    pub charges: Vec<(Box<str>, ChargeRecord)>,
    /// Whether its row counts this lease. A row that was dropped when its limit ended does not.
    pub pins: bool,
}

impl LeaseRecord {
    /// Cost of each holding if the asks had these counts.
    pub(crate) fn loads(&self, count_of: impl Fn(usize) -> Amount) -> Vec<AskTotals> {
        let mut loads = vec![AskTotals::default(); self.holdings.len()];
        for (index, ask) in self.asks.iter().enumerate() {
            let load = AskTotals::of(count_of(index));
            for holding in ask.holdings.into_iter().flatten() {
                loads[holding] = loads[holding].plus(load);
            }
        }
        loads
    }
}

impl LeaseHolding {
    /// Marks the charge as no longer counted, so that it is not refunded.
    pub(crate) fn void(&mut self) {
        self.version = 0;
    }
}
