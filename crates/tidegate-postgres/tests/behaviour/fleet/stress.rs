//! Stress runs on a fleet: each request goes to another server, and the record must be explained by one limiter.

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

/// Sends each call to the next server in turn.
struct RoundRobinFleet {
    stores: Vec<PostgresStore>,
    turn: AtomicUsize,
}

impl RoundRobinFleet {
    fn next_server(&self) -> &PostgresStore {
        &self.stores[self.turn.fetch_add(1, Ordering::Relaxed) % self.stores.len()]
    }
}

impl Store for RoundRobinFleet {
    fn capabilities(&self) -> Capabilities {
        self.next_server().capabilities()
    }

    fn submit(&self, orders: &[Order<'_>], buffer: Replies) -> StoreReply<Replies> {
        self.next_server().submit(orders, buffer)
    }

    fn release(&self, lease: LeaseId) -> StoreReply<bool> {
        self.next_server().release(lease)
    }

    fn renew(
        &self,
        lease: LeaseId,
        ttl: Option<Duration>,
    ) -> StoreReply<Result<Option<Timestamp>, OrderError>> {
        self.next_server().renew(lease, ttl)
    }

    fn settle(&self, lease: LeaseId, actual: Actual<'_>) -> StoreReply<Result<Settlement, OrderError>> {
        self.next_server().settle(lease, actual)
    }

    fn reset(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<(), OrderError>> {
        self.next_server().reset(limit_id, key)
    }

    fn usage(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Usage, OrderError>> {
        self.next_server().usage(limit_id, key)
    }

    fn holders(&self, limit_id: &str, key: Option<&[u8]>) -> StoreReply<Result<Vec<LeaseTerm>, OrderError>> {
        self.next_server().holders(limit_id, key)
    }

    fn held_until(&self, leases: &[LeaseId]) -> StoreReply<Vec<Option<Timestamp>>> {
        self.next_server().held_until(leases)
    }
}

impl Catalog for RoundRobinFleet {
    fn get(&self, id: &str) -> Option<Arc<Limit>> {
        self.next_server().get(id)
    }

    fn list(&self) -> Vec<Arc<Limit>> {
        self.next_server().list()
    }

    fn put(&self, spec: LimitSpec, expect: ExpectedVersion) -> Result<Arc<Limit>, PutError> {
        self.next_server().put(spec, expect)
    }

    fn remove(&self, id: &str, parting: RemovalMode) -> bool {
        self.next_server().remove(id, parting)
    }

    fn apply(&self, edits: Vec<Edit>) -> Result<Vec<EditOutcome>, ApplyError> {
        self.next_server().apply(edits)
    }

    fn edit(&self, edits: Vec<Edit>, origin: Origin) -> StoreReply<Result<Vec<EditOutcome>, ApplyError>> {
        self.next_server().edit(edits, origin)
    }

    fn watch(&self, watcher: Watcher) {
        self.next_server().watch(watcher);
    }

    fn applied(&self) -> Vec<String> {
        self.next_server().applied()
    }
}

/// Runs stress on a fleet. Transactions are slow, so the run is small.
#[track_caller]
fn stress_fleet(keys: usize, operator: OperatorMode) {
    let database = new_database();
    let options = PostgresOptions::parse(&database).expect("the URL is valid");
    let new_store = |clock: Arc<SteppingClock>| -> Arc<dyn LimitStore> {
        let open = |_| {
            let source = TimeSource::Given(Arc::<SteppingClock>::clone(&clock) as Arc<dyn Clock>);
            PostgresStore::open_with(options.clone(), source).unwrap_or_else(|error| panic!("{error}"))
        };
        Arc::new(RoundRobinFleet { stores: (0..SERVERS).map(open).collect(), turn: AtomicUsize::new(0) })
    };
    let plan = StressPlan::of(keys, operator);
    run_stress(new_store, StressPlan { orders: plan.orders / 10, ..plan }).assert_explained();
    assert_eq!(deadlocks(&database), 0, "no deadlock occurred");
}

#[test]
fn stress_of_one_row_is_explained() {
    stress_fleet(1, OperatorMode::Off);
}

#[test]
fn stress_of_ten_rows_with_operator_is_explained() {
    stress_fleet(10, OperatorMode::On);
}

#[test]
fn stress_of_many_rows_with_operator_is_explained() {
    stress_fleet(1_000, OperatorMode::On);
}
