//! The behaviour suite that every store must pass.

use std::cell::Cell;
use std::sync::Arc;

use tidegate::clock::{Clock, ManualClock};
use tidegate::model::{Tick, Timestamp};
use tidegate_postgres::{PostgresStore, TimeSource};
use tidegate_testkit::suite::StoreFixture;

use crate::cluster::{new_schema, options, shared_url};
use crate::sql;

/// Opens a store with a manual clock in a new schema. Drops the schema of the previous store, because scenarios run one after
/// the other.
fn new_store(tick: Tick) -> StoreFixture {
    // Each test runs in its own thread.
    thread_local!(static PREVIOUS_SCHEMA: Cell<Option<String>> = const { Cell::new(None) });
    let clock = Arc::new(ManualClock::ticking(tick, Timestamp::EPOCH));
    let schema = new_schema();
    if let Some(previous) = PREVIOUS_SCHEMA.replace(Some(schema.clone())) {
        sql::drop_schema(shared_url(), &previous);
    }
    let source = TimeSource::Given(Arc::<ManualClock>::clone(&clock) as Arc<dyn Clock>);
    let store = PostgresStore::open_with(options(&schema), source);
    StoreFixture::new(store.unwrap_or_else(|error| panic!("{error}")), clock)
}

tidegate_testkit::behaviour_suite!(new_store, 12);
