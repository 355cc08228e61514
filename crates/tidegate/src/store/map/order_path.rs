//! Deciding: rows are taken out, judged together, charged or not, and put back.

use std::sync::Arc;

use tidegate_core::decide::Decision;
use tidegate_core::order::REQUEST_ID_RETENTION;
use tidegate_core::{Ask, Hold, Intent, Limit, Order, Row, RowScope};

use super::{Inner, LOOK_AHEAD};
use crate::reply::{GrantedLease, OrderError, OrderRefusal, OrderReply, Outcome, Replies};
use crate::store::order_path::{
    Conclusion, Entrant, Occasion, Room, Station, check_order, conclude, grant, put_in_words,
};
use crate::store::requests::Remembered;

impl Inner {
    pub(super) fn decide(
        &mut self,
        order: &Order<'_>,
        answers: &mut Replies,
    ) -> Result<OrderReply, OrderError> {
        check_order(order)?;
        if let Some(repeated) = self.repeated(order, answers)? {
            return Ok(repeated);
        }
        if let ([ask], Hold::No, None) = (order.asks, order.hold, order.request_id)
            && let Some(tenant) = self.limits.get_mut(ask.limit_id)
            && let Some(answer) = tenant.decide_alone(ask, order.intent, self.latest, answers)
        {
            return Ok(answer);
        }
        let mut entrants = self.enter(order)?;
        let first = answers.mark();
        let (secret, number) = (self.secret, self.granted_leases + 1);
        let next_lapse = self.leases.next_lapse().into_iter().chain(self.next_lapse).min();
        let occasion = Occasion { now: self.latest, tick: self.tick, secret, number, next_lapse };
        let conclusion = conclude(order, &mut entrants, occasion, answers);
        let outcome = match conclusion.decision {
            Decision::Denied(denial) => {
                let denied = put_in_words(denial, |line| &entrants[line].limit);
                Outcome::Denied(OrderRefusal { lapses_at: conclusion.lapses_at, ..denied })
            }
            Decision::Granted => Outcome::Granted(self.grant(order, &mut entrants, &conclusion)),
        };
        self.leave(order, entrants);
        let answer = OrderReply {
            outcome,
            at: self.latest,
            degraded: conclusion.degraded,
            shadowed: conclusion.shadowed,
            readings: first..answers.mark(),
        };
        if let (Some(id), Intent::Acquire, true) = (order.request_id, order.intent, answer.is_granted()) {
            let until = self.latest.plus(self.tick.span(REQUEST_ID_RETENTION));
            let readings = answers.readings(&answer).to_vec();
            self.requests.remember(id, Remembered::new(order, until, answer.clone(), readings));
        }
        Ok(answer)
    }

