//! Lock waits between servers: a decision uses the state and time after the wait.

use tidegate::catalog::{Catalog, ExpectedVersion};
use tidegate::model::{Ask, ItemSpec, LimitSpec, Order, Policy, Timestamp};
use tidegate::reply::OrderError;
use tidegate_postgres::{PostgresOptions, PostgresStore};

use super::{submit, total};
use crate::cluster::{new_schema, shared_url};
use crate::load_generator::{acquire_one, eventually};
use crate::sql::Sql;

/// Opens a store with long timeouts.
fn open_with_long_timeouts(schema: &str) -> PostgresStore {
    let timeouts = "lock_timeout_ms=60000&statement_timeout_ms=60000";
    let url = format!("{}?schema={schema}&application_name={schema}&{timeouts}", shared_url());
    PostgresStore::open(PostgresOptions::parse(&url).expect("the URL is valid"))
        .unwrap_or_else(|error| panic!("{error}"))
}

/// The number of connections of these stores that wait for a lock.
fn waiting_connections(sql: &Sql, schema: &str) -> u64 {
    let filter = format!("application_name = '{schema}' AND wait_event_type = 'Lock'");
    sql.value(&format!("SELECT count(*) FROM pg_stat_activity WHERE {filter}")).parse().expect("a number")
}

/// Opens an SQL client for this schema.
fn new_sql(schema: &str) -> Sql {
    let sql = Sql::new(shared_url());
    sql.rows(&format!("SET search_path = {schema}"));
    sql
}

/// An order that waits for a row is decided at the time when it gets the lock, not when it was submitted.
#[test]
fn clock_is_read_after_row_is_locked() {
    let schema = new_schema();
    let (store, holding, sql) = (open_with_long_timeouts(&schema), new_sql(&schema), new_sql(&schema));
    store.put(total("stock", 10), ExpectedVersion::Absent).expect("a new limit");
    acquire_one(&store, "stock", b"").expect("the store answers");
    holding.rows("BEGIN; SELECT FROM states FOR UPDATE");
    std::thread::scope(|scope| {
        let asks = [Ask { limit_id: "stock", key: None, count: 1 }];
        let request = scope.spawn({
            let store = &store;
            move || submit(store, Order::acquire(&asks))
        });
        eventually("the order waits", || waiting_connections(&sql, &schema) == 1);
        let micros = sql.value("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint");
        holding.rows("ROLLBACK");
        let answer = request.join().expect("no panic").expect("the order is valid");
        let free = Timestamp::from_ticks(micros.parse::<u64>().expect("a number") * 1000);
        assert!(answer.at >= free, "decided at {:?}, but the row was free at {free:?}", answer.at);
    });
}

/// Two concurrent orders for different rows reuse an expired request id. Only one of them succeeds.
#[test]
fn expired_request_id_is_reused_by_one_order() {
    let schema = new_schema();
    let (one, two) = (open_with_long_timeouts(&schema), open_with_long_timeouts(&schema));
    let (holding, sql) = (new_sql(&schema), new_sql(&schema));
    let spec = LimitSpec::named("each").with(ItemSpec::of(Policy::Total, 10).per_key());
    one.put(spec, ExpectedVersion::Absent).expect("a new limit");
    let ask = |store: &PostgresStore, key: &'static [u8]| {
        let asks = [Ask { limit_id: "each", key: Some(key), count: 1 }];
        submit(store, Order { request_id: Some(b"again"), ..Order::acquire(&asks) })
    };
    ask(&one, b"first").expect("the order is valid");
    // Marks the request id as expired. Expiry skips entries with this time.
    sql.rows("UPDATE requests SET until = 0");
    // The order for the second key waits while it writes.
    holding.rows("SELECT pg_advisory_lock(4711)");
    sql.rows(
        "CREATE FUNCTION hold_up() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN NEW; END $$; \
         CREATE TRIGGER hold_up BEFORE UPDATE ON states FOR EACH ROW WHEN (NEW.key = '\\x01' || 'second'::bytea) \
         EXECUTE FUNCTION hold_up()",
    );
    std::thread::scope(|scope| {
        let second = scope.spawn(|| ask(&one, b"second"));
        eventually("the order waits", || waiting_connections(&sql, &schema) == 1);
        let third = scope.spawn(|| ask(&two, b"third"));
        eventually("the order waits or has ended", || {
            waiting_connections(&sql, &schema) == 2 || third.is_finished()
        });
        holding.rows("SELECT pg_advisory_unlock(4711)");
        let (second, third) = (second.join().expect("no panic"), third.join().expect("no panic"));
        assert!(second.expect("the order is valid").is_granted());
        assert!(matches!(third, Err(OrderError::RequestIdReused)), "{third:?}");
    });
}
