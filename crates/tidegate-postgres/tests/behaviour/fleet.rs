//! Several stores on one schema decide as one limiter.

mod expiry;
mod index_use;
mod key_bounds;
mod lock_waits;
mod stress;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::catalog::{Catalog, ExpectedVersion, RemovalMode};
use tidegate::catalog::{Change, Edit};
use tidegate::clock::{Clock, ManualClock};
use tidegate::model::{Ask, Hold, ItemSpec, LimitSpec, Order, Policy, Precision, Tick, Timestamp};
use tidegate::reply::{Detail, OrderError, OrderReply, Outcome, Replies};
use tidegate::store::Unavailable;
use tidegate::store::{Actual, Settlement, Store};
use tidegate_postgres::{PostgresOptions, PostgresStore, TimeSource};

use crate::cluster::{new_database, new_schema, options, shared_url};
use crate::load_generator::{acquire_one, current_usage, eventually, expect_lease, holds_within};
use crate::sql::Sql;

/// The number of servers.
const SERVERS: usize = 3;
/// The number of client threads.
const CLIENTS: usize = 64;

const LONG: Duration = Duration::from_secs(3600);

fn fleet(schema: &str) -> Vec<PostgresStore> {
    fleet_of(&options(schema))
}

fn fleet_of(options: &PostgresOptions) -> Vec<PostgresStore> {
    let open = |_| PostgresStore::open(options.clone()).unwrap_or_else(|error| panic!("{error}"));
    (0..SERVERS).map(open).collect()
}

fn total(id: &str, capacity: u64) -> LimitSpec {
    LimitSpec::named(id).with(ItemSpec::of(Policy::Total, capacity))
}

fn slots(id: &str, capacity: u64, ttl: Duration) -> LimitSpec {
    LimitSpec::named(id).with(ItemSpec::of(Policy::Concurrency { ttl }, capacity))
}

/// Submits one order and waits for its reply.
#[track_caller]
fn submit(store: &PostgresStore, order: Order<'_>) -> Result<OrderReply, OrderError> {
    let answers = store.submit(&[order], Replies::new(Detail::Verdicts)).wait(store);
    let answers = answers.unwrap_or_else(|why: Unavailable| panic!("{why}"));
    answers.get(0).expect("one answer for one order").clone()
}

fn is_granted(store: &PostgresStore, limit_id: &str, key: &[u8]) -> bool {
    matches!(acquire_one(store, limit_id, key), Ok(Outcome::Granted(_)))
}

/// The number of deadlocks in a test's own database. Its stores must be closed, because a session reports the count when it ends.
fn deadlocks(url: &str) -> u64 {
    let sql = Sql::new(url);
    let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    eventually("all connections are closed", || sql.value(others) == "0");
    let found = sql.value("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()");
    found.parse().expect("a number")
}

/// Runs all clients concurrently, each with this many requests. Returns the number of grants.
fn run_clients(
    stores: &[PostgresStore],
    each: usize,
    ask: impl Fn(&PostgresStore, usize) -> bool + Sync,
) -> u64 {
    let granted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (store, granted, ask) = (&stores[client % stores.len()], &granted, &ask);
            scope.spawn(move || {
                for _ in 0..each {
                    granted.fetch_add(u64::from(ask(store, client)), Ordering::SeqCst);
                }
            });
        }
    });
    granted.into_inner()
}

#[test]
fn grants_across_servers_are_exact() {
    let database = new_database();
    let stores = fleet_of(&PostgresOptions::parse(&database).expect("the URL is valid"));
    let sliding = |precision| Policy::Sliding { window: LONG, precision };
    for (id, policy) in [
        ("total", Policy::Total),
        ("interval", Policy::Interval { window: LONG }),
        ("exact", sliding(Precision::Exact)),
        ("bucketed", sliding(Precision::Bucketed)),
        // One unit is refilled in ten days.
        ("bucket", Policy::Bucket { window: Duration::from_secs(86_400 * 10 * 150), burst: None }),
    ] {
        let spec =
            LimitSpec::named(id).with(ItemSpec::of(policy, 150)).with(ItemSpec::of(policy, 60).per_key());
        stores[0].put(spec, ExpectedVersion::Absent).expect("a new limit");
        // The four keys together allow more than the limit for all keys.
        let granted = run_clients(&stores, 4, |store, client| {
            is_granted(store, id, format!("key-{}", client % 4).as_bytes())
        });
        assert_eq!(granted, 150, "{id}");
        let each: u64 =
            (0..4).map(|key| current_usage(&stores[1], id, Some(format!("key-{key}").as_bytes()))).sum();
        assert_eq!((current_usage(&stores[2], id, None), each), (150, 150), "{id}");
    }
    drop(stores);
    assert_eq!(deadlocks(&database), 0, "no deadlock occurred");
}

