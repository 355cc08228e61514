//! A store where somebody else decides behaves like every store.

use std::sync::Arc;

use tidegate::{ManualClock, MapStore, Tick, Timestamp};
use tidegate_testkit::remote_stub::{Elsewhere, Road};
use tidegate_testkit::suite::Bench;

fn bench(tick: Tick) -> Bench {
    let clock = Arc::new(ManualClock::ticking(tick, Timestamp::EPOCH));
    let store = Arc::new(MapStore::new(Arc::clone(&clock), 7));
    Bench::new(Elsewhere::new(store, Road::prompt()), clock)
}

tidegate_testkit::behaviour_suite!(bench);
