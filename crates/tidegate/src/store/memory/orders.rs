//! Orders that name limits by id: finds the limits, decides with [the engine](super::engine) or on
//! [the locked path](super::locked_path), and keeps request ids.

use std::sync::Arc;

use arrayvec::ArrayVec;
use tidegate_core::order::{MAX_ASKS, REQUEST_ID_RETENTION};
use tidegate_core::{Ask, Hold, Intent, Limit, Order, Timestamp};

use super::engine::{self, MOST_ASKS, ObservedItem, Refusal, ResolvedAsk, RowsDecision};
use super::leaf::HomeLines;
use super::limit_table::LimitTable;
use super::locked_path::{LockedOrder, LockedResult};
use super::row_epoch::RowEpoch;
use super::{LOOK_AHEAD, LeaseRegistry, Limits, StoreState};
use crate::reply::{Detail, ItemReading, OrderError, OrderRefusal, OrderReply, Outcome, Replies};
use crate::store::journal::LeaseAction;
use crate::store::order_path::check_order;
use crate::store::remembered_grants::RememberedGrant;

/// The epochs that a batch has asked last. While one is held, no later one is dropped.
type HeldEpochs<'a> = Option<(&'a LimitTable, Arc<RowEpoch>)>;

impl StoreState {
    pub(super) fn submit(&self, orders: &[Order<'_>], replies: &mut Replies) {
        let mut now = self.now();
        let limits = self.limits();
        let mut held = None;
        for group in orders.chunks(LOOK_AHEAD) {
            let asks = prefetch(&limits, group);
            for (order, ask) in group.iter().zip(asks) {
                let reply = self.decide(&limits, order, ask, &mut held, now, replies);
                // A row that has seen a later instant moves the rest of the batch to it.
                now = reply.as_ref().map_or(now, |reply| reply.at.max(now));
                replies.push(reply);
            }
        }
    }

    fn decide<'a>(
        &self,
        limits: &'a Limits,
        order: &Order<'_>,
        found: Option<ResolvedAsk<'a>>,
        held: &mut HeldEpochs<'a>,
        now: Timestamp,
        replies: &mut Replies,
    ) -> Result<OrderReply, OrderError> {
        check_order(order)?;
        if let Some(ask) = found {
            return self.decide_resolved(limits, order, &[ask], held, now, replies);
        }
        let mut asks: ArrayVec<ResolvedAsk<'_>, MAX_ASKS> = ArrayVec::new();
        for ask in order.asks {
            match resolve(limits, ask) {
                Ok(ask) => asks.push(ask),
                Err(unknown) => {
                    // An earlier ask without its key is reported first.
                    let lacks_key =
                        |ask: &&ResolvedAsk<'_>| ask.key.is_none() && ask.table.epoch().limit.needs_key();
                    return Err(asks.iter().find(lacks_key).map_or(unknown, key_missing));
                }
            }
        }
        self.decide_resolved(limits, order, &asks, &mut None, now, replies)
    }

    pub(super) fn decide_resolved<'a>(
        &self,
        limits: &Limits,
        order: &Order<'_>,
        asks: &[ResolvedAsk<'a>],
        held: &mut HeldEpochs<'a>,
        now: Timestamp,
        replies: &mut Replies,
    ) -> Result<OrderReply, OrderError> {
        if order.hold == Hold::No
            && order.request_id.is_none()
            && engine::are_distinct(asks, |ask| ask.table)
            && let Some(reply) = decide_unlocked(order.intent, asks, held, now, replies)
        {
            return Ok(reply);
        }
        self.decide_locked(limits, order, asks, self.latest(now), replies)
    }

