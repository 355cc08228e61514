//! A minimal single-threaded store: limits and rows in maps.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tidegate_core::decide::{cost, for_each_item, lease_ttl};
use tidegate_core::{
    Amount, AskTotals, ChargeRecord, Decision, DecisionRow, Intent, LeaseId, LeaseTerm, Limit, LimitPhase,
    LimitSpec, Per, Row, RowScope, Tick, Timestamp, decide,
};
use tidegate_testkit::history::{ReplayReply, SystemUnderTest};
use tidegate_testkit::reference_model::{ModelReading, ModelRefusal, OwnedAsk};

/// The limit id, and the key unless the row is that of all keys.
pub(crate) type RowKey = (String, Option<Vec<u8>>);

/// Limits and rows in maps.
#[derive(Debug, Clone)]
pub(crate) struct MinimalStore {
    tick: Tick,
    pub(crate) limits: BTreeMap<String, Rc<Limit>>,
    pub(crate) rows: BTreeMap<RowKey, Row>,
    holds: BTreeMap<LeaseId, Hold>,
    next_lease: u128,
}

#[derive(Debug, Clone)]
struct Hold {
    term: LeaseTerm,
    pinned: bool,
    rows: Vec<RowKey>,
    /// The row, the item, the charge, and the version of the limit.
    charges: Vec<(RowKey, String, ChargeRecord, u32)>,
}

impl MinimalStore {
    pub(crate) fn new(tick: Tick) -> MinimalStore {
        MinimalStore {
            tick,
            limits: BTreeMap::new(),
            rows: BTreeMap::new(),
            holds: BTreeMap::new(),
            next_lease: 1,
        }
    }

    /// A store with one limit.
    pub(crate) fn with(spec: LimitSpec, tick: Tick) -> MinimalStore {
        let mut store = MinimalStore::new(tick);
        let limit = Limit::new(spec, tick).unwrap_or_else(|errors| panic!("{errors:?}"));
        store.limits.insert(limit.id().to_owned(), Rc::new(limit));
        store
    }

    /// Marks the charges of reset rows as not refundable.
    fn void(&mut self, emptied: impl Fn(&RowKey) -> bool) {
        let charges = self.holds.values_mut().flat_map(|hold| &mut hold.charges);
        for (_, _, _, version) in charges.filter(|(row_key, ..)| emptied(row_key)) {
            *version = 0;
        }
    }

    /// Decides an order and passes the rows to `read` afterwards.
    pub(crate) fn decide(
        &mut self,
        intent: Intent,
        asks: &[OwnedAsk],
        hold: bool,
        now: Timestamp,
        read: &mut dyn FnMut(&[DecisionRow<'_>]),
    ) -> (Decision, Option<LeaseTerm>) {
        let touched = collect_rows(asks);
        let limits: Vec<Rc<Limit>> = touched.iter().map(|((id, _), _)| Rc::clone(&self.limits[id])).collect();
        let mut rows: Vec<Row> = touched
            .iter()
            .zip(&limits)
            .map(|((row_key, _), limit)| {
                self.rows.remove(row_key).unwrap_or_else(|| Row::blank(limit, per(row_key)))
            })
            .collect();
        let mut decision_rows: Vec<DecisionRow<'_>> = touched
            .iter()
            .zip(&limits)
            .zip(&mut rows)
            .map(|(((row_key, load), limit), row)| DecisionRow {
                limit,
                scope: scope_of(limit, row_key),
                row,
                totals: *load,
            })
            .collect();
        let ttl = lease_ttl(&decision_rows);
        let term = (hold || ttl.is_some()).then(|| LeaseTerm {
            lease: LeaseId(self.next_lease),
            expires_at: now.plus(ttl.unwrap_or_else(|| self.tick.span(Duration::from_secs(60)))),
        });
        let mut charged = Vec::new();
        let decision =
            decide(&mut decision_rows, intent, term.as_ref(), now, &mut |charge| charged.push(charge));
        read(&decision_rows);
        drop(decision_rows);
        let granted = decision == Decision::Granted && intent == Intent::Acquire;
        if let (true, Some(term)) = (granted, term) {
            self.next_lease += 1;
            let charges = charged
                .iter()
                .map(|charge| {
                    let limit = &limits[charge.position.row];
                    let row_key = touched[charge.position.row].0.clone();
                    let name = limit.items()[charge.position.item].name().to_owned();
                    (row_key, name, *charge, limit.version())
                })
                .collect();
            if hold {
                rows.iter_mut().for_each(Row::add_hold);
            }
            let rows = touched.iter().map(|(row_key, _)| row_key.clone()).collect();
            self.holds.insert(term.lease, Hold { term, pinned: hold, rows, charges });
        }
        self.rows.extend(touched.into_iter().map(|(row_key, _)| row_key).zip(rows));
        (decision, term.filter(|_| granted))
    }

    /// Acquires for one key, without a hold.
    pub(crate) fn take(&mut self, id: &str, key: &str, count: Amount, now: Timestamp) -> Decision {
        let ask = OwnedAsk { limit_id: id.to_owned(), key: Some(key.into()), count };
        self.decide(Intent::Acquire, &[ask], false, now, &mut |_| ()).0
    }

    fn sweep(&mut self, now: Timestamp) {
        let lapsed: Vec<LeaseId> = self
            .holds
            .iter()
            .filter(|(_, hold)| hold.term.expires_at <= now)
            .map(|(lease, _)| *lease)
            .collect();
        for lease in lapsed {
            self.end(lease);
        }
    }

    fn end(&mut self, lease: LeaseId) -> Option<Hold> {
        let hold = self.holds.remove(&lease)?;
        for row_key in hold.rows.iter().filter(|_| hold.pinned) {
            if let Some(row) = self.rows.get_mut(row_key) {
                row.remove_hold();
            }
        }
        Some(hold)
    }
}

/// The rows of an order with their totals. The row of all keys comes first in each limit.
fn collect_rows(asks: &[OwnedAsk]) -> Vec<(RowKey, AskTotals)> {
    let mut ids: Vec<&str> = Vec::new();
    for ask in asks {
        if !ids.contains(&ask.limit_id.as_str()) {
            ids.push(&ask.limit_id);
        }
    }
    let mut touched: Vec<(RowKey, AskTotals)> = Vec::new();
    for id in ids {
        for ask in asks.iter().filter(|ask| ask.limit_id == id) {
            // An ask without a key counts only in the row of all keys.
            let keyed = ask.key.iter().map(|key| Some(key.clone()));
            for key in std::iter::once(None).chain(keyed) {
                let row_key = (id.to_owned(), key);
                let load = AskTotals::of(ask.count);
                match touched.iter_mut().find(|(other, _)| *other == row_key) {
                    Some((_, sum)) => *sum = sum.plus(load),
                    None => touched.push((row_key, load)),
                }
            }
        }
    }
    touched
}

fn per(row_key: &RowKey) -> Per {
    if row_key.1.is_some() { Per::Key } else { Per::All }
}

pub(crate) fn scope_of<'a>(limit: &'a Limit, row_key: &RowKey) -> RowScope<'a> {
    match &row_key.1 {
        None => RowScope::All,
        Some(key) => RowScope::Key { overrides: limit.overrides(key) },
    }
}

