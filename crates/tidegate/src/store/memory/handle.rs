//! Handles on limits for callers that decide often.

use std::cell::RefCell;
use std::sync::Arc;

use arrayvec::ArrayVec;
use tidegate_core::limit::MAX_KEY_BYTES;
use tidegate_core::order::MAX_ASKS;
use tidegate_core::{Amount, Ask, Intent, Limit, Order, Timestamp, Verdict, Wait};

use super::engine::{self, Attempt, MOST_ASKS, Refusal, ResolvedAsk, RowDecision, RowsDecision, Setback};
use super::limit_table::{LimitTable, grants_leases};
use super::{LOOK_AHEAD, StoreState};
use crate::reply::{Detail, OrderError, Outcome, Replies};
use crate::store::Actual;
use crate::store::order_path::check_key;

/// A handle on one limit of a memory store. It decides without a lookup by id and returns only the verdict.
///
/// It follows every edit of its limit. After a removal it reports an unknown limit, also if a limit of the same id is added
/// later: that is another limit. A limit that vanished from a file and returns is the same limit.
///
/// It does not know the queues of a [`Limiter`](crate::Limiter) and may overtake waiting requests.
/// [`LimitHandle`](crate::LimitHandle) does not.
///
/// ```
/// use tidegate::catalog::{Catalog, ExpectedVersion};
/// use tidegate::clock::SystemClock;
/// use tidegate::model::{ItemSpec, LimitSpec, Policy, Verdict, Wait};
/// use tidegate::store::{Memory, MemoryStore};
///
/// let store = MemoryStore::new(SystemClock::new(), Memory::default());
/// store.put(LimitSpec::named("trial").with(ItemSpec::of(Policy::Total, 2).per_key()), ExpectedVersion::Absent)?;
/// let handle = store.handle("trial").ok_or("it was put")?;
/// assert_eq!(handle.try_acquire(b"ada", 2)?, Verdict::Granted);
/// assert_eq!(handle.try_acquire(b"ada", 1)?, Verdict::Denied(Wait::Never));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct MemoryHandle {
    store: Arc<StoreState>,
    table: Arc<LimitTable>,
}

impl MemoryHandle {
    pub(super) fn new(store: Arc<StoreState>, table: Arc<LimitTable>) -> MemoryHandle {
        MemoryHandle { store, table }
    }

    /// Takes `count` units for a key if they fit now. Limits without `per: key` items ignore the key.
    ///
    /// # Errors
    /// [`OrderError::NeedsLease`] for a limit with `concurrency`: its grants come with a lease, and a verdict cannot hold
    /// one; nothing is charged then. [`OrderError::UnknownLimit`] once the limit is gone, [`OrderError::KeyTooLong`] for
    /// keys above 1 KiB.
    #[inline]
    pub fn try_acquire(&self, key: &[u8], count: Amount) -> Result<Verdict, OrderError> {
        match self.decide(key, count) {
            Some(HandleDecision::Granted) => Ok(Verdict::Granted),
            Some(HandleDecision::Refused(refusal)) => Ok(Verdict::Denied(refusal.wait)),
            None => self.try_acquire_locked(key, count),
        }
    }

    #[cold]
    #[inline(never)]
    fn try_acquire_locked(&self, key: &[u8], count: Amount) -> Result<Verdict, OrderError> {
        check_key(Some(key))?;
        let ask = ResolvedAsk { table: &self.table, key: Some(key), tag: None, count };
        self.store.locked_verdict(&[ask], self.store.now())
    }

