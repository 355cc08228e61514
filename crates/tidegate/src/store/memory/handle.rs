//! Handles on limits for callers that decide often.

use std::sync::Arc;

use arrayvec::ArrayVec;
use tidegate_core::order::MAX_ASKS;
use tidegate_core::{Amount, Ask, Intent, Limit, Order, Timestamp, Verdict};

use super::cache_line::Tag;
use super::counters;
use super::leaf::Elsewhere;
use super::limit_table::Tenant;
use super::lockfree::{self, Bundle, MOST_ROWS, Plea, Several, Single, Sought, Together};
use super::order_path::quickly;
use super::rule_snapshot::{AskKind, CellLaw, Drop, Head, Sheet};
use super::{LOOK_AHEAD, Shared};
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
    shared: Arc<Shared>,
    tenant: Arc<Tenant>,
}

impl MemoryHandle {
    /// The limit as it is now.
    pub(crate) fn limit(&self) -> Arc<Limit> {
        self.tenant.limit()
    }

    /// The store's time.
    pub(crate) fn now(&self) -> Timestamp {
        self.shared.now()
    }

    pub(super) fn new(shared: Arc<Shared>, tenant: Arc<Tenant>) -> MemoryHandle {
        MemoryHandle { shared, tenant }
    }

    /// Takes `count` for a key, now or not at all. Limits without `per: key` items take the key and ignore it.
    ///
    /// # Errors
    /// [`OrderError::NeedsLease`] for a limit with `concurrency`: its grants come with a lease, and a verdict cannot hold one; nothing
    /// is charged then. [`OrderError::UnknownLimit`] once the limit is gone, [`OrderError::KeyTooLong`] for keys above 1 KiB.
    #[inline]
    pub fn try_acquire(&self, key: &[u8], count: Amount) -> Result<Verdict, OrderError> {
        if count == 1
            && let Some(verdict) = self.acquire_drop(key)
        {
            return Ok(verdict);
        }
        self.acquire_of_kind(key, count)
    }

    /// Takes a unit for a key, if it is that simple.
    #[inline(never)]
    fn acquire_drop(&self, key: &[u8]) -> Option<Verdict> {
        let sheet = self.tenant.board.sheet();
        let head = sheet.head();
        if !head.has_drops_of_key() {
            return None;
        }
        match self.tenant.printer.fold(key) {
            Some(tag) => self.acquire_of_key::<Drop>(tag, 1, sheet, head),
            None => self.acquire_drop_unfolded(key),
        }
    }

    /// The same for keys that are not folded, which takes longer anyway.
    #[inline(never)]
    fn acquire_drop_unfolded(&self, key: &[u8]) -> Option<Verdict> {
        let sheet = self.tenant.board.sheet();
        self.acquire_of_key::<Drop>(self.tenant.printer.print_within(key)?, 1, sheet, sheet.head())
    }

    #[inline(never)]
    fn acquire_of_kind(&self, key: &[u8], count: Amount) -> Result<Verdict, OrderError> {
        let head = self.tenant.board.head();
        if head.is_only_of_key()
            && !(count == 1 && head.has_drops())
            && let Some(verdict) = head.of_kind(OneOfKey { handle: self, key, count })
        {
            return Ok(verdict);
        }
        self.acquire_otherwise(key, count)
    }

    /// Decides on a key whose limit has one item, of this law as far as anybody knows; `None` if it is not that simple, and then nothing was done.
    /// It is laid out for each law by itself: what all of them together keep at hand does not fit the registers.
    #[expect(clippy::inline_always, reason = "a call and what it saves is a tenth of a decision")]
    #[inline(always)]
    fn acquire_of_key<L: CellLaw>(
        &self,
        tag: Tag,
        count: Amount,
        sheet: Sheet<'_>,
        head: Head,
    ) -> Option<Verdict> {
        let tenant = &*self.tenant;
        // The row may have to be fetched from afar: so it is asked for first, and looked at last.
        let near = tenant.near_of(tag.low)?;
        near.fetch();
        let now = self.shared.now();
        if !lockfree::is_judged_by::<L>(near.leaf, sheet, head, now) {
            return None;
        }
        let mine = tenant.counts.mine();
        let spot = match near.look(tag) {
            Ok(spot) => spot,
            Err(Elsewhere::Further) => return acquire_further::<L>(tenant, L::count(count), tag, now),
            Err(Elsewhere::Unsure | Elsewhere::Nowhere) => return None,
        };
        let sought = Sought { mine, sheet, head, leaf: near.leaf, count: L::count(count), now };
        let verdict = lockfree::charge_spot::<L>(sought, spot, &mut ()).ok()?;
        if verdict == Verdict::Granted {
            mine.granted();
        }
        Some(verdict)
    }

