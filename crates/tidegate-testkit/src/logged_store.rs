//! A store behind a log that is synced when a test says so.
//!
//! [`LoggedStore`] wraps a store that replies at once. Replies that changed something become durable later, and each
//! change of a limit appends a record too. [`ManualLog`] stores nothing: it counts records, keeps the waiting tasks,
//! and lets a test sync up to a position or fail.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tidegate::catalog::{ApplyError, Origin, PutError, Watcher};
use tidegate::catalog::{Catalog, Edit, EditOutcome, ExpectedVersion, RemovalMode};
use tidegate::model::{Intent, LeaseId, LeaseTerm, Limit, LimitSpec, Order, Timestamp};
use tidegate::reply::{OrderError, OrderReply, Replies};
use tidegate::store::{Actual, LimitStore, Settlement, Store, StoreReply};
use tidegate::store::{Capabilities, LimitStats, LogSize, Lsn, StoreSize, Survival, Unavailable, Usage};

/// Longest time that [`ManualLog::wait_for_waiters`] waits.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// A log that is synced by a test. Clones are the same log.
#[derive(Clone)]
pub struct ManualLog {
    shared: Arc<LogShared>,
}

struct LogShared {
    state: Mutex<ManualLogState>,
    /// Signals a new waiter.
    waiter_added: Condvar,
}

#[derive(Default)]
struct ManualLogState {
    end: u64,
    durable: u64,
    syncs_at_once: bool,
    failed: Option<Unavailable>,
    waiting: Vec<(u64, Waker)>,
}

impl ManualLog {
    /// A log of which nothing is durable until a test syncs it.
    pub fn manual() -> ManualLog {
        ManualLog::new(false)
    }

    /// A log of which everything is durable at once.
    pub fn immediate() -> ManualLog {
        ManualLog::new(true)
    }

    fn new(syncs_at_once: bool) -> ManualLog {
        let state = Mutex::new(ManualLogState { syncs_at_once, ..ManualLogState::default() });
        ManualLog { shared: Arc::new(LogShared { state, waiter_added: Condvar::new() }) }
    }

    /// Position of the last record.
    pub fn log_end(&self) -> Lsn {
        Lsn(self.state().end)
    }

    /// Makes everything up to this position durable.
    pub fn sync_to(&self, lsn: Lsn) {
        self.change(|state| state.durable = state.durable.max(lsn.0));
    }

    /// Makes everything so far durable.
    pub fn sync_all(&self) {
        self.change(|state| state.durable = state.end);
    }

    /// Fails the log: records that are not durable yet never will be.
    pub fn fail(&self, reason: &str) {
        self.change(|state| state.failed = Some(Unavailable { reason: reason.to_owned() }));
    }

    /// Number of waiting tasks.
    pub fn waiter_count(&self) -> usize {
        self.state().waiting.len()
    }

    /// Waits until this many tasks wait.
    ///
    /// # Panics
    /// If that takes longer than a minute.
    #[track_caller]
    pub fn wait_for_waiters(&self, count: usize) {
        let state = self.state();
        let waited = self
            .shared
            .waiter_added
            .wait_timeout_while(state, WAIT_TIMEOUT, |state| state.waiting.len() < count);
        let (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        assert!(!timeout.timed_out(), "{} tasks wait for the log, not {count}", state.waiting.len());
    }

    fn append(&self) -> Lsn {
        let mut state = self.state();
        state.end += 1;
        if state.syncs_at_once {
            state.durable = state.end;
        }
        Lsn(state.end)
    }

    fn poll(&self, lsn: Lsn, context: &mut Context<'_>) -> Poll<Result<(), Unavailable>> {
        let mut state = self.state();
        if lsn.0 <= state.durable {
            return Poll::Ready(Ok(()));
        }
        if let Some(failed) = &state.failed {
            return Poll::Ready(Err(failed.clone()));
        }
        if state.waiting.iter().all(|(at, waker)| *at != lsn.0 || !waker.will_wake(context.waker())) {
            state.waiting.push((lsn.0, context.waker().clone()));
        }
        drop(state);
        self.shared.waiter_added.notify_all();
        Poll::Pending
    }

    /// Changes the state and wakes the tasks that need not wait any longer.
    fn change(&self, change: impl FnOnce(&mut ManualLogState)) {
        let mut state = self.state();
        change(&mut state);
        let (durable, failed) = (state.durable, state.failed.is_some());
        let (ready, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut state.waiting).into_iter().partition(|(lsn, _)| failed || *lsn <= durable);
        state.waiting = waiting;
        drop(state);
        for (_, waker) in ready {
            waker.wake();
        }
    }

    fn state(&self) -> MutexGuard<'_, ManualLogState> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ManualLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManualLog").field("end", &self.log_end()).finish_non_exhaustive()
    }
}

/// A store behind a log.
#[derive(Debug)]
pub struct LoggedStore<S: ?Sized> {
    log: ManualLog,
    store: Arc<S>,
}

