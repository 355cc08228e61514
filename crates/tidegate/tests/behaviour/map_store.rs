//! The map store passes the conformance tests of stores.

use std::sync::Arc;

use tidegate::clock::ManualClock;
use tidegate::model::{Tick, Timestamp};
use tidegate::store::MapStore;
use tidegate_testkit::suite::StoreFixture;

fn new_store(tick: Tick) -> StoreFixture {
    let clock = Arc::new(ManualClock::ticking(tick, Timestamp::EPOCH));
    StoreFixture::new(MapStore::new(Arc::clone(&clock), 7), clock)
}

tidegate_testkit::behaviour_suite!(new_store);
