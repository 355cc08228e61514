//! The reference model: what limits mean, by definition.
//!
//! It keeps a list of all charges and answers every question by looking at all of them. It is slow on purpose and
//! shares no arithmetic with the implementation: no arrival times, no running sums, no ring buffers, no calendar cache.
//!
//! | policy        | in use at `t`                                                                      |
//! |---------------|------------------------------------------------------------------------------------|
//! | `total`       | everything                                                                         |
//! | calendar      | everything since the last rollover, if the latest of it shares a unit with `t`     |
//! | `interval`    | everything since the charge that opened the window, if `t` is before its end       |
//! | `sliding`     | everything counted in the closed window `[t - W, t]`                               |
//! | `bucket`      | `n` more fits iff for every earlier `s`: spent in `[s, t]` + `n` ≤ burst + refill  |
//! | `concurrency` | everything held by leases that have not lapsed                                     |
//!
//! A wait is found by trying every instant at which anything could change, in order.
//!
//! Refunds are exact: refunded units count as never spent. A bucket may refund less, because it forgets when a charge
//! was made, but never more. So the model evaluates a bucket twice: as if refunded charges had cost their true price
//! from the start ([`RefundView::Refunded`]), and as if nothing had been refunded ([`RefundView::NotRefunded`]). An
//! implementation must lie between the two.

mod definitions;
mod key_capacity;
mod model_reply;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

use tidegate_core::{
    Amount, AskTotals, Capacity, Charge, Hold, ItemSpec, LeaseId, LeaseTerm, LimitSpec, Mode, Per, Policy,
    Tick, Timestamp, Unit, Wait, WeekStart,
};

use crate::reference_calendar::ReferenceCalendar;

use definitions::{grain, last_tick, price, step};
pub use key_capacity::KeyWithoutRoom;
pub use model_reply::{ModelReading, ModelRefusal, OwnedAsk, RefundView};

/// All charges that still matter.
#[derive(Debug, Clone)]
pub struct ReferenceModel {
    tick: Tick,
    limits: BTreeMap<String, ModelLimit>,
    leases: BTreeMap<LeaseId, HeldCharges>,
    latest: u64,
    calendars: RefCell<HashMap<(Unit, String, WeekStart), ReferenceCalendar>>,
}

/// One limit and its charges.
#[derive(Debug, Clone)]
struct ModelLimit {
    spec: LimitSpec,
    items: Vec<ModelItem>,
    ledgers: BTreeMap<(String, Option<Vec<u8>>), ItemLedger>,
}

/// One item of a limit definition.
#[derive(Debug, Clone)]
struct ModelItem {
    name: String,
    per: Per,
    policy: Policy,
    limit: Capacity,
    charge: Charge,
    /// Ticks between units of a bucket.
    step: u64,
    /// All parameters that identify the refill rule.
    law: String,
}

/// What an item grants one key at one instant.
#[derive(Debug, Clone, Copy)]
struct ItemParameters {
    capacity: Capacity,
    kind: PolicyParameters,
}

#[derive(Debug, Clone, Copy)]
enum PolicyParameters {
    Total,
    Calendar(Unit),
    Interval { window: u64 },
    Sliding { window: u64, grain: u64 },
    Bucket { step: u64 },
    Concurrency,
}

/// Charges of one item for one key.
#[derive(Debug, Clone, Default)]
struct ItemLedger {
    events: Vec<ModelCharge>,
    /// The latest charge.
    last_time: u64,
    /// The charge that opened the window.
    opened: u64,
    /// The step that the bucket's charges use.
    step: u64,
}

#[derive(Debug, Clone)]
struct ModelCharge {
    /// When it counts.
    at: u64,
    /// Its true cost.
    amount: Amount,
    /// Its cost before refunds.
    spent: Amount,
    /// Backlog carried over from another rate, in ticks, for each view.
    carried: [u128; 2],
    /// The lease that it came with.
    lease: Option<LeaseId>,
    /// When that lease lapses.
    lapses: u64,
    /// The refill rule has changed since, so nothing of the charge is refunded.
    frozen: bool,
}

/// A lease and the charges of its order.
#[derive(Debug, Clone)]
struct HeldCharges {
    lapses: u64,
    charges: Vec<(String, String, Option<Vec<u8>>, Amount)>,
    /// The keys whose rows the lease keeps from being dropped, with their limits.
    pins: Vec<(String, Vec<u8>)>,
}

/// One item as an order asks it.
struct ItemAsk<'a> {
    limit_model: &'a ModelLimit,
    item: &'a ModelItem,
    key: Option<&'a [u8]>,
    cost: Amount,
}

