//! Storms over a fleet: whoever asks meets another server each time, and the record must be explained as if there were one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate::catalog::{ApplyError, Edit, EditOutcome, Origin, PutError, Watcher};
use tidegate::catalog::{Catalog, ExpectedVersion, RemovalMode};
use tidegate::clock::Clock;
use tidegate::model::{LeaseId, LeaseTerm, Limit, LimitSpec, Order, Timestamp};
use tidegate::reply::{OrderError, Replies};
use tidegate::store::{Actual, LimitStore, Settlement, Store, StoreReply};
use tidegate::store::{Capabilities, Usage};
use tidegate_postgres::{PostgresOptions, PostgresStore, TimeSource};
use tidegate_testkit::stress::{OperatorMode, SteppingClock, StressPlan, run_stress};

use super::{SERVERS, deadlocks};
use crate::cluster::new_database;

/// Servers that are asked in turn.
struct Turns {
    stores: Vec<PostgresStore>,
    turn: AtomicUsize,
}

impl Turns {
    fn next(&self) -> &PostgresStore {
        &self.stores[self.turn.fetch_add(1, Ordering::Relaxed) % self.stores.len()]
    }
}

impl Store for Turns {
    fn capabilities(&self) -> Capabilities {
        self.next().capabilities()
    }

    fn submit(&self, orders: &[Order<'_>], buffer: Replies) -> StoreReply<Replies> {
        self.next().submit(orders, buffer)
    }

    fn release(&self, lease: LeaseId) -> StoreReply<bool> {
        self.next().release(lease)
    }

    fn renew(
        &self,
        lease: LeaseId,
        ttl: Option<Duration>,
    ) -> StoreReply<Result<Option<Timestamp>, OrderError>> {
        self.next().renew(lease, ttl)
    }

    fn settle(&self, lease: LeaseId, actual: Actual<'_>) -> StoreReply<Result<Settlement, OrderError>> {
        self.next().settle(lease, actual)
    }

    fn reset(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<(), OrderError>> {
        self.next().reset(limit_id, key)
    }

    fn usage(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Usage, OrderError>> {
        self.next().usage(limit_id, key)
    }

    fn holders(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Vec<LeaseTerm>, OrderError>> {
        self.next().holders(limit_id, key)
    }

    fn held_until(&self, leases: &[LeaseId]) -> StoreReply<Vec<Option<Timestamp>>> {
        self.next().held_until(leases)
    }
}

impl Catalog for Turns {
    fn get(&self, id: &str) -> Option<Arc<Limit>> {
        self.next().get(id)
    }

    fn list(&self) -> Vec<Arc<Limit>> {
        self.next().list()
    }

    fn put(&self, spec: LimitSpec, expect: ExpectedVersion) -> Result<Arc<Limit>, PutError> {
        self.next().put(spec, expect)
    }

    fn remove(&self, id: &str, parting: RemovalMode) -> bool {
        self.next().remove(id, parting)
    }

    fn apply(&self, edits: Vec<Edit>) -> Result<Vec<EditOutcome>, ApplyError> {
        self.next().apply(edits)
    }

    fn edit(&self, edits: Vec<Edit>, origin: Origin) -> StoreReply<Result<Vec<EditOutcome>, ApplyError>> {
        self.next().edit(edits, origin)
    }

    fn watch(&self, watcher: Watcher) {
        self.next().watch(watcher);
    }

    fn applied(&self) -> Vec<String> {
        self.next().applied()
    }
}

/// Lets a storm loose on a fleet. A transaction takes a while, so it is a small one.
#[track_caller]
fn stress_fleet(keys: usize, operator: OperatorMode) {
    let database = new_database();
    let options = PostgresOptions::parse(&database).expect("a URL of ours");
    let new_store = |clock: Arc<SteppingClock>| -> Arc<dyn LimitStore> {
        let open = |_| {
            let source = TimeSource::Given(Arc::<SteppingClock>::clone(&clock) as Arc<dyn Clock>);
            PostgresStore::open_with(options.clone(), source).unwrap_or_else(|error| panic!("{error}"))
        };
        Arc::new(Turns { stores: (0..SERVERS).map(open).collect(), turn: AtomicUsize::new(0) })
    };
    let plan = StressPlan::of(keys, operator);
    run_stress(new_store, StressPlan { orders: plan.orders / 10, ..plan }).assert_explained();
    assert_eq!(deadlocks(&database), 0, "nobody waits in a circle");
}

#[test]
fn one_row() {
    stress_fleet(1, OperatorMode::Off);
}

#[test]
fn ten_rows_with_an_operator() {
    stress_fleet(10, OperatorMode::On);
}

#[test]
fn many_rows_with_an_operator() {
    stress_fleet(1_000, OperatorMode::On);
}
