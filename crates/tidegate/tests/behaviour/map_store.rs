//! The plain store behaves like every store.

use std::sync::Arc;

use tidegate::{ManualClock, MapStore, Timestamp};
use tidegate_testkit::suite::Bench;

fn bench() -> Bench {
    let clock = Arc::new(ManualClock::at(Timestamp::EPOCH));
    Bench::new(MapStore::new(Arc::clone(&clock), 7), clock)
}

tidegate_testkit::behaviour_suite!(bench);
