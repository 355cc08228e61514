//! Servers that have to wait for each other: what they find when it is their turn is how things are then.

use tidegate::catalog::{Catalog, ExpectedVersion};
use tidegate::model::{Ask, ItemSpec, LimitSpec, Order, Policy, Timestamp};
use tidegate::reply::OrderError;
use tidegate_postgres::{PostgresOptions, PostgresStore};

use super::{submit, total};
use crate::cluster::{new_schema, shared_url};
use crate::load::{eventually, take};
use crate::sql::Sql;

/// A store that waits as long as it has to.
fn patient(schema: &str) -> PostgresStore {
    let patience = "lock_timeout_ms=60000&statement_timeout_ms=60000";
    let url = format!("{}?schema={schema}&application_name={schema}&{patience}", shared_url());
    PostgresStore::open(PostgresOptions::parse(&url).expect("a URL of ours"))
        .unwrap_or_else(|error| panic!("{error}"))
}

/// How many connections of these stores wait for somebody else's lock.
fn waiting(sql: &Sql, schema: &str) -> u64 {
    let those = format!("application_name = '{schema}' AND wait_event_type = 'Lock'");
    sql.value(&format!("SELECT count(*) FROM pg_stat_activity WHERE {those}")).parse().expect("a number")
}

/// A connection that looks at the tables of this schema.
fn looking(schema: &str) -> Sql {
    let sql = Sql::new(shared_url());
    sql.rows(&format!("SET search_path = {schema}"));
    sql
}

/// Who had to wait for a row decides at the instant at which it was free, not at that at which it was asked for.
#[test]
fn time_is_read_when_the_row_is_held() {
    let schema = new_schema();
    let (store, holding, sql) = (patient(&schema), looking(&schema), looking(&schema));
    store.put(total("stock", 10), ExpectedVersion::Absent).expect("a new limit");
    take(&store, "stock", b"").expect("it answers");
    holding.rows("BEGIN; SELECT FROM states FOR UPDATE");
    std::thread::scope(|scope| {
        let asks = [Ask { limit_id: "stock", key: None, count: 1 }];
        let told = scope.spawn({
            let store = &store;
            move || submit(store, Order::acquire(&asks))
        });
        eventually("it waits", || waiting(&sql, &schema) == 1);
        let micros = sql.value("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint");
        holding.rows("ROLLBACK");
        let answer = told.join().expect("no panic").expect("a sensible order");
        let free = Timestamp::from_ticks(micros.parse::<u64>().expect("a number") * 1000);
        assert!(answer.at >= free, "decided at {:?}, and the row was free at {free:?}", answer.at);
    });
}

/// A request id whose time is over is used again, by two at once and for different rows: one of them is the first.
#[test]
fn a_request_id_is_used_again_once() {
    let schema = new_schema();
    let (one, two) = (patient(&schema), patient(&schema));
    let (holding, sql) = (looking(&schema), looking(&schema));
    let spec = LimitSpec::named("each").with(ItemSpec::of(Policy::Total, 10).per_key());
    one.put(spec, ExpectedVersion::Absent).expect("a new limit");
    let ask = |store: &PostgresStore, key: &'static [u8]| {
        let asks = [Ask { limit_id: "each", key: Some(key), count: 1 }];
        submit(store, Order { request_id: Some(b"again"), ..Order::acquire(&asks) })
    };
    ask(&one, b"first").expect("a sensible order");
    // Its time is over, and nobody sweeps it away.
    sql.rows("UPDATE requests SET until = 0");
    // Whoever is for the second key waits in the middle of writing.
    holding.rows("SELECT pg_advisory_lock(4711)");
    sql.rows(
        "CREATE FUNCTION hold_up() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN NEW; END $$; \
         CREATE TRIGGER hold_up BEFORE UPDATE ON states FOR EACH ROW WHEN (NEW.key = '\\x01' || 'second'::bytea) \
         EXECUTE FUNCTION hold_up()",
    );
    std::thread::scope(|scope| {
        let second = scope.spawn(|| ask(&one, b"second"));
        eventually("it waits", || waiting(&sql, &schema) == 1);
        let third = scope.spawn(|| ask(&two, b"third"));
        eventually("it waits, or is wrong", || waiting(&sql, &schema) == 2 || third.is_finished());
        holding.rows("SELECT pg_advisory_unlock(4711)");
        let (second, third) = (second.join().expect("no panic"), third.join().expect("no panic"));
        assert!(second.expect("a sensible order").is_granted());
        assert!(matches!(third, Err(OrderError::RequestIdReused)), "{third:?}");
    });
}
