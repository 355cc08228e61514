//! What is known of every item after a decision: its reading for the reply, and its charge for a log.

use tidegate_core::{Capacity, Reading, Timestamp, UsageRecord};

use super::super::super::packed_item::PackedKind;
use super::super::{ResolvedAsk, Setback};
use super::Attempt;
use crate::store::journal::ChargeNote;

/// Receives every item after the decision.
pub(in crate::store::memory) type Observer<'r> = Option<&'r mut dyn FnMut(&ObservedItem<'_>)>;

/// An item after the decision.
pub(in crate::store::memory) struct ObservedItem<'a> {
    pub(in crate::store::memory) ask: usize,
    /// The epoch in which the item was judged.
    pub(in crate::store::memory) epoch: u64,
    pub(in crate::store::memory) item: usize,
    pub(in crate::store::memory) reading: Reading,
    record: Option<UsageRecord>,
    is_of_key: bool,
    is_exact: bool,
    capacity: Capacity,
    at: Timestamp,
    resolved: &'a ResolvedAsk<'a>,
}

impl ObservedItem<'_> {
    /// The charge for a log. `None` if nothing was charged.
    pub(in crate::store::memory) fn charge_note(&self, version: u32) -> Option<ChargeNote> {
        Some(ChargeNote {
            generation: self.resolved.table.generation,
            version,
            key: if self.is_of_key { self.resolved.tag() } else { None },
            item: self.item,
            capacity: self.capacity,
            trace: self.record?,
            at: self.at,
            is_alone: self.is_exact,
        })
    }
}

impl<const W: usize> Attempt<'_, W> {
    /// Reports every item, if nothing has changed since it was read.
    pub(super) fn observe_unchanged(
        &mut self,
        asks: &[ResolvedAsk<'_>],
        now: Timestamp,
        observer: &mut Observer<'_>,
    ) -> Result<(), Setback> {
        if observer.is_some() {
            self.keep_items();
        }
        if self.has_blocks && observer.is_some() {
            // A block may change while it is read, so it is reported only after the check.
            let mut items = Vec::new();
            self.each_item(asks, now, false, &mut |item| items.push(item));
            self.check_unchanged()?;
            if let Some(observer) = observer {
                for item in &items {
                    observer(item);
                }
            }
            return Ok(());
        }
        self.check_unchanged()?;
        self.observe(asks, now, false, observer);
        Ok(())
    }

    /// Reports every item.
    #[inline]
    pub(super) fn observe(
        &self,
        asks: &[ResolvedAsk<'_>],
        now: Timestamp,
        charged: bool,
        observer: &mut Observer<'_>,
    ) {
        if let Some(observer) = observer {
            self.each_item(asks, now, charged, &mut |item| observer(&item));
        }
    }

    fn each_item<'o>(
        &self,
        asks: &'o [ResolvedAsk<'o>],
        now: Timestamp,
        charged: bool,
        visit: &mut dyn FnMut(ObservedItem<'o>),
    ) {
        let mut items = self.items.iter();
        for (ask, (resolved, legs)) in asks.iter().zip(&self.asks).enumerate() {
            for item in items.by_ref().take(legs.head.items()) {
                let row = if item.head.is_of_key() { legs.key } else { legs.all };
                // Without a row, the items are those of two epochs, and the check after this fails.
                let Some(row) = self.rows.get(usize::from(row)) else { return };
                let words = item.words_of(if charged { &row.next } else { &row.words });
                let slab = &resolved.table.rows.slab;
                let cost = item.head.cost(legs.totals);
                visit(ObservedItem {
                    ask,
                    epoch: legs.epoch,
                    item: item.head.item(),
                    reading: item.reading(words, legs.ends_at, now, slab),
                    record: if charged && cost > 0 { item.record(words, slab) } else { None },
                    is_of_key: item.head.is_of_key(),
                    is_exact: item.head.kind() == PackedKind::Sliding && item.sliding().granularity() <= 1,
                    capacity: item.capacity(),
                    at: now,
                    resolved,
                });
            }
        }
    }
}
