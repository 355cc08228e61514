//! Decision of an order: rows are taken out, judged together, charged or not, and put back.

use std::sync::Arc;

use tidegate_core::decide::Decision;
use tidegate_core::order::REQUEST_ID_RETENTION;
use tidegate_core::{Ask, Hold, Intent, Limit, Order, Row, RowScope};

use super::{LOOK_AHEAD, MapState};
use crate::reply::{GrantedLease, OrderError, OrderRefusal, OrderReply, Outcome, Replies};
use crate::store::order_path::{
    AskedRow, DecisionContext, OrderDecision, RowLocation, RowRoom, check_order, decide_rows, make_lease,
    refusal_of,
};
use crate::store::remembered_grants::RememberedGrant;

impl MapState {
    pub(super) fn decide(
        &mut self,
        order: &Order<'_>,
        answers: &mut Replies,
    ) -> Result<OrderReply, OrderError> {
        check_order(order)?;
        if let Some(repeated) = self.repeated_reply(order, answers)? {
            return Ok(repeated);
        }
        if let ([ask], Hold::No, None) = (order.asks, order.hold, order.request_id)
            && let Some(entry) = self.limits.get_mut(ask.limit_id)
            && let Some(answer) = entry.decide_single_ask(ask, order.intent, self.latest, answers)
        {
            return Ok(answer);
        }
        let mut asked_rows = self.take_rows(order)?;
        let first = answers.mark();
        let (secret, number) = (self.secret, self.granted_leases + 1);
        let next_lapse = self.leases.next_lapse().into_iter().chain(self.next_lapse).min();
        let context = DecisionContext { now: self.latest, tick: self.tick, secret, number, next_lapse };
        let decided = decide_rows(order, &mut asked_rows, context, answers);
        let outcome = match decided.decision {
            Decision::Denied(denial) => {
                let denied = refusal_of(denial, |line| &asked_rows[line].limit);
                Outcome::Denied(OrderRefusal { lapses_at: decided.lapses_at, ..denied })
            }
            Decision::Granted => Outcome::Granted(self.grant(order, &mut asked_rows, &decided)),
        };
        self.put_rows_back(order, asked_rows);
        let answer = OrderReply {
            outcome,
            at: self.latest,
            degraded: decided.degraded,
            shadowed: decided.shadowed,
            readings: first..answers.mark(),
        };
        if let (Some(id), Intent::Acquire, true) = (order.request_id, order.intent, answer.is_granted()) {
            let until = self.latest.plus(self.tick.span(REQUEST_ID_RETENTION));
            let readings = answers.readings(&answer).to_vec();
            self.requests.remember(id, RememberedGrant::new(order, until, answer.clone(), readings));
        }
        Ok(answer)
    }

