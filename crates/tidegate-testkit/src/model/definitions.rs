//! What each policy means: how much is in use, whether more fits, and when it will.

use tidegate_core::{Amount, AskTotals, Capacity, Charge, Policy, Precision, Timestamp, Unit, Wait};

use super::{
    ItemAsk, ItemCharges, ItemParameters, LimitCharges, ModelCharge, ModelItem, PolicyParameters,
    ReferenceModel, RefundView,
};
use crate::reference_calendar::ReferenceCalendar;

impl ReferenceModel {
    pub(super) fn ticks(&self, duration: std::time::Duration) -> u64 {
        self.tick.span(duration).ticks()
    }

    pub(super) fn starts(&self, book: &LimitCharges) -> u64 {
        book.spec.starts_at.and_then(|at| self.tick.instant_rounded_up(at)).map_or(0, Timestamp::ticks)
    }

    pub(super) fn ends(&self, book: &LimitCharges) -> u64 {
        book.spec.ends_at.and_then(|at| self.tick.instant(at)).map_or(u64::MAX, Timestamp::ticks)
    }

    pub(super) fn is_over(&self, book: &LimitCharges, at: u64) -> bool {
        at >= self.ends(book)
    }

    pub(super) fn is_open(&self, question: &ItemAsk<'_>, at: u64) -> bool {
        self.starts(question.book) <= at && !self.is_over(question.book, at)
    }

    /// The exception for this key: its limit and when it ends.
    pub(super) fn exception(&self, question: &ItemAsk<'_>) -> Option<(Capacity, u64)> {
        let key = question.key?;
        let found = question
            .book
            .spec
            .overrides
            .iter()
            .find(|other| other.key == key && other.item == question.article.name)?;
        let until = found.until.and_then(|until| self.tick.instant(until)).map_or(u64::MAX, Timestamp::ticks);
        Some((found.limit, until))
    }

    pub(super) fn terms(&self, question: &ItemAsk<'_>, at: u64) -> ItemParameters {
        let article = question.article;
        let limit = match self.exception(question) {
            Some((limit, until)) if at < until => limit,
            _ => article.limit,
        };
        let (kind, capacity) = match article.policy {
            Policy::Total => (PolicyParameters::Total, limit),
            Policy::Calendar(unit) => (PolicyParameters::Calendar(unit), limit),
            Policy::Interval { window } => (PolicyParameters::Interval { window: self.ticks(window) }, limit),
            Policy::Sliding { window, precision } => {
                let window = self.ticks(window);
                (PolicyParameters::Sliding { window, grain: grain(window, precision, limit) }, limit)
            }
            Policy::Bucket { window, burst } => {
                let step = if limit == article.limit {
                    article.step
                } else {
                    step(self.ticks(window), limit, article.step)
                };
                (PolicyParameters::Bucket { step }, burst_of(article.limit, limit, burst))
            }
            Policy::Concurrency { .. } => (PolicyParameters::Concurrency, limit),
        };
        ItemParameters { capacity, kind }
    }

    /// The ledger as it stands at `at`: a bucket whose exception has ended has been draining at the item's own rate
    /// since then.
    pub(super) fn caught_up(&self, question: &ItemAsk<'_>, ledger: &ItemCharges, at: u64) -> ItemCharges {
        let mut ledger = ledger.clone();
        if let (Policy::Bucket { .. }, Some((_, until))) = (question.article.policy, self.exception(question))
            && until <= at
        {
            ledger.carry_over(question.article.step, until);
        }
        ledger
    }

    pub(super) fn used_now(&self, question: &ItemAsk<'_>, at: u64, view: RefundView) -> Amount {
        let ledger = self.caught_up(question, &question.ledger(), at);
        self.used(question, &self.terms(question, at), &ledger, at, view)
    }

    pub(super) fn used(
        &self,
        question: &ItemAsk<'_>,
        terms: &ItemParameters,
        ledger: &ItemCharges,
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
                    || self.unit_around(question.book, unit, ledger.last_time)
                        == self.unit_around(question.book, unit, at);
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

    pub(super) fn fits(&self, question: &ItemAsk<'_>, at: u64, view: RefundView) -> bool {
        let terms = self.terms(question, at);
        let Capacity::AtMost(limit) = terms.capacity else { return true };
        let ledger = self.caught_up(question, &question.ledger(), at);
        let (limit, cost) = (u128::from(limit), u128::from(question.cost));
        match terms.kind {
            PolicyParameters::Bucket { step } => {
                let step = u128::from(step);
                let within = |from: u64| {
                    let spent = ledger.ticks_since(from, view) + cost * step;
                    spent <= u128::from(at.saturating_sub(from)) + limit * step
                };
                cost <= limit && ledger.events.iter().all(|event| within(event.at))
            }
            _ => u128::from(self.used(question, &terms, &ledger, at, view)) + cost <= limit,
        }
    }

    /// When one item's answer could change by itself.
    pub(super) fn instants(&self, question: &ItemAsk<'_>, now: u64, view: RefundView) -> Vec<u64> {
        let mut instants = vec![self.starts(question.book)];
        let mut looks = vec![now];
        if let Some((_, until)) =
            self.exception(question).filter(|&(_, until)| now < until && until < u64::MAX)
        {
            instants.push(until);
            looks.push(until);
        }
        for look in looks {
            let terms = self.terms(question, look);
            let ledger = self.caught_up(question, &question.ledger(), look);
            match terms.kind {
                PolicyParameters::Total | PolicyParameters::Concurrency => {}
                PolicyParameters::Calendar(unit) => {
                    instants.push(self.unit_around(question.book, unit, ledger.last_time).1);
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
                        instants.push(missing(event.at, u128::from(question.cost)));
                        instants.push(missing(event.at, u128::from(burst)));
                    }
                }
            }
        }
        instants
    }

