//! A store that counts what it is asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tidegate::catalog::{ApplyError, Origin, PutError, Watcher};
use tidegate::store::{Capabilities, Lsn, Unavailable, Usage};
use tidegate::{
    Actual, Answers, Catalog, Edit, Edited, Expect, FullStore, LeaseId, Limit, LimitSpec, Order, Parting,
    Rejection, Settlement, Spoken, Store, Tenure, Timestamp,
};

/// Another store, and how often it was asked about what is counted.
pub(crate) struct Counting<S> {
    store: Arc<S>,
    asked: AtomicUsize,
}

impl<S: FullStore> Counting<S> {
    pub(crate) fn over(store: Arc<S>) -> Counting<S> {
        Counting { store, asked: AtomicUsize::new(0) }
    }

    /// How often it was asked since this was last said.
    pub(crate) fn asked(&self) -> usize {
        self.asked.swap(0, Ordering::SeqCst)
    }

    fn noted(&self) -> &S {
        self.asked.fetch_add(1, Ordering::SeqCst);
        &self.store
    }
}

impl<S: FullStore> Store for Counting<S> {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn submit(&self, orders: &[Order<'_>], buffer: Answers) -> Spoken<Answers> {
        self.noted().submit(orders, buffer)
    }

    fn release(&self, lease: LeaseId) -> Spoken<bool> {
        self.noted().release(lease)
    }

    fn renew(&self, lease: LeaseId, ttl: Option<Duration>) -> Spoken<Result<Option<Timestamp>, Rejection>> {
        self.noted().renew(lease, ttl)
    }

    fn settle(&self, lease: LeaseId, actual: Actual<'_>) -> Spoken<Result<Settlement, Rejection>> {
        self.noted().settle(lease, actual)
    }

    fn reset(&self, limit_id: &str, key: Option<&[u8]>) -> Spoken<Result<(), Rejection>> {
        self.noted().reset(limit_id, key)
    }

    fn usage(&self, limit_id: &str, key: Option<&[u8]>) -> Spoken<Result<Usage, Rejection>> {
        self.noted().usage(limit_id, key)
    }

    fn holders(&self, limit_id: &str, key: Option<&[u8]>) -> Spoken<Result<Vec<Tenure>, Rejection>> {
        self.noted().holders(limit_id, key)
    }

    fn held_until(&self, leases: &[LeaseId]) -> Spoken<Vec<Option<Timestamp>>> {
        self.noted().held_until(leases)
    }

    fn poll_durable(&self, lsn: Lsn, context: &mut Context<'_>) -> Poll<Result<(), Unavailable>> {
        self.store.poll_durable(lsn, context)
    }

    fn tip(&self) -> Option<Lsn> {
        self.store.tip()
    }
}

impl<S: FullStore> Catalog for Counting<S> {
    fn get(&self, id: &str) -> Option<Arc<Limit>> {
        self.store.get(id)
    }

    fn list(&self) -> Vec<Arc<Limit>> {
        self.store.list()
    }

    fn put(&self, spec: LimitSpec, expect: Expect) -> Result<Arc<Limit>, PutError> {
        self.store.put(spec, expect)
    }

    fn remove(&self, id: &str, parting: Parting) -> bool {
        self.store.remove(id, parting)
    }

    fn apply(&self, edits: Vec<Edit>) -> Result<Vec<Edited>, ApplyError> {
        self.store.apply(edits)
    }

    fn edit(&self, edits: Vec<Edit>, origin: Origin) -> Spoken<Result<Vec<Edited>, ApplyError>> {
        self.store.edit(edits, origin)
    }

    fn watch(&self, watcher: Watcher) {
        self.store.watch(watcher);
    }
}
