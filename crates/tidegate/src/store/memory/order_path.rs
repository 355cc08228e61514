//! Decides orders: on the lock-free path if possible, else on the locked path.

use std::sync::Arc;

use arrayvec::ArrayVec;
use tidegate_core::order::{MAX_ASKS, REQUEST_ID_RETENTION};
use tidegate_core::{Ask, Hold, Intent, Limit, Order, Timestamp};

use super::cache_line::Tag;
use super::insert;
use super::leaf::Near;
use super::limit_table::Tenant;
use super::locked_path::{Sat, Sitting};
use super::lockfree::{self, MOST_ROWS, Plea, Quick, Refused, Told};
use super::row_epoch::Edition;
use super::single_ask::{bring_near, decide_alone};
use super::sliding_path;
use super::{Desk, LOOK_AHEAD, Limits, Shared};
use crate::reply::{Detail, ItemReading, OrderError, OrderRefusal, OrderReply, Outcome, Replies};
use crate::store::journal::LeaseAction;
use crate::store::order_path::check_order;
use crate::store::requests::RememberedGrant;

/// How often a new key's row is made for the quick way before the thorough way is taken.
const ADMISSIONS: usize = 2 * MOST_ROWS;

impl Shared {
    pub(super) fn submit(&self, orders: &[Order<'_>], answers: &mut Replies) {
        let mut now = self.now();
        let limits = self.limits();
        // What is asked of several limits at once is brought near as it is decided on.
        if let [order] = orders
            && order.asks.len() > 1
        {
            let answer = self.decide(&limits, order, None, now, answers);
            answers.push(answer);
            return;
        }
        let mut held = None;
        for group in orders.chunks(LOOK_AHEAD) {
            let found = bring_near(&limits, group);
            for (order, found) in group.iter().zip(found) {
                let alone =
                    found.as_ref().and_then(|found| decide_alone(order, found, &mut held, now, answers));
                let answer = match alone {
                    Some(answer) => Ok(answer),
                    None => self.decide(&limits, order, found.map(|found| found.plea), now, answers),
                };
                // A row that has seen a later instant than we did carries the rest of the batch along.
                now = answer.as_ref().map_or(now, |answer| answer.at.max(now));
                answers.push(answer);
            }
        }
    }

    fn decide(
        &self,
        limits: &Limits,
        order: &Order<'_>,
        near: Option<Plea<'_>>,
        now: Timestamp,
        answers: &mut Replies,
    ) -> Result<OrderReply, OrderError> {
        check_order(order)?;
        if let Some(plea) = near {
            return self.decide_pleas(limits, order, &[plea], now, answers);
        }
        if let [ask] = order.asks {
            return self.decide_pleas(limits, order, &[plea(limits, ask)?], now, answers);
        }
        let mut pleas: ArrayVec<Plea<'_>, MAX_ASKS> = ArrayVec::new();
        for ask in order.asks {
            match plea(limits, ask) {
                Ok(plea) => pleas.push(plea),
                Err(unknown) => {
                    // What is wrong with the asks before it is told first.
                    let lacks_key =
                        |plea: &&Plea<'_>| plea.key.is_none() && plea.tenant.edition().limit.needs_key();
                    return Err(pleas.iter().find(lacks_key).map_or(unknown, key_missing));
                }
            }
        }
        self.decide_pleas(limits, order, &pleas, now, answers)
    }

    pub(super) fn decide_pleas(
        &self,
        limits: &Limits,
        order: &Order<'_>,
        pleas: &[Plea<'_>],
        now: Timestamp,
        answers: &mut Replies,
    ) -> Result<OrderReply, OrderError> {
        if order.hold == Hold::No && order.request_id.is_none() {
            let answer = if pleas.first().is_some_and(|plea| plea.tenant.lean().is_some()) {
                sliding_path::decide(order, pleas, now, answers)
            } else {
                decide_quickly(order.intent, pleas, now, answers)
            };
            if let Some(answer) = answer {
                return Ok(answer);
            }
        }
        self.decide_thoroughly(limits, order, pleas, self.latest(now), answers)
    }

    /// The thorough way.
    fn decide_thoroughly(
        &self,
        limits: &Limits,
        order: &Order<'_>,
        pleas: &[Plea<'_>],
        now: Timestamp,
        answers: &mut Replies,
    ) -> Result<OrderReply, OrderError> {
        let acquires = order.intent == Intent::Acquire;
        let mut desk = None;
        loop {
            // As the limits are when they are found, so they are decided on, or everything is looked at again.
            let mut sitting = Sitting::new();
            sitting.enter_all(pleas);
            if let Some(plea) = sitting.key_missing(pleas) {
                return Err(key_missing(plea));
            }
            let needs_desk =
                acquires && (order.hold == Hold::Yes || order.request_id.is_some() || sitting.may_hold());
            let may_lapse = now.ticks() >= self.next_lapse.load(std::sync::atomic::Ordering::Relaxed);
            if desk.is_none() && (needs_desk || may_lapse) {
                let mut taken = self.desk();
                self.let_lapse(limits, &mut taken, now);
                desk = needs_desk.then_some(taken);
            }
            let sat = match &mut desk {
                Some(desk) if needs_desk => {
                    let desk: &mut Desk = desk;
                    if let Some(id) = order.request_id
                        && let Some(remembered) = desk.requests.get(id, now)
                    {
                        if !remembered.is_for(order) {
                            return Err(OrderError::RequestIdReused);
                        }
                        return Ok(remembered.again(&desk.leases, now, answers));
                    }
                    sitting.sit(self, order, now, Some(desk), answers)
                }
                _ => sitting.sit(self, order, now, None, answers),
            };
            if let Sat::Answered(answer) = sat {
                if let Some(desk) = &mut desk {
                    self.remember(order, &answer, desk, answers);
                }
                return Ok(answer);
            }
        }
    }

    /// Remembers a grant by its request id.
    fn remember(&self, order: &Order<'_>, answer: &OrderReply, desk: &mut Desk, answers: &mut Replies) {
        if let (Some(id), true) = (order.request_id, answer.is_granted()) {
            let until = answer.at.plus(self.tick.span(REQUEST_ID_RETENTION));
            let readings = answers.readings(answer).to_vec();
            let grant = RememberedGrant::new(order, until, answer.clone(), readings);
            if let Some(notes) = answers.notes() {
                notes.deeds.push(desk.deed(LeaseAction::Remembered { id: id.into(), grant: grant.clone() }));
            }
            desk.requests.remember(id, grant);
        }
        self.mind_lapses(desk);
    }
}

/// The lines that tags belong into, as far as they were found.
pub(super) type Nears<'a> = [Option<Near<'a>>; LOOK_AHEAD];

/// Finds the lines that these tags belong into, and asks for all of them before anybody looks at any: then they are waited for together.
#[inline]
pub(super) fn fetch<'a>(sought: impl Iterator<Item = Option<(&'a Tenant, Tag)>>) -> Nears<'a> {
    let mut nears = [None; LOOK_AHEAD];
    for (near, sought) in nears.iter_mut().zip(sought) {
        *near = sought.and_then(|(tenant, tag)| tenant.near(tag));
        near.iter().for_each(Near::fetch);
    }
    nears
}