    /// Decides on the locked path.
    fn decide_locked(
        &self,
        limits: &Limits,
        order: &Order<'_>,
        asks: &[ResolvedAsk<'_>],
        now: Timestamp,
        replies: &mut Replies,
    ) -> Result<OrderReply, OrderError> {
        self.locked_decisions.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let acquires = order.intent == Intent::Acquire;
        let mut registry = None;
        loop {
            // The limits as they are found are those of the decision, or everything is found again.
            let mut locked = LockedOrder::new();
            locked.enter_all(asks);
            if let Some(ask) = locked.key_missing(asks) {
                return Err(key_missing(ask));
            }
            let needs_registry = acquires
                && (order.hold == Hold::Yes || order.request_id.is_some() || locked.may_grant_lease());
            let may_lapse = now.ticks() >= self.next_lapse.load(std::sync::atomic::Ordering::Relaxed);
            if registry.is_none() && (needs_registry || may_lapse) {
                let mut taken = self.registry();
                self.drop_lapsed(limits, &mut taken, now);
                registry = needs_registry.then_some(taken);
            }
            let result = match &mut registry {
                Some(registry) if needs_registry => {
                    let registry: &mut LeaseRegistry = registry;
                    if let Some(id) = order.request_id
                        && let Some(remembered) = registry.requests.get(id, now)
                    {
                        if !remembered.is_for(order) {
                            return Err(OrderError::RequestIdReused);
                        }
                        return Ok(remembered.again(&registry.leases, now, replies));
                    }
                    locked.decide(self, order, now, Some(registry), replies)
                }
                _ => locked.decide(self, order, now, None, replies),
            };
            if let LockedResult::Decided(reply) = result {
                if let Some(registry) = &mut registry {
                    self.remember(order, &reply, registry, replies);
                }
                return Ok(reply);
            }
        }
    }

    /// Remembers a grant by its request id.
    fn remember(
        &self,
        order: &Order<'_>,
        reply: &OrderReply,
        registry: &mut LeaseRegistry,
        replies: &mut Replies,
    ) {
        if let (Some(id), true) = (order.request_id, reply.is_granted()) {
            let until = reply.at.plus(self.tick.span(REQUEST_ID_RETENTION));
            let readings = replies.readings(reply).to_vec();
            let grant = RememberedGrant::new(order, until, reply.clone(), readings);
            if let Some(notes) = replies.notes() {
                notes
                    .deeds
                    .push(registry.note(LeaseAction::Remembered { id: id.into(), grant: grant.clone() }));
            }
            registry.requests.remember(id, grant);
        }
        self.update_next_lapse(registry);
    }
}

/// Finds the limits and the fingerprints of orders of one ask, and loads their lines into the cache. The lines of many keys
/// are far apart in memory. Asked for one after the other, the processor loads them side by side.
fn prefetch<'a>(limits: &'a Limits, group: &'a [Order<'a>]) -> ArrayVec<Option<ResolvedAsk<'a>>, LOOK_AHEAD> {
    let mut found: ArrayVec<Option<ResolvedAsk<'a>>, LOOK_AHEAD> = ArrayVec::new();
    // Most orders of a batch ask the same limit.
    let mut last: Option<ResolvedAsk<'a>> = None;
    for order in group {
        let ask = if let [ask] = order.asks { resolve_again(limits, ask, last) } else { None };
        if group.len() > 1
            && let Some(ResolvedAsk { table, tag: Some(tag), .. }) = ask
        {
            table.home_lines(tag).iter().for_each(HomeLines::prefetch);
        }
        last = ask.or(last);
        found.push(ask);
    }
    found
}

fn resolve_again<'a>(
    limits: &'a Limits,
    ask: &Ask<'a>,
    last: Option<ResolvedAsk<'a>>,
) -> Option<ResolvedAsk<'a>> {
    let again = last.filter(|last| *last.table.id == *ask.limit_id);
    let found = match again {
        Some(last) => ResolvedAsk { key: ask.key, tag: None, count: ask.count, ..last },
        None => resolve(limits, ask).ok()?,
    };
    Some(ResolvedAsk { tag: found.tag(), ..found })
}

