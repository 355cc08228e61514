//! The reference model: what limits mean, by definition.
//!
//! It keeps a list of what was admitted and answers every question by looking at all of it. It is slow on purpose and
//! shares no arithmetic with the laws: no arrival time, no running sums, no ring, no calendar memo.
//!
//! | policy        | in use at `t`                                                                      |
//! |---------------|------------------------------------------------------------------------------------|
//! | `total`       | everything                                                                         |
//! | calendar      | everything since the last rollover, if the latest of it shares a unit with `t`     |
//! | `interval`    | everything since the hit that opened the window, if `t` is before its end          |
//! | `sliding`     | everything counted in the closed window `[t - W, t]`                               |
//! | `bucket`      | `n` more fits iff for every earlier `s`: spent in `[s, t]` + `n` ≤ burst + refill  |
//! | `concurrency` | everything held by leases that have not lapsed                                     |
//!
//! A wait is found by trying every instant at which anything could change, in order.
//!
//! Refunds are exact: what is given back was never spent. A bucket may keep more than that (it forgets where a charge
//! lies), but never more than if nothing had been given back. So the model answers a bucket twice, once as if refunded
//! charges had cost their true price from the start ([`RefundView::Refunded`]) and once as if nothing had been refunded
//! ([`RefundView::NotRefunded`]), and whoever is tested must lie between.

mod definitions;
mod key_capacity;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

use tidegate_core::{
    Amount, AskTotals, Capacity, Charge, Hold, ItemSpec, LeaseId, LeaseTerm, LimitSpec, Mode, Per, Policy,
    Tick, Timestamp, Unit, Wait, WeekStart,
};

use crate::reference_calendar::ReferenceCalendar;

use definitions::{grain, last_tick, price, step};
pub use key_capacity::KeyWithoutRoom;

/// An ask that owns its words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedAsk {
    /// The limit.
    pub limit_id: String,
    /// The key.
    pub key: Option<Vec<u8>>,
    /// How much.
    pub count: Amount,
}

/// Why an order is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelRefusal {
    /// The limit of the item with the longest wait.
    pub limit_id: String,
    /// The name of that item.
    pub item: String,
    /// Its wait.
    pub wait: Wait,
}

/// What an item says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelReading {
    /// Its limit.
    pub limit_id: String,
    /// Its name.
    pub item: String,
    /// How much may be in use.
    pub capacity: Capacity,
    /// How much is.
    pub used: Amount,
    /// How much is left, if there is an end to it.
    pub remaining: Option<Amount>,
    /// When `used` becomes zero if nobody asks.
    pub resets_at: Option<Timestamp>,
}

/// How refunds of buckets are seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefundView {
    /// As if the charge had cost its true price from the start.
    Refunded,
    /// As if nothing had been given back.
    NotRefunded,
}

/// Everything that was ever admitted and still matters.
#[derive(Debug, Clone)]
pub struct ReferenceModel {
    tick: Tick,
    books: BTreeMap<String, LimitCharges>,
    leases: BTreeMap<LeaseId, HeldCharges>,
    latest: u64,
    calendars: RefCell<HashMap<(Unit, String, WeekStart), ReferenceCalendar>>,
}

/// One limit and what was admitted under it.
#[derive(Debug, Clone)]
struct LimitCharges {
    spec: LimitSpec,
    articles: Vec<ModelItem>,
    ledgers: BTreeMap<(String, Option<Vec<u8>>), ItemCharges>,
}