    /// See [`super::MapStore::look_ahead`].
    pub(super) fn look_ahead<'a>(&self, asks: impl IntoIterator<Item = Ask<'a>>) {
        // Level by level, so that what is fetched for one row does not wait for what another row's points to.
        let mut rows: [Option<&Row>; LOOK_AHEAD] = [None; LOOK_AHEAD];
        for (row, ask) in rows.iter_mut().zip(asks) {
            let tenant = self.limits.get(ask.limit_id);
            *row = tenant.zip(ask.key).and_then(|(tenant, key)| tenant.table.get(key));
        }
        let look = |glance: fn(&Row) -> u64| {
            let all = rows.iter().flatten().map(|row| glance(row)).fold(0, |all, each| all ^ each);
            std::hint::black_box(all);
        };
        look(Row::touch_states);
        look(Row::touch_entries);
    }

    /// The answer that the same request was granted before.
    fn repeated(
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

    /// Takes out the rows an order is about: one entrant per row, those of a limit side by side with its `all` row
    /// first, repeated asks added up. Nothing is taken unless everything can be.
    fn enter(&mut self, order: &Order<'_>) -> Result<Vec<Entrant>, OrderError> {
        for ask in order.asks {
            let tenant = self.limits.get_mut(ask.limit_id);
            let tenant =
                tenant.ok_or_else(|| OrderError::UnknownLimit { limit_id: ask.limit_id.to_owned() })?;
            if ask.key.is_none() && tenant.limit.needs_key() {
                return Err(OrderError::KeyMissing { limit_id: ask.limit_id.to_owned() });
            }
            // Before any slot is found or any row taken out of its own.
            tenant.make_room(order.asks.len() as u64, self.latest);
        }
        let mut entrants: Vec<Entrant> = Vec::with_capacity(2 * order.asks.len());
        for (index, ask) in order.asks.iter().enumerate() {
            let tenant = self.limits.get_mut(ask.limit_id).expect("looked up above");
            tenant.enter(index, ask, order, self.latest, &mut entrants);
        }
        self.find_room(order, &mut entrants);
        Ok(entrants)
    }

    /// Sees whether there is room for the new keys, one after the other. Whoever only looks needs no row.
    fn find_room(&self, order: &Order<'_>, entrants: &mut [Entrant]) {
        let mut before: Option<(Arc<Limit>, u64)> = None;
        for index in 0..entrants.len() {
            let (entrant, limit) = (&entrants[index], Arc::clone(&entrants[index].limit));
            let Some(most) = entrant.limit.spec().max_keys else { continue };
            let needs_row = entrant.load.count > 0 || order.hold == Hold::Yes;
            if matches!(entrant.station, Station::NewKey(_)) && needs_row {
                // Entrants of one limit stand side by side.
                let others = before.filter(|(other, _)| Arc::ptr_eq(other, &limit)).map_or(0, |(_, n)| n);
                let table = &self.limits[limit.id()].table;
                let mut room = table.room(most, others + 1, self.latest);
                // Rows that are out are not seen in their table.
                let holds = |other: &Entrant| {
                    Arc::ptr_eq(&other.limit, &limit)
                        && other.station != Station::All
                        && other.row.is_held(self.latest)
                };
                if room == Room::None && entrants.iter().any(holds) {
                    room = Room::NoneTillRelease;
                }
                entrants[index].station = Station::NewKey(room);
                before = Some((limit, others + 1));
            }
        }
    }

    /// Writes down the lease that a grant comes with.
    fn grant(
        &mut self,
        order: &Order<'_>,
        entrants: &mut [Entrant],
        conclusion: &Conclusion,
    ) -> Option<GrantedLease> {
        let Inner { limits, highest_fence, .. } = self;
        let register = |limit: &Limit| {
            let tenant = limits.get_mut(limit.id()).expect("its row was taken from there");
            tenant.fence += 1;
            *highest_fence = tenant.fence.max(*highest_fence);
            (tenant.generation, tenant.fence)
        };
        let (grant, lease) = grant(order, entrants, conclusion, register)?;
        self.granted_leases += 1;
        self.leases.insert(grant.lease, lease);
        Some(grant)
    }

    /// Puts the rows back, and adds those of new keys that remember something. Adding looks at other rows of the table,
    /// so everything has to be back in its place by then.
    fn leave(&mut self, order: &Order<'_>, entrants: Vec<Entrant>) {
        let now = self.latest;
        let mut new = Vec::new();
        for entrant in entrants {
            let tenant = self.limits.get_mut(entrant.limit.id()).expect("its row was taken from there");
            match entrant.station {
                Station::All => tenant.all = entrant.row,
                Station::Key(slot) => *tenant.table.row(slot) = entrant.row,
                Station::NewKey(_) => new.push(entrant),
            }
        }
        for Entrant { limit, ask, row, .. } in new {
            let key = order.asks[ask].key.unwrap_or_default();
            if !row.is_evictable(&limit, RowScope::from(limit.overrides(key)), now) {
                let tenant = self.limits.get_mut(limit.id()).expect("its row was taken from there");
                tenant.table.insert(&limit, key, row, now);
            }
        }
    }
}
