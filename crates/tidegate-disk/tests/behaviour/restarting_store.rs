//! A disk store that is stopped and opened again after every so many things it was asked. Nobody must notice.

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

type Ear = Arc<dyn Fn(&Change) + Send + Sync>;

pub(crate) struct Reopening {
    clock: Arc<ManualClock>,
    directory: Arc<SimulatedDirectory>,
    store: RwLock<DiskStore>,
    every: usize,
    asked: AtomicUsize,
    ears: Mutex<Vec<Ear>>,
}

impl Reopening {
    pub(crate) fn new(clock: &Arc<ManualClock>, every: usize) -> Reopening {
        let directory: Arc<SimulatedDirectory> = Arc::default();
        let store = RwLock::new(open(&directory, clock));
        Reopening {
            clock: Arc::clone(clock),
            directory,
            store,
            every,
            asked: AtomicUsize::new(0),
            ears: Mutex::default(),
        }
    }

    fn ask<T>(&self, ask: impl FnOnce(&DiskStore) -> T) -> T {
        let answer = ask(&self.store.read().expect("nobody panics"));
        if (self.asked.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(self.every) {
            let mut store = self.store.write().expect("nobody panics");
            store.stop().expect("nothing is in the way");
            *store = open(&self.directory, &self.clock);
            for ear in self.ears.lock().expect("nobody panics").iter() {
                store.watch(hearing(ear));
            }
        }
        answer
    }
}

fn hearing(ear: &Ear) -> Watcher {
    let ear = Arc::clone(ear);
    Box::new(move |change| ear(change))
}

impl Store for Reopening {
    fn capabilities(&self) -> Capabilities {
        self.store.read().expect("nobody panics").capabilities()
    }

    fn submit(&self, orders: &[Order<'_>], buffer: Replies) -> StoreReply<Replies> {
        self.ask(|store| store.submit(orders, buffer))
    }

    fn bid(&self, bids: &CompactBatch<'_>, gists: &mut CompactReplies) -> Result<Option<Lsn>, Unavailable> {
        self.ask(|store| store.bid(bids, gists))
    }

    fn release(&self, lease: LeaseId) -> StoreReply<bool> {
        self.ask(|store| store.release(lease))
    }

    fn renew(
        &self,
        lease: LeaseId,
        ttl: Option<Duration>,
    ) -> StoreReply<Result<Option<Timestamp>, OrderError>> {
        self.ask(|store| store.renew(lease, ttl))
    }

    fn settle(&self, lease: LeaseId, actual: Actual<'_>) -> StoreReply<Result<Settlement, OrderError>> {
        self.ask(|store| store.settle(lease, actual))
    }

    fn reset(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<(), OrderError>> {
        self.ask(|store| store.reset(limit_id, key))
    }

    fn usage(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Usage, OrderError>> {
        self.ask(|store| store.usage(limit_id, key))
    }

    fn holders(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Vec<LeaseTerm>, OrderError>> {
        self.ask(|store| store.holders(limit_id, key))
    }

    fn held_until(&self, leases: &[LeaseId]) -> StoreReply<Vec<Option<Timestamp>>> {
        self.ask(|store| store.held_until(leases))
    }
}

impl Catalog for Reopening {
    fn get(&self, id: &str) -> Option<Arc<Limit>> {
        // Watchers ask this while they are told of something.
        self.store.read().expect("nobody panics").get(id)
    }

    fn list(&self) -> Vec<Arc<Limit>> {
        self.store.read().expect("nobody panics").list()
    }

    fn put(&self, spec: LimitSpec, expect: ExpectedVersion) -> Result<Arc<Limit>, PutError> {
        self.ask(|store| store.put(spec, expect))
    }

    fn remove(&self, id: &str, parting: RemovalMode) -> bool {
        self.ask(|store| store.remove(id, parting))
    }

    fn apply(&self, edits: Vec<Edit>) -> Result<Vec<EditOutcome>, ApplyError> {
        self.ask(|store| store.apply(edits))
    }

    fn edit(&self, edits: Vec<Edit>, origin: Origin) -> StoreReply<Result<Vec<EditOutcome>, ApplyError>> {
        self.ask(|store| store.edit(edits, origin))
    }

    fn watch(&self, watcher: Watcher) {
        let ear: Ear = Arc::from(watcher);
        self.store.read().expect("nobody panics").watch(hearing(&ear));
        self.ears.lock().expect("nobody panics").push(ear);
    }
}
