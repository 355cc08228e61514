//! Concurrent requests: the recorded grants never exceed what the limits allow.

use std::sync::Arc;

use tidegate::store::{LimitStore, MapStore};
use tidegate_testkit::stress::SteppingClock;

mod map {
    use super::*;

    fn new_store(clock: Arc<SteppingClock>) -> Arc<dyn LimitStore> {
        Arc::new(MapStore::new(clock, 1))
    }

    tidegate_testkit::stress_suite!(new_store);
}

mod memory {
    use tidegate::store::{Memory, MemoryStore};

    use super::*;

    fn new_store(clock: Arc<SteppingClock>) -> Arc<dyn LimitStore> {
        Arc::new(MemoryStore::new(clock, Memory { secret: [3, 4], ..Memory::default() }))
    }

    tidegate_testkit::stress_suite!(new_store);
}

mod memory_compact {
    use tidegate::store::{Memory, MemoryStore};
    use tidegate_testkit::compact_adapter::CompactAdapter;

    use super::*;

    fn new_store(clock: Arc<SteppingClock>) -> Arc<dyn LimitStore> {
        Arc::new(CompactAdapter::new(MemoryStore::new(clock, Memory { secret: [3, 4], ..Memory::default() })))
    }

    tidegate_testkit::stress_suite!(new_store);
}
