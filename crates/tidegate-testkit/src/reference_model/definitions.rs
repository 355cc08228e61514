//! What each policy means: how much is in use, whether more fits, and when it will fit.

use tidegate_core::{Amount, AskTotals, Capacity, Charge, Policy, Precision, Timestamp, Unit, Wait};

use super::{
    ItemAsk, ItemLedger, ItemParameters, ModelCharge, ModelItem, ModelLimit, PolicyParameters,
    ReferenceModel, RefundView,
};
use crate::reference_calendar::ReferenceCalendar;

impl ReferenceModel {
    pub(super) fn ticks(&self, duration: std::time::Duration) -> u64 {
        self.tick.span(duration).ticks()
    }

    pub(super) fn starts(&self, limit_model: &ModelLimit) -> u64 {
        limit_model.spec.starts_at.and_then(|at| self.tick.instant_rounded_up(at)).map_or(0, Timestamp::ticks)
    }

    pub(super) fn ends(&self, limit_model: &ModelLimit) -> u64 {
        limit_model.spec.ends_at.and_then(|at| self.tick.instant(at)).map_or(u64::MAX, Timestamp::ticks)
    }

    pub(super) fn is_over(&self, limit_model: &ModelLimit, at: u64) -> bool {
        at >= self.ends(limit_model)
    }

    pub(super) fn is_open(&self, item_ask: &ItemAsk<'_>, at: u64) -> bool {
        self.starts(item_ask.limit_model) <= at && !self.is_over(item_ask.limit_model, at)
    }

    /// The override for this key: its capacity and its end.
    pub(super) fn override_of(&self, item_ask: &ItemAsk<'_>) -> Option<(Capacity, u64)> {
        let key = item_ask.key?;
        let found = item_ask
            .limit_model
            .spec
            .overrides
            .iter()
            .find(|other| other.key == key && other.item == item_ask.item.name)?;
        let until = found.until.and_then(|until| self.tick.instant(until)).map_or(u64::MAX, Timestamp::ticks);
        Some((found.limit, until))
    }

    pub(super) fn terms(&self, item_ask: &ItemAsk<'_>, at: u64) -> ItemParameters {
        let item = item_ask.item;
        let limit = match self.override_of(item_ask) {
            Some((limit, until)) if at < until => limit,
            _ => item.limit,
        };
        let (kind, capacity) = match item.policy {
            Policy::Total => (PolicyParameters::Total, limit),
            Policy::Calendar(unit) => (PolicyParameters::Calendar(unit), limit),
            Policy::Interval { window } => (PolicyParameters::Interval { window: self.ticks(window) }, limit),
            Policy::Sliding { window, precision } => {
                let window = self.ticks(window);
                (PolicyParameters::Sliding { window, grain: grain(window, precision, limit) }, limit)
            }
            Policy::Bucket { window, burst } => {
                let step =
                    if limit == item.limit { item.step } else { step(self.ticks(window), limit, item.step) };
                (PolicyParameters::Bucket { step }, burst_of(item.limit, limit, burst))
            }
            Policy::Concurrency { .. } => (PolicyParameters::Concurrency, limit),
        };
        ItemParameters { capacity, kind }
    }

    /// The ledger at `at`. A bucket whose override has ended drains at the item's own rate since then.
    pub(super) fn ledger_at(&self, item_ask: &ItemAsk<'_>, ledger: &ItemLedger, at: u64) -> ItemLedger {
        let mut ledger = ledger.clone();
        if let (Policy::Bucket { .. }, Some((_, until))) = (item_ask.item.policy, self.override_of(item_ask))
            && until <= at
        {
            ledger.carry_over(item_ask.item.step, until);
        }
        ledger
    }

    pub(super) fn used_now(&self, item_ask: &ItemAsk<'_>, at: u64, view: RefundView) -> Amount {
        let ledger = self.ledger_at(item_ask, &item_ask.ledger(), at);
        self.used(item_ask, &self.terms(item_ask, at), &ledger, at, view)
    }

    pub(super) fn used(
        &self,
        item_ask: &ItemAsk<'_>,
        terms: &ItemParameters,
        ledger: &ItemLedger,
        at: u64,
        view: RefundView,
    ) -> Amount {
        let sum = |counts: &dyn Fn(&ModelCharge) -> bool| -> u128 {
            ledger.events.iter().filter(|event| counts(event)).map(|event| u128::from(event.amount)).sum()
        };
        let used = match terms.kind {
            PolicyParameters::Total => sum(&|_| true),
            PolicyParameters::Calendar(unit) => {
                let shares_unit = ledger.last_time >= at
                    || self.unit_around(item_ask.limit_model, unit, ledger.last_time)
                        == self.unit_around(item_ask.limit_model, unit, at);
                if shares_unit { sum(&|_| true) } else { 0 }
            }
            PolicyParameters::Interval { window } => {
                if at < ledger.opened + window {
                    sum(&|_| true)
                } else {
                    0
                }
            }
            PolicyParameters::Sliding { window, .. } => sum(&|event| event.at + window >= at),
            PolicyParameters::Bucket { .. } if terms.capacity == Capacity::Unlimited => 0,
            PolicyParameters::Bucket { step } => ledger.backlog(at, view).div_ceil(u128::from(step)),
            PolicyParameters::Concurrency => sum(&|event| event.lapses > at),
        };
        Amount::try_from(used).unwrap_or(Amount::MAX)
    }