    /// Whether one item refuses at `now`, and for how long.
    pub(super) fn wait(&self, question: &ItemAsk<'_>, now: u64, view: RefundView) -> Option<Wait> {
        if self.is_over(question.book, now) {
            return Some(Wait::Never);
        }
        if self.is_open(question, now) && self.fits(question, now, view) {
            return None;
        }
        if matches!(question.article.policy, Policy::Concurrency { .. }) {
            return Some(self.holders_wait(question, now.max(self.starts(question.book)), view));
        }
        let mut instants = self.instants(question, now, view);
        instants.sort_unstable();
        let found = instants
            .into_iter()
            .find(|&at| at > now && self.is_open(question, at) && self.fits(question, at, view));
        Some(found.map_or(Wait::Never, |at| Wait::Until(Timestamp::from_ticks(at))))
    }

    /// The wait for held units: for whoever holds them, if the capacity could ever be enough; else for the end of an
    /// exception.
    pub(super) fn holders_wait(&self, question: &ItemAsk<'_>, at: u64, view: RefundView) -> Wait {
        if self.is_over(question.book, at) {
            return Wait::Never;
        }
        if self.fits(question, at, view) {
            return Wait::Until(Timestamp::from_ticks(at));
        }
        if self.terms(question, at).capacity.admits(0, question.cost) {
            return Wait::OnRelease;
        }
        match self.exception(question) {
            Some((_, until)) if at < until && until < u64::MAX => self.holders_wait(question, until, view),
            _ => Wait::Never,
        }
    }

    /// The calendar unit around an instant, in ticks.
    pub(super) fn unit_around(&self, book: &LimitCharges, unit: Unit, at: u64) -> (u64, u64) {
        let zone = &book.spec.time_zone;
        let place = (unit, zone.name().to_owned(), book.spec.week_start);
        let mut calendars = self.calendars.borrow_mut();
        let calendar = calendars
            .entry(place)
            .or_insert_with(|| ReferenceCalendar::new(unit, zone, book.spec.week_start));
        let second = i64::try_from(at / self.tick.per_second()).expect("tests stay before the end of time");
        let (start, end) = calendar.window_around(second);
        let ticks = |second: i64| u64::try_from(second).expect("not before 1970") * self.tick.per_second();
        (ticks(start), ticks(end))
    }
}

impl ItemAsk<'_> {
    /// What was admitted under this item for this key.
    pub(super) fn ledger(&self) -> ItemCharges {
        let place = (self.article.name.clone(), self.key.map(<[u8]>::to_vec));
        self.book.ledgers.get(&place).cloned().unwrap_or_default()
    }
}

impl LimitCharges {
    pub(super) fn article(&self, name: &str) -> Option<&ModelItem> {
        self.articles.iter().find(|article| article.name == name)
    }
}

impl ItemCharges {
    /// Ticks of refill spent from `from` on.
    pub(super) fn ticks_since(&self, from: u64, view: RefundView) -> u128 {
        let ticks = |event: &ModelCharge| match view {
            RefundView::Refunded => event.carried[0] + u128::from(event.amount) * u128::from(self.step),
            RefundView::NotRefunded => event.carried[1] + u128::from(event.spent) * u128::from(self.step),
        };
        self.events.iter().filter(|event| event.at >= from).map(ticks).sum()
    }

    /// How many ticks of refill are owed at `at`: the most that any suffix of the history has not paid back.
    pub(super) fn backlog(&self, at: u64, view: RefundView) -> u128 {
        let owed = |event: &ModelCharge| {
            let full_at = u128::from(event.at) + self.ticks_since(event.at, view);
            full_at.saturating_sub(u128::from(at))
        };
        self.events.iter().map(owed).max().unwrap_or(0)
    }

    /// The same units in use at `at`, rounded up, at another rate from then on.
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

/// The ticks between two units of a bucket. One that refuses everything goes on draining as before.
pub(super) fn step(window: u64, limit: Capacity, before: u64) -> u64 {
    match limit {
        Capacity::Unlimited => 0,
        Capacity::AtMost(0) if before > 0 => before,
        Capacity::AtMost(limit) => window.div_ceil(limit.max(1)).max(1),
    }
}

/// How finely a sliding window is ruled, in ticks.
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

/// How much of a bucket may be spent at once. An exception has a burst in proportion.
pub(super) fn burst_of(own: Capacity, limit: Capacity, burst: Option<Amount>) -> Capacity {
    match (limit, burst, own) {
        (Capacity::AtMost(limit), Some(burst), Capacity::AtMost(own)) if limit > 0 && own > 0 => {
            Capacity::AtMost((burst * limit / own).max(1))
        }
        (Capacity::AtMost(limit), Some(burst), _) if limit > 0 => Capacity::AtMost(burst),
        _ => limit,
    }
}

pub(super) fn price(article: &ModelItem, load: AskTotals) -> Amount {
    match article.charge {
        Charge::Count => load.count,
        Charge::Ask => load.asks,
    }
}
