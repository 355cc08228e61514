//! The smallest store: limits and rows in maps, one asker at a time.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tidegate_core::decide::{cost, for_each_item, lease_ttl};
use tidegate_core::{
    Amount, AskTotals, ChargeRecord, Decision, DecisionRow, Intent, LeaseId, LeaseTerm, Limit, LimitPhase,
    LimitSpec, Per, Row, RowScope, Tick, Timestamp, decide,
};
use tidegate_testkit::history::{ReplayReply, SystemUnderTest};
use tidegate_testkit::model::{ModelReading, ModelRefusal, OwnedAsk};

/// Whose row it is.
pub(crate) type Whose = (String, Option<Vec<u8>>);

/// Limits and rows in maps.
#[derive(Debug, Clone)]
pub(crate) struct Desk {
    tick: Tick,
    pub(crate) limits: BTreeMap<String, Rc<Limit>>,
    pub(crate) rows: BTreeMap<Whose, Row>,
    holds: BTreeMap<LeaseId, Hold>,
    next_lease: u128,
}

#[derive(Debug, Clone)]
struct Hold {
    tenure: LeaseTerm,
    pinned: bool,
    rows: Vec<Whose>,
    /// Whose, which item, what, and under which version of the limit.
    charges: Vec<(Whose, String, ChargeRecord, u32)>,
}

impl Desk {
    pub(crate) fn new(tick: Tick) -> Desk {
        Desk { tick, limits: BTreeMap::new(), rows: BTreeMap::new(), holds: BTreeMap::new(), next_lease: 1 }
    }

    /// A desk with one limit.
    pub(crate) fn with(spec: LimitSpec, tick: Tick) -> Desk {
        let mut desk = Desk::new(tick);
        let limit = Limit::new(spec, tick).unwrap_or_else(|flaws| panic!("{flaws:?}"));
        desk.limits.insert(limit.id().to_owned(), Rc::new(limit));
        desk
    }

    /// Notes that rows were emptied: what was charged to them before cannot be given back.
    fn void(&mut self, emptied: impl Fn(&Whose) -> bool) {
        let charges = self.holds.values_mut().flat_map(|hold| &mut hold.charges);
        for (_, _, _, version) in charges.filter(|(whose, ..)| emptied(whose)) {
            *version = 0;
        }
    }

