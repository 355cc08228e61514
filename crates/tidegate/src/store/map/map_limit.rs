//! A limit of the map store with its rows.

use std::sync::Arc;

use tidegate_core::decide;
use tidegate_core::{
    Ask, AskTotals, Decision, DecisionRow, Intent, Item, Law, Limit, LimitPhase, Mode, Order, Per, Row,
    RowScope, Timestamp,
};

use super::key_table::KeyTable;
use crate::reply::{OrderReply, Outcome, Replies};
use crate::store::leases::LeaseHolding;
use crate::store::order_path::{AskedRow, RowLocation, RowRoom, read_items, refusal_of};

/// A limit with its rows.
pub(super) struct MapLimit {
    pub(super) limit: Arc<Limit>,
    /// Generation of the limit.
    pub(super) generation: u64,
    /// The latest fence that it gave.
    pub(super) fence: u64,
    pub(super) all: Row,
    pub(super) table: KeyTable,
    /// A blank row for the next new key.
    blank: Row,
    /// Whether the limit enforces and has no `concurrency` item.
    is_simple: bool,
    /// Whether the limit has ended and its rows were dropped.
    ended: bool,
}

impl MapLimit {
    pub(super) fn new(limit: Arc<Limit>, generation: u64, fence: u64) -> MapLimit {
        let (all, blank) = (Row::blank(&limit, Per::All), Row::blank(&limit, Per::Key));
        let is_simple = has_simple_items(&limit);
        MapLimit { limit, generation, fence, all, table: KeyTable::default(), blank, is_simple, ended: false }
    }

    pub(super) fn live_keys(&self, now: Timestamp) -> usize {
        let live = |(key, row): &(&[u8], &Row)| {
            !row.is_evictable(&self.limit, RowScope::from(self.limit.overrides(key)), now)
        };
        self.table.iter().filter(live).count()
    }

    /// The row of a key, or the `all` row.
    pub(super) fn row(&mut self, key: Option<&[u8]>) -> Option<&mut Row> {
        match key {
            None => Some(&mut self.all),
            Some(key) => self.table.find(key).map(|slot| self.table.row(slot)),
        }
    }

    /// Drops the rows of a limit that has ended.
    pub(super) fn drop_if_ended(&mut self, now: Timestamp) {
        if !self.ended && self.limit.phase(now) == LimitPhase::After {
            self.all = Row::blank(&self.limit, Per::All);
            self.table = KeyTable::default();
            self.ended = true;
        }
    }

    /// Drops evictable rows if this many new keys might not fit.
    pub(super) fn make_room(&mut self, more: u64, now: Timestamp) {
        if let Some(most) = self.limit.spec().max_keys {
            self.table.make_room(most, more, &self.limit, now);
        }
    }

    /// Migrates every row to the next version, as of `at`.
    pub(super) fn adopt(&mut self, next: Arc<Limit>, at: Timestamp) {
        let former = std::mem::replace(&mut self.limit, next);
        let next = &self.limit;
        self.all = self.all.migrate((&former, RowScope::All), (next, RowScope::All), at);
        for (key, row) in self.table.iter_mut() {
            let (old, new) = (RowScope::from(former.overrides(key)), RowScope::from(next.overrides(key)));
            *row = row.migrate((&former, old), (next, new), at);
        }
        self.table.forget_full_until();
        self.blank = Row::blank(next, Per::Key);
        self.is_simple = has_simple_items(next);
        self.ended = false;
    }