    /// Whatever is not that simple: somebody else was faster, the key has no row yet, the limit counts all keys together.
    #[inline(never)]
    fn acquire_otherwise(&self, key: &[u8], count: Amount) -> Result<Verdict, OrderError> {
        check_key(Some(key))?;
        self.decide_alone(key, count, self.shared.now())
    }

    /// Takes `count` for each of these keys, one after the other, all at one instant, as if each were asked alone.
    ///
    /// # Errors
    /// As [`MemoryHandle::try_acquire`]. A key that is too long is found before anybody is charged; a limit that is removed in the midst of it
    /// leaves those before it charged.
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
        let now = self.shared.now();
        for (keys, verdicts) in keys.chunks(LOOK_AHEAD).zip(verdicts.chunks_mut(LOOK_AHEAD)) {
            self.decide_some(keys, count, now, verdicts)?;
        }
        Ok(())
    }

    /// Decides as many as are looked at ahead.
    #[inline]
    fn decide_some(
        &self,
        keys: &[&[u8]],
        count: Amount,
        now: Timestamp,
        verdicts: &mut [Verdict],
    ) -> Result<(), OrderError> {
        let head = self.tenant.board.head();
        let some = SomeOfKeys { handle: self, keys, count, now, verdicts };
        if count == 1 && head.has_drops() { some.ask::<Drop>() } else { head.of_kind(some) }
    }

    /// Decides on a key at this instant, however simple it is.
    fn decide_alone(&self, key: &[u8], count: Amount, now: Timestamp) -> Result<Verdict, OrderError> {
        let tenant = &*self.tenant;
        let tag = tenant.printer.print(key);
        let quick = if tenant.board.head().is_of_key() {
            lockfree::decide_near_again(tenant, count, tag, now, &mut ())
        } else {
            lockfree::decide_all(&Single { tenant, count }, now, &mut ())
        };
        match quick {
            Some(verdict) => {
                if verdict == Verdict::Granted {
                    tenant.counts.granted();
                }
                Ok(verdict)
            }
            None => self.shared.verdict(&[Plea { tenant, key: Some(key), tag: Some(tag), count }], now),
        }
    }
}

/// Decides on a key whose row is not in the line it belongs into.
#[inline(never)]
fn acquire_further<L: CellLaw>(tenant: &Tenant, count: Amount, tag: Tag, now: Timestamp) -> Option<Verdict> {
    let leaf = tenant.leaf(tag)?;
    let sheet = tenant.board.sheet();
    let head = sheet.head();
    if !lockfree::is_judged_by::<L>(leaf, sheet, head, now) {
        return None;
    }
    let mine = tenant.counts.mine();
    let sought = Sought { mine, sheet, head, leaf, count, now };
    let verdict = lockfree::charge_spot::<L>(sought, leaf.find_further(tag)?, &mut ()).ok()?;
    if verdict == Verdict::Granted {
        mine.granted();
    }
    Some(verdict)
}

/// Some asks of keys, before the law is known.
struct SomeOfKeys<'a> {
    handle: &'a MemoryHandle,
    keys: &'a [&'a [u8]],
    count: Amount,
    now: Timestamp,
    verdicts: &'a mut [Verdict],
}

impl AskKind for SomeOfKeys<'_> {
    type Answer = Result<(), OrderError>;

    #[inline]
    fn ask<L: CellLaw>(self) -> Result<(), OrderError> {
        let SomeOfKeys { handle, keys, count, now, verdicts } = self;
        let several = Several { tenant: &handle.tenant, keys, count, now };
        let mut otherwise = |index: usize| handle.decide_alone(keys[index], count, now);
        let (granted, end) = lockfree::decide_several::<L, _>(&several, verdicts, &mut otherwise);
        handle.tenant.counts.granted_on(counters::own(), granted);
        end
    }
}

/// One ask of a key, before the law is known.
struct OneOfKey<'a> {
    handle: &'a MemoryHandle,
    key: &'a [u8],
    count: Amount,
}

impl AskKind for OneOfKey<'_> {
    type Answer = Option<Verdict>;

    #[inline(never)]
    fn ask<L: CellLaw>(self) -> Option<Verdict> {
        let OneOfKey { handle, key, count } = self;
        let sheet = handle.tenant.board.sheet();
        handle.acquire_of_key::<L>(handle.tenant.printer.print_within(key)?, count, sheet, sheet.head())
    }
}