impl ReferenceModel {
    /// A model of a store without limits.
    pub fn new(tick: Tick) -> ReferenceModel {
        ReferenceModel {
            tick,
            limits: BTreeMap::new(),
            leases: BTreeMap::new(),
            latest: 0,
            calendars: RefCell::new(HashMap::new()),
        }
    }

    /// Resolution of time.
    pub fn tick(&self) -> Tick {
        self.tick
    }

    /// Definition of a limit.
    pub fn spec(&self, id: &str) -> Option<&LimitSpec> {
        self.limits.get(id).map(|limit_model| &limit_model.spec)
    }

    /// The current time of the store, which never goes back.
    pub fn clamp(&mut self, now: Timestamp) -> Timestamp {
        self.latest = self.latest.max(now.ticks());
        Timestamp::from_ticks(self.latest)
    }

    // Edits.

    /// Adds or replaces a limit. What has expired by now is dropped; the rest is judged by the new rules. The same
    /// definition again is no edit.
    pub fn put(&mut self, spec: LimitSpec, now: Timestamp) {
        let now = self.clamp(now).ticks();
        if self.spec(&spec.id) == Some(&spec) {
            return;
        }
        let former = self.limits.get(&spec.id).cloned();
        let items = self.items(&spec, former.as_ref());
        let mut limit_model = ModelLimit { spec, items, ledgers: BTreeMap::new() };
        if former.as_ref().is_some_and(|former| self.is_over(former, now)) {
            // Its rows are gone, and with them what held them.
            self.leases.values_mut().for_each(|held| held.pins.retain(|(id, _)| *id != limit_model.spec.id));
        }
        if let Some(former) = former.filter(|former| !self.is_over(former, now)) {
            for ((name, key), ledger) in &former.ledgers {
                let (Some(old), Some(new)) = (former.item(name), limit_model.item(name)) else { continue };
                let old = ItemAsk { limit_model: &former, item: old, key: key.as_deref(), cost: 0 };
                let new = ItemAsk { limit_model: &limit_model, item: new, key: key.as_deref(), cost: 0 };
                if let Some(ledger) = self.adopted(&old, &new, ledger, now) {
                    limit_model.ledgers.insert((name.clone(), key.clone()), ledger);
                }
            }
        }
        self.limits.insert(limit_model.spec.id.clone(), limit_model);
    }

    fn adopted(
        &self,
        old: &ItemAsk<'_>,
        new: &ItemAsk<'_>,
        ledger: &ItemLedger,
        at: u64,
    ) -> Option<ItemLedger> {
        let (before, after) = (self.terms(old, at), self.terms(new, at));
        let mut ledger = self.ledger_at(old, ledger, at);
        if old.item.law != new.item.law {
            ledger.events.iter_mut().for_each(|event| event.frozen = true);
        }
        match (before.kind, after.kind) {
            (PolicyParameters::Bucket { .. }, PolicyParameters::Bucket { step }) => {
                ledger.carry_over(step, at);
            }
            (PolicyParameters::Concurrency, PolicyParameters::Concurrency) => {}
            _ if self.used(old, &before, &ledger, at, RefundView::Refunded) == 0 => return None,
            (PolicyParameters::Sliding { window, .. }, PolicyParameters::Sliding { grain, .. }) => {
                ledger.events.retain(|event| event.at + window >= at);
                if grain > 1 {
                    for event in &mut ledger.events {
                        // A receipt finds its charge by the instant at which the charge counts. That instant may differ
                        // now.
                        let moved = last_tick(event.at, grain);
                        event.frozen |= moved != event.at;
                        event.at = moved;
                    }
                }
            }
            _ => {}
        }
        Some(ledger)
    }

    fn items(&self, spec: &LimitSpec, former: Option<&ModelLimit>) -> Vec<ModelItem> {
        let compile = |item: &ItemSpec| {
            let name = item.effective_name();
            let before = former.and_then(|former| former.item(&name)).map_or(0, |item| item.step);
            let step = match item.policy {
                Policy::Bucket { window, .. } => step(self.ticks(window), item.limit, before),
                _ => 0,
            };
            let law = match item.policy {
                Policy::Total => "total".to_owned(),
                Policy::Calendar(unit) => format!("{unit:?} {} {:?}", spec.time_zone.name(), spec.week_start),
                Policy::Bucket { .. } => format!("bucket {step}"),
                Policy::Sliding { window, precision } => {
                    format!("sliding {window:?} {}", grain(self.ticks(window), precision, item.limit))
                }
                Policy::Interval { .. } | Policy::Concurrency { .. } => format!("{:?}", item.policy),
            };
            let by_default = match item.policy {
                Policy::Concurrency { .. } => Charge::Ask,
                _ => Charge::Count,
            };
            ModelItem {
                name,
                per: item.per,
                policy: item.policy,
                limit: item.limit,
                charge: item.charge.unwrap_or(by_default),
                step,
                law,
            }
        };
        spec.items.iter().map(compile).collect()
    }

