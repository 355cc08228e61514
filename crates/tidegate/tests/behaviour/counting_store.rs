//! A store that counts selected calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate::catalog::{ApplyError, Origin, PutError, Watcher};
use tidegate::catalog::{Catalog, Edit, EditOutcome, ExpectedVersion, RemovalMode};
use tidegate::model::{LeaseId, LeaseTerm, Limit, LimitSpec, Order, Timestamp};
use tidegate::reply::{OrderError, Replies};
use tidegate::store::{Actual, LimitStore, Settlement, Store, StoreReply};
use tidegate::store::{Capabilities, Lsn, Unavailable, Usage};

/// Wraps a store and counts the calls of interest.
pub(crate) struct CountingStore<S> {
    store: Arc<S>,
    asked: AtomicUsize,
}

impl<S: LimitStore> CountingStore<S> {
    pub(crate) fn over(store: Arc<S>) -> CountingStore<S> {
        CountingStore { store, asked: AtomicUsize::new(0) }
    }

    /// The number of calls since the last call of this function.
    pub(crate) fn asked(&self) -> usize {
        self.asked.swap(0, Ordering::SeqCst)
    }

    fn noted(&self) -> &S {
        self.asked.fetch_add(1, Ordering::SeqCst);
        &self.store
    }
}

impl<S: LimitStore> Store for CountingStore<S> {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn submit(&self, orders: &[Order<'_>], buffer: Replies) -> StoreReply<Replies> {
        self.noted().submit(orders, buffer)
    }

    fn release(&self, lease: LeaseId) -> StoreReply<bool> {
        self.noted().release(lease)
    }

    fn renew(
        &self,
        lease: LeaseId,
        ttl: Option<Duration>,
    ) -> StoreReply<Result<Option<Timestamp>, OrderError>> {
        self.noted().renew(lease, ttl)
    }

    fn settle(&self, lease: LeaseId, actual: Actual<'_>) -> StoreReply<Result<Settlement, OrderError>> {
        self.noted().settle(lease, actual)
    }

    fn reset(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<(), OrderError>> {
        self.noted().reset(limit_id, key)
    }

    fn usage(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Usage, OrderError>> {
        self.noted().usage(limit_id, key)
    }

    fn holders(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Vec<LeaseTerm>, OrderError>> {
        self.noted().holders(limit_id, key)
    }

    fn held_until(&self, leases: &[LeaseId]) -> StoreReply<Vec<Option<Timestamp>>> {
        self.noted().held_until(leases)
    }

    fn poll_durable(&self, lsn: Lsn, context: &mut Context<'_>) -> Poll<Result<(), Unavailable>> {
        self.store.poll_durable(lsn, context)
    }

    fn log_end(&self) -> Option<Lsn> {
        self.store.log_end()
    }
}

impl<S: LimitStore> Catalog for CountingStore<S> {
    fn get(&self, id: &str) -> Option<Arc<Limit>> {
        self.store.get(id)
    }

    fn list(&self) -> Vec<Arc<Limit>> {
        self.store.list()
    }

    fn put(&self, spec: LimitSpec, expect: ExpectedVersion) -> Result<Arc<Limit>, PutError> {
        self.store.put(spec, expect)
    }

    fn remove(&self, id: &str, parting: RemovalMode) -> bool {
        self.store.remove(id, parting)
    }

    fn apply(&self, edits: Vec<Edit>) -> Result<Vec<EditOutcome>, ApplyError> {
        self.store.apply(edits)
    }

    fn edit(&self, edits: Vec<Edit>, origin: Origin) -> StoreReply<Result<Vec<EditOutcome>, ApplyError>> {
        self.store.edit(edits, origin)
    }

    fn watch(&self, watcher: Watcher) {
        self.store.watch(watcher);
    }
}