    /// Decides an order of one ask in place, if it needs no lease, no shadow mode, and no new row of a bounded limit.
    /// Returns `None` otherwise.
    pub(super) fn decide_single_ask(
        &mut self,
        ask: &Ask<'_>,
        intent: Intent,
        now: Timestamp,
        answers: &mut Replies,
    ) -> Option<OrderReply> {
        if !self.is_simple || (ask.key.is_none() && self.limit.needs_key()) {
            return None;
        }
        self.drop_if_ended(now);
        let MapLimit { limit, all, table, blank, .. } = self;
        let load = AskTotals::of(ask.count);
        let first = answers.mark();
        let all = DecisionRow { limit, scope: RowScope::All, row: all, totals: load };
        let decision = if let Some(key) = ask.key.filter(|_| limit.needs_key()) {
            let slot = table.find(key);
            // An evictable row counts as one too many if the bound was lowered.
            let bounds = |most: u64| slot.is_none() || table.occupied() > most;
            if limit.spec().max_keys.is_some_and(bounds) {
                return None;
            }
            let row = slot.map_or(&mut *blank, |slot| table.row(slot));
            let mut lines =
                [all, DecisionRow { limit, scope: RowScope::from(limit.overrides(key)), row, totals: load }];
            let decision = decide(&mut lines, intent, None, now, &mut |_| {});
            read_items(&lines, |_| limit, now, answers);
            if slot.is_none() && !blank.is_evictable(limit, RowScope::from(limit.overrides(key)), now) {
                let row = std::mem::replace(blank, Row::blank(limit, Per::Key));
                table.insert(limit, key, row, now);
            }
            decision
        } else {
            let mut lines = [all];
            let decision = decide(&mut lines, intent, None, now, &mut |_| {});
            read_items(&lines, |_| limit, now, answers);
            decision
        };
        let outcome = match decision {
            Decision::Granted => Outcome::Granted(None),
            Decision::Denied(denial) => Outcome::Denied(refusal_of(denial, |_| limit)),
        };
        let readings = first..answers.mark();
        Some(OrderReply { outcome, at: now, degraded: false, shadowed: Vec::new(), readings })
    }

    /// Takes out the rows of one ask, or adds its load to rows that are out.
    pub(super) fn take_rows(
        &mut self,
        index: usize,
        ask: &Ask<'_>,
        order: &Order<'_>,
        now: Timestamp,
        asked_rows: &mut Vec<AskedRow>,
    ) {
        let load = AskTotals::of(ask.count);
        let limit = Arc::clone(&self.limit);
        let own = |asked: &AskedRow| Arc::ptr_eq(&asked.limit, &limit);
        let first = asked_rows.iter().position(own).unwrap_or(asked_rows.len());
        if first == asked_rows.len() {
            self.drop_if_ended(now);
            let (limit, row) = (Arc::clone(&self.limit), std::mem::take(&mut self.all));
            asked_rows.push(AskedRow { limit, ask: index, location: RowLocation::All, row, load });
        } else {
            asked_rows[first].load = asked_rows[first].load.plus(load);
        }
        let Some(key) = ask.key.filter(|_| self.limit.needs_key()) else { return };

        let end = first + asked_rows[first..].iter().take_while(|asked| own(asked)).count();
        let same = |asked: &&mut AskedRow| order.asks[asked.ask].key == ask.key;
        if let Some(same) = asked_rows[first + 1..end].iter_mut().find(same) {
            same.load = same.load.plus(load);
            return;
        }
        let (location, row) = if let Some(slot) = self.table.find(key) {
            (RowLocation::Key(slot), std::mem::take(self.table.row(slot)))
        } else {
            (RowLocation::NewKey(RowRoom::Enough), Row::blank(&limit, Per::Key))
        };
        asked_rows.insert(end, AskedRow { limit: Arc::clone(&limit), ask: index, location, row, load });
    }

    /// Corrects the charge of a holding to this cost.
    pub(super) fn settle(&mut self, holding: &LeaseHolding, load: AskTotals, now: Timestamp) {
        let limit = Arc::clone(&self.limit);
        let key = holding.key.as_deref();
        let seat = key.map_or(RowScope::All, |key| RowScope::from(limit.overrides(key)));
        let mut new = Row::blank(&limit, seat.per());
        let (row, is_new) = match self.row(key) {
            Some(row) => (row, false),
            // The row was dropped at the end of the limit. The extra cost is charged to the new period.
            None => (&mut new, true),
        };
        let mut line = DecisionRow { limit: &limit, scope: seat, row, totals: load };
        for (name, charged) in &holding.charges {
            if let Some((index, item)) = limit.item_named(name).filter(|(_, item)| item.per() == seat.per()) {
                line.settle(index, charged, holding.version, decide::cost(item, load), now);
            }
        }
        if let Some(key) = key.filter(|_| is_new && !new.is_evictable(&limit, seat, now)) {
            self.table.insert(&limit, key, new, now);
        }
    }
}

fn has_simple_items(limit: &Limit) -> bool {
    let held = |item: &Item| matches!(item.rule().law, Law::Concurrency(_));
    limit.mode() == Mode::Enforce && !limit.items().iter().any(held)
}