/// One item, as its text says.
#[derive(Debug, Clone)]
struct ModelItem {
    name: String,
    per: Per,
    policy: Policy,
    limit: Capacity,
    charge: Charge,
    /// Ticks between units, for a bucket.
    step: u64,
    /// Everything that makes it this law and no other.
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

/// What was admitted under one item for one key.
#[derive(Debug, Clone, Default)]
struct ItemCharges {
    events: Vec<ModelCharge>,
    /// The latest charge.
    last_time: u64,
    /// The hit that opened the window.
    opened: u64,
    /// The step that a bucket's events are reckoned with.
    step: u64,
}

#[derive(Debug, Clone)]
struct ModelCharge {
    /// When it counts.
    at: u64,
    /// What it cost in truth.
    amount: Amount,
    /// What it cost before refunds.
    spent: Amount,
    /// A backlog brought over from another rate, in ticks, for each view.
    carried: [u128; 2],
    /// Which lease it came with.
    lease: Option<LeaseId>,
    /// When that lapses.
    lapses: u64,
    /// Whether its law has changed since, so that nothing of it is given back.
    frozen: bool,
}

/// A lease and what its order was charged.
#[derive(Debug, Clone)]
struct HeldCharges {
    lapses: u64,
    charges: Vec<(String, String, Option<Vec<u8>>, Amount)>,
    /// The keys whose rows it keeps from being forgotten, with their limits.
    pins: Vec<(String, Vec<u8>)>,
}

/// One item as one order asks it.
struct ItemAsk<'a> {
    book: &'a LimitCharges,
    article: &'a ModelItem,
    key: Option<&'a [u8]>,
    cost: Amount,
}

impl ReferenceModel {
    /// A model of a store with no limits.
    pub fn new(tick: Tick) -> ReferenceModel {
        ReferenceModel {
            tick,
            books: BTreeMap::new(),
            leases: BTreeMap::new(),
            latest: 0,
            calendars: RefCell::new(HashMap::new()),
        }
    }

    /// The tick time is kept in.
    pub fn tick(&self) -> Tick {
        self.tick
    }

    /// The text of a limit.
    pub fn spec(&self, id: &str) -> Option<&LimitSpec> {
        self.books.get(id).map(|book| &book.spec)
    }

    /// The instant it really is: time does not go back.
    pub fn clamp(&mut self, now: Timestamp) -> Timestamp {
        self.latest = self.latest.max(now.ticks());
        Timestamp::from_ticks(self.latest)
    }

    // Edits.

    /// Adds a limit, or replaces its text. What had come back by now is forgotten; what survives is judged anew. The same
    /// text again is no edit.
    pub fn put(&mut self, spec: LimitSpec, now: Timestamp) {
        let now = self.clamp(now).ticks();
        if self.spec(&spec.id) == Some(&spec) {
            return;
        }
        let former = self.books.get(&spec.id).cloned();
        let articles = self.articles(&spec, former.as_ref());
        let mut book = LimitCharges { spec, articles, ledgers: BTreeMap::new() };
        if former.as_ref().is_some_and(|former| self.is_over(former, now)) {
            // Its rows are gone, and with them whatever kept them.
            self.leases.values_mut().for_each(|held| held.pins.retain(|(id, _)| *id != book.spec.id));
        }
        if let Some(former) = former.filter(|former| !self.is_over(former, now)) {
            for ((name, key), ledger) in &former.ledgers {
                let (Some(old), Some(new)) = (former.article(name), book.article(name)) else { continue };
                let old = ItemAsk { book: &former, article: old, key: key.as_deref(), cost: 0 };
                let new = ItemAsk { book: &book, article: new, key: key.as_deref(), cost: 0 };
                if let Some(ledger) = self.adopted(&old, &new, ledger, now) {
                    book.ledgers.insert((name.clone(), key.clone()), ledger);
                }
            }
        }
        self.books.insert(book.spec.id.clone(), book);
    }