pub(super) fn plea<'a>(limits: &'a Limits, ask: &Ask<'a>) -> Result<Plea<'a>, OrderError> {
    match limits.get(ask.limit_id) {
        Some(tenant) => Ok(Plea { tenant, key: ask.key, tag: None, count: ask.count }),
        None => Err(OrderError::UnknownLimit { limit_id: ask.limit_id.to_owned() }),
    }
}

fn key_missing(plea: &Plea<'_>) -> OrderError {
    OrderError::KeyMissing { limit_id: plea.tenant.id.to_string() }
}

/// Decides pleas of different limits the quick way, making rows for new keys. `None` if it is not for the quick way.
#[inline]
pub(super) fn quickly(
    intent: Intent,
    pleas: &[Plea<'_>],
    now: Timestamp,
    reader: &mut lockfree::Reader<'_>,
) -> Option<(Option<Refused>, Timestamp)> {
    for _ in 0..ADMISSIONS {
        match lockfree::decide(pleas, intent, now, reader) {
            Quick::Granted(at) => return Some((None, at)),
            Quick::Refused(refused, at) => return Some((Some(refused), at)),
            Quick::NeedsRow { ask } => {
                let tag = pleas[ask].tag()?;
                if let ([plea], None) = (pleas, &reader)
                    && let Some(begun) = insert::begin(plea, tag, now)
                {
                    return Some((None, begun.at));
                }
                if !insert::admit(pleas[ask].tenant, tag, now) {
                    return None;
                }
            }
            Quick::Otherwise => return None,
        }
    }
    None
}

/// The answer of the quick way, if it has one.
fn decide_quickly(
    intent: Intent,
    pleas: &[Plea<'_>],
    now: Timestamp,
    answers: &mut Replies,
) -> Option<OrderReply> {
    if !lockfree::are_apart(pleas, |plea| plea.tenant) {
        return None;
    }
    let first = answers.mark();
    let noted = answers.notes().map(|notes| notes.charges.len());
    let (refused, at) = if answers.detail() == Detail::Readings || noted.is_some() {
        decide_and_read(intent, pleas, now, answers)?
    } else {
        quickly(intent, pleas, now, &mut None)?
    };
    if let (Some(noted), Some(notes)) = (noted, answers.notes())
        && (refused.is_some() || intent == Intent::Peek)
    {
        notes.charges.truncate(noted);
    }
    let outcome = match refused {
        None => Outcome::Granted(None),
        // Nothing was charged, so if what the limits were is forgotten by now somebody else can say it.
        Some(Refused { denial, editions: [binds, was_first], .. }) => {
            let limit = |ask: usize, number: u64| {
                let edition = pleas[ask].tenant.edition_of(number)?;
                Some(Arc::clone(&edition.limit))
            };
            let limits = [limit(denial.binding.row, binds)?, limit(denial.first.row, was_first)?];
            let [binding, was_first] = limits;
            Outcome::Denied(OrderRefusal {
                limit: binding,
                item: denial.binding.item,
                wait: denial.wait,
                first: (was_first, denial.first.item),
                lapses_at: None,
            })
        }
    };
    Some(OrderReply { outcome, at, degraded: false, shadowed: Vec::new(), readings: first..answers.mark() })
}

/// The same with what every item says.
fn decide_and_read(
    intent: Intent,
    pleas: &[Plea<'_>],
    now: Timestamp,
    answers: &mut Replies,
) -> Option<(Option<Refused>, Timestamp)> {
    let held = hold(pleas);
    let mut reader = |told: &Told<'_>| {
        let limit = judge(&held, pleas, told.ask, told.edition);
        if let Some(notes) = answers.notes() {
            let plea = &pleas[told.ask];
            notes.charges.extend(told.charge(plea, limit.version()));
        }
        if answers.detail() == Detail::Readings {
            answers.read(ItemReading { limit, item: told.short.head.item(), reading: told.reading() });
        }
    };
    quickly(intent, pleas, now, &mut Some(&mut reader))
}

/// The present editions of as many limits as are asked the quick way. As long as they are held, none that comes after them is forgotten.
fn hold(pleas: &[Plea<'_>]) -> ArrayVec<Arc<Edition>, MOST_ROWS> {
    pleas.iter().take(MOST_ROWS).map(|plea| plea.tenant.edition()).collect()
}

/// The limit as it was when an ask was judged: as it was held, or edited since.
fn judge(held: &[Arc<Edition>], pleas: &[Plea<'_>], ask: usize, number: u64) -> Arc<Limit> {
    if held[ask].number == number {
        return Arc::clone(&held[ask].limit);
    }
    let later = pleas[ask].tenant.edition_of(number);
    Arc::clone(&later.expect("while one is held, none after it is forgotten").limit)
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use std::time::Duration;

    use tidegate_core::{Amount, Capacity, ItemSpec, LimitSpec, Policy};

    use super::*;
    use crate::catalog::{Catalog, ExpectedVersion};
    use crate::clock::SystemClock;
    use crate::store::Store;
    use crate::store::memory::{Memory, MemoryStore};

    fn limit(most: Amount) -> LimitSpec {
        let window = Duration::from_secs(3_600);
        LimitSpec::named("edited").with(ItemSpec::of(Policy::Interval { window }, most))
    }

    /// Somebody is about to decide, and holds the limit as it is; before they have, it is edited so often that everything before the
    /// last edit may be forgotten, and others decide under each. What is then told is told under the limit that was asked.
    #[test]
    fn reply_refers_to_limit_version_that_was_asked() {
        let store = MemoryStore::new(SystemClock::new(), Memory::default());
        store.put(limit(1_000), ExpectedVersion::Absent).expect("it makes sense");
        let tenant = store.shared.tenant("edited").expect("it was put");
        let pleas = [Plea { tenant: &tenant, key: None, tag: None, count: 1 }];
        let asks = [Ask::one("edited", None)];
        let held = hold(&pleas);
        for edit in 1..100 {
            store.put(limit(1_000 + edit), ExpectedVersion::Present).expect("it makes sense");
            store.submit(&[Order::acquire(&asks)], Replies::new(Detail::Verdicts)).now();
        }
        let mut told = Vec::new();
        let mut reader = |each: &Told<'_>| {
            told.push((each.ask, each.edition, each.short.head.item(), each.reading().capacity));
        };
        let now = store.shared.now();
        let granted = quickly(Intent::Acquire, &pleas, now, &mut Some(&mut reader));
        assert!(matches!(granted, Some((None, _))), "{granted:?}");
        let [(ask, number, item, capacity)] = told[..] else { panic!("{told:?}") };
        assert_eq!(judge(&held, &pleas, ask, number).items()[item].rule().capacity, capacity);
        for number in held[0].number..=number {
            let most = Capacity::AtMost(1_000 + number - held[0].number);
            assert_eq!(judge(&held, &pleas, ask, number).items()[0].rule().capacity, most);
        }
        drop(held);
        store.put(limit(1), ExpectedVersion::Present).expect("it makes sense");
        assert!(tenant.edition_of(number - 1).is_none(), "nobody needs it any more");
    }

    /// Between looking what an order needs and taking its locks the limit learns to hold. It is not decided on by what was seen before: a
    /// grant would hold something that nobody has a lease of.
    #[test]
    fn order_is_decided_by_limits_it_was_resolved_for() {
        let store = MemoryStore::new(SystemClock::new(), Memory::default());
        store.put(limit(10), ExpectedVersion::Absent).expect("it makes sense");
        let tenant = store.shared.tenant("edited").expect("it was put");
        let pleas = [Plea { tenant: &tenant, key: None, tag: None, count: 1 }];
        let asks = [Ask::one("edited", None)];
        let order = Order::acquire(&asks);
        let mut answers = Replies::new(Detail::Verdicts);
        let mut sitting = Sitting::new();
        sitting.enter_all(&pleas);
        assert!(!sitting.may_hold());
        let concurrency = Policy::Concurrency { ttl: Duration::from_secs(60) };
        let spec = LimitSpec::named("edited").with(ItemSpec::of(concurrency, 1));
        store.put(spec, ExpectedVersion::Present).expect("it makes sense");
        let sat = sitting.sit(&store.shared, &order, store.shared.now(), None, &mut answers);
        assert!(matches!(sat, Sat::Outdated));
        drop(sitting);
        let answers = store.submit(&[order], answers).now();
        let Some(Ok(OrderReply { outcome: Outcome::Granted(Some(grant)), .. })) = answers.get(0) else {
            panic!("{answers:?}")
        };
        assert!(store.release(grant.lease).now());
        assert_eq!(store.usage("edited", None).now().expect("it is there").items[0].current_count, 0);
    }
}
