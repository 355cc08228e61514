//! A disk store that is stopped and opened again after every N calls. The restarts must not be visible.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use tidegate::catalog::{ApplyError, Change, Origin, PutError, Watcher};
use tidegate::catalog::{Catalog, Edit, EditOutcome, ExpectedVersion, RemovalMode};
use tidegate::clock::ManualClock;
use tidegate::model::{LeaseId, LeaseTerm, Limit, LimitSpec, Order, Timestamp};
use tidegate::reply::{OrderError, Replies};
use tidegate::store::{
    Actual, Capabilities, CompactBatch, CompactReplies, Lsn, Settlement, Unavailable, Usage,
};
use tidegate::store::{Store, StoreReply};
use tidegate_disk::DiskStore;
use tidegate_disk::directory::SimulatedDirectory;

use crate::store::open;

type SharedWatcher = Arc<dyn Fn(&Change) + Send + Sync>;

pub(crate) struct RestartingStore {
    clock: Arc<ManualClock>,
    directory: Arc<SimulatedDirectory>,
    store: RwLock<DiskStore>,
    every: usize,
    calls: AtomicUsize,
    watchers: Mutex<Vec<SharedWatcher>>,
}

impl RestartingStore {
    pub(crate) fn new(clock: &Arc<ManualClock>, every: usize) -> RestartingStore {
        let directory: Arc<SimulatedDirectory> = Arc::default();
        let store = RwLock::new(open(&directory, clock));
        RestartingStore {
            clock: Arc::clone(clock),
            directory,
            store,
            every,
            calls: AtomicUsize::new(0),
            watchers: Mutex::default(),
        }
    }

    fn call<T>(&self, call: impl FnOnce(&DiskStore) -> T) -> T {
        let answer = call(&self.store.read().expect("no thread panics"));
        if (self.calls.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(self.every) {
            let mut store = self.store.write().expect("no thread panics");
            store.stop().expect("nothing is in the way");
            *store = open(&self.directory, &self.clock);
            for watcher in self.watchers.lock().expect("no thread panics").iter() {
                store.watch(forward_to(watcher));
            }
        }
        answer
    }
}

fn forward_to(watcher: &SharedWatcher) -> Watcher {
    let watcher = Arc::clone(watcher);
    Box::new(move |change| watcher(change))
}

impl Store for RestartingStore {
    fn capabilities(&self) -> Capabilities {
        self.store.read().expect("no thread panics").capabilities()
    }

    fn submit(&self, orders: &[Order<'_>], buffer: Replies) -> StoreReply<Replies> {
        self.call(|store| store.submit(orders, buffer))
    }

    fn submit_compact(
        &self,
        bids: &CompactBatch<'_>,
        gists: &mut CompactReplies,
    ) -> Result<Option<Lsn>, Unavailable> {
        self.call(|store| store.submit_compact(bids, gists))
    }

    fn release(&self, lease: LeaseId) -> StoreReply<bool> {
        self.call(|store| store.release(lease))
    }

    fn renew(
        &self,
        lease: LeaseId,
        ttl: Option<Duration>,
    ) -> StoreReply<Result<Option<Timestamp>, OrderError>> {
        self.call(|store| store.renew(lease, ttl))
    }

    fn settle(&self, lease: LeaseId, actual: Actual<'_>) -> StoreReply<Result<Settlement, OrderError>> {
        self.call(|store| store.settle(lease, actual))
    }

    fn reset(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<(), OrderError>> {
        self.call(|store| store.reset(limit_id, key))
    }

    fn usage(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Usage, OrderError>> {
        self.call(|store| store.usage(limit_id, key))
    }

    fn holders(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Vec<LeaseTerm>, OrderError>> {
        self.call(|store| store.holders(limit_id, key))
    }

    fn held_until(&self, leases: &[LeaseId]) -> StoreReply<Vec<Option<Timestamp>>> {
        self.call(|store| store.held_until(leases))
    }
}

impl Catalog for RestartingStore {
    fn get(&self, id: &str) -> Option<Arc<Limit>> {
        // Watchers call this during a notification.
        self.store.read().expect("no thread panics").get(id)
    }

    fn list(&self) -> Vec<Arc<Limit>> {
        self.store.read().expect("no thread panics").list()
    }

    fn put(&self, spec: LimitSpec, expect: ExpectedVersion) -> Result<Arc<Limit>, PutError> {
        self.call(|store| store.put(spec, expect))
    }

    fn remove(&self, id: &str, parting: RemovalMode) -> bool {
        self.call(|store| store.remove(id, parting))
    }

    fn apply(&self, edits: Vec<Edit>) -> Result<Vec<EditOutcome>, ApplyError> {
        self.call(|store| store.apply(edits))
    }

    fn edit(&self, edits: Vec<Edit>, origin: Origin) -> StoreReply<Result<Vec<EditOutcome>, ApplyError>> {
        self.call(|store| store.edit(edits, origin))
    }

    fn watch(&self, watcher: Watcher) {
        let watcher: SharedWatcher = Arc::from(watcher);
        self.store.read().expect("no thread panics").watch(forward_to(&watcher));
        self.watchers.lock().expect("no thread panics").push(watcher);
    }
}
