//! Databases that fail while they are asked. Whoever is not answered hears why, whoever is was told the truth, and the store comes back by itself.

use std::time::Duration;

use tidegate::catalog::{Catalog, ExpectedVersion};
use tidegate::model::{ItemSpec, LimitSpec, Per, Policy};
use tidegate::reply::Outcome;
use tidegate::store::Store;
use tidegate_postgres::{PostgresOptions, PostgresStore};

use crate::cluster::{Cluster, new_schema, shared_url};
use crate::load::{Books, SLOTS, STOCK, TIGHT, eventually, lease, limits, take, under_load, used, within};
use crate::sql::Sql;

/// Timeouts that a test can wait for, and a name that its connections go by.
fn brief(url: &str, schema: &str) -> PostgresOptions {
    let timeouts = "connect_timeout=1&lock_timeout_ms=300&statement_timeout_ms=700";
    let url = format!("{url}?schema={schema}&application_name={schema}&{timeouts}");
    PostgresOptions::parse(&url).expect("a URL of ours")
}

fn open(url: &str, schema: &str) -> PostgresStore {
    PostgresStore::open(brief(url, schema)).unwrap_or_else(|error| panic!("{error}"))
}

/// A schema of the shared database, its store, and a look at it from outside.
fn ours() -> (String, PostgresStore, Sql) {
    let schema = new_schema();
    let store = open(shared_url(), &schema);
    let sql = Sql::new(shared_url());
    sql.rows(&format!("SET search_path = {schema}"));
    (schema, store, sql)
}

/// Waits until somebody was told that there is no answer.
#[track_caller]
fn wait_for_doubt(books: &Books) {
    let before = books.doubtful();
    eventually("somebody is not answered", || books.doubtful() > before);
}

#[track_caller]
fn says(reasons: &[String], any_of: &[&str]) {
    assert!(!reasons.is_empty(), "nobody was told why");
    let known = |reason: &String| any_of.iter().any(|part| reason.contains(part));
    assert!(reasons.iter().all(known), "not said clearly: {reasons:?}");
}

#[test]
fn a_restart_under_load() {
    let cluster = Cluster::start(&[]);
    let store = open(cluster.url(), "restarted");
    let books = under_load(&store, |books| {
        cluster.run("stop");
        wait_for_doubt(books);
        cluster.run("start");
        books.go_on(20);
        cluster.run("restart");
    });
    says(&books.outages(), &["PostgreSQL"]);
}

#[test]
fn a_crash_under_load() {
    // What was told must be there although nobody had time to tidy up.
    let cluster = Cluster::start(&["fsync=on"]);
    let store = open(cluster.url(), "crashed");
    let books = under_load(&store, |books| {
        for _ in 0..2 {
            cluster.run("crash");
            books.go_on(20);
        }
    });
    says(&books.outages(), &["PostgreSQL"]);
}

#[test]
fn a_pause_under_load() {
    let cluster = Cluster::start(&[]);
    let store = open(cluster.url(), "paused");
    let books = under_load(&store, |books| {
        cluster.run("pause");
        wait_for_doubt(books);
        cluster.run("resume");
    });
    says(
        &books.outages(),
        &["did not answer in time", "no time for this", "could be had in time", "cannot be reached"],
    );
}

/// One round is as long as a statement may take and a second; nobody waits for three of them.
#[test]
fn nobody_waits_twice_for_a_database_that_says_nothing() {
    let cluster = Cluster::start(&[]);
    let url = format!("{}?schema=silent&connect_timeout=3", cluster.url());
    let store =
        PostgresStore::open(PostgresOptions::parse(&url).expect("a URL of ours")).expect("a new schema");
    for spec in limits() {
        store.put(spec, ExpectedVersion::Absent).expect("a new limit");
    }
    cluster.run("pause");
    let mut waited = Vec::new();
    // Those that are answered at once do not count.
    while waited.len() < 3 {
        let began = steady();
        let told = take(&store, TIGHT, b"one");
        let took = began.elapsed();
        if told.is_ok() || took > Duration::from_millis(500) {
            waited.push((told.is_ok(), took));
        }
    }
    cluster.run("resume");
    let is_fine = |(answered, took): &(bool, Duration)| !answered && *took < Duration::from_secs(6);
    assert!(waited.iter().all(is_fine), "{waited:?}");
    eventually("it decides again", || take(&store, TIGHT, b"one").is_ok());
}

