//! The disk store does what every store does, also if it is stopped and opened again after everything it was asked.

use std::sync::Arc;

use tidegate::clock::{Clock, ManualClock};
use tidegate::model::{Tick, Timestamp};
use tidegate_disk::directory::SimulatedDirectory;
use tidegate_disk::{DiskOptions, DiskStore, Maintenance};
use tidegate_testkit::suite::StoreFixture;

use crate::restarting_store::Reopening;

pub(crate) const OPTIONS: DiskOptions = DiskOptions {
    capacity_bytes: 64 << 20,
    segment_bytes: 64 << 10,
    snapshot_after: 1 << 20,
    maintenance: Maintenance::Manual,
};

/// A store in these files that goes by this clock.
pub(crate) fn open(directory: &Arc<SimulatedDirectory>, clock: &Arc<ManualClock>) -> DiskStore {
    let clock: Arc<dyn Clock> = Arc::<ManualClock>::clone(clock);
    let opened =
        DiskStore::open_files(Arc::<SimulatedDirectory>::clone(directory), clock, OPTIONS, &mut |_, _| {});
    opened.unwrap_or_else(|error| panic!("{error}")).0
}

mod left_running {
    use super::*;

    fn new_store(tick: Tick) -> StoreFixture {
        let clock = Arc::new(ManualClock::ticking(tick, Timestamp::EPOCH));
        StoreFixture::new(open(&Arc::default(), &clock), clock)
    }

    tidegate_testkit::behaviour_suite!(new_store);
}

mod stopped_after_every_order {
    use super::*;

    fn new_store(tick: Tick) -> StoreFixture {
        let clock = Arc::new(ManualClock::ticking(tick, Timestamp::EPOCH));
        StoreFixture::new(Reopening::new(&clock, 1), clock)
    }

    tidegate_testkit::behaviour_suite!(new_store);
}

mod asked_in_short_and_stopped {
    use tidegate_testkit::compact_adapter::CompactAdapter;

    use super::*;

    fn new_store(tick: Tick) -> StoreFixture {
        let clock = Arc::new(ManualClock::ticking(tick, Timestamp::EPOCH));
        StoreFixture::new(CompactAdapter::new(Reopening::new(&clock, 1)), clock)
    }

    tidegate_testkit::behaviour_suite!(new_store);
}
