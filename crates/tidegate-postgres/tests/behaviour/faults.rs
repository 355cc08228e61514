//! Database failures under load: errors are reported, grants stay correct, and the store recovers by itself.

use std::time::Duration;

use tidegate::catalog::{Catalog, ExpectedVersion};
use tidegate::model::{ItemSpec, LimitSpec, Per, Policy};
use tidegate::reply::Outcome;
use tidegate::store::Store;
use tidegate_postgres::{PostgresOptions, PostgresStore};

use crate::cluster::{Cluster, new_schema, shared_url};
use crate::load_generator::{
    LoadCounts, SLOTS, STOCK, TIGHT, acquire_one, current_usage, eventually, expect_lease, holds_within,
    limits, under_load,
};
use crate::sql::Sql;

/// Options with short timeouts and an application name that identifies the connections.
fn short_timeouts(url: &str, schema: &str) -> PostgresOptions {
    let timeouts = "connect_timeout=1&lock_timeout_ms=300&statement_timeout_ms=700";
    let url = format!("{url}?schema={schema}&application_name={schema}&{timeouts}");
    PostgresOptions::parse(&url).expect("the URL is valid")
}

fn open(url: &str, schema: &str) -> PostgresStore {
    PostgresStore::open(short_timeouts(url, schema)).unwrap_or_else(|error| panic!("{error}"))
}

/// A new schema of the shared database, its store, and an SQL client.
fn open_store() -> (String, PostgresStore, Sql) {
    let schema = new_schema();
    let store = open(shared_url(), &schema);
    let sql = Sql::new(shared_url());
    sql.rows(&format!("SET search_path = {schema}"));
    (schema, store, sql)
}

/// Waits until another request fails.
#[track_caller]
fn wait_for_failure(counts: &LoadCounts) {
    let before = counts.unanswered();
    eventually("a request fails", || counts.unanswered() > before);
}

#[track_caller]
fn assert_reasons(reasons: &[String], any_of: &[&str]) {
    assert!(!reasons.is_empty(), "no request failed");
    let known = |reason: &String| any_of.iter().any(|part| reason.contains(part));
    assert!(reasons.iter().all(known), "unexpected reasons: {reasons:?}");
}

#[test]
fn restart_under_load_keeps_counts_consistent() {
    let cluster = Cluster::start(&[]);
    let store = open(cluster.url(), "restarted");
    let counts = under_load(&store, |counts| {
        cluster.run("stop");
        wait_for_failure(counts);
        cluster.run("start");
        counts.wait_for_grants(20);
        cluster.run("restart");
    });
    assert_reasons(&counts.outages(), &["PostgreSQL"]);
}

#[test]
fn crash_under_load_keeps_confirmed_grants() {
    // Confirmed grants must survive a crash without a shutdown.
    let cluster = Cluster::start(&["fsync=on"]);
    let store = open(cluster.url(), "crashed");
    let counts = under_load(&store, |counts| {
        for _ in 0..2 {
            cluster.run("crash");
            counts.wait_for_grants(20);
        }
    });
    assert_reasons(&counts.outages(), &["PostgreSQL"]);
}

#[test]
fn pause_under_load_keeps_counts_consistent() {
    let cluster = Cluster::start(&[]);
    let store = open(cluster.url(), "paused");
    let counts = under_load(&store, |counts| {
        cluster.run("pause");
        wait_for_failure(counts);
        cluster.run("resume");
    });
    assert_reasons(
        &counts.outages(),
        &[
            "did not answer in time",
            "did not process the request",
            "was available in time",
            "cannot be reached",
        ],
    );
}