    /// Asks, and hands every line to `read` afterwards.
    pub(crate) fn decide(
        &mut self,
        intent: Intent,
        asks: &[OwnedAsk],
        hold: bool,
        now: Timestamp,
        read: &mut dyn FnMut(&[DecisionRow<'_>]),
    ) -> (Decision, Option<LeaseTerm>) {
        let laid = lay_out(asks);
        let limits: Vec<Rc<Limit>> = laid.iter().map(|((id, _), _)| Rc::clone(&self.limits[id])).collect();
        let mut rows: Vec<Row> = laid
            .iter()
            .zip(&limits)
            .map(|((whose, _), limit)| {
                self.rows.remove(whose).unwrap_or_else(|| Row::blank(limit, per(whose)))
            })
            .collect();
        let mut lines: Vec<DecisionRow<'_>> = laid
            .iter()
            .zip(&limits)
            .zip(&mut rows)
            .map(|(((whose, load), limit), row)| DecisionRow {
                limit,
                scope: seat(limit, whose),
                row,
                totals: *load,
            })
            .collect();
        let ttl = lease_ttl(&lines);
        let tenure = (hold || ttl.is_some()).then(|| LeaseTerm {
            lease: LeaseId(self.next_lease),
            expires_at: now.plus(ttl.unwrap_or_else(|| self.tick.span(Duration::from_secs(60)))),
        });
        let mut charged = Vec::new();
        let decision = decide(&mut lines, intent, tenure.as_ref(), now, &mut |charge| charged.push(charge));
        read(&lines);
        drop(lines);
        let granted = decision == Decision::Granted && intent == Intent::Acquire;
        if let (true, Some(tenure)) = (granted, tenure) {
            self.next_lease += 1;
            let charges = charged
                .iter()
                .map(|charge| {
                    let limit = &limits[charge.position.row];
                    let whose = laid[charge.position.row].0.clone();
                    let name = limit.items()[charge.position.item].name().to_owned();
                    (whose, name, *charge, limit.version())
                })
                .collect();
            if hold {
                rows.iter_mut().for_each(Row::add_hold);
            }
            let rows = laid.iter().map(|(whose, _)| whose.clone()).collect();
            self.holds.insert(tenure.lease, Hold { tenure, pinned: hold, rows, charges });
        }
        self.rows.extend(laid.into_iter().map(|(whose, _)| whose).zip(rows));
        (decision, tenure.filter(|_| granted))
    }

    /// Acquires for one key, plainly.
    pub(crate) fn take(&mut self, id: &str, key: &str, count: Amount, now: Timestamp) -> Decision {
        let ask = OwnedAsk { limit_id: id.to_owned(), key: Some(key.into()), count };
        self.decide(Intent::Acquire, &[ask], false, now, &mut |_| ()).0
    }

    fn sweep(&mut self, now: Timestamp) {
        let lapsed: Vec<LeaseId> = self
            .holds
            .iter()
            .filter(|(_, hold)| hold.tenure.expires_at <= now)
            .map(|(lease, _)| *lease)
            .collect();
        for lease in lapsed {
            self.end(lease);
        }
    }

    fn end(&mut self, lease: LeaseId) -> Option<Hold> {
        let hold = self.holds.remove(&lease)?;
        for whose in hold.rows.iter().filter(|_| hold.pinned) {
            if let Some(row) = self.rows.get_mut(whose) {
                row.remove_hold();
            }
        }
        Some(hold)
    }
}

/// The rows an order touches, each limit's `all` row first, with the loads added up.
fn lay_out(asks: &[OwnedAsk]) -> Vec<(Whose, AskTotals)> {
    let mut ids: Vec<&str> = Vec::new();
    for ask in asks {
        if !ids.contains(&ask.limit_id.as_str()) {
            ids.push(&ask.limit_id);
        }
    }
    let mut laid: Vec<(Whose, AskTotals)> = Vec::new();
    for id in ids {
        for ask in asks.iter().filter(|ask| ask.limit_id == id) {
            // An ask without a key is asked of its `all` row once.
            let keyed = ask.key.iter().map(|key| Some(key.clone()));
            for key in std::iter::once(None).chain(keyed) {
                let whose = (id.to_owned(), key);
                let load = AskTotals::of(ask.count);
                match laid.iter_mut().find(|(other, _)| *other == whose) {
                    Some((_, sum)) => *sum = sum.plus(load),
                    None => laid.push((whose, load)),
                }
            }
        }
    }
    laid
}

fn per(whose: &Whose) -> Per {
    if whose.1.is_some() { Per::Key } else { Per::All }
}

pub(crate) fn seat<'a>(limit: &'a Limit, whose: &Whose) -> RowScope<'a> {
    match &whose.1 {
        None => RowScope::All,
        Some(key) => RowScope::Key { overrides: limit.overrides(key) },
    }
}

impl SystemUnderTest for Desk {
    fn put(&mut self, spec: &LimitSpec, now: Timestamp) -> bool {
        let former = self.limits.get(&spec.id).cloned();
        if former.as_ref().is_some_and(|former| former.spec() == spec) {
            return true;
        }
        let made = match &former {
            Some(former) => former.next_version(spec.clone()),
            None => Limit::new(spec.clone(), self.tick),
        };
        let Ok(next) = made else { return false };
        if let Some(former) = former {
            for (whose, row) in self.rows.iter_mut().filter(|((id, _), _)| *id == spec.id) {
                *row = row.migrate((&former, seat(&former, whose)), (&next, seat(&next, whose)), now);
            }
            if former.phase(now) == LimitPhase::After {
                self.void(|(id, _)| *id == spec.id);
            }
        }
        self.limits.insert(spec.id.clone(), Rc::new(next));
        true
    }