    // Queries.

    /// Why these asks would be refused at `now`; `None` if they fit.
    pub fn refusal(&self, asks: &[OwnedAsk], now: Timestamp, view: RefundView) -> Option<ModelRefusal> {
        let item_asks = self.item_asks(asks);
        let mut found: Option<ModelRefusal> = None;
        let mut at = now.ticks();
        loop {
            let mut worst: Option<ModelRefusal> = None;
            for item_ask in
                item_asks.iter().filter(|item_ask| item_ask.limit_model.spec.mode == Mode::Enforce)
            {
                if let Some(wait) = self.wait(item_ask, at, view)
                    && worst.as_ref().is_none_or(|worst| wait > worst.wait)
                {
                    let limit_id = item_ask.limit_model.spec.id.clone();
                    worst = Some(ModelRefusal { limit_id, item: item_ask.item.name.clone(), wait });
                }
            }
            match worst {
                None => return found,
                Some(refusal) => {
                    let wait = refusal.wait;
                    found = Some(refusal);
                    // The promise must hold at the promised instant, so look again there.
                    let Wait::Until(until) = wait else { return found };
                    at = until.ticks();
                }
            }
        }
    }

    /// The first instant after `now` at which these asks fit without other charges, found by trying every instant at
    /// which anything changes.
    pub fn first_fit(&self, asks: &[OwnedAsk], now: Timestamp, view: RefundView) -> Option<Timestamp> {
        let item_asks = self.item_asks(asks);
        let enforced = || item_asks.iter().filter(|item_ask| item_ask.limit_model.spec.mode == Mode::Enforce);
        let mut instants: Vec<u64> =
            enforced().flat_map(|item_ask| self.instants(item_ask, now.ticks(), view)).collect();
        instants.sort_unstable();
        let fits =
            |at: u64| enforced().all(|item_ask| self.is_open(item_ask, at) && self.fits(item_ask, at, view));
        instants.into_iter().find(|&at| at > now.ticks() && fits(at)).map(Timestamp::from_ticks)
    }

