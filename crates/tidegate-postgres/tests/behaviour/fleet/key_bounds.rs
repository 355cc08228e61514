//! Limits that bound their keys: the stored row count is always right, and the bound is never exceeded.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate::catalog::{Catalog, ExpectedVersion};
use tidegate::model::{Ask, ItemSpec, LimitSpec, Order, Policy};
use tidegate::reply::{GrantedLease, Outcome};
use tidegate::store::Store;
use tidegate_postgres::{PostgresOptions, PostgresStore};

use super::{LONG, SERVERS, deadlocks, fleet_of, run_clients, submit};
use crate::cluster::new_database;
use crate::sql::Sql;

/// The key bound of the limit.
const MOST: u64 = 12;

/// Selects the actual and the stored number of rows.
const ROW_COUNTS: &str = "SELECT (SELECT count(*) FROM tidegate.states s WHERE s.generation = a.generation AND s.key <> '\\x00'), a.keys \
    FROM tidegate.states a JOIN tidegate.limits l USING (generation) WHERE a.key = '\\x00' AND l.id = 'bounded'";

fn bounded(window: Duration, max_keys: Option<u64>) -> LimitSpec {
    let item = |policy, capacity| ItemSpec::of(policy, capacity).per_key();
    let spec = LimitSpec::named("bounded")
        .with(item(Policy::Interval { window }, 3))
        .with(item(Policy::Concurrency { ttl: LONG }, 2));
    LimitSpec { max_keys, ..spec }
}

/// Acquires a slot for a key. Without room for the key, the order is refused by `on_outage`.
fn grant(store: &PostgresStore, key: &[u8]) -> Option<GrantedLease> {
    let asks = [Ask { limit_id: "bounded", key: Some(key), count: 1 }];
    match submit(store, Order::acquire(&asks)).expect("the order is valid").outcome {
        Outcome::Granted(grant) => grant,
        Outcome::Denied(_) => None,
    }
}

/// Ends the loop of another thread, even after a panic.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[track_caller]
fn assert_count_exact(sql: &Sql) {
    let counts = sql.rows(ROW_COUNTS);
    assert_eq!(counts[0][0], counts[0][1], "the stored count equals the number of rows");
}

#[test]
fn row_count_is_exact_after_every_operation() {
    let database = new_database();
    let stores = fleet_of(&PostgresOptions::parse(&database).expect("the URL is valid"));
    let store = &stores[0];
    store.put(bounded(LONG, Some(3)), ExpectedVersion::Absent).expect("a new limit");
    let sql = Sql::new(&database);
    for round in 0..6 {
        let key = [b'a' + round % 3];
        // One server acquires, another resets, and a third renews and releases.
        let held = grant(&stores[0], &key).expect("the key fits").lease;
        assert_count_exact(&sql);
        let reset = stores[1].reset("bounded", Some(&key)).wait(&stores[1]).expect("the store answers");
        reset.expect("a known limit");
        assert_count_exact(&sql);
        stores[2].renew(held, None).wait(&stores[2]).expect("the store answers").expect("the ttl is valid");
        assert_count_exact(&sql);
        stores[2].release(held).wait(&stores[2]).expect("the store answers");
        assert_count_exact(&sql);
        stores[round as usize % SERVERS].run_expiry().expect("the store answers");
        assert_count_exact(&sql);
    }
    // Released rows count nothing, so three other keys have room.
    for key in [b"x", b"y", b"z"] {
        assert!(grant(&stores[1], key).is_some());
        assert_count_exact(&sql);
    }
    assert!(grant(&stores[2], b"w").is_none());
}

/// All servers use changing keys while an operator sets and removes the bound and runs expiry.
#[test]
fn row_count_is_exact_during_expiry_and_edits() {
    let database = new_database();
    let stores = fleet_of(&PostgresOptions::parse(&database).expect("the URL is valid"));
    let window = Duration::from_millis(40);
    stores[0].put(bounded(window, Some(MOST)), ExpectedVersion::Absent).expect("a new limit");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0;
            while !over.load(Ordering::SeqCst) {
                let store = &stores[round % SERVERS];
                let most = (!round.is_multiple_of(3)).then_some(MOST);
                store.put(bounded(window, most), ExpectedVersion::Present).expect("an edit");
                stores[(round + 1) % SERVERS].run_expiry().expect("the store answers");
                round += 1;
            }
        });
        let _over = StopOnDrop(&over);
        run_clients(&stores, 30, |store, client| {
            let key = format!("key-{}", client % 24);
            let Some(granted) = grant(store, key.as_bytes()) else { return false };
            if client % 5 == 0 {
                store
                    .reset("bounded", Some(key.as_bytes()))
                    .wait(store)
                    .expect("the store answers")
                    .expect("known");
            }
            store.release(granted.lease).wait(store).expect("the store answers")
        });
    });
    stores[0].put(bounded(window, Some(MOST)), ExpectedVersion::Present).expect("an edit");
    assert_count_exact(&Sql::new(&database));
    drop(stores);
    assert_eq!(deadlocks(&database), 0, "no deadlock occurred");
}