#[expect(clippy::disallowed_methods, reason = "how long somebody waits is the subject")]
fn steady() -> std::time::Instant {
    std::time::Instant::now()
}

/// Who has connections that work goes on with them, though there should be more.
#[test]
fn fewer_connections_than_wanted() {
    let cluster = Cluster::start(&[]);
    let sql = Sql::new(cluster.url());
    sql.rows("CREATE ROLE few LOGIN PASSWORD 'few' CONNECTION LIMIT 4");
    sql.rows("CREATE SCHEMA few AUTHORIZATION few");
    let url = cluster.url().replace("tidegate@", "few:few@");
    let options = PostgresOptions::parse(&format!("{url}?schema=few&pool_size=8")).expect("a URL of ours");
    let store = PostgresStore::open(options).unwrap_or_else(|error| panic!("{error}"));
    // Each key has a row of its own, so that nobody waits for anybody and all connections are wanted.
    let apart = ItemSpec { per: Per::Key, ..ItemSpec::of(Policy::Total, 1000) };
    store.put(LimitSpec::named("apart").with(apart), ExpectedVersion::Absent).expect("a new limit");
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let store = &store;
            scope.spawn(move || {
                let key = format!("key-{thread}");
                for _ in 0..40 {
                    take(store, "apart", key.as_bytes()).unwrap_or_else(|why| panic!("{why}"));
                }
            });
        }
    });
    assert_eq!(store.outage(), None);
}

/// A database that answers and decides for nobody is known as such, also where nobody asks, and until it does again.
#[test]
fn a_table_that_is_gone_for_a_while() {
    let (_, store, sql) = ours();
    for spec in limits() {
        store.put(spec, ExpectedVersion::Absent).expect("a new limit");
    }
    for is_asked in [true, false] {
        sql.rows("ALTER TABLE states RENAME TO elsewhere");
        if is_asked {
            let why = take(&store, TIGHT, b"one").expect_err("there is no table");
            assert!(why.reason.contains("(42P01)"), "{why}");
            assert!(store.outage().is_some(), "whoever was told may look");
        }
        eventually("it is noticed", || store.outage().is_some_and(|why| why.reason.contains("42P01")));
        sql.rows("ALTER TABLE elsewhere RENAME TO states");
        eventually("it is well", || store.outage().is_none());
        take(&store, TIGHT, b"one").expect("it decides");
    }
}

#[test]
fn terminated_connections_under_load() {
    let (schema, store, sql) = ours();
    let terminate = format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = '{schema}'"
    );
    let mut ended = 0;
    under_load(&store, |books| {
        for _ in 0..10 {
            ended += sql.value(&terminate).parse::<u64>().expect("a number");
            books.go_on(10);
        }
    });
    assert!(ended >= 10, "only {ended} connections were ended");
}

#[test]
fn cancelled_statements_under_load() {
    let (schema, store, sql) = ours();
    let cancel = format!(
        "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE application_name = '{schema}' AND state <> 'idle'"
    );
    let books = under_load(&store, |books| {
        // Whether one is under way at this very moment is a matter of luck.
        eventually("a statement is cancelled", || {
            sql.rows(&cancel);
            books.doubtful() > 0
        });
    });
    says(&books.outages(), &["57014", "25P02"]);
}