impl SystemUnderTest for MinimalStore {
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
            for (row_key, row) in self.rows.iter_mut().filter(|((id, _), _)| *id == spec.id) {
                *row = row.migrate(
                    (&former, scope_of(&former, row_key)),
                    (&next, scope_of(&next, row_key)),
                    now,
                );
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
        let (decision, lease) = self.decide(intent, asks, hold, now, &mut |decision_rows| {
            for_each_item(decision_rows, |place, line, item| {
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
        for (row_key, name, charged, version) in &hold.charges {
            let limit = Rc::clone(&self.limits[&row_key.0]);
            let Some((index, item)) = limit.item_named(name) else { continue };
            let cost = cost(item, AskTotals::of(actual));
            let row = self.rows.entry(row_key.clone()).or_insert_with(|| Row::blank(&limit, per(row_key)));
            let mut line = DecisionRow {
                limit: &limit,
                scope: scope_of(&limit, row_key),
                row,
                totals: AskTotals::default(),
            };
            line.settle(index, charged, *version, cost, now);
        }
        for row_key in &hold.rows {
            if let Some(row) = self.rows.get_mut(row_key) {
                row.release(&hold.term, now);
            }
        }
        true
    }

    fn release(&mut self, lease: LeaseId, now: Timestamp) -> bool {
        self.sweep(now);
        let Some(hold) = self.end(lease) else { return false };
        for row_key in &hold.rows {
            if let Some(row) = self.rows.get_mut(row_key) {
                row.release(&hold.term, now);
            }
        }
        true
    }

    fn renew(&mut self, lease: LeaseId, expires_at: Timestamp, now: Timestamp) -> bool {
        self.sweep(now);
        let Some(hold) = self.holds.get_mut(&lease) else { return false };
        for row_key in &hold.rows {
            if let Some(row) = self.rows.get_mut(row_key) {
                row.renew(&hold.term, expires_at, now);
            }
        }
        hold.term.expires_at = expires_at;
        true
    }

    fn reset(&mut self, limit_id: &str, key: Option<&[u8]>, now: Timestamp) {
        self.sweep(now);
        let limit = Rc::clone(&self.limits[limit_id]);
        for (row_key, row) in self.rows.iter_mut().filter(|((id, _), _)| id == limit_id) {
            if key.is_none() || row_key.1.as_deref() == key {
                row.reset(&limit, per(row_key));
            }
        }
        self.void(|(id, row_key)| id == limit_id && (key.is_none() || row_key.as_deref() == key));
    }

    fn forget(&mut self, now: Timestamp) {
        self.sweep(now);
        let limits = &self.limits;
        self.rows.retain(|row_key, row| {
            let limit = &limits[&row_key.0];
            !row.is_evictable(limit, scope_of(limit, row_key), now)
        });
    }
}