    pub(super) fn fits(&self, item_ask: &ItemAsk<'_>, at: u64, view: RefundView) -> bool {
        let terms = self.terms(item_ask, at);
        let Capacity::AtMost(limit) = terms.capacity else { return true };
        let ledger = self.ledger_at(item_ask, &item_ask.ledger(), at);
        let (limit, cost) = (u128::from(limit), u128::from(item_ask.cost));
        match terms.kind {
            PolicyParameters::Bucket { step } => {
                let step = u128::from(step);
                let within = |from: u64| {
                    let spent = ledger.ticks_since(from, view) + cost * step;
                    spent <= u128::from(at.saturating_sub(from)) + limit * step
                };
                cost <= limit && ledger.events.iter().all(|event| within(event.at))
            }
            _ => u128::from(self.used(item_ask, &terms, &ledger, at, view)) + cost <= limit,
        }
    }

    /// Instants at which the decision of an item could change without further charges.
    pub(super) fn instants(&self, item_ask: &ItemAsk<'_>, now: u64, view: RefundView) -> Vec<u64> {
        let mut instants = vec![self.starts(item_ask.limit_model)];
        let mut looks = vec![now];
        if let Some((_, until)) =
            self.override_of(item_ask).filter(|&(_, until)| now < until && until < u64::MAX)
        {
            instants.push(until);
            looks.push(until);
        }
        for look in looks {
            let terms = self.terms(item_ask, look);
            let ledger = self.ledger_at(item_ask, &item_ask.ledger(), look);
            match terms.kind {
                PolicyParameters::Total | PolicyParameters::Concurrency => {}
                PolicyParameters::Calendar(unit) => {
                    instants.push(self.unit_around(item_ask.limit_model, unit, ledger.last_time).1);
                }
                PolicyParameters::Interval { window } => instants.push(ledger.opened + window),
                PolicyParameters::Sliding { window, .. } => {
                    instants.extend(ledger.events.iter().map(|event| event.at + window + 1));
                }
                PolicyParameters::Bucket { step } => {
                    let Capacity::AtMost(burst) = terms.capacity else { continue };
                    let missing = |from: u64, cost: u128| {
                        let full =
                            u128::from(from) + ledger.ticks_since(from, view) + cost * u128::from(step);
                        u64::try_from(full.saturating_sub(u128::from(burst) * u128::from(step)))
                            .unwrap_or(u64::MAX)
                    };
                    for event in &ledger.events {
                        instants.push(missing(event.at, u128::from(item_ask.cost)));
                        instants.push(missing(event.at, u128::from(burst)));
                    }
                }
            }
        }
        instants
    }

    /// Whether an item refuses at `now`, and its wait.
    pub(super) fn wait(&self, item_ask: &ItemAsk<'_>, now: u64, view: RefundView) -> Option<Wait> {
        if self.is_over(item_ask.limit_model, now) {
            return Some(Wait::Never);
        }
        if self.is_open(item_ask, now) && self.fits(item_ask, now, view) {
            return None;
        }
        if matches!(item_ask.item.policy, Policy::Concurrency { .. }) {
            return Some(self.holders_wait(item_ask, now.max(self.starts(item_ask.limit_model)), view));
        }
        let mut instants = self.instants(item_ask, now, view);
        instants.sort_unstable();
        let found = instants
            .into_iter()
            .find(|&at| at > now && self.is_open(item_ask, at) && self.fits(item_ask, at, view));
        Some(found.map_or(Wait::Never, |at| Wait::Until(Timestamp::from_ticks(at))))
    }

    /// The wait for held units: until a release if the capacity can ever suffice, else until the end of the override.
    pub(super) fn holders_wait(&self, item_ask: &ItemAsk<'_>, at: u64, view: RefundView) -> Wait {
        if self.is_over(item_ask.limit_model, at) {
            return Wait::Never;
        }
        if self.fits(item_ask, at, view) {
            return Wait::Until(Timestamp::from_ticks(at));
        }
        if self.terms(item_ask, at).capacity.admits(0, item_ask.cost) {
            return Wait::OnRelease;
        }
        match self.override_of(item_ask) {
            Some((_, until)) if at < until && until < u64::MAX => self.holders_wait(item_ask, until, view),
            _ => Wait::Never,
        }
    }

