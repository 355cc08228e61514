//! Queries use indexes: they read the requested rows and not the whole table.

use tidegate::catalog::{Catalog, ExpectedVersion};
use tidegate::model::{Ask, ItemSpec, LimitSpec, Order, Policy};
use tidegate::reply::{Detail, Replies};
use tidegate::store::Store;
use tidegate_postgres::PostgresStore;

use crate::cluster::{new_database, options_at};
use crate::load_generator::eventually;
use crate::sql::Sql;

/// Few enough that the planner considers a sequential scan cheap, and enough to measure one.
const KEYS: usize = 3000;

/// The orders of one batch.
const BATCH_SIZE: usize = 100;

/// The number of requests for each key.
const ROUNDS: usize = 5;

#[test]
fn rows_are_found_by_index_in_large_tables() {
    let url = new_database();
    let store = PostgresStore::open(options_at(&url, "tidegate")).expect("a store");
    let spec = LimitSpec::named("keys").with(ItemSpec::of(Policy::Total, 1000).per_key());
    store.put(spec, ExpectedVersion::Absent).expect("a new limit");
    let names: Vec<String> = (0..KEYS).map(|key| format!("key-{key}")).collect();
    for round in 0..ROUNDS {
        for batch in names.chunks(BATCH_SIZE) {
            let asks: Vec<[Ask<'_>; 1]> =
                batch.iter().map(|name| [Ask::one("keys", Some(name.as_bytes()))]).collect();
            let ids: Vec<String> = batch.iter().map(|name| format!("{round}-{name}")).collect();
            let orders: Vec<Order<'_>> = asks
                .iter()
                .zip(&ids)
                .map(|(asks, id)| Order { request_id: Some(id.as_bytes()), ..Order::acquire(asks) })
                .collect();
            let answers = store.submit(&orders, Replies::new(Detail::Verdicts)).wait(&store);
            let answers = answers.expect("the store answers");
            assert!(
                answers
                    .iter()
                    .all(|answer| answer.as_ref().is_ok_and(tidegate::reply::OrderReply::is_granted))
            );
        }
    }
    drop(store);
    // Sessions report their statistics when they end.
    let sql = Sql::new(&url);
    let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    eventually("all connections are closed", || sql.value(others) == "0");
    for table in ["states", "requests"] {
        let read = |what: &str| -> usize {
            let found = format!("SELECT {what} FROM pg_stat_user_tables WHERE relname = '{table}'");
            sql.value(&found).parse().expect("a number")
        };
        assert!(
            read("idx_tup_fetch") >= KEYS * ROUNDS,
            "{table}: {} rows read by index",
            read("idx_tup_fetch")
        );
        assert!(
            read("seq_tup_read") < KEYS,
            "{table}: {} rows read by sequential scan",
            read("seq_tup_read")
        );
    }
}