/// One round lasts the statement timeout and one second. No request waits for three rounds.
#[test]
fn silent_database_fails_requests_within_one_timeout() {
    let cluster = Cluster::start(&[]);
    let url = format!("{}?schema=silent&connect_timeout=3", cluster.url());
    let store =
        PostgresStore::open(PostgresOptions::parse(&url).expect("the URL is valid")).expect("a new schema");
    for spec in limits() {
        store.put(spec, ExpectedVersion::Absent).expect("a new limit");
    }
    cluster.run("pause");
    let mut waited = Vec::new();
    // Requests that fail at once, without a wait, are not measured.
    while waited.len() < 3 {
        let began = monotonic_now();
        let result = acquire_one(&store, TIGHT, b"one");
        let took = began.elapsed();
        if result.is_ok() || took > Duration::from_millis(500) {
            waited.push((result.is_ok(), took));
        }
    }
    cluster.run("resume");
    let is_fine = |(answered, took): &(bool, Duration)| !answered && *took < Duration::from_secs(6);
    assert!(waited.iter().all(is_fine), "{waited:?}");
    eventually("the store decides again", || acquire_one(&store, TIGHT, b"one").is_ok());
}

#[expect(clippy::disallowed_methods, reason = "the test measures a delay")]
fn monotonic_now() -> std::time::Instant {
    std::time::Instant::now()
}

/// A store that cannot open all its connections works with those it has.
#[test]
fn store_works_with_fewer_connections_than_pool_size() {
    let cluster = Cluster::start(&[]);
    let sql = Sql::new(cluster.url());
    sql.rows("CREATE ROLE few LOGIN PASSWORD 'few' CONNECTION LIMIT 4");
    sql.rows("CREATE SCHEMA few AUTHORIZATION few");
    let url = cluster.url().replace("tidegate@", "few:few@");
    let options = PostgresOptions::parse(&format!("{url}?schema=few&pool_size=8")).expect("the URL is valid");
    let store = PostgresStore::open(options).unwrap_or_else(|error| panic!("{error}"));
    // Each key has its own row, so that no order waits for another and all connections are used.
    let apart = ItemSpec { per: Per::Key, ..ItemSpec::of(Policy::Total, 1000) };
    store.put(LimitSpec::named("apart").with(apart), ExpectedVersion::Absent).expect("a new limit");
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let store = &store;
            scope.spawn(move || {
                let key = format!("key-{thread}");
                for _ in 0..40 {
                    acquire_one(store, "apart", key.as_bytes()).unwrap_or_else(|why| panic!("{why}"));
                }
            });
        }
    });
    assert_eq!(store.outage(), None);
}

/// A database that answers but cannot decide is reported until it recovers, also by an idle store.
#[test]
fn missing_table_is_reported_until_restored() {
    let (_, store, sql) = open_store();
    for spec in limits() {
        store.put(spec, ExpectedVersion::Absent).expect("a new limit");
    }
    for is_asked in [true, false] {
        sql.rows("ALTER TABLE states RENAME TO renamed_states");
        if is_asked {
            let why = acquire_one(&store, TIGHT, b"one").expect_err("the table is missing");
            assert!(why.reason.contains("(42P01)"), "{why}");
            assert!(store.outage().is_some(), "the outage is visible when the request fails");
        }
        eventually("the outage is reported", || {
            store.outage().is_some_and(|why| why.reason.contains("42P01"))
        });
        sql.rows("ALTER TABLE renamed_states RENAME TO states");
        eventually("the outage ends", || store.outage().is_none());
        acquire_one(&store, TIGHT, b"one").expect("the store decides");
    }
}

#[test]
fn terminated_connections_under_load_keep_counts_consistent() {
    let (schema, store, sql) = open_store();
    let terminate = format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = '{schema}'"
    );
    let mut ended = 0;
    under_load(&store, |counts| {
        for _ in 0..10 {
            ended += sql.value(&terminate).parse::<u64>().expect("a number");
            counts.wait_for_grants(10);
        }
    });
    assert!(ended >= 10, "only {ended} connections were terminated");
}

#[test]
fn cancelled_statements_under_load_keep_counts_consistent() {
    let (schema, store, sql) = open_store();
    let cancel = format!(
        "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE application_name = '{schema}' AND state <> 'idle'"
    );
    let counts = under_load(&store, |counts| {
        // A statement may not be running at this moment, so this is repeated.
        eventually("a statement is cancelled", || {
            sql.rows(&cancel);
            counts.unanswered() > 0
        });
    });
    assert_reasons(&counts.outages(), &["57014", "25P02"]);
}

