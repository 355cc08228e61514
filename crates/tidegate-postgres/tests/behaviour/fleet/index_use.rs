//! What is read: the rows that are asked about, and not the tables they lie in.

use tidegate::catalog::{Catalog, ExpectedVersion};
use tidegate::model::{Ask, ItemSpec, LimitSpec, Order, Policy};
use tidegate::reply::{Detail, Replies};
use tidegate::store::Store;
use tidegate_postgres::PostgresStore;

use crate::cluster::{new_database, options_at};
use crate::load::eventually;
use crate::sql::Sql;

/// Few enough that reading them all looks cheap, and many enough that it is not.
const KEYS: usize = 3000;

/// The orders of one batch.
const TOGETHER: usize = 100;

/// How often every key is asked.
const ROUNDS: usize = 5;

#[test]
fn rows_are_found_by_their_names_however_many_there_are() {
    let url = new_database();
    let store = PostgresStore::open(options_at(&url, "tidegate")).expect("a store");
    let spec = LimitSpec::named("keys").with(ItemSpec::of(Policy::Total, 1000).per_key());
    store.put(spec, ExpectedVersion::Absent).expect("a new limit");
    let names: Vec<String> = (0..KEYS).map(|key| format!("key-{key}")).collect();
    for round in 0..ROUNDS {
        for together in names.chunks(TOGETHER) {
            let asks: Vec<[Ask<'_>; 1]> =
                together.iter().map(|name| [Ask::one("keys", Some(name.as_bytes()))]).collect();
            let ids: Vec<String> = together.iter().map(|name| format!("{round}-{name}")).collect();
            let orders: Vec<Order<'_>> = asks
                .iter()
                .zip(&ids)
                .map(|(asks, id)| Order { request_id: Some(id.as_bytes()), ..Order::acquire(asks) })
                .collect();
            let answers = store.submit(&orders, Replies::new(Detail::Verdicts)).wait(&store);
            let answers = answers.expect("it answers");
            assert!(
                answers
                    .iter()
                    .all(|answer| answer.as_ref().is_ok_and(tidegate::reply::OrderReply::is_granted))
            );
        }
    }
    drop(store);
    // What they did is in the database's books when they have gone.
    let sql = Sql::new(&url);
    let others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    eventually("all have gone", || sql.value(others) == "0");
    for table in ["states", "requests"] {
        let read = |what: &str| -> usize {
            let found = format!("SELECT {what} FROM pg_stat_user_tables WHERE relname = '{table}'");
            sql.value(&found).parse().expect("a number")
        };
        assert!(read("idx_tup_fetch") >= KEYS * ROUNDS, "{table}: {} by name", read("idx_tup_fetch"));
        assert!(read("seq_tup_read") < KEYS, "{table}: {} by reading all of it", read("seq_tup_read"));
    }
}