pub(super) fn resolve<'a>(limits: &'a Limits, ask: &Ask<'a>) -> Result<ResolvedAsk<'a>, OrderError> {
    match limits.get(ask.limit_id) {
        Some(table) => Ok(ResolvedAsk { table, key: ask.key, tag: None, count: ask.count }),
        None => Err(OrderError::UnknownLimit { limit_id: ask.limit_id.to_owned() }),
    }
}

fn key_missing(ask: &ResolvedAsk<'_>) -> OrderError {
    OrderError::KeyMissing { limit_id: ask.table.id.to_string() }
}

/// Decides with the engine. `None` if only the locked path can decide.
fn decide_unlocked<'a>(
    intent: Intent,
    asks: &[ResolvedAsk<'a>],
    held: &mut HeldEpochs<'a>,
    now: Timestamp,
    replies: &mut Replies,
) -> Option<OrderReply> {
    let first = replies.mark();
    let noted = replies.notes().map(|notes| notes.charges.len());
    let decision = if replies.detail() == Detail::Readings || noted.is_some() {
        decide_and_read(intent, asks, held, now, replies)?
    } else {
        engine::decide_rows(asks, intent, now, &mut None)?
    };
    if let (Some(noted), Some(notes)) = (noted, replies.notes())
        && (intent == Intent::Peek || matches!(decision, RowsDecision::Refused(..)))
    {
        notes.charges.truncate(noted);
    }
    let (outcome, at) = match decision {
        RowsDecision::Granted(at) => (Outcome::Granted(None), at),
        // Nothing was charged. If the limits of the refusal are not kept any more, the order is decided again.
        RowsDecision::Refused(Refusal { denial, epochs: [binding, earliest], .. }, at) => {
            let limit = |ask: usize, number: u64| {
                let known = held
                    .as_ref()
                    .filter(|(table, epoch)| std::ptr::eq(*table, asks[ask].table) && epoch.number == number);
                match known {
                    Some((_, epoch)) => Some(Arc::clone(&epoch.limit)),
                    None => Some(Arc::clone(&asks[ask].table.epoch_of(number)?.limit)),
                }
            };
            let refusal = OrderRefusal {
                limit: limit(denial.binding.row, binding)?,
                item: denial.binding.item,
                wait: denial.wait,
                first: (limit(denial.first.row, earliest)?, denial.first.item),
                lapses_at: None,
            };
            (Outcome::Denied(refusal), at)
        }
    };
    Some(OrderReply { outcome, at, degraded: false, shadowed: Vec::new(), readings: first..replies.mark() })
}

/// The same, with the reading of every item and the notes for a log.
fn decide_and_read<'a>(
    intent: Intent,
    asks: &[ResolvedAsk<'a>],
    held: &mut HeldEpochs<'a>,
    now: Timestamp,
    replies: &mut Replies,
) -> Option<RowsDecision> {
    // While the epochs are held, none after them is dropped.
    let several: ArrayVec<Arc<RowEpoch>, MOST_ASKS>;
    let epochs: &[Arc<RowEpoch>] = if let [ask] = asks {
        if !matches!(held, Some((last, _)) if std::ptr::eq(*last, ask.table)) {
            *held = Some((ask.table, ask.table.epoch()));
        }
        held.as_ref().map_or(&[][..], |(_, epoch)| std::slice::from_ref(epoch))
    } else {
        several = asks.iter().map(|ask| ask.table.epoch()).collect();
        &several
    };
    let mut observer = |item: &ObservedItem<'_>| {
        let limit = limit_of(epochs, asks, item.ask, item.epoch);
        if let Some(notes) = replies.notes() {
            notes.charges.extend(item.charge_note(limit.version()));
        }
        if replies.detail() == Detail::Readings {
            replies.read(ItemReading { limit, item: item.item, reading: item.reading });
        }
    };
    engine::decide_rows(asks, intent, now, &mut Some(&mut observer))
}

