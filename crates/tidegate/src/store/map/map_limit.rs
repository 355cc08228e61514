//! A limit and its rows.

use std::sync::Arc;

use tidegate_core::decide;
use tidegate_core::{
    Ask, AskTotals, Decision, DecisionRow, Intent, Item, Law, Limit, LimitPhase, Mode, Order, Per, Row,
    RowScope, Timestamp,
};

use super::key_table::Table;
use crate::reply::{OrderReply, Outcome, Replies};
use crate::store::leases::Holding;
use crate::store::order_path::{Entrant, Room, Station, put_in_words, read};

/// A limit and its rows.
pub(super) struct Tenant {
    pub(super) limit: Arc<Limit>,
    /// Which incarnation of its id it is.
    pub(super) generation: u64,
    /// The latest fence it gave.
    pub(super) fence: u64,
    pub(super) all: Row,
    pub(super) table: Table,
    /// A blank row, for keys that have none yet.
    spare: Row,
    /// Whether the limit never holds anything and never only watches.
    plain: bool,
    /// Whether the limit's end was noticed and its state dropped.
    ended: bool,
}

impl Tenant {
    pub(super) fn new(limit: Arc<Limit>, generation: u64, fence: u64) -> Tenant {
        let (all, spare) = (Row::blank(&limit, Per::All), Row::blank(&limit, Per::Key));
        let plain = is_plain(&limit);
        Tenant { limit, generation, fence, all, table: Table::default(), spare, plain, ended: false }
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

    /// Drops the state of a limit that is over.
    pub(super) fn drop_if_ended(&mut self, now: Timestamp) {
        if !self.ended && self.limit.phase(now) == LimitPhase::After {
            self.all = Row::blank(&self.limit, Per::All);
            self.table = Table::default();
            self.ended = true;
        }
    }

    /// Drops fresh rows if this many new keys might not fit beside those there are.
    pub(super) fn make_room(&mut self, more: u64, now: Timestamp) {
        if let Some(most) = self.limit.spec().max_keys {
            self.table.make_room(most, more, &self.limit, now);
        }
    }

    /// Carries every row over to the next version, as of `at`.
    pub(super) fn adopt(&mut self, next: Arc<Limit>, at: Timestamp) {
        let former = std::mem::replace(&mut self.limit, next);
        let next = &self.limit;
        self.all = self.all.migrate((&former, RowScope::All), (next, RowScope::All), at);
        for (key, row) in self.table.iter_mut() {
            let (old, new) = (RowScope::from(former.overrides(key)), RowScope::from(next.overrides(key)));
            *row = row.migrate((&former, old), (next, new), at);
        }
        self.table.may_have_room();
        self.spare = Row::blank(next, Per::Key);
        self.plain = is_plain(next);
        self.ended = false;
    }

    /// Decides an order of one ask where its rows lie, if that is all there is to it: no lease, no shadow, no new key
    /// of a limit that bounds them. `None` if there is more to it.
    pub(super) fn decide_alone(
        &mut self,
        ask: &Ask<'_>,
        intent: Intent,
        now: Timestamp,
        answers: &mut Replies,
    ) -> Option<OrderReply> {
        if !self.plain || (ask.key.is_none() && self.limit.needs_key()) {
            return None;
        }
        self.drop_if_ended(now);
        let Tenant { limit, all, table, spare, .. } = self;
        let load = AskTotals::of(ask.count);
        let first = answers.mark();
        let all = DecisionRow { limit, scope: RowScope::All, row: all, totals: load };
        let decision = if let Some(key) = ask.key.filter(|_| limit.needs_key()) {
            let slot = table.find(key);
            // A row that became fresh is a row too many where the bound was lowered.
            let bounds = |most: u64| slot.is_none() || table.occupied() > most;
            if limit.spec().max_keys.is_some_and(bounds) {
                return None;
            }
            let row = slot.map_or(&mut *spare, |slot| table.row(slot));
            let mut lines =
                [all, DecisionRow { limit, scope: RowScope::from(limit.overrides(key)), row, totals: load }];
            let decision = decide(&mut lines, intent, None, now, &mut |_| {});
            read(&lines, |_| limit, now, answers);
            if slot.is_none() && !spare.is_evictable(limit, RowScope::from(limit.overrides(key)), now) {
                let row = std::mem::replace(spare, Row::blank(limit, Per::Key));
                table.insert(limit, key, row, now);
            }
            decision
        } else {
            let mut lines = [all];
            let decision = decide(&mut lines, intent, None, now, &mut |_| {});
            read(&lines, |_| limit, now, answers);
            decision
        };
        let outcome = match decision {
            Decision::Granted => Outcome::Granted(None),
            Decision::Denied(denial) => Outcome::Denied(put_in_words(denial, |_| limit)),
        };
        let readings = first..answers.mark();
        Some(OrderReply { outcome, at: now, degraded: false, shadowed: Vec::new(), readings })
    }

    /// Takes out the rows that one ask is about, or adds its load to those that are out already.
    pub(super) fn enter(
        &mut self,
        index: usize,
        ask: &Ask<'_>,
        order: &Order<'_>,
        now: Timestamp,
        entrants: &mut Vec<Entrant>,
    ) {
        let load = AskTotals::of(ask.count);
        let limit = Arc::clone(&self.limit);
        let own = |entrant: &Entrant| Arc::ptr_eq(&entrant.limit, &limit);
        let first = entrants.iter().position(own).unwrap_or(entrants.len());
        if first == entrants.len() {
            self.drop_if_ended(now);
            let (limit, row) = (Arc::clone(&self.limit), std::mem::take(&mut self.all));
            entrants.push(Entrant { limit, ask: index, station: Station::All, row, load });
        } else {
            entrants[first].load = entrants[first].load.plus(load);
        }
        let Some(key) = ask.key.filter(|_| self.limit.needs_key()) else { return };

        let end = first + entrants[first..].iter().take_while(|entrant| own(entrant)).count();
        let twin = |entrant: &&mut Entrant| order.asks[entrant.ask].key == ask.key;
        if let Some(twin) = entrants[first + 1..end].iter_mut().find(twin) {
            twin.load = twin.load.plus(load);
            return;
        }
        let (station, row) = if let Some(slot) = self.table.find(key) {
            (Station::Key(slot), std::mem::take(self.table.row(slot)))
        } else {
            (Station::NewKey(Room::Enough), Row::blank(&limit, Per::Key))
        };
        entrants.insert(end, Entrant { limit: Arc::clone(&limit), ask: index, station, row, load });
    }

    /// Corrects what a holding was charged to what this load costs.
    pub(super) fn settle(&mut self, holding: &Holding, load: AskTotals, now: Timestamp) {
        let limit = Arc::clone(&self.limit);
        let key = holding.key.as_deref();
        let seat = key.map_or(RowScope::All, |key| RowScope::from(limit.overrides(key)));
        let mut new = Row::blank(&limit, seat.per());
        let (row, is_new) = match self.row(key) {
            Some(row) => (row, false),
            // Its row went with the limit's end, but work that was done is charged to what began since.
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

fn is_plain(limit: &Limit) -> bool {
    let held = |item: &Item| matches!(item.rule().law, Law::Concurrency(_));
    limit.mode() == Mode::Enforce && !limit.items().iter().any(held)
}