    /// Decides with the engine. `None` if only an order can be decided: the key is too long, the limit is gone, its grants
    /// come with a lease, or the row needs the locked path.
    #[inline]
    pub(crate) fn decide(&self, key: &[u8], count: Amount) -> Option<HandleDecision> {
        let table = &*self.table;
        let reader = table.snapshot.read();
        let (head, epoch) = (reader.head(), reader.epoch());
        if key.len() > MAX_KEY_BYTES {
            return None;
        }
        let decided = if !head.counts_all() {
            let tag = table.printer.print(key);
            let Some(lines) = table.home_lines(tag) else { return self.decide_rows(key, count) };
            // The lines may be far away in memory: they are requested first and read last.
            lines.prefetch();
            let now = self.store.now();
            let attempt = Attempt { table, reader, head, count, now };
            attempt.decide_key(lines, tag).map(|decision| HandleDecision::of(decision, epoch, now))
        } else if !head.counts_keys() {
            let now = self.store.now();
            let attempt = Attempt { table, reader, head, count, now };
            attempt.decide_all().map(|decision| HandleDecision::of(decision, epoch, now))
        } else {
            Err(Setback::Again)
        };
        if let Ok(decision) = decided {
            return Some(decision);
        }
        self.decide_rows(key, count)
    }

    #[inline(never)]
    fn decide_rows(&self, key: &[u8], count: Amount) -> Option<HandleDecision> {
        check_key(Some(key)).ok()?;
        let ask = ResolvedAsk { table: &self.table, key: Some(key), tag: None, count };
        decide_asks(&[ask], self.store.now())
    }

    /// Decides several asks together, all or nothing, as [`MemoryHandle::decide`] does.
    pub(crate) fn decide_set(asks: &[HandleAsk<'_>]) -> Option<HandleDecision> {
        let mut resolved: ArrayVec<ResolvedAsk<'_>, MOST_ASKS> = ArrayVec::new();
        for HandleAsk { handle, key, count } in asks {
            check_key(*key).ok()?;
            let ask = ResolvedAsk { table: &handle.table, key: *key, tag: None, count: *count };
            resolved.try_push(ask).ok()?;
        }
        let store = &asks.first()?.handle.store;
        let is_one_store = asks.iter().all(|ask| Arc::ptr_eq(&ask.handle.store, store));
        if !is_one_store || !engine::are_distinct(&resolved, |ask| ask.table) {
            return None;
        }
        decide_asks(&resolved, store.now())
    }

    /// Decides on each key in order, as [`MemoryHandle::decide`] does.
    pub(crate) fn decide_batch<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        mut each: impl FnMut(usize, Option<HandleDecision>),
    ) {
        let now = self.store.now();
        for (group, keys) in keys.chunks(LOOK_AHEAD).enumerate() {
            let keys: ArrayVec<&[u8], LOOK_AHEAD> = keys.iter().map(AsRef::as_ref).collect();
            engine::decide_batch(&self.table, &keys, 1, now, &mut |index, decided| {
                let decided = match decided {
                    Some(decided) => Some(decided),
                    None => self.decide_rows(keys[index], 1),
                };
                each(group * LOOK_AHEAD + index, decided);
            });
        }
    }

    /// The limit of a refusal.
    #[inline]
    pub(crate) fn limit_of(&self, refusal: HandleRefusal) -> Arc<RefusingLimit> {
        shared_limit(&self.table, refusal.epoch)
    }

    /// Takes `count` units for each of these keys, in the order of the keys, as if each were requested alone.
    ///
    /// # Errors
    /// As [`MemoryHandle::try_acquire`]. A key that is too long is found before any charge. If the limit is removed during
    /// the batch, the keys before that stay charged.
    ///
    /// # Panics
    /// If there is not one verdict for each key.
    pub fn try_batch(
        &self,
        keys: &[&[u8]],
        count: Amount,
        verdicts: &mut [Verdict],
    ) -> Result<(), OrderError> {
        assert_eq!(keys.len(), verdicts.len(), "one verdict for each key");
        keys.iter().try_for_each(|key| check_key(Some(key)))?;
        let now = self.store.now();
        let mut result = Ok(());
        for (keys, verdicts) in keys.chunks(LOOK_AHEAD).zip(verdicts.chunks_mut(LOOK_AHEAD)) {
            engine::decide_batch(&self.table, keys, count, now, &mut |index, decided| {
                if result.is_err() {
                    return;
                }
                let ask = ResolvedAsk { table: &self.table, key: Some(keys[index]), tag: None, count };
                let verdict = match decided {
                    Some(HandleDecision::Granted) => Ok(Verdict::Granted),
                    Some(HandleDecision::Refused(refusal)) => Ok(Verdict::Denied(refusal.wait)),
                    None => self.store.verdict(&[ask], now),
                };
                match verdict {
                    Ok(verdict) => verdicts[index] = verdict,
                    Err(error) => result = Err(error),
                }
            });
            if result.is_err() {
                break;
            }
        }
        result
    }
}