#[test]
fn held_slots_never_exceed_capacity() {
    let schema = new_schema();
    let stores = fleet(&schema);
    stores[0].put(slots("slots", 30, LONG), ExpectedVersion::Absent).expect("a new limit");
    let (live, most) = (AtomicU64::new(0), AtomicU64::new(0));
    let fences = Mutex::new(Vec::new());
    let granted = run_clients(&stores, 5, |store, client| {
        let outcome =
            acquire_one(store, "slots", format!("user-{client}").as_bytes()).expect("the store answers");
        let Outcome::Granted(Some(grant)) = outcome else { return false };
        let now = live.fetch_add(1, Ordering::SeqCst) + 1;
        most.fetch_max(now, Ordering::SeqCst);
        assert!(now <= 30, "{now} clients hold one of 30 slots");
        fences.lock().expect("no panic").push(grant.fences[0].1);
        live.fetch_sub(1, Ordering::SeqCst);
        // Another server releases the slot.
        let other_server = &stores[(client + 1) % SERVERS];
        assert_eq!(other_server.release(grant.lease).wait(other_server), Ok(true));
        true
    });
    assert!(granted >= 30 && most.into_inner() > 0);
    let mut fences = fences.into_inner().expect("no panic");
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len() as u64, granted, "each fence is used once");
    assert_eq!(current_usage(&stores[0], "slots", None), 0, "all slots were released");
    // Exactly 30 slots can be acquired again.
    let taken = run_clients(&stores, 1, |store, _| is_granted(store, "slots", b"again"));
    assert_eq!(taken, 30);
}

#[test]
fn edit_applies_on_every_server_when_it_returns() {
    let schema = new_schema();
    let stores = fleet(&schema);
    let mut capacity = 0;
    for round in 0..20 {
        let (editor, others) = (&stores[round % SERVERS], &stores);
        // The capacity grows by the number of requests, so a server with the previous definition refuses.
        capacity += SERVERS as u64;
        editor.put(total("edited", capacity), ExpectedVersion::Anything).expect("an edit");
        for store in others {
            assert!(is_granted(store, "edited", b""), "round {round}");
        }
        assert!(!is_granted(&others[(round + 1) % SERVERS], "edited", b""), "round {round}");
    }
    stores[1].reset("edited", None).wait(&stores[1]).expect("the store answers").expect("a known limit");
    for store in &stores {
        assert!(is_granted(store, "edited", b""), "the reset applies on all servers");
    }
    assert!(stores[2].remove("edited", RemovalMode::Forget));
    for store in &stores {
        let asks = [Ask { limit_id: "edited", key: None, count: 1 }];
        let unknown = OrderError::UnknownLimit { limit_id: "edited".to_owned() };
        assert_eq!(submit(store, Order::acquire(&asks)), Err(unknown), "the removal applies on all servers");
    }
}

#[test]
fn reset_of_key_applies_on_every_server() {
    let stores = fleet(&new_schema());
    let spec = LimitSpec::named("each").with(ItemSpec::of(Policy::Total, 1).per_key());
    stores[0].put(spec, ExpectedVersion::Absent).expect("a new limit");
    for (index, store) in stores.iter().enumerate() {
        assert!(is_granted(store, "each", b"one"));
        assert!(!is_granted(&stores[(index + 1) % SERVERS], "each", b"one"));
        let reset = stores[(index + 2) % SERVERS].reset("each", Some(b"one")).wait(store);
        reset.expect("the store answers").expect("a known limit");
    }
}