    /// See [`super::MapStore::look_ahead`].
    pub(super) fn look_ahead<'a>(&self, asks: impl IntoIterator<Item = Ask<'a>>) {
        // Touches level by level, so that one row's memory does not wait for another's.
        let mut rows: [Option<&Row>; LOOK_AHEAD] = [None; LOOK_AHEAD];
        for (row, ask) in rows.iter_mut().zip(asks) {
            let entry = self.limits.get(ask.limit_id);
            *row = entry.zip(ask.key).and_then(|(entry, key)| entry.table.get(key));
        }
        let look = |glance: fn(&Row) -> u64| {
            let all = rows.iter().flatten().map(|row| glance(row)).fold(0, |all, each| all ^ each);
            std::hint::black_box(all);
        };
        look(Row::touch_states);
        look(Row::touch_entries);
    }

    /// The reply to an earlier order with the same request id.
    fn repeated_reply(
        &mut self,
        order: &Order<'_>,
        answers: &mut Replies,
    ) -> Result<Option<OrderReply>, OrderError> {
        let (Some(id), Intent::Acquire) = (order.request_id, order.intent) else { return Ok(None) };
        let Some(remembered) = self.requests.get(id, self.latest) else { return Ok(None) };
        if !remembered.is_for(order) {
            return Err(OrderError::RequestIdReused);
        }
        Ok(Some(remembered.again(&self.leases, self.latest, answers)))
    }

    /// Takes out the rows of an order: one per row, those of a limit side by side with its `all` row first, repeated
    /// asks added up. Takes nothing unless everything exists.
    fn take_rows(&mut self, order: &Order<'_>) -> Result<Vec<AskedRow>, OrderError> {
        for ask in order.asks {
            let entry = self.limits.get_mut(ask.limit_id);
            let entry =
                entry.ok_or_else(|| OrderError::UnknownLimit { limit_id: ask.limit_id.to_owned() })?;
            if ask.key.is_none() && entry.limit.needs_key() {
                return Err(OrderError::KeyMissing { limit_id: ask.limit_id.to_owned() });
            }
            // Before any slot is found or any row is taken out.
            entry.make_room(order.asks.len() as u64, self.latest);
        }
        let mut asked_rows: Vec<AskedRow> = Vec::with_capacity(2 * order.asks.len());
        for (index, ask) in order.asks.iter().enumerate() {
            let entry = self.limits.get_mut(ask.limit_id).expect("looked up above");
            entry.take_rows(index, ask, order, self.latest, &mut asked_rows);
        }
        self.find_room(order, &mut asked_rows);
        Ok(asked_rows)
    }

    /// Checks one after the other whether there is room for the new keys. An ask of zero needs no row.
    fn find_room(&self, order: &Order<'_>, asked_rows: &mut [AskedRow]) {
        let mut before: Option<(Arc<Limit>, u64)> = None;
        for index in 0..asked_rows.len() {
            let (asked, limit) = (&asked_rows[index], Arc::clone(&asked_rows[index].limit));
            let Some(most) = asked.limit.spec().max_keys else { continue };
            let needs_row = asked.load.count > 0 || order.hold == Hold::Yes;
            if matches!(asked.location, RowLocation::NewKey(_)) && needs_row {
                // Rows of one limit are side by side.
                let others = before.filter(|(other, _)| Arc::ptr_eq(other, &limit)).map_or(0, |(_, n)| n);
                let table = &self.limits[limit.id()].table;
                let mut room = table.room(most, others + 1, self.latest);
                // Rows that are out are missing in their table.
                let holds = |other: &AskedRow| {
                    Arc::ptr_eq(&other.limit, &limit)
                        && other.location != RowLocation::All
                        && other.row.is_held(self.latest)
                };
                if room == RowRoom::None && asked_rows.iter().any(holds) {
                    room = RowRoom::NoneUntilRelease;
                }
                asked_rows[index].location = RowLocation::NewKey(room);
                before = Some((limit, others + 1));
            }
        }
    }

    /// Records the lease of a grant.
    fn grant(
        &mut self,
        order: &Order<'_>,
        asked_rows: &mut [AskedRow],
        decided: &OrderDecision,
    ) -> Option<GrantedLease> {
        let MapState { limits, highest_fence, .. } = self;
        let register = |limit: &Limit| {
            let entry = limits.get_mut(limit.id()).expect("its row was taken from there");
            entry.fence += 1;
            *highest_fence = entry.fence.max(*highest_fence);
            (entry.generation, entry.fence)
        };
        let (grant, lease) = make_lease(order, asked_rows, decided, register)?;
        self.granted_leases += 1;
        self.leases.insert(grant.lease, lease);
        Some(grant)
    }

    /// Puts the rows back and adds those of new keys. Adding checks other rows of the table, so all rows must be back
    /// before.
    fn put_rows_back(&mut self, order: &Order<'_>, asked_rows: Vec<AskedRow>) {
        let now = self.latest;
        let mut new = Vec::new();
        for asked in asked_rows {
            let entry = self.limits.get_mut(asked.limit.id()).expect("its row was taken from there");
            match asked.location {
                RowLocation::All => entry.all = asked.row,
                RowLocation::Key(slot) => *entry.table.row(slot) = asked.row,
                RowLocation::NewKey(_) => new.push(asked),
            }
        }
        for AskedRow { limit, ask, row, .. } in new {
            let key = order.asks[ask].key.unwrap_or_default();
            if !row.is_evictable(&limit, RowScope::from(limit.overrides(key)), now) {
                let entry = self.limits.get_mut(limit.id()).expect("its row was taken from there");
                entry.table.insert(&limit, key, row, now);
            }
        }
    }
}