    /// The calendar unit around an instant, in ticks.
    pub(super) fn unit_around(&self, limit_model: &ModelLimit, unit: Unit, at: u64) -> (u64, u64) {
        let zone = &limit_model.spec.time_zone;
        let place = (unit, zone.name().to_owned(), limit_model.spec.week_start);
        let mut calendars = self.calendars.borrow_mut();
        let calendar = calendars
            .entry(place)
            .or_insert_with(|| ReferenceCalendar::new(unit, zone, limit_model.spec.week_start));
        let second = i64::try_from(at / self.tick.per_second()).expect("tests stay before the end of time");
        let (start, end) = calendar.window_around(second);
        let ticks = |second: i64| u64::try_from(second).expect("not before 1970") * self.tick.per_second();
        (ticks(start), ticks(end))
    }
}

impl ItemAsk<'_> {
    /// The charges of this item for this key.
    pub(super) fn ledger(&self) -> ItemLedger {
        let place = (self.item.name.clone(), self.key.map(<[u8]>::to_vec));
        self.limit_model.ledgers.get(&place).cloned().unwrap_or_default()
    }
}

impl ModelLimit {
    pub(super) fn item(&self, name: &str) -> Option<&ModelItem> {
        self.items.iter().find(|item| item.name == name)
    }
}

impl ItemLedger {
    /// Ticks of refill spent from `from` on.
    pub(super) fn ticks_since(&self, from: u64, view: RefundView) -> u128 {
        let ticks = |event: &ModelCharge| match view {
            RefundView::Refunded => event.carried[0] + u128::from(event.amount) * u128::from(self.step),
            RefundView::NotRefunded => event.carried[1] + u128::from(event.spent) * u128::from(self.step),
        };
        self.events.iter().filter(|event| event.at >= from).map(ticks).sum()
    }

    /// Ticks of refill owed at `at`: the most that any suffix of the charges has not paid back.
    pub(super) fn backlog(&self, at: u64, view: RefundView) -> u128 {
        let owed = |event: &ModelCharge| {
            let full_at = u128::from(event.at) + self.ticks_since(event.at, view);
            full_at.saturating_sub(u128::from(at))
        };
        self.events.iter().map(owed).max().unwrap_or(0)
    }

    /// Keeps the units in use at `at`, rounded up, and continues at another rate.
    pub(super) fn carry_over(&mut self, step: u64, at: u64) {
        if self.events.is_empty() || self.step == step {
            return;
        }
        let [truth, spent] = [RefundView::Refunded, RefundView::NotRefunded]
            .map(|view| (self.backlog(at, view) * u128::from(step)).div_ceil(u128::from(self.step.max(1))));
        self.step = step;
        self.events = vec![ModelCharge {
            at,
            amount: 0,
            spent: 0,
            carried: [truth, spent],
            lease: None,
            lapses: 0,
            frozen: true,
        }];
    }
}

/// Ticks between two units of a bucket. A bucket with capacity zero keeps draining at its former rate.
pub(super) fn step(window: u64, limit: Capacity, before: u64) -> u64 {
    match limit {
        Capacity::Unlimited => 0,
        Capacity::AtMost(0) if before > 0 => before,
        Capacity::AtMost(limit) => window.div_ceil(limit.max(1)).max(1),
    }
}

/// Width of the sub-windows of a sliding window, in ticks.
pub(super) fn grain(window: u64, precision: Precision, limit: Capacity) -> u64 {
    match (precision, limit) {
        (Precision::Exact, Capacity::AtMost(_)) => 1,
        _ => window.div_ceil(64),
    }
}

/// The last tick of the sub-window around `at`.
pub(super) fn last_tick(at: u64, grain: u64) -> u64 {
    at - at % grain + (grain - 1)
}

/// Burst of a bucket. An override has a burst in proportion.
pub(super) fn burst_of(own: Capacity, limit: Capacity, burst: Option<Amount>) -> Capacity {
    match (limit, burst, own) {
        (Capacity::AtMost(limit), Some(burst), Capacity::AtMost(own)) if limit > 0 && own > 0 => {
            Capacity::AtMost((burst * limit / own).max(1))
        }
        (Capacity::AtMost(limit), Some(burst), _) if limit > 0 => Capacity::AtMost(burst),
        _ => limit,
    }
}

pub(super) fn price(item: &ModelItem, load: AskTotals) -> Amount {
    match item.charge {
        Charge::Count => load.count,
        Charge::Ask => load.asks,
    }
}