#[test]
fn a_full_disk_under_load() {
    let (_, store, sql) = ours();
    sql.rows(
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$",
    );
    let books = under_load(&store, |books| {
        sql.rows("CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON states FOR EACH ROW EXECUTE FUNCTION full_disk()");
        wait_for_doubt(books);
        assert!(take(&store, STOCK, b"key-0").is_err());
        assert!(store.usage(STOCK, None).wait(&store).is_ok(), "looking needs no room");
        sql.rows("DROP TRIGGER full_disk ON states");
    });
    says(&books.outages(), &["No space left on device (53100)"]);
}

#[test]
fn no_connections_left_under_load() {
    let cluster = Cluster::start(&["max_connections=20", "superuser_reserved_connections=0"]);
    let store = open(cluster.url(), "crowded");
    let sql = Sql::new(cluster.url());
    under_load(&store, |books| {
        // Ours are ended, and others take every place before they can come back.
        let mut others = Vec::new();
        eventually("nobody is let in", || {
            sql.rows(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'crowded'",
            );
            others.extend(std::iter::from_fn(|| Sql::try_new(cluster.url())));
            books.outages().iter().any(|why| why.contains("53300"))
        });
        drop(others);
    });
}

#[test]
fn a_row_that_somebody_else_holds() {
    let (schema, store, sql) = ours();
    for spec in limits() {
        store.put(spec, ExpectedVersion::Absent).expect("a new limit");
    }
    for key in [b"one", b"two"] {
        take(&store, STOCK, key).expect("nobody is in the way");
    }
    let slot = lease(&take(&store, SLOTS, b"one").expect("a slot")).lease;
    sql.rows(&format!(
        "BEGIN; SELECT FROM states s JOIN limits l USING (generation) WHERE l.id = '{STOCK}' AND s.key = '\\x00' FOR UPDATE OF s"
    ));
    let why = take(&store, STOCK, b"one").expect_err("somebody is in the way");
    assert!(why.reason.contains("lock timeout (55P03)"), "{why}");
    // Other limits are not held up, nor is who only looks.
    assert!(matches!(take(&store, TIGHT, b"one"), Ok(Outcome::Granted(_))));
    assert_eq!(store.release(slot).wait(&store), Ok(true));
    assert_eq!(used(&store, STOCK, None), 2);
    assert_eq!(store.outage(), None, "{schema} is there");
    sql.rows("ROLLBACK");
    assert!(matches!(take(&store, STOCK, b"one"), Ok(Outcome::Granted(_))), "at once when they are gone");
    assert_eq!(used(&store, STOCK, None), 3, "who was not answered was not counted");
}

/// It stops in the middle of reading limits again, when nothing of the transaction is left that could take too long.
#[test]
fn a_pause_while_limits_are_read_again() {
    let cluster = Cluster::start(&[]);
    let url = format!(
        "{}?schema=reread&connect_timeout=1&lock_timeout_ms=2500&statement_timeout_ms=2500",
        cluster.url()
    );
    let store =
        PostgresStore::open(PostgresOptions::parse(&url).expect("a URL of ours")).expect("a new schema");
    for spec in limits() {
        store.put(spec, ExpectedVersion::Absent).expect("a new limit");
    }
    let (sql, watching) = (Sql::new(cluster.url()), Sql::new(cluster.url()));
    // The limits have changed, and whoever wants to know how has to wait.
    sql.rows("SET search_path = reread; BEGIN; LOCK TABLE limits");
    watching.rows("UPDATE reread.store SET revision = revision + 1");
    std::thread::scope(|scope| {
        let told = scope.spawn(|| take(&store, TIGHT, b"one"));
        // One for the order, and one that looks every second.
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        eventually("it waits for the limits", || watching.value(waiting) == "2" || told.is_finished());
        assert!(!told.is_finished(), "{:?}", told.join());
        cluster.run("pause");
        let ended = within(Duration::from_secs(30), || told.is_finished());
        cluster.run("resume");
        assert!(ended, "somebody waits for a database that says nothing");
        assert!(told.join().expect("no panic").is_err());
    });
    sql.rows("ROLLBACK");
    eventually("it decides again", || take(&store, TIGHT, b"one").is_ok());
}

