//! Sweeping: what means nothing any more goes, and nothing else does.

use std::sync::Arc;
use std::time::Duration;

use tidegate::catalog::{Catalog, ExpectedVersion, RemovalMode};
use tidegate::clock::{Clock, ManualClock};
use tidegate::model::{Ask, Hold, ItemSpec, LimitSpec, Order, Policy, Tick, Timestamp};
use tidegate::store::Store;
use tidegate_postgres::{PostgresStore, TimeSource};

use super::{is_granted, slots, submit, total};
use crate::cluster::{new_schema, options, shared_url};
use crate::load::{eventually, lease, take, used};
use crate::sql::Sql;

const HOUR: Duration = Duration::from_secs(3600);

/// A store whose clock is ours, and a look at its tables.
fn ours() -> (PostgresStore, Arc<ManualClock>, Sql) {
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

/// Sweeps until this many are left. Somebody else may be sweeping, and what has lapsed is cleared away a moment later.
#[track_caller]
fn swept_to(store: &PostgresStore, sql: &Sql, what: &str, left: u64) {
    eventually(&format!("{left} of {what} are left"), || {
        store.run_expiry().expect("it answers");
        count(sql, what) == left
    });
}

#[test]
fn rows_go_when_they_are_fresh_and_not_before() {
    let (store, clock, sql) = ours();
    let interval = Policy::Interval { window: HOUR };
    for (id, policy) in [("hour", interval), ("ever", Policy::Total)] {
        let spec = LimitSpec::named(id).with(ItemSpec::of(policy, 2).per_key());
        store.put(spec, ExpectedVersion::Absent).expect("a new limit");
        for key in 0..20 {
            assert!(is_granted(&store, id, format!("key-{key}").as_bytes()));
        }
    }
    let keys = "states WHERE key <> '\\x00'";
    store.run_expiry().expect("it answers");
    assert_eq!(count(&sql, keys), 40, "all of them count something");
    clock.advance(Duration::from_secs(3599));
    store.run_expiry().expect("it answers");
    assert_eq!(count(&sql, keys), 40, "a second before they are fresh");
    // When they are is written down to a minute or so.
    clock.advance(Duration::from_secs(120));
    swept_to(&store, &sql, keys, 20);
    assert_eq!(used(&store, "ever", Some(b"key-7")), 1, "what counts for ever stays");
    assert_eq!(used(&store, "hour", Some(b"key-7")), 0);
}

#[test]
fn leases_go_when_they_have_lapsed() {
    let (store, clock, sql) = ours();
    store.put(slots("slots", 10, HOUR), ExpectedVersion::Absent).expect("a new limit");
    let short = lease(&take(&store, "slots", b"").expect("it answers")).lease;
    clock.advance(HOUR / 2);
    let long = lease(&take(&store, "slots", b"").expect("it answers")).lease;
    store.run_expiry().expect("it answers");
    assert_eq!(count(&sql, "leases"), 2);
    clock.advance(HOUR / 2);
    swept_to(&store, &sql, "leases", 1);
    let ends = store.held_until(&[short, long]).wait(&store).expect("it answers");
    assert!(ends[0].is_none() && ends[1].is_some(), "{ends:?}");
    assert_eq!(used(&store, "slots", None), 1);
}

#[test]
fn request_ids_and_settlements_are_forgotten() {
    let (store, clock, sql) = ours();
    store.put(total("held", 1000), ExpectedVersion::Absent).expect("a new limit");
    let asks = [Ask { limit_id: "held", key: None, count: 1 }];
    for id in 0..10u8 {
        let order =
            Order { request_id: Some(&[id]), hold: Hold::Yes, ttl: Some(HOUR), ..Order::acquire(&asks) };
        let held = lease(&submit(&store, order).expect("a sensible order").outcome).lease;
        let settled = store.settle(held, tidegate::store::Actual::Every(1)).wait(&store).expect("it answers");
        settled.expect("it is held");
    }
    store.run_expiry().expect("it answers");
    assert_eq!((count(&sql, "requests"), count(&sql, "settlements")), (10, 10));
    clock.advance(HOUR * 48);
    swept_to(&store, &sql, "requests", 0);
    swept_to(&store, &sql, "settlements", 0);
    assert_eq!(used(&store, "held", None), 10);
}

#[test]
fn rows_of_former_editions_follow_and_limits_that_are_gone_go() {
    let (store, _clock, sql) = ours();
    let spec = |capacity| LimitSpec::named("edited").with(ItemSpec::of(Policy::Total, capacity).per_key());
    store.put(spec(5), ExpectedVersion::Absent).expect("a new limit");
    for key in 0..20 {
        assert!(is_granted(&store, "edited", format!("key-{key}").as_bytes()));
    }
    for capacity in 6..10 {
        store.put(spec(capacity), ExpectedVersion::Present).expect("an edit");
    }
    let behind = "states s JOIN limits l USING (generation) WHERE s.edition < l.edition";
    assert!(count(&sql, behind) >= 20);
    swept_to(&store, &sql, behind, 0);
    swept_to(&store, &sql, "editions", 1);
    assert_eq!(used(&store, "edited", Some(b"key-3")), 1, "and count what they counted");
    assert!(store.remove("edited", RemovalMode::Forget));
    swept_to(&store, &sql, "states", 0);
}

/// Keys that come once and never again leave nothing behind, however many they are.
#[test]
fn tables_stay_small() {
    let (store, clock, sql) = ours();
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
        swept_to(&store, &sql, "leases", 0);
        // When they are fresh is written down to a minute or so.
        clock.advance(Duration::from_secs(120));
        swept_to(&store, &sql, "states WHERE key <> '\\x00'", 0);
    }
    assert_eq!(used(&store, "hour", None), 0);
}