#[test]
fn repeated_request_id_is_charged_once_across_servers() {
    let stores = fleet(&new_schema());
    stores[0].put(total("once", 1000), ExpectedVersion::Absent).expect("a new limit");
    stores[0].put(slots("slots", 1000, LONG), ExpectedVersion::Absent).expect("a new limit");
    let ids = Mutex::new(Vec::new());
    run_clients(&stores, 1, |store, client| {
        let name = format!("request-{}", client % 8);
        let asks = ["once", "slots"].map(|limit_id| Ask { limit_id, key: Some(b"me".as_slice()), count: 1 });
        let order = Order { request_id: Some(name.as_bytes()), ..Order::acquire(&asks) };
        let answer = submit(store, order).expect("the order is valid");
        ids.lock().expect("no panic").push((name, expect_lease(&answer.outcome).lease));
        true
    });
    let mut ids = ids.into_inner().expect("no panic");
    assert_eq!(ids.len(), CLIENTS);
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 8, "one lease for each request");
    assert_eq!((current_usage(&stores[1], "once", None), current_usage(&stores[2], "slots", None)), (8, 8));
}

#[test]
fn lease_of_one_server_is_settled_renewed_and_released_by_another() {
    let stores = fleet(&new_schema());
    stores[0].put(total("held", 100), ExpectedVersion::Absent).expect("a new limit");
    let [one, two, three] = [&stores[0], &stores[1], &stores[2]];
    let asks = [Ask { limit_id: "held", key: None, count: 10 }];
    let hold = || {
        let order = Order { hold: Hold::Yes, ttl: Some(LONG), ..Order::acquire(&asks) };
        expect_lease(&submit(one, order).expect("the order is valid").outcome)
    };
    let (settled, released) = (hold(), hold());
    let ends = two.held_until(&[settled.lease, released.lease]).wait(two).expect("the store answers");
    assert_eq!(ends, [Some(settled.expires_at), Some(released.expires_at)]);
    let renewed = three.renew(settled.lease, Some(LONG * 2)).wait(three).expect("the store answers");
    assert!(renewed.expect("the ttl is valid").expect("the lease is held") > settled.expires_at);
    let settle = |store: &PostgresStore| store.settle(settled.lease, Actual::Every(3)).wait(store);
    assert_eq!(settle(two), Ok(Ok(Settlement::Settled)));
    assert_eq!(settle(three), Ok(Ok(Settlement::Settled)), "a repeated settlement has no effect");
    assert_eq!(two.release(released.lease).wait(two), Ok(true));
    assert_eq!(one.release(released.lease).wait(one), Ok(false), "a lease is released once");
    assert!(settled.fences[0].1 < released.fences[0].1, "fences increase");
    let next = hold();
    assert!(next.fences[0].1 > released.fences[0].1);
}

#[test]
fn fences_increase_across_servers() {
    let stores = fleet(&new_schema());
    stores[0].put(slots("slots", 1000, LONG), ExpectedVersion::Absent).expect("a new limit");
    let mut last = 0;
    for round in 0..30 {
        if round == 15 {
            // A limit that is removed and added again continues with higher fences.
            assert!(stores[1].remove("slots", RemovalMode::Forget));
            stores[2].put(slots("slots", 1000, LONG), ExpectedVersion::Absent).expect("a new limit");
        }
        let outcome = acquire_one(&stores[round % SERVERS], "slots", b"").expect("the store answers");
        let fence = expect_lease(&outcome).fences[0].1;
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    }
}

/// A lease has a fence of every limit in its order, including limits that hold nothing.
#[test]
fn fences_increase_for_limits_with_only_key_items() {
    let stores = fleet(&new_schema());
    stores[0].put(slots("slots", 1000, LONG), ExpectedVersion::Absent).expect("a new limit");
    let each = LimitSpec::named("each").with(ItemSpec::of(Policy::Total, 1000).per_key());
    stores[0].put(each, ExpectedVersion::Absent).expect("a new limit");
    let mut last = 0;
    for round in 0..9 {
        let key = format!("key-{}", round % 2);
        let asks = ["slots", "each"].map(|limit_id| Ask { limit_id, key: Some(key.as_bytes()), count: 1 });
        let answer = submit(&stores[round % SERVERS], Order::acquire(&asks)).expect("the order is valid");
        let fences = expect_lease(&answer.outcome).fences;
        let fence = fences.iter().find(|(limit, _)| limit.id() == "each").expect("a fence of each limit").1;
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    }
}

/// Registers a watcher and returns the changes it receives, as text.
fn record_changes(store: &PostgresStore) -> Arc<Mutex<Vec<String>>> {
    let changes: Arc<Mutex<Vec<String>>> = Arc::default();
    let sink = Arc::clone(&changes);
    store.watch(Box::new(move |change| {
        let word = match change {
            Change::Put(limit) => format!("put {} {}", limit.id(), limit.version()),
            Change::Removed(limit) => format!("removed {}", limit.id()),
        };
        sink.lock().expect("no panic").push(word);
    }));
    changes
}

