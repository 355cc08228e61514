//! The store does what every store does.

use std::cell::Cell;
use std::sync::Arc;

use tidegate::clock::{Clock, ManualClock};
use tidegate::model::{Tick, Timestamp};
use tidegate_postgres::{PostgresStore, TimeSource};
use tidegate_testkit::suite::StoreFixture;

use crate::cluster::{new_schema, options, shared_url};
use crate::sql;

/// A store in a schema of its own that goes by this clock. The schema of the store before it goes: stories are told one after the other.
fn new_store(tick: Tick) -> StoreFixture {
    // Every test has a thread of its own.
    thread_local!(static LAST: Cell<Option<String>> = const { Cell::new(None) });
    let clock = Arc::new(ManualClock::ticking(tick, Timestamp::EPOCH));
    let schema = new_schema();
    if let Some(last) = LAST.replace(Some(schema.clone())) {
        sql::drop_schema(shared_url(), &last);
    }
    let source = TimeSource::Given(Arc::<ManualClock>::clone(&clock) as Arc<dyn Clock>);
    let store = PostgresStore::open_with(options(&schema), source);
    StoreFixture::new(store.unwrap_or_else(|error| panic!("{error}")), clock)
}

tidegate_testkit::behaviour_suite!(new_store, 12);
