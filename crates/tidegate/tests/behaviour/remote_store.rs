//! A remote store passes the conformance tests of stores.

use std::sync::Arc;

use tidegate::clock::ManualClock;
use tidegate::model::{Tick, Timestamp};
use tidegate::store::MapStore;
use tidegate_testkit::remote_stub::{RemoteLink, RemoteStub};
use tidegate_testkit::suite::StoreFixture;

fn new_store(tick: Tick) -> StoreFixture {
    let clock = Arc::new(ManualClock::ticking(tick, Timestamp::EPOCH));
    let store = Arc::new(MapStore::new(Arc::clone(&clock), 7));
    StoreFixture::new(RemoteStub::new(store, RemoteLink::immediate()), clock)
}

tidegate_testkit::behaviour_suite!(new_store);
