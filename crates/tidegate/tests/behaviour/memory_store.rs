//! The memory store passes the conformance tests of stores.

use std::sync::Arc;

use tidegate::clock::ManualClock;
use tidegate::model::{Tick, Timestamp};
use tidegate::store::{Memory, MemoryStore};
use tidegate_testkit::suite::StoreFixture;

fn new_store(tick: Tick) -> StoreFixture {
    let clock = Arc::new(ManualClock::ticking(tick, Timestamp::EPOCH));
    let memory = Memory { secret: [7, 8], ..Memory::default() };
    StoreFixture::new(MemoryStore::new(Arc::clone(&clock), memory), clock)
}

tidegate_testkit::behaviour_suite!(new_store);

mod compact {
    use tidegate_testkit::compact_adapter::CompactAdapter;

    use super::*;

    fn new_store(tick: Tick) -> StoreFixture {
        let clock = Arc::new(ManualClock::ticking(tick, Timestamp::EPOCH));
        let memory = Memory { secret: [7, 8], ..Memory::default() };
        StoreFixture::new(CompactAdapter::new(MemoryStore::new(Arc::clone(&clock), memory)), clock)
    }

    tidegate_testkit::behaviour_suite!(new_store);
}
