//! Expiry deletes expired data and nothing else.

use std::sync::Arc;
use std::time::Duration;

use tidegate::catalog::{Catalog, ExpectedVersion, RemovalMode};
use tidegate::clock::{Clock, ManualClock};
use tidegate::model::{Ask, Hold, ItemSpec, LimitSpec, Order, Policy, Tick, Timestamp};
use tidegate::store::Store;
use tidegate_postgres::{PostgresStore, TimeSource};

use super::{is_granted, slots, submit, total};
use crate::cluster::{new_schema, options, shared_url};
use crate::load_generator::{acquire_one, current_usage, eventually, expect_lease};
use crate::sql::Sql;

const HOUR: Duration = Duration::from_secs(3600);

/// A store with a manual clock, and a connection to its tables.
fn open_store() -> (PostgresStore, Arc<ManualClock>, Sql) {
    let schema = new_schema();
    let clock =
        Arc::new(ManualClock::ticking(Tick::NANOSECOND, Timestamp::from_ticks(1_700_000_000_000_000_000)));
    let source = TimeSource::Given(Arc::<ManualClock>::clone(&clock) as Arc<dyn Clock>);
    let store = PostgresStore::open_with(options(&schema), source).expect("a store");
    let sql = Sql::new(shared_url());
    sql.rows(&format!("SET search_path = {schema}"));
    (store, clock, sql)
}

fn count(sql: &Sql, what: &str) -> u64 {
    sql.value(&format!("SELECT count(*) FROM {what}")).parse().expect("a number")
}

/// Runs expiry until this many entries are left. Background expiry may hold the lock, and cleanup jobs finish later.
#[track_caller]
fn expire_until(store: &PostgresStore, sql: &Sql, what: &str, left: u64) {
    eventually(&format!("{left} of {what} are left"), || {
        store.run_expiry().expect("the store answers");
        count(sql, what) == left
    });
}

#[test]
fn rows_are_deleted_once_evictable() {
    let (store, clock, sql) = open_store();
    let interval = Policy::Interval { window: HOUR };
    for (id, policy) in [("hour", interval), ("ever", Policy::Total)] {
        let spec = LimitSpec::named(id).with(ItemSpec::of(policy, 2).per_key());
        store.put(spec, ExpectedVersion::Absent).expect("a new limit");
        for key in 0..20 {
            assert!(is_granted(&store, id, format!("key-{key}").as_bytes()));
        }
    }
    let keys = "states WHERE key <> '\\x00'";
    store.run_expiry().expect("the store answers");
    assert_eq!(count(&sql, keys), 40, "every row counts something");
    clock.advance(Duration::from_secs(3599));
    store.run_expiry().expect("the store answers");
    assert_eq!(count(&sql, keys), 40, "the rows become evictable a second later");
    // The stored time of eviction is rounded up to about a minute.
    clock.advance(Duration::from_secs(120));
    expire_until(&store, &sql, keys, 20);
    assert_eq!(current_usage(&store, "ever", Some(b"key-7")), 1, "a total never expires");
    assert_eq!(current_usage(&store, "hour", Some(b"key-7")), 0);
}

#[test]
fn expired_leases_are_deleted() {
    let (store, clock, sql) = open_store();
    store.put(slots("slots", 10, HOUR), ExpectedVersion::Absent).expect("a new limit");
    let short = expect_lease(&acquire_one(&store, "slots", b"").expect("the store answers")).lease;
    clock.advance(HOUR / 2);
    let long = expect_lease(&acquire_one(&store, "slots", b"").expect("the store answers")).lease;
    store.run_expiry().expect("the store answers");
    assert_eq!(count(&sql, "leases"), 2);
    clock.advance(HOUR / 2);
    expire_until(&store, &sql, "leases", 1);
    let ends = store.held_until(&[short, long]).wait(&store).expect("the store answers");
    assert!(ends[0].is_none() && ends[1].is_some(), "{ends:?}");
    assert_eq!(current_usage(&store, "slots", None), 1);
}

#[test]
fn expired_requests_and_settlements_are_deleted() {
    let (store, clock, sql) = open_store();
    store.put(total("held", 1000), ExpectedVersion::Absent).expect("a new limit");
    let asks = [Ask { limit_id: "held", key: None, count: 1 }];
    for id in 0..10u8 {
        let order =
            Order { request_id: Some(&[id]), hold: Hold::Yes, ttl: Some(HOUR), ..Order::acquire(&asks) };
        let held = expect_lease(&submit(&store, order).expect("the order is valid").outcome).lease;
        let settled =
            store.settle(held, tidegate::store::Actual::Every(1)).wait(&store).expect("the store answers");
        settled.expect("the lease is held");
    }
    store.run_expiry().expect("the store answers");
    assert_eq!((count(&sql, "requests"), count(&sql, "settlements")), (10, 10));
    clock.advance(HOUR * 48);
    expire_until(&store, &sql, "requests", 0);
    expire_until(&store, &sql, "settlements", 0);
    assert_eq!(current_usage(&store, "held", None), 10);
}

#[test]
fn outdated_rows_are_upgraded_and_removed_limits_deleted() {
    let (store, _clock, sql) = open_store();
    let spec = |capacity| LimitSpec::named("edited").with(ItemSpec::of(Policy::Total, capacity).per_key());
    store.put(spec(5), ExpectedVersion::Absent).expect("a new limit");
    for key in 0..20 {
        assert!(is_granted(&store, "edited", format!("key-{key}").as_bytes()));
    }
    // Background expiry upgrades rows too. This trigger prevents upgrades until the outdated rows are counted.
    sql.rows(
        "CREATE FUNCTION refuse_upgrade() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN RAISE EXCEPTION 'the test refuses upgrades'; END $$; \
         CREATE TRIGGER refuse_upgrade BEFORE UPDATE ON states FOR EACH ROW WHEN (NEW.edition <> OLD.edition) \
         EXECUTE FUNCTION refuse_upgrade()",
    );
    for capacity in 6..10 {
        store.put(spec(capacity), ExpectedVersion::Present).expect("an edit");
    }
    let behind = "states s JOIN limits l USING (generation) WHERE s.edition < l.edition";
    assert!(count(&sql, behind) >= 20);
    sql.rows("DROP TRIGGER refuse_upgrade ON states");
    expire_until(&store, &sql, behind, 0);
    expire_until(&store, &sql, "editions", 1);
    assert_eq!(current_usage(&store, "edited", Some(b"key-3")), 1, "the upgrade keeps the counts");
    assert!(store.remove("edited", RemovalMode::Forget));
    expire_until(&store, &sql, "states", 0);
}

/// Keys that are used once leave no rows behind.
#[test]
fn keys_used_once_leave_no_rows() {
    let (store, clock, sql) = open_store();
    let spec = LimitSpec::named("hour")
        .with(ItemSpec::of(Policy::Interval { window: HOUR }, 2).per_key())
        .with(ItemSpec::of(Policy::Concurrency { ttl: HOUR }, 100_000));
    store.put(spec, ExpectedVersion::Absent).expect("a new limit");
    for round in 0..5 {
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let store = &store;
                scope.spawn(move || {
                    for key in 0..25 {
                        assert!(is_granted(store, "hour", format!("{round}-{thread}-{key}").as_bytes()));
                    }
                });
            }
        });
        clock.advance(HOUR * 2);
        expire_until(&store, &sql, "leases", 0);
        // The stored time of eviction is rounded up to about a minute.
        clock.advance(Duration::from_secs(120));
        expire_until(&store, &sql, "states WHERE key <> '\\x00'", 0);
    }
    assert_eq!(current_usage(&store, "hour", None), 0);
}