#[test]
fn full_disk_under_load_fails_charges_but_not_reads() {
    let (_, store, sql) = open_store();
    sql.rows(
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$",
    );
    let counts = under_load(&store, |counts| {
        sql.rows("CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON states FOR EACH ROW EXECUTE FUNCTION full_disk()");
        wait_for_failure(counts);
        assert!(acquire_one(&store, STOCK, b"key-0").is_err());
        assert!(store.usage(STOCK, None).wait(&store).is_ok(), "a read needs no disk space");
        sql.rows("DROP TRIGGER full_disk ON states");
    });
    assert_reasons(&counts.outages(), &["No space left on device (53100)"]);
}

#[test]
fn exhausted_connections_under_load_keep_counts_consistent() {
    let cluster = Cluster::start(&["max_connections=20", "superuser_reserved_connections=0"]);
    let store = open(cluster.url(), "crowded");
    let sql = Sql::new(cluster.url());
    under_load(&store, |counts| {
        // Terminates the store's connections and takes every slot before the store reconnects.
        let mut others = Vec::new();
        eventually("the database refuses connections", || {
            sql.rows(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'crowded'",
            );
            others.extend(std::iter::from_fn(|| Sql::try_new(cluster.url())));
            counts.outages().iter().any(|why| why.contains("53300"))
        });
        drop(others);
    });
}

#[test]
fn locked_row_fails_only_orders_that_need_it() {
    let (schema, store, sql) = open_store();
    for spec in limits() {
        store.put(spec, ExpectedVersion::Absent).expect("a new limit");
    }
    for key in [b"one", b"two"] {
        acquire_one(&store, STOCK, key).expect("the row is not locked");
    }
    let slot = expect_lease(&acquire_one(&store, SLOTS, b"one").expect("a slot")).lease;
    sql.rows(&format!(
        "BEGIN; SELECT FROM states s JOIN limits l USING (generation) WHERE l.id = '{STOCK}' AND s.key = '\\x00' FOR UPDATE OF s"
    ));
    let why = acquire_one(&store, STOCK, b"one").expect_err("the row is locked");
    assert!(why.reason.contains("lock timeout (55P03)"), "{why}");
    // Other limits and reads are not blocked.
    assert!(matches!(acquire_one(&store, TIGHT, b"one"), Ok(Outcome::Granted(_))));
    assert_eq!(store.release(slot).wait(&store), Ok(true));
    assert_eq!(current_usage(&store, STOCK, None), 2);
    assert_eq!(store.outage(), None, "{schema} can be reached");
    sql.rows("ROLLBACK");
    assert!(matches!(acquire_one(&store, STOCK, b"one"), Ok(Outcome::Granted(_))), "the lock was released");
    assert_eq!(current_usage(&store, STOCK, None), 3, "the failed order was not charged");
}

/// The database stops during the reload of the limits before a retry. No statement timeout applies then.
#[test]
fn pause_during_limit_reload_fails_request_in_time() {
    let cluster = Cluster::start(&[]);
    let url = format!(
        "{}?schema=reread&connect_timeout=1&lock_timeout_ms=2500&statement_timeout_ms=2500",
        cluster.url()
    );
    let store =
        PostgresStore::open(PostgresOptions::parse(&url).expect("the URL is valid")).expect("a new schema");
    for spec in limits() {
        store.put(spec, ExpectedVersion::Absent).expect("a new limit");
    }
    let (sql, watching) = (Sql::new(cluster.url()), Sql::new(cluster.url()));
    // The revision has changed, and reading the limits waits for the table lock.
    sql.rows("SET search_path = reread; BEGIN; LOCK TABLE limits");
    watching.rows("UPDATE reread.store SET revision = revision + 1");
    std::thread::scope(|scope| {
        let request = scope.spawn(|| acquire_one(&store, TIGHT, b"one"));
        // One connection of the order, and one that polls the revision every second.
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        eventually("the order waits for the limits", || {
            watching.value(waiting) == "2" || request.is_finished()
        });
        assert!(!request.is_finished(), "{:?}", request.join());
        cluster.run("pause");
        let ended = holds_within(Duration::from_secs(30), || request.is_finished());
        cluster.run("resume");
        assert!(ended, "the request waits for a silent database");
        assert!(request.join().expect("no panic").is_err());
    });
    sql.rows("ROLLBACK");
    eventually("the store decides again", || acquire_one(&store, TIGHT, b"one").is_ok());
}