    /// Readings of every asked item: limits and keys in the order of the asks, items in the order of the definition.
    pub fn readings(&self, asks: &[OwnedAsk], now: Timestamp, view: RefundView) -> Vec<ModelReading> {
        let at = now.ticks();
        let read = |item_ask: &ItemAsk<'_>| {
            let terms = self.terms(item_ask, at);
            let over = self.is_over(item_ask.limit_model, at);
            let used = if over { 0 } else { self.used_now(item_ask, at, view) };
            let resets_at = match terms.kind {
                PolicyParameters::Total | PolicyParameters::Concurrency => None,
                _ if used == 0 => None,
                _ => {
                    let mut instants = self.instants(item_ask, at, view);
                    instants.push(self.ends(item_ask.limit_model));
                    instants.sort_unstable();
                    let is_unused =
                        |t| self.is_over(item_ask.limit_model, t) || self.used_now(item_ask, t, view) == 0;
                    instants.into_iter().find(|&t| t > at && is_unused(t))
                }
            };
            ModelReading {
                limit_id: item_ask.limit_model.spec.id.clone(),
                item: item_ask.item.name.clone(),
                capacity: terms.capacity,
                used,
                remaining: terms.capacity.remaining(used),
                resets_at: resets_at.map(Timestamp::from_ticks),
            }
        };
        self.item_asks(asks).iter().map(read).collect()
    }

    /// Whether a shadow limit would refuse these asks in one view only, so that its charge is ambiguous.
    pub fn is_shadow_charge_ambiguous(&self, asks: &[OwnedAsk], now: Timestamp) -> bool {
        let item_asks = self.item_asks(asks);
        let shadows = item_asks.iter().filter(|item_ask| item_ask.limit_model.spec.mode == Mode::Shadow);
        shadows.into_iter().any(|item_ask| {
            let [truth, spent] = [RefundView::Refunded, RefundView::NotRefunded]
                .map(|view| self.fits(item_ask, now.ticks(), view));
            truth != spent
        })
    }

    /// Whether a shadow limit would refuse these asks.
    fn would_refuse(&self, item_asks: &[ItemAsk<'_>], id: &str, at: u64) -> bool {
        let of_limit = item_asks.iter().filter(|item_ask| item_ask.limit_model.spec.id == id);
        of_limit
            .into_iter()
            .any(|item_ask| !(self.is_open(item_ask, at) && self.fits(item_ask, at, RefundView::Refunded)))
    }

    // Changes.

    /// Records that these asks were granted at `now`, with a lease if there is one.
    pub fn charge(&mut self, asks: &[OwnedAsk], hold: Hold, lease_term: Option<LeaseTerm>, now: Timestamp) {
        let crowded = self.keys_without_room(asks, hold, now, RefundView::Refunded);
        let now = self.clamp(now).ticks();
        let item_asks = self.item_asks(asks);
        let mut charges = Vec::new();
        let mut pins = Vec::new();
        for item_ask in &item_asks {
            let id = &item_ask.limit_model.spec.id;
            // A shadow limit charges nothing where it would refuse, including for lack of room.
            let no_room = crowded.iter().any(|crowded| crowded.limit_id == *id);
            if item_ask.limit_model.spec.mode == Mode::Shadow
                && (no_room || self.would_refuse(&item_asks, id, now))
            {
                continue;
            }
            let key = item_ask.key.map(<[u8]>::to_vec);
            pins.extend(
                key.clone().filter(|_| hold == Hold::Yes || item_ask.cost > 0).map(|key| (id.clone(), key)),
            );
            charges.push((id.clone(), item_ask.item.name.clone(), key, item_ask.cost));
        }
        for (id, name, key, cost) in &charges {
            self.record(id, name, key.as_deref(), *cost, lease_term, now);
        }
        if let Some(lease_term) = lease_term {
            self.leases.insert(
                lease_term.lease,
                HeldCharges { lapses: lease_term.expires_at.ticks(), charges, pins },
            );
        }
    }

    fn record(
        &mut self,
        id: &str,
        name: &str,
        key: Option<&[u8]>,
        cost: Amount,
        lease_term: Option<LeaseTerm>,
        now: u64,
    ) {
        if cost == 0 {
            return;
        }
        let limit_model = &self.limits[id];
        let Some(item) = limit_model.item(name) else { return };
        let item_ask = ItemAsk { limit_model, item, key, cost };
        let terms = self.terms(&item_ask, now);
        let mut ledger = self.ledger_at(&item_ask, &item_ask.ledger(), now);
        let mut at = now;
        match terms.kind {
            PolicyParameters::Calendar(_) | PolicyParameters::Interval { .. } => {
                if self.used(&item_ask, &terms, &ledger, now, RefundView::Refunded) == 0 {
                    ledger.events.clear();
                    ledger.opened = now;
                }
            }
            PolicyParameters::Sliding { window, grain } => {
                ledger.events.retain(|event| event.at + window >= now);
                let latest = ledger.events.iter().map(|event| event.at).max().unwrap_or(0);
                at = last_tick(now, grain).max(latest);
            }
            PolicyParameters::Bucket { step } => {
                if terms.capacity == Capacity::Unlimited {
                    return;
                }
                ledger.step = step;
            }
            PolicyParameters::Concurrency if lease_term.is_none() => return,
            PolicyParameters::Total | PolicyParameters::Concurrency => {}
        }
        ledger.last_time = ledger.last_time.max(now);
        ledger.events.push(ModelCharge {
            at,
            amount: cost,
            spent: cost,
            carried: [0, 0],
            lease: lease_term.map(|lease_term| lease_term.lease),
            lapses: lease_term.map_or(0, |lease_term| lease_term.expires_at.ticks()),
            frozen: false,
        });
        let place = (name.to_owned(), key.map(<[u8]>::to_vec));
        self.limits.get_mut(id).expect("found above").ledgers.insert(place, ledger);
    }

    /// Whether a lease is known and has not lapsed.
    pub fn is_live(&self, lease: LeaseId, now: Timestamp) -> bool {
        self.leases.get(&lease).is_some_and(|held| now.ticks().max(self.latest) < held.lapses)
    }

    /// Releases a lease. Returns whether it was live.
    pub fn release(&mut self, lease: LeaseId, now: Timestamp) -> bool {
        let now = self.clamp(now);
        let live = self.is_live(lease, now);
        if live {
            self.leases.remove(&lease);
            self.each_held(lease, &mut |event| event.lapses = 0);
        }
        live
    }

    /// Moves the expiry of a lease. Returns whether it was live.
    pub fn renew(&mut self, lease: LeaseId, expires_at: Timestamp, now: Timestamp) -> bool {
        let now = self.clamp(now);
        let live = self.is_live(lease, now);
        if live {
            self.leases.get_mut(&lease).expect("it is live").lapses = expires_at.ticks();
            self.each_held(lease, &mut |event| event.lapses = expires_at.ticks());
        }
        live
    }

    fn each_held(&mut self, lease: LeaseId, change: &mut dyn FnMut(&mut ModelCharge)) {
        for ledger in self.limits.values_mut().flat_map(|limit_model| limit_model.ledgers.values_mut()) {
            ledger.events.iter_mut().filter(|event| event.lease == Some(lease)).for_each(&mut *change);
        }
    }

    /// Corrects the charges of a lease to the cost of one ask of `actual`, and releases the lease. Returns whether it
    /// was live.
    pub fn settle(&mut self, lease: LeaseId, actual: Amount, now: Timestamp) -> bool {
        let now = self.clamp(now);
        if !self.is_live(lease, now) {
            return false;
        }
        let held = self.leases.remove(&lease).expect("it is live");
        for (id, name, key, charged) in &held.charges {
            let Some(limit_model) = self.limits.get(id) else { continue };
            let Some(item) = limit_model.item(name) else { continue };
            if matches!(item.policy, Policy::Concurrency { .. }) || self.is_over(limit_model, now.ticks()) {
                continue;
            }
            let cost = price(item, AskTotals::of(actual));
            if cost > *charged {
                self.record(id, name, key.as_deref(), cost - charged, None, now.ticks());
            } else {
                self.refund(id, name, key.as_deref(), lease, charged - cost);
            }
        }
        self.each_held(lease, &mut |event| event.lapses = 0);
        true
    }

    fn refund(&mut self, id: &str, name: &str, key: Option<&[u8]>, lease: LeaseId, amount: Amount) {
        let limit_model = self.limits.get_mut(id).expect("looked up by the caller");
        let is_bucket =
            limit_model.item(name).is_some_and(|item| matches!(item.policy, Policy::Bucket { .. }));
        let Some(ledger) = limit_model.ledgers.get_mut(&(name.to_owned(), key.map(<[u8]>::to_vec))) else {
            return;
        };
        for event in ledger.events.iter_mut().filter(|event| event.lease == Some(lease) && !event.frozen) {
            event.amount = event.amount.saturating_sub(amount);
            if !is_bucket {
                event.spent = event.amount;
            }
        }
        ledger.events.retain(|event| event.spent > 0 || event.carried != [0, 0]);
    }

    /// Zeroes the counts of one key, or of all. Leases stay, but their charges are gone.
    pub fn reset(&mut self, id: &str, key: Option<&[u8]>, now: Timestamp) {
        self.clamp(now);
        let Some(limit_model) = self.limits.get_mut(id) else { return };
        let held: Vec<String> = limit_model
            .items
            .iter()
            .filter(|item| matches!(item.policy, Policy::Concurrency { .. }))
            .map(|item| item.name.clone())
            .collect();
        limit_model
            .ledgers
            .retain(|(name, whose), _| held.contains(name) || (key.is_some() && whose.as_deref() != key));
    }

    // Definitions.

    fn item_asks<'a>(&'a self, asks: &'a [OwnedAsk]) -> Vec<ItemAsk<'a>> {
        let mut item_asks = Vec::new();
        for (index, ask) in asks.iter().enumerate() {
            if asks[..index].iter().any(|before| before.limit_id == ask.limit_id) {
                continue;
            }
            let limit_model = &self.limits[&ask.limit_id];
            if limit_model.spec.mode == Mode::Off {
                continue;
            }
            let of_limit: Vec<&OwnedAsk> =
                asks.iter().filter(|other| other.limit_id == ask.limit_id).collect();
            let load = |of: &dyn Fn(&OwnedAsk) -> bool| {
                let loads = of_limit.iter().filter(|ask| of(ask)).map(|ask| AskTotals::of(ask.count));
                loads.fold(AskTotals::default(), AskTotals::plus)
            };
            for item in &limit_model.items {
                if item.per == Per::All {
                    let cost = price(item, load(&|_| true));
                    item_asks.push(ItemAsk { limit_model, item, key: None, cost });
                    continue;
                }
                for (index, ask) in of_limit.iter().enumerate() {
                    if ask.key.is_some() && !of_limit[..index].iter().any(|before| before.key == ask.key) {
                        let cost = price(item, load(&|other| other.key == ask.key));
                        item_asks.push(ItemAsk { limit_model, item, key: ask.key.as_deref(), cost });
                    }
                }
            }
        }
        item_asks
    }
}
