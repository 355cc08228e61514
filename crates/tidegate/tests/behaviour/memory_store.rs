//! The memory store behaves like every store.

use std::sync::Arc;

use tidegate::store::{Memory, MemoryStore};
use tidegate::{ManualClock, Tick, Timestamp};
use tidegate_testkit::suite::Bench;

fn bench(tick: Tick) -> Bench {
    let clock = Arc::new(ManualClock::ticking(tick, Timestamp::EPOCH));
    let memory = Memory { secret: [7, 8], ..Memory::default() };
    Bench::new(MemoryStore::new(Arc::clone(&clock), memory), clock)
}

tidegate_testkit::behaviour_suite!(bench);

mod asked_in_short {
    use tidegate_testkit::compact_adapter::Bidding;

    use super::*;

    fn bench(tick: Tick) -> Bench {
        let clock = Arc::new(ManualClock::ticking(tick, Timestamp::EPOCH));
        let memory = Memory { secret: [7, 8], ..Memory::default() };
        Bench::new(Bidding::over(MemoryStore::new(Arc::clone(&clock), memory)), clock)
    }

    tidegate_testkit::behaviour_suite!(bench);
}