/// The decision of a handle. Few callers need more than the verdict, so a refusal names its limit by numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandleDecision {
    Granted,
    Refused(HandleRefusal),
}

impl HandleDecision {
    #[inline]
    pub(super) fn of(decision: RowDecision, epoch: u64, now: Timestamp) -> HandleDecision {
        match decision {
            RowDecision::Granted => HandleDecision::Granted,
            RowDecision::Refused(wait, item) => {
                HandleDecision::Refused(HandleRefusal { at: now, wait, item: item.item(), ask: 0, epoch })
            }
        }
    }
}

/// A refusal: the item with the longest wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HandleRefusal {
    pub(crate) at: Timestamp,
    pub(crate) wait: Wait,
    pub(crate) item: usize,
    /// The ask whose limit refused.
    pub(crate) ask: usize,
    pub(super) epoch: u64,
}

/// An ask of a handle.
#[derive(Clone, Copy)]
pub(crate) struct HandleAsk<'a> {
    pub(crate) handle: &'a MemoryHandle,
    pub(crate) key: Option<&'a [u8]>,
    pub(crate) count: Amount,
}

fn decide_asks(asks: &[ResolvedAsk<'_>], now: Timestamp) -> Option<HandleDecision> {
    Some(match engine::decide_rows(asks, Intent::Acquire, now, &mut None)? {
        RowsDecision::Granted(_) => HandleDecision::Granted,
        RowsDecision::Refused(Refusal { denial, epochs, .. }, at) => {
            let position = denial.binding;
            let (wait, item, ask) = (denial.wait, position.item, position.row);
            HandleDecision::Refused(HandleRefusal { at, wait, item, ask, epoch: epochs[0] })
        }
    })
}

/// The definition of a limit that refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RefusingLimit(pub(crate) Arc<Limit>);

/// The definition of the limit of a table in an epoch.
type KeptLimit = (u64, u64, Arc<RefusingLimit>);

/// The number of limits whose definitions a thread keeps for refusals.
const KEPT_LIMITS: usize = 8;

thread_local! {
    /// The definitions of the limits that refused last, by table and epoch. Each thread has pointers of its own: a pointer
    /// that all threads copy would cost more than the decision.
    static REFUSING_LIMITS: RefCell<ArrayVec<KeptLimit, KEPT_LIMITS>> =
        const { RefCell::new(ArrayVec::new_const()) };
}

/// The definition of a limit in an epoch. If the epoch is not kept any more, that of the present one.
fn shared_limit(table: &LimitTable, epoch: u64) -> Arc<RefusingLimit> {
    REFUSING_LIMITS.with_borrow_mut(|kept| {
        let is_own = |(own, number, _): &(u64, u64, _)| *own == table.instance && *number == epoch;
        if let Some((_, _, limit)) = kept.iter().find(|kept| is_own(kept)) {
            return Arc::clone(limit);
        }
        let limit = table.epoch_of(epoch).map_or_else(|| table.limit(), |epoch| Arc::clone(&epoch.limit));
        let limit = Arc::new(RefusingLimit(limit));
        if kept.is_full() {
            kept.remove(0);
        }
        kept.push((table.instance, epoch, Arc::clone(&limit)));
        limit
    })
}

/// A handle on several limits that are decided together, all or nothing.
#[derive(Clone)]
pub struct MemoryHandleSet {
    store: Arc<StoreState>,
    tables: Box<[Arc<LimitTable>]>,
    /// Whether the engine can decide them.
    are_distinct: bool,
}

impl MemoryHandleSet {
    pub(super) fn new(store: Arc<StoreState>, tables: Vec<Arc<LimitTable>>) -> Option<MemoryHandleSet> {
        let tables: Box<[Arc<LimitTable>]> = tables.into();
        let are_distinct = engine::are_distinct(&tables, |table| table);
        (1..=MAX_ASKS).contains(&tables.len()).then_some(MemoryHandleSet { store, tables, are_distinct })
    }

    /// Takes one unit of each limit for these keys, in the order of the limits, all or nothing.
    ///
    /// # Errors
    /// As [`MemoryHandle::try_acquire`], and [`OrderError::KeyMissing`] where a limit counts per key and none is given.
    ///
    /// # Panics
    /// If there is not one key for each limit.
    pub fn try_acquire(&self, keys: &[Option<&[u8]>]) -> Result<Verdict, OrderError> {
        assert_eq!(keys.len(), self.tables.len(), "one key for each limit");
        keys.iter().try_for_each(|key| check_key(*key))?;
        let asks = self.tables.iter().zip(keys);
        let asks = asks.map(|(table, key)| ResolvedAsk { table, key: *key, tag: None, count: 1 });
        let now = self.store.now();
        if !self.are_distinct {
            return self.store.locked_verdict(&asks.collect::<Vec<_>>(), now);
        }
        let mut few: ArrayVec<ResolvedAsk<'_>, MOST_ASKS> = ArrayVec::new();
        asks.for_each(|ask| few.push(ask));
        self.store.verdict(&few, now)
    }
}

impl StoreState {
    /// The verdict on asks of distinct limits.
    #[inline]
    fn verdict(&self, asks: &[ResolvedAsk<'_>], now: Timestamp) -> Result<Verdict, OrderError> {
        match engine::decide_rows(asks, Intent::Acquire, now, &mut None) {
            Some(RowsDecision::Granted(_)) => Ok(Verdict::Granted),
            Some(RowsDecision::Refused(refusal, _)) => Ok(Verdict::Denied(refusal.denial.wait)),
            None => self.locked_verdict(asks, now),
        }
    }

    #[cold]
    #[inline(never)]
    fn locked_verdict(&self, asks: &[ResolvedAsk<'_>], now: Timestamp) -> Result<Verdict, OrderError> {
        let limits = self.limits();
        for ResolvedAsk { table, .. } in asks {
            // A limit that was added later under the same id is another limit.
            if !limits.get(&table.id).is_some_and(|present| std::ptr::eq(&raw const **present, *table)) {
                return Err(OrderError::UnknownLimit { limit_id: table.id.to_string() });
            }
        }
        if asks.iter().any(|ask| grants_leases(&ask.table.epoch().limit)) {
            return Err(OrderError::NeedsLease);
        }
        let order_asks: Vec<Ask<'_>> =
            asks.iter().map(|ask| Ask { limit_id: &ask.table.id, key: ask.key, count: ask.count }).collect();
        let mut replies = Replies::new(Detail::Verdicts);
        let order = Order::acquire(&order_asks);
        let reply = self.decide_resolved(&limits, &order, asks, &mut None, now, &mut replies)?;
        drop(limits);
        match reply.outcome {
            Outcome::Granted(None) => Ok(Verdict::Granted),
            Outcome::Granted(Some(grant)) => {
                // An edit added a concurrency item meanwhile. Nothing stays charged.
                self.settle(grant.lease, Actual::Every(0), None)?;
                Err(OrderError::NeedsLease)
            }
            Outcome::Denied(denied) => Ok(Verdict::Denied(denied.wait)),
        }
    }
}
