//! Limits that bound their keys: the count of rows is right whatever happens to them, and there are never more than the bound.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate::catalog::{Catalog, ExpectedVersion};
use tidegate::model::{Ask, ItemSpec, LimitSpec, Order, Policy};
use tidegate::reply::{GrantedLease, Outcome};
use tidegate::store::Store;
use tidegate_postgres::{PostgresOptions, PostgresStore};

use super::{LONG, SERVERS, deadlocks, fleet_of, rush, submit};
use crate::cluster::new_database;
use crate::sql::Sql;

/// The most keys that the limit knows.
const MOST: u64 = 12;

/// How many rows there are, and how many are counted.
const BOOKS: &str = "SELECT (SELECT count(*) FROM tidegate.states s WHERE s.generation = a.generation AND s.key <> '\\x00'), a.keys \
    FROM tidegate.states a JOIN tidegate.limits l USING (generation) WHERE a.key = '\\x00' AND l.id = 'bounded'";

fn bounded(window: Duration, max_keys: Option<u64>) -> LimitSpec {
    let item = |policy, capacity| ItemSpec::of(policy, capacity).per_key();
    let spec = LimitSpec::named("bounded")
        .with(item(Policy::Interval { window }, 3))
        .with(item(Policy::Concurrency { ttl: LONG }, 2));
    LimitSpec { max_keys, ..spec }
}

/// The slot that a key is granted, if it is. Whoever finds no room is refused by `on_outage`.
fn grant(store: &PostgresStore, key: &[u8]) -> Option<GrantedLease> {
    let asks = [Ask { limit_id: "bounded", key: Some(key), count: 1 }];
    match submit(store, Order::acquire(&asks)).expect("a sensible order").outcome {
        Outcome::Granted(grant) => grant,
        Outcome::Denied(_) => None,
    }
}

/// Ends a loop elsewhere, also if we panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[track_caller]
fn check(sql: &Sql) {
    let books = sql.rows(BOOKS);
    assert_eq!(books[0][0], books[0][1], "as many are counted as there are");
}

#[test]
fn rows_are_counted_whatever_is_done_to_them() {
    let database = new_database();
    let stores = fleet_of(&PostgresOptions::parse(&database).expect("a URL of ours"));
    let store = &stores[0];
    store.put(bounded(LONG, Some(3)), ExpectedVersion::Absent).expect("a new limit");
    let sql = Sql::new(&database);
    for round in 0..6 {
        let key = [b'a' + round % 3];
        // One server takes it, another resets it, a third gives it back and asks for it once more.
        let held = grant(&stores[0], &key).expect("there is room").lease;
        check(&sql);
        let reset = stores[1].reset("bounded", Some(&key)).wait(&stores[1]).expect("it answers");
        reset.expect("a known limit");
        check(&sql);
        stores[2].renew(held, None).wait(&stores[2]).expect("it answers").expect("sensible");
        check(&sql);
        stores[2].release(held).wait(&stores[2]).expect("it answers");
        check(&sql);
        stores[round as usize % SERVERS].run_expiry().expect("it answers");
        check(&sql);
    }
    // What was reset and given back counts nothing, so three others have room.
    for key in [b"x", b"y", b"z"] {
        assert!(grant(&stores[1], key).is_some());
        check(&sql);
    }
    assert!(grant(&stores[2], b"w").is_none());
}

/// Keys come and go at every server, while an operator bounds them, unbounds them, and sweeps.
#[test]
fn rows_are_counted_while_they_are_swept() {
    let database = new_database();
    let stores = fleet_of(&PostgresOptions::parse(&database).expect("a URL of ours"));
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
                stores[(round + 1) % SERVERS].run_expiry().expect("it answers");
                round += 1;
            }
        });
        let _over = Over(&over);
        rush(&stores, 30, |store, client| {
            let key = format!("key-{}", client % 24);
            let Some(granted) = grant(store, key.as_bytes()) else { return false };
            if client % 5 == 0 {
                store.reset("bounded", Some(key.as_bytes())).wait(store).expect("it answers").expect("known");
            }
            store.release(granted.lease).wait(store).expect("it answers")
        });
    });
    stores[0].put(bounded(window, Some(MOST)), ExpectedVersion::Present).expect("an edit");
    check(&Sql::new(&database));
    drop(stores);
    assert_eq!(deadlocks(&database), 0, "nobody waits in a circle");
}