/// A handle on several limits that are decided together, all or nothing.
#[derive(Clone)]
pub struct MemoryHandleSet {
    shared: Arc<Shared>,
    tenants: Box<[Arc<Tenant>]>,
    /// Whether they can be decided the quick way.
    are_apart: bool,
    /// The same as what most sets are, if it was when it was made.
    bundle: Option<Arc<Bundle>>,
}

impl MemoryHandleSet {
    pub(super) fn new(shared: Arc<Shared>, tenants: Vec<Arc<Tenant>>) -> Option<MemoryHandleSet> {
        let tenants: Box<[Arc<Tenant>]> = tenants.into();
        let are_apart = lockfree::are_apart(&tenants, |tenant| tenant);
        let bundle = Bundle::of(&tenants).filter(|_| are_apart).map(Arc::new);
        (1..=MAX_ASKS).contains(&tenants.len()).then_some(MemoryHandleSet {
            shared,
            tenants,
            are_apart,
            bundle,
        })
    }

    /// Takes one of each limit for these keys, in the order of the limits: everything or nothing.
    ///
    /// # Errors
    /// As [`MemoryHandle::try_acquire`], and [`OrderError::KeyMissing`] where a limit counts per key and none is given.
    ///
    /// # Panics
    /// If there is not one key for each limit.
    #[inline]
    pub fn try_acquire(&self, keys: &[Option<&[u8]>]) -> Result<Verdict, OrderError> {
        assert_eq!(keys.len(), self.tenants.len(), "one key for each limit");
        match &self.bundle {
            Some(bundle) if bundle.take(keys, || self.shared.now()).is_some() => Ok(Verdict::Granted),
            _ => self.acquire_otherwise(keys),
        }
    }

    #[inline(never)]
    fn acquire_otherwise(&self, keys: &[Option<&[u8]>]) -> Result<Verdict, OrderError> {
        let now = self.shared.now();
        if self.are_apart
            && let Some(verdict) = lockfree::decide_together(Together { tenants: &self.tenants, keys }, now)
        {
            return Ok(verdict);
        }
        self.acquire_thoroughly(keys, now)
    }

    #[inline(never)]
    fn acquire_thoroughly(&self, keys: &[Option<&[u8]>], now: Timestamp) -> Result<Verdict, OrderError> {
        keys.iter().try_for_each(|key| check_key(*key))?;
        let pleas = self.tenants.iter().zip(keys);
        let pleas = pleas.map(|(tenant, key)| Plea { tenant, key: *key, tag: None, count: 1 });
        if !self.are_apart {
            return self.shared.thorough_verdict(&pleas.collect::<Vec<_>>(), now);
        }
        let mut few: ArrayVec<Plea<'_>, MOST_ROWS> = ArrayVec::new();
        pleas.for_each(|plea| few.push(plea));
        self.shared.verdict(&few, now)
    }
}

impl Shared {
    #[inline(never)]
    fn verdict(&self, pleas: &[Plea<'_>], now: Timestamp) -> Result<Verdict, OrderError> {
        match quickly(Intent::Acquire, pleas, now, &mut None) {
            Some((None, _)) => Ok(Verdict::Granted),
            Some((Some(refused), _)) => Ok(Verdict::Denied(refused.denial.wait)),
            None => self.thorough_verdict(pleas, now),
        }
    }

    #[cold]
    fn thorough_verdict(&self, pleas: &[Plea<'_>], now: Timestamp) -> Result<Verdict, OrderError> {
        let limits = self.limits();
        for Plea { tenant, .. } in pleas {
            // A limit that was added since under the same id is not the one that was asked.
            if !limits.get(&tenant.id).is_some_and(|present| std::ptr::eq(&raw const **present, *tenant)) {
                return Err(OrderError::UnknownLimit { limit_id: tenant.id.to_string() });
            }
        }
        if pleas.iter().any(|plea| super::limit_table::holds(&plea.tenant.edition().limit)) {
            return Err(OrderError::NeedsLease);
        }
        let asks: Vec<Ask<'_>> = pleas
            .iter()
            .map(|plea| Ask { limit_id: &plea.tenant.id, key: plea.key, count: plea.count })
            .collect();
        let mut answers = Replies::new(Detail::Verdicts);
        let answer = self.decide_pleas(&limits, &Order::acquire(&asks), pleas, now, &mut answers)?;
        drop(limits);
        match answer.outcome {
            Outcome::Granted(None) => Ok(Verdict::Granted),
            Outcome::Granted(Some(grant)) => {
                // The limit has learnt to hold since we looked: as if nothing had been taken.
                self.settle(grant.lease, Actual::Every(0), None)?;
                Err(OrderError::NeedsLease)
            }
            Outcome::Denied(denied) => Ok(Verdict::Denied(denied.wait)),
        }
    }
}