/// The connection ends during a commit. The outcome is unknown, so the store must not retry.
#[test]
fn lost_commit_is_not_retried() {
    let (schema, store, sql) = open_store();
    for spec in limits() {
        store.put(spec, ExpectedVersion::Absent).expect("a new limit");
    }
    acquire_one(&store, TIGHT, b"one").expect("the database works");
    sql.rows(
        "CREATE FUNCTION slow_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(60); RETURN NULL; END $$; \
         CREATE CONSTRAINT TRIGGER slow_commit AFTER UPDATE ON states DEFERRABLE INITIALLY DEFERRED \
         FOR EACH ROW EXECUTE FUNCTION slow_commit()",
    );
    let waits = format!(
        "FROM pg_stat_activity WHERE application_name = '{schema}' AND wait_event = 'PgSleep' AND query = 'COMMIT'"
    );
    let result = std::thread::scope(|scope| {
        let request = scope.spawn(|| acquire_one(&store, TIGHT, b"one"));
        eventually("a commit is running", || sql.value(&format!("SELECT count(*) {waits}")) == "1");
        sql.rows(&format!("SELECT pg_terminate_backend(pid) {waits}"));
        request.join().expect("no panic")
    });
    let why = result.expect_err("the outcome is unknown");
    assert!(why.reason.contains("57P01"), "{why}");
    sql.rows("DROP TRIGGER slow_commit ON states");
    // The commit was rolled back, and the store did not retry it.
    eventually("the store decides again", || store.usage(TIGHT, None).wait(&store).is_ok());
    assert_eq!(current_usage(&store, TIGHT, None), 1);
    eventually("the store decides again", || acquire_one(&store, TIGHT, b"one").is_ok());
    assert_eq!(current_usage(&store, TIGHT, None), 2);
}

/// The commit succeeds and only its answer is lost. The order is charged exactly once.
#[test]
fn committed_charge_without_answer_is_charged_once() {
    let cluster = Cluster::start(&[]);
    let (schema, sql) = ("lost_answers", Sql::new(cluster.url()));
    let store = open(cluster.url(), schema);
    for spec in limits() {
        store.put(spec, ExpectedVersion::Absent).expect("a new limit");
    }
    acquire_one(&store, TIGHT, b"one").expect("the database works");
    // The server confirms a commit only after a replica has it, and there is no replica.
    let replicas = |names: &str| {
        sql.rows(&format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'"));
        sql.rows("SELECT pg_reload_conf()");
    };
    replicas("missing_replica");
    let waits =
        format!("FROM pg_stat_activity WHERE application_name = '{schema}' AND wait_event = 'SyncRep'");
    // Expiry commits too, so this repeats until an order loses its answer.
    let (mut tries, mut lost) = (0u64, false);
    while !lost {
        tries += 1;
        lost = std::thread::scope(|scope| {
            let request = scope.spawn(|| acquire_one(&store, TIGHT, b"one"));
            eventually("the request ends or its commit waits", || {
                sql.value(&format!("SELECT count(pg_terminate_backend(pid)) {waits}")) != "0"
                    || request.is_finished()
            });
            eventually("the request ends", || {
                sql.rows(&format!("SELECT pg_terminate_backend(pid) {waits}"));
                request.is_finished()
            });
            request.join().expect("no panic").is_err()
        });
        assert!(tries < 10, "no answer was lost");
    }
    replicas("");
    eventually("the store decides again", || store.usage(TIGHT, None).wait(&store).is_ok());
    assert_eq!(current_usage(&store, TIGHT, None), 1 + tries, "each order is charged exactly once");
    eventually("the store decides again", || acquire_one(&store, TIGHT, b"one").is_ok());
}