    fn adopted(
        &self,
        old: &ItemAsk<'_>,
        new: &ItemAsk<'_>,
        ledger: &ItemCharges,
        at: u64,
    ) -> Option<ItemCharges> {
        let (before, after) = (self.terms(old, at), self.terms(new, at));
        let mut ledger = self.caught_up(old, ledger, at);
        if old.article.law != new.article.law {
            ledger.events.iter_mut().for_each(|event| event.frozen = true);
        }
        match (before.kind, after.kind) {
            (PolicyParameters::Bucket { .. }, PolicyParameters::Bucket { step }) => {
                ledger.carry_over(step, at)
            }
            (PolicyParameters::Concurrency, PolicyParameters::Concurrency) => {}
            _ if self.used(old, &before, &ledger, at, RefundView::Refunded) == 0 => return None,
            (PolicyParameters::Sliding { window, .. }, PolicyParameters::Sliding { grain, .. }) => {
                ledger.events.retain(|event| event.at + window >= at);
                if grain > 1 {
                    for event in &mut ledger.events {
                        // A receipt finds its charge by the instant it counts at, which may be another now.
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

    fn articles(&self, spec: &LimitSpec, former: Option<&LimitCharges>) -> Vec<ModelItem> {
        let compile = |item: &ItemSpec| {
            let name = item.effective_name();
            let before = former.and_then(|former| former.article(&name)).map_or(0, |article| article.step);
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

    // Questions.

    /// Why these asks would be refused at `now`, or `None` if they fit.
    pub fn refusal(&self, asks: &[OwnedAsk], now: Timestamp, view: RefundView) -> Option<ModelRefusal> {
        let questions = self.questions(asks);
        let mut found: Option<ModelRefusal> = None;
        let mut at = now.ticks();
        loop {
            let mut worst: Option<ModelRefusal> = None;
            for question in questions.iter().filter(|question| question.book.spec.mode == Mode::Enforce) {
                if let Some(wait) = self.wait(question, at, view)
                    && worst.as_ref().is_none_or(|worst| wait > worst.wait)
                {
                    let limit_id = question.book.spec.id.clone();
                    worst = Some(ModelRefusal { limit_id, item: question.article.name.clone(), wait });
                }
            }
            match worst {
                None => return found,
                Some(refusal) => {
                    let wait = refusal.wait;
                    found = Some(refusal);
                    // What is promised must hold then: look again at the promised instant.
                    let Wait::Until(until) = wait else { return found };
                    at = until.ticks();
                }
            }
        }
    }

    /// The first instant after `now` at which these asks fit if nobody else asks, found by trying every instant at
    /// which anything changes by itself.
    pub fn first_fit(&self, asks: &[OwnedAsk], now: Timestamp, view: RefundView) -> Option<Timestamp> {
        let questions = self.questions(asks);
        let enforced = || questions.iter().filter(|question| question.book.spec.mode == Mode::Enforce);
        let mut instants: Vec<u64> =
            enforced().flat_map(|question| self.instants(question, now.ticks(), view)).collect();
        instants.sort_unstable();
        let fits =
            |at: u64| enforced().all(|question| self.is_open(question, at) && self.fits(question, at, view));
        instants.into_iter().find(|&at| at > now.ticks() && fits(at)).map(Timestamp::from_ticks)
    }

    /// The readings of every item that is asked, limits as asked, items as written, keys as asked.
    pub fn readings(&self, asks: &[OwnedAsk], now: Timestamp, view: RefundView) -> Vec<ModelReading> {
        let at = now.ticks();
        let read = |question: &ItemAsk<'_>| {
            let terms = self.terms(question, at);
            let over = self.is_over(question.book, at);
            let used = if over { 0 } else { self.used_now(question, at, view) };
            let resets_at = match terms.kind {
                PolicyParameters::Total | PolicyParameters::Concurrency => None,
                _ if used == 0 => None,
                _ => {
                    let mut instants = self.instants(question, at, view);
                    instants.push(self.ends(question.book));
                    instants.sort_unstable();
                    let nothing = |t| self.is_over(question.book, t) || self.used_now(question, t, view) == 0;
                    instants.into_iter().find(|&t| t > at && nothing(t))
                }
            };
            ModelReading {
                limit_id: question.book.spec.id.clone(),
                item: question.article.name.clone(),
                capacity: terms.capacity,
                used,
                remaining: terms.capacity.remaining(used),
                resets_at: resets_at.map(Timestamp::from_ticks),
            }
        };
        self.questions(asks).iter().map(read).collect()
    }

    /// Whether a limit in shadow mode would refuse these asks in one view and not in the other, so that the model
    /// cannot say what it would be charged.
    pub fn is_open_to_doubt(&self, asks: &[OwnedAsk], now: Timestamp) -> bool {
        let questions = self.questions(asks);
        let shadows = questions.iter().filter(|question| question.book.spec.mode == Mode::Shadow);
        shadows.into_iter().any(|question| {
            let [truth, spent] = [RefundView::Refunded, RefundView::NotRefunded]
                .map(|view| self.fits(question, now.ticks(), view));
            truth != spent
        })
    }

    /// Whether a limit in shadow mode would refuse these asks.
    fn would_refuse(&self, questions: &[ItemAsk<'_>], id: &str, at: u64) -> bool {
        let of_limit = questions.iter().filter(|question| question.book.spec.id == id);
        of_limit
            .into_iter()
            .any(|question| !(self.is_open(question, at) && self.fits(question, at, RefundView::Refunded)))
    }

    // Changes.

    /// Records that these asks were granted at `now`, with this lease if there is one.
    pub fn charge(&mut self, asks: &[OwnedAsk], hold: Hold, tenure: Option<LeaseTerm>, now: Timestamp) {
        let crowded = self.crowded(asks, hold, now, RefundView::Refunded);
        let now = self.clamp(now).ticks();
        let questions = self.questions(asks);
        let mut charges = Vec::new();
        let mut pins = Vec::new();
        for question in &questions {
            let id = &question.book.spec.id;
            // A limit that only watches does not charge where it would refuse, also for want of room.
            let no_room = crowded.iter().any(|crowded| crowded.limit_id == *id);
            if question.book.spec.mode == Mode::Shadow && (no_room || self.would_refuse(&questions, id, now))
            {
                continue;
            }
            let key = question.key.map(<[u8]>::to_vec);
            pins.extend(
                key.clone().filter(|_| hold == Hold::Yes || question.cost > 0).map(|key| (id.clone(), key)),
            );
            charges.push((id.clone(), question.article.name.clone(), key, question.cost));
        }
        for (id, name, key, cost) in &charges {
            self.record(id, name, key.as_deref(), *cost, tenure, now);
        }
        if let Some(tenure) = tenure {
            self.leases
                .insert(tenure.lease, HeldCharges { lapses: tenure.expires_at.ticks(), charges, pins });
        }
    }

    fn record(
        &mut self,
        id: &str,
        name: &str,
        key: Option<&[u8]>,
        cost: Amount,
        tenure: Option<LeaseTerm>,
        now: u64,
    ) {
        if cost == 0 {
            return;
        }
        let book = &self.books[id];
        let Some(article) = book.article(name) else { return };
        let question = ItemAsk { book, article, key, cost };
        let terms = self.terms(&question, now);
        let mut ledger = self.caught_up(&question, &question.ledger(), now);
        let mut at = now;
        match terms.kind {
            PolicyParameters::Calendar(_) | PolicyParameters::Interval { .. } => {
                if self.used(&question, &terms, &ledger, now, RefundView::Refunded) == 0 {
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
            PolicyParameters::Concurrency if tenure.is_none() => return,
            PolicyParameters::Total | PolicyParameters::Concurrency => {}
        }
        ledger.last_time = ledger.last_time.max(now);
        ledger.events.push(ModelCharge {
            at,
            amount: cost,
            spent: cost,
            carried: [0, 0],
            lease: tenure.map(|tenure| tenure.lease),
            lapses: tenure.map_or(0, |tenure| tenure.expires_at.ticks()),
            frozen: false,
        });
        let place = (name.to_owned(), key.map(<[u8]>::to_vec));
        self.books.get_mut(id).expect("found above").ledgers.insert(place, ledger);
    }

    /// Whether a lease is known and has not lapsed.
    pub fn is_live(&self, lease: LeaseId, now: Timestamp) -> bool {
        self.leases.get(&lease).is_some_and(|held| now.ticks().max(self.latest) < held.lapses)
    }

    /// Gives a lease back; whether it was live.
    pub fn release(&mut self, lease: LeaseId, now: Timestamp) -> bool {
        let now = self.clamp(now);
        let live = self.is_live(lease, now);
        if live {
            self.leases.remove(&lease);
            self.each_held(lease, &mut |event| event.lapses = 0);
        }
        live
    }

    /// Moves the end of a lease; whether it was live.
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
        for ledger in self.books.values_mut().flat_map(|book| book.ledgers.values_mut()) {
            ledger.events.iter_mut().filter(|event| event.lease == Some(lease)).for_each(&mut *change);
        }
    }

    /// Corrects what a lease's order was charged to the true cost of one ask of `actual`, and releases it; whether it
    /// was live.
    pub fn settle(&mut self, lease: LeaseId, actual: Amount, now: Timestamp) -> bool {
        let now = self.clamp(now);
        if !self.is_live(lease, now) {
            return false;
        }
        let held = self.leases.remove(&lease).expect("it is live");
        for (id, name, key, charged) in &held.charges {
            let Some(book) = self.books.get(id) else { continue };
            let Some(article) = book.article(name) else { continue };
            if matches!(article.policy, Policy::Concurrency { .. }) || self.is_over(book, now.ticks()) {
                continue;
            }
            let cost = price(article, AskTotals::of(actual));
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
        let book = self.books.get_mut(id).expect("looked up by the caller");
        let is_bucket =
            book.article(name).is_some_and(|article| matches!(article.policy, Policy::Bucket { .. }));
        let Some(ledger) = book.ledgers.get_mut(&(name.to_owned(), key.map(<[u8]>::to_vec))) else { return };
        for event in ledger.events.iter_mut().filter(|event| event.lease == Some(lease) && !event.frozen) {
            event.amount = event.amount.saturating_sub(amount);
            if !is_bucket {
                event.spent = event.amount;
            }
        }
        ledger.events.retain(|event| event.spent > 0 || event.carried != [0, 0]);
    }

    /// Zeroes what is counted of a key, or of everybody. Leases go on, but what they were charged is gone.
    pub fn reset(&mut self, id: &str, key: Option<&[u8]>, now: Timestamp) {
        self.clamp(now);
        let Some(book) = self.books.get_mut(id) else { return };
        let held: Vec<String> = book
            .articles
            .iter()
            .filter(|article| matches!(article.policy, Policy::Concurrency { .. }))
            .map(|article| article.name.clone())
            .collect();
        book.ledgers
            .retain(|(name, whose), _| held.contains(name) || (key.is_some() && whose.as_deref() != key));
    }

    // Definitions.

    fn questions<'a>(&'a self, asks: &'a [OwnedAsk]) -> Vec<ItemAsk<'a>> {
        let mut questions = Vec::new();
        for (index, ask) in asks.iter().enumerate() {
            if asks[..index].iter().any(|before| before.limit_id == ask.limit_id) {
                continue;
            }
            let book = &self.books[&ask.limit_id];
            if book.spec.mode == Mode::Off {
                continue;
            }
            let of_limit: Vec<&OwnedAsk> =
                asks.iter().filter(|other| other.limit_id == ask.limit_id).collect();
            let load = |of: &dyn Fn(&OwnedAsk) -> bool| {
                let loads = of_limit.iter().filter(|ask| of(ask)).map(|ask| AskTotals::of(ask.count));
                loads.fold(AskTotals::default(), AskTotals::plus)
            };
            for article in &book.articles {
                if article.per == Per::All {
                    let cost = price(article, load(&|_| true));
                    questions.push(ItemAsk { book, article, key: None, cost });
                    continue;
                }
                for (index, ask) in of_limit.iter().enumerate() {
                    if ask.key.is_some() && !of_limit[..index].iter().any(|before| before.key == ask.key) {
                        let cost = price(article, load(&|other| other.key == ask.key));
                        questions.push(ItemAsk { book, article, key: ask.key.as_deref(), cost });
                    }
                }
            }
        }
        questions
    }
}