/// The limit as it was when an ask was judged: that of the epoch that is held, or a later one.
fn limit_of(held: &[Arc<RowEpoch>], asks: &[ResolvedAsk<'_>], ask: usize, number: u64) -> Arc<Limit> {
    if held[ask].number == number {
        return Arc::clone(&held[ask].limit);
    }
    let later = asks[ask].table.epoch_of(number);
    Arc::clone(&later.expect("while an epoch is held, no later one is dropped").limit)
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

    /// An order holds its limit's epoch. Before it decides, the limit is edited so often that all epochs before the last may be
    /// dropped, and other orders are decided under each. The reply then refers to the limit under which it was decided.
    #[test]
    fn reply_refers_to_limit_version_that_was_asked() {
        let store = MemoryStore::new(SystemClock::new(), Memory::default());
        store.put(limit(1_000), ExpectedVersion::Absent).expect("valid");
        let table = store.state.table("edited").expect("it was put");
        let asks = [ResolvedAsk { table: &table, key: None, tag: None, count: 1 }];
        let order_asks = [Ask::one("edited", None)];
        let held = [table.epoch()];
        for edit in 1..100 {
            store.put(limit(1_000 + edit), ExpectedVersion::Present).expect("valid");
            store.submit(&[Order::acquire(&order_asks)], Replies::new(Detail::Verdicts)).now();
        }
        let mut observed = Vec::new();
        let mut observer =
            |item: &ObservedItem<'_>| observed.push((item.ask, item.epoch, item.item, item.reading.capacity));
        let now = store.state.now();
        let decision = engine::decide_rows(&asks, Intent::Acquire, now, &mut Some(&mut observer));
        assert!(matches!(decision, Some(RowsDecision::Granted(_))), "{decision:?}");
        let [(ask, number, item, capacity)] = observed[..] else { panic!("{observed:?}") };
        assert_eq!(limit_of(&held, &asks, ask, number).items()[item].rule().capacity, capacity);
        for number in held[0].number..=number {
            let most = Capacity::AtMost(1_000 + number - held[0].number);
            assert_eq!(limit_of(&held, &asks, ask, number).items()[0].rule().capacity, most);
        }
        drop(held);
        store.put(limit(1), ExpectedVersion::Present).expect("valid");
        assert!(table.epoch_of(number - 1).is_none(), "no thread needs it any more");
    }

    /// Between the lookup of an order's limits and its locks, the limit gets a concurrency item. The order is not decided as
    /// it was looked up: its grant would hold units without a lease.
    #[test]
    fn order_is_decided_by_limits_it_was_resolved_for() {
        let store = MemoryStore::new(SystemClock::new(), Memory::default());
        store.put(limit(10), ExpectedVersion::Absent).expect("valid");
        let table = store.state.table("edited").expect("it was put");
        let asks = [ResolvedAsk { table: &table, key: None, tag: None, count: 1 }];
        let order_asks = [Ask::one("edited", None)];
        let order = Order::acquire(&order_asks);
        let mut replies = Replies::new(Detail::Verdicts);
        let mut locked = LockedOrder::new();
        locked.enter_all(&asks);
        assert!(!locked.may_grant_lease());
        let concurrency = Policy::Concurrency { ttl: Duration::from_secs(60) };
        let spec = LimitSpec::named("edited").with(ItemSpec::of(concurrency, 1));
        store.put(spec, ExpectedVersion::Present).expect("valid");
        let result = locked.decide(&store.state, &order, store.state.now(), None, &mut replies);
        assert!(matches!(result, LockedResult::Outdated));
        drop(locked);
        let replies = store.submit(&[order], replies).now();
        let Some(Ok(OrderReply { outcome: Outcome::Granted(Some(grant)), .. })) = replies.get(0) else {
            panic!("{replies:?}")
        };
        assert!(store.release(grant.lease).now());
        assert_eq!(store.usage("edited", None).now().expect("it exists").items[0].current_count, 0);
    }
}