#[test]
fn watchers_see_changes_of_other_servers() {
    let stores = fleet(&new_schema());
    let changes = record_changes(&stores[1]);
    let receives = |word: &str| {
        let is_there = || changes.lock().expect("no panic").iter().any(|other| other == word);
        assert!(holds_within(Duration::from_secs(30), is_there), "the watcher did not receive '{word}'");
    };
    stores[0].put(total("news", 1), ExpectedVersion::Absent).expect("a new limit");
    receives("put news 1");
    stores[2].put(total("news", 2), ExpectedVersion::Present).expect("an edit");
    receives("put news 2");
    assert!(stores[0].remove("news", RemovalMode::Forget));
    receives("removed news");
    assert_eq!(changes.lock().expect("no panic").len(), 3, "each change is reported once");
}

/// The change listener may read an edit before its editor reports it. The order of the edit must be kept even then.
#[test]
fn watchers_see_an_edit_in_its_order() {
    let store = PostgresStore::open(options(&new_schema())).expect("a new schema");
    let changes = record_changes(&store);
    for round in 1..=100 {
        let ids = ["h", "c", "f", "a", "g", "b", "e", "d"];
        let edits = ids.map(|id| Edit::Put(total(id, round), ExpectedVersion::Anything));
        store.apply(edits.to_vec()).expect("the edits are valid");
        let changes = std::mem::take(&mut *changes.lock().expect("no panic"));
        assert_eq!(changes, ids.map(|id| format!("put {id} {round}")), "round {round}");
    }
}

#[test]
fn changes_arrive_without_notifications() {
    let schema = new_schema();
    let store = PostgresStore::open(options(&schema)).expect("a new schema");
    let changes = record_changes(&store);
    let sql = Sql::new(shared_url());
    let listener = format!("FROM pg_stat_activity WHERE query = 'LISTEN \"tidegate/{schema}\"'");
    eventually("the store listens", || sql.value(&format!("SELECT count(*) {listener}")) == "1");
    // Writes a change without a notification.
    store.put(total("news", 1), ExpectedVersion::Absent).expect("a new limit");
    sql.rows(&format!("SELECT pg_terminate_backend(pid) {listener}"));
    sql.rows(&format!(
        "SET search_path = {schema}; BEGIN; UPDATE limits SET standing = 2, revision = revision + 1; \
         UPDATE store SET revision = revision + 1; COMMIT"
    ));
    eventually("the change is found by polling", || {
        changes.lock().expect("no panic").iter().any(|word| word == "removed news")
    });
    eventually("the store listens again", || sql.value(&format!("SELECT count(*) {listener}")) == "1");
}

/// Server clocks differ. No server decides a row at a time before the row's latest decision.
#[test]
fn clock_going_back_restores_no_capacity() {
    let schema = new_schema();
    let at = |seconds: u64| {
        Arc::new(ManualClock::ticking(Tick::NANOSECOND, Timestamp::from_ticks(seconds * 1_000_000_000)))
    };
    let (early, late) = (at(1_000_000), at(1_000_500));
    let open = |clock: &Arc<ManualClock>| {
        let source = TimeSource::Given(Arc::<ManualClock>::clone(clock) as Arc<dyn Clock>);
        PostgresStore::open_with(options(&schema), source).expect("a store")
    };
    let ahead = open(&late);
    let spec =
        LimitSpec::named("rate").with(ItemSpec::of(Policy::Interval { window: Duration::from_secs(100) }, 2));
    ahead.put(spec, ExpectedVersion::Absent).expect("a new limit");
    assert!(is_granted(&ahead, "rate", b""));
    let behind = open(&early);
    let asks = [Ask { limit_id: "rate", key: None, count: 1 }];
    let second = submit(&behind, Order::acquire(&asks)).expect("the order is valid");
    assert!(second.is_granted());
    assert!(second.at >= late.now(), "decided at {:?}", second.at);
    assert!(!is_granted(&behind, "rate", b""), "the window has not moved back");
    early.advance(Duration::from_secs(550));
    assert!(!is_granted(&behind, "rate", b""), "50 s of 100 have passed");
    early.advance(Duration::from_secs(51));
    assert!(is_granted(&behind, "rate", b""));
}