    fn order(&mut self, intent: Intent, asks: &[OwnedAsk], hold: bool, now: Timestamp) -> ReplayReply {
        self.sweep(now);
        let mut readings = Vec::new();
        let mut names = Vec::new();
        let (decision, lease) = self.decide(intent, asks, hold, now, &mut |lines| {
            for_each_item(lines, |place, line, item| {
                names.push((place, line.limit.id().to_owned(), item.name().to_owned()));
                let reading = line.reading(place.item, item, now);
                readings.push(ModelReading {
                    limit_id: line.limit.id().to_owned(),
                    item: item.name().to_owned(),
                    capacity: reading.capacity,
                    used: reading.used,
                    remaining: reading.remaining,
                    resets_at: reading.resets_at,
                });
            });
        });
        let refusal = match decision {
            Decision::Granted => None,
            Decision::Denied(denial) => {
                let (_, limit_id, item) =
                    names.iter().find(|(place, ..)| *place == denial.binding).expect("it was visited");
                Some(ModelRefusal { limit_id: limit_id.clone(), item: item.clone(), wait: denial.wait })
            }
        };
        ReplayReply { refusal, readings, lease, degraded: false }
    }

    fn settle(&mut self, lease: LeaseId, actual: Amount, now: Timestamp) -> bool {
        self.sweep(now);
        let Some(hold) = self.end(lease) else { return false };
        for (whose, name, charged, version) in &hold.charges {
            let limit = Rc::clone(&self.limits[&whose.0]);
            let Some((index, item)) = limit.item_named(name) else { continue };
            let cost = cost(item, AskTotals::of(actual));
            let row = self.rows.entry(whose.clone()).or_insert_with(|| Row::blank(&limit, per(whose)));
            let mut line =
                DecisionRow { limit: &limit, scope: seat(&limit, whose), row, totals: AskTotals::default() };
            line.settle(index, charged, *version, cost, now);
        }
        for whose in &hold.rows {
            if let Some(row) = self.rows.get_mut(whose) {
                row.release(&hold.tenure, now);
            }
        }
        true
    }

    fn release(&mut self, lease: LeaseId, now: Timestamp) -> bool {
        self.sweep(now);
        let Some(hold) = self.end(lease) else { return false };
        for whose in &hold.rows {
            if let Some(row) = self.rows.get_mut(whose) {
                row.release(&hold.tenure, now);
            }
        }
        true
    }

    fn renew(&mut self, lease: LeaseId, expires_at: Timestamp, now: Timestamp) -> bool {
        self.sweep(now);
        let Some(hold) = self.holds.get_mut(&lease) else { return false };
        for whose in &hold.rows {
            if let Some(row) = self.rows.get_mut(whose) {
                row.renew(&hold.tenure, expires_at, now);
            }
        }
        hold.tenure.expires_at = expires_at;
        true
    }

    fn reset(&mut self, limit_id: &str, key: Option<&[u8]>, now: Timestamp) {
        self.sweep(now);
        let limit = Rc::clone(&self.limits[limit_id]);
        for (whose, row) in self.rows.iter_mut().filter(|((id, _), _)| id == limit_id) {
            if key.is_none() || whose.1.as_deref() == key {
                row.reset(&limit, per(whose));
            }
        }
        self.void(|(id, whose)| id == limit_id && (key.is_none() || whose.as_deref() == key));
    }

    fn forget(&mut self, now: Timestamp) {
        self.sweep(now);
        let limits = &self.limits;
        self.rows.retain(|whose, row| {
            let limit = &limits[&whose.0];
            !row.is_evictable(limit, seat(limit, whose), now)
        });
    }
}