/// The connection ends while the database commits: whether it has is not known here, and it must not be done twice.
#[test]
fn a_commit_whose_answer_never_came() {
    let (schema, store, sql) = ours();
    for spec in limits() {
        store.put(spec, ExpectedVersion::Absent).expect("a new limit");
    }
    take(&store, TIGHT, b"one").expect("nothing is wrong yet");
    sql.rows(
        "CREATE TABLE waits (yes boolean); \
         CREATE FUNCTION wait_for_it() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(60); RETURN NULL; END $$; \
         CREATE CONSTRAINT TRIGGER wait_for_it AFTER UPDATE ON states DEFERRABLE INITIALLY DEFERRED \
         FOR EACH ROW EXECUTE FUNCTION wait_for_it()",
    );
    let waits = format!(
        "FROM pg_stat_activity WHERE application_name = '{schema}' AND wait_event = 'PgSleep' AND query = 'COMMIT'"
    );
    let told = std::thread::scope(|scope| {
        let told = scope.spawn(|| take(&store, TIGHT, b"one"));
        eventually("a commit is under way", || sql.value(&format!("SELECT count(*) {waits}")) == "1");
        sql.rows(&format!("SELECT pg_terminate_backend(pid) {waits}"));
        told.join().expect("no panic")
    });
    let why = told.expect_err("nobody knows");
    assert!(why.reason.contains("57P01"), "{why}");
    sql.rows("DROP TRIGGER wait_for_it ON states");
    // It was not, and it was not tried again behind the asker's back.
    eventually("it decides again", || store.usage(TIGHT, None).wait(&store).is_ok());
    assert_eq!(used(&store, TIGHT, None), 1);
    eventually("it decides again", || take(&store, TIGHT, b"one").is_ok());
    assert_eq!(used(&store, TIGHT, None), 2);
}

/// The other way round: it was committed, and only the answer was lost. It was charged, and once.
#[test]
fn a_commit_that_was_made_and_not_told() {
    let cluster = Cluster::start(&[]);
    let (schema, sql) = ("untold", Sql::new(cluster.url()));
    let store = open(cluster.url(), schema);
    for spec in limits() {
        store.put(spec, ExpectedVersion::Absent).expect("a new limit");
    }
    take(&store, TIGHT, b"one").expect("nothing is wrong yet");
    // What is committed here waits to be told until a replica has it, and there is none.
    let replicas = |names: &str| {
        sql.rows(&format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'"));
        sql.rows("SELECT pg_reload_conf()");
    };
    replicas("nobody");
    let waits =
        format!("FROM pg_stat_activity WHERE application_name = '{schema}' AND wait_event = 'SyncRep'");
    // The sweeper commits too; what is waited for is an order's.
    let (mut tries, mut lost) = (0u64, false);
    while !lost {
        tries += 1;
        lost = std::thread::scope(|scope| {
            let told = scope.spawn(|| take(&store, TIGHT, b"one"));
            eventually("it is told, or a commit is under way", || {
                sql.value(&format!("SELECT count(pg_terminate_backend(pid)) {waits}")) != "0"
                    || told.is_finished()
            });
            eventually("it is told", || {
                sql.rows(&format!("SELECT pg_terminate_backend(pid) {waits}"));
                told.is_finished()
            });
            told.join().expect("no panic").is_err()
        });
        assert!(tries < 10, "nothing was lost");
    }
    replicas("");
    eventually("it decides again", || store.usage(TIGHT, None).wait(&store).is_ok());
    assert_eq!(used(&store, TIGHT, None), 1 + tries, "charged although nobody was told, and once");
    eventually("it decides again", || take(&store, TIGHT, b"one").is_ok());
}