impl<S: LimitStore + ?Sized> LoggedStore<S> {
    /// Puts a store that replies at once behind this log.
    pub fn new(store: Arc<S>, log: ManualLog) -> LoggedStore<S> {
        LoggedStore { log, store }
    }

    /// The log.
    pub fn log(&self) -> &ManualLog {
        &self.log
    }

    /// The store behind the log.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// The reply to a call. If the call changed something, the reply waits for the log.
    fn reply<T>(&self, value: T, changed: bool) -> StoreReply<T> {
        if changed { StoreReply::Durable(value, self.log.append()) } else { StoreReply::Now(value) }
    }

    fn append_if<T>(&self, reply: T, changed: bool) -> T {
        if changed {
            self.log.append();
        }
        reply
    }
}

impl<S: LimitStore + ?Sized> Store for LoggedStore<S> {
    fn capabilities(&self) -> Capabilities {
        Capabilities { survival: Survival::Durable, ..self.store.capabilities() }
    }

    fn submit(&self, orders: &[Order<'_>], buffer: Replies) -> StoreReply<Replies> {
        let answers = self.store.submit(orders, buffer).now();
        let charged = orders.iter().zip(answers.iter()).any(|(order, answer)| {
            order.intent == Intent::Acquire && answer.as_ref().is_ok_and(OrderReply::is_granted)
        });
        self.reply(answers, charged)
    }

    fn release(&self, lease: LeaseId) -> StoreReply<bool> {
        let released = self.store.release(lease).now();
        self.reply(released, released)
    }

    fn renew(
        &self,
        lease: LeaseId,
        ttl: Option<Duration>,
    ) -> StoreReply<Result<Option<Timestamp>, OrderError>> {
        let renewed = self.store.renew(lease, ttl).now();
        let changed = matches!(renewed, Ok(Some(_)));
        self.reply(renewed, changed)
    }

    fn settle(&self, lease: LeaseId, actual: Actual<'_>) -> StoreReply<Result<Settlement, OrderError>> {
        let settled = self.store.settle(lease, actual).now();
        let changed = matches!(settled, Ok(Settlement::Settled));
        self.reply(settled, changed)
    }

    fn reset(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<(), OrderError>> {
        let reset = self.store.reset(limit_id, key).now();
        let changed = reset.is_ok();
        self.reply(reset, changed)
    }

    fn usage(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Usage, OrderError>> {
        self.store.usage(limit_id, key)
    }

    fn holders(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Vec<LeaseTerm>, OrderError>> {
        self.store.holders(limit_id, key)
    }

    fn held_until(&self, leases: &[LeaseId]) -> StoreReply<Vec<Option<Timestamp>>> {
        self.store.held_until(leases)
    }

    fn poll_durable(&self, lsn: Lsn, context: &mut Context<'_>) -> Poll<Result<(), Unavailable>> {
        self.log.poll(lsn, context)
    }

    fn log_end(&self) -> Option<Lsn> {
        Some(self.log.log_end())
    }

    fn outage(&self) -> Option<Unavailable> {
        self.log.state().failed.clone()
    }

    fn observe(&self, limit_id: &str) -> Option<LimitStats> {
        self.store.observe(limit_id)
    }

    fn size(&self) -> Option<StoreSize> {
        self.store.size()
    }

    fn log_size(&self) -> Option<LogSize> {
        Some(LogSize { bytes: self.log.log_end().0, segments: 1 })
    }
}

impl<S: LimitStore + ?Sized> Catalog for LoggedStore<S> {
    fn get(&self, id: &str) -> Option<Arc<Limit>> {
        self.store.get(id)
    }

    fn list(&self) -> Vec<Arc<Limit>> {
        self.store.list()
    }

    fn put(&self, spec: LimitSpec, expect: ExpectedVersion) -> Result<Arc<Limit>, PutError> {
        let put = self.store.put(spec, expect);
        let changed = put.is_ok();
        self.append_if(put, changed)
    }

    fn remove(&self, id: &str, parting: RemovalMode) -> bool {
        let removed = self.store.remove(id, parting);
        self.append_if(removed, removed)
    }

    fn apply(&self, edits: Vec<Edit>) -> Result<Vec<EditOutcome>, ApplyError> {
        let applied = self.store.apply(edits);
        let changed = has_changed(&applied);
        self.append_if(applied, changed)
    }

    fn edit(&self, edits: Vec<Edit>, origin: Origin) -> StoreReply<Result<Vec<EditOutcome>, ApplyError>> {
        let edited = self.store.edit(edits, origin).now();
        let changed = has_changed(&edited);
        StoreReply::Now(self.append_if(edited, changed))
    }

    fn watch(&self, watcher: Watcher) {
        self.store.watch(watcher);
    }
}

fn has_changed(edited: &Result<Vec<EditOutcome>, ApplyError>) -> bool {
    edited.as_ref().is_ok_and(|edited| edited.iter().any(|each| each.change().is_some()))
}
